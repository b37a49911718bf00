/* SPDX-License-Identifier: BSD-3-Clause */
/* What a provider says of itself, for `python -m rmaext info`. */
#define _GNU_SOURCE
#include "net/libfabric/libfabric.h"

#include <rdma/fi_atomic.h>
#include <string.h>

static struct fi_info *info_first(struct rmaext_library *lib,
				  const char *provider, int mr_basic,
				  uint64_t caps)
{
	struct fi_info *hints = rmx_hints(lib, provider, NULL, mr_basic);
	struct fi_info *infos = NULL;

	if (!hints)
		return NULL;
	hints->caps |= caps;
	if (rmx_getinfo(lib, NULL, 0, hints, &infos))
		infos = NULL;
	lib->freeinfo(hints);
	return rmx_info_exact(lib, infos, provider, NULL);
}

static void survey_copy(const struct fi_info *info, struct rmaext_providers *s)
{
	s->caps = info->caps;
	s->mr_mode = (uint64_t)info->domain_attr->mr_mode;
	s->key_size = info->domain_attr->mr_key_size;
	s->mr_count = info->domain_attr->mr_cnt;
	s->mr_iov_limit = info->domain_attr->mr_iov_limit;
	s->max_msg_size = info->ep_attr->max_msg_size;
	s->inject_size = info->tx_attr->inject_size;
	s->iov_limit = info->tx_attr->iov_limit;
	s->rma_iov_limit = info->tx_attr->rma_iov_limit;
	s->tx_size = info->tx_attr->size;
	s->control_auto =
		info->domain_attr->control_progress == FI_PROGRESS_AUTO;
	s->data_auto = info->domain_attr->data_progress == FI_PROGRESS_AUTO;
}

/* Returns how many uint64 one atomic operation takes at most; 0: none. */
static uint64_t atomic_most(struct fid_domain *domain, enum fi_op op,
			    uint64_t flags)
{
	struct fi_atomic_attr attr = {0};

	if (fi_query_atomic(domain, FI_UINT64, op, &attr, flags))
		return 0;
	return attr.count;
}

/* Opens the domain and a CQ, which must be open before they can be asked. */
static int survey_ask(struct rmaext_library *lib, struct fi_info *info,
		      struct rmaext_providers *s)
{
	struct fi_cq_attr attr = {
		.format = FI_CQ_FORMAT_MSG,
		.wait_obj = FI_WAIT_FD,
	};
	struct fid_fabric *fabric = NULL;
	struct fid_domain *domain = NULL;
	struct fid_cq *cq = NULL;
	const char *call = "fi_fabric";
	int fd, ret;

	ret = lib->fabric(info->fabric_attr, &fabric, NULL);
	if (!ret) {
		call = "fi_domain";
		ret = fi_domain(fabric, info, &domain, NULL);
	}
	if (ret) {
		rmx_fail(ret, RMX_NO_RANK, call, "%s", lib->strerror(-ret));
		goto close;
	}
	s->wait_fd = !fi_cq_open(domain, &attr, &cq, NULL) &&
		     !fi_control(&cq->fid, FI_GETWAIT, &fd);
	if (info->caps & FI_ATOMIC) {
		s->atomic_count = atomic_most(domain, FI_SUM, 0);
		s->fetch_count = atomic_most(domain, FI_SUM, FI_FETCH_ATOMIC);
		s->compare_count =
			atomic_most(domain, FI_CSWAP, FI_COMPARE_ATOMIC);
	}
close:
	if (cq)
		fi_close(&cq->fid);
	if (domain)
		fi_close(&domain->fid);
	if (fabric)
		fi_close(&fabric->fid);
	return ret;
}

int rmaext_providers(rmaext_library *lib, const char *provider, int mr_basic,
		     struct rmaext_providers *survey_p)
{
	struct fi_info *info = info_first(lib, provider, mr_basic, 0);
	struct fi_info *atomic;
	struct rmx_signals *signals;
	int ret;

	memset(survey_p, 0, sizeof(*survey_p));
	if (!info)
		return rmx_fail(-FI_ENODATA, RMX_NO_RANK, "fi_getinfo",
				"libfabric has no provider %s here", provider);
	survey_copy(info, survey_p);
	atomic = info_first(lib, provider, mr_basic, FI_ATOMIC);
	signals = rmx_signals_hold(); /* its threads inherit the mask */
	ret = survey_ask(lib, atomic ? atomic : info, survey_p);
	rmx_signals_give_back(signals, RMX_ADDRESS(lib->getinfo));
	if (atomic)
		lib->freeinfo(atomic);
	lib->freeinfo(info);
	return ret;
}

int rmaext_settings(rmaext_library *lib, char *buf, size_t *len)
{
	__typeof__(fi_getparams) *getparams;
	__typeof__(fi_freeparams) *freeparams;
	void *get = rmx_symbol(lib->handle, "fi_getparams", "FABRIC_1.0");
	void *release = rmx_symbol(lib->handle, "fi_freeparams", "FABRIC_1.0");
	struct fi_param *params;
	struct rmx_text text = {.buf = buf, .size = *len};
	int count, ret;

	if (!get || !release)
		return rmx_fail(-FI_ENOSYS, RMX_NO_RANK, "dlsym",
				"this libfabric has no fi_getparams");
	memcpy(&getparams, &get, sizeof(get));
	memcpy(&freeparams, &release, sizeof(release));
	ret = getparams(&params, &count);
	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "fi_getparams", "%s",
				lib->strerror(-ret));
	for (int i = 0; i < count; i++)
		rmx_text_add(&text, "%s\t%s\t%s\n", params[i].name,
			     params[i].value ? params[i].value : "",
			     params[i].help_string);
	freeparams(params);
	return rmx_text_end(&text, "rmaext_settings", len);
}
