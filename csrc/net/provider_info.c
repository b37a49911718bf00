/* SPDX-License-Identifier: BSD-3-Clause */
/* What a provider says of itself, for those who ask: python -m rmaext info. */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <rdma/fi_atomic.h>
#include <stdio.h>
#include <string.h>

static struct fi_info *first_info(struct rmaext_library *lib,
				  const char *provider, int mr_basic,
				  uint64_t caps)
{
	struct fi_info *hints = rmx_hints(lib, provider, NULL, mr_basic);
	struct fi_info *infos = NULL, *found = NULL;

	if (!hints)
		return NULL;
	hints->caps |= caps;
	if (rmx_getinfo(lib, NULL, 0, hints, &infos))
		infos = NULL;
	lib->freeinfo(hints);
	/* the name "tcp" finds "tcp;ofi_rxm" as well */
	for (struct fi_info *i = infos; i && !found; i = i->next)
		if (!strcmp(i->fabric_attr->prov_name, provider))
			found = lib->dupinfo(i);
	if (infos)
		lib->freeinfo(infos);
	return found;
}

static void copy_attributes(const struct fi_info *info, struct rmaext_survey *s)
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

/* Most elements of an unsigned 64-bit sum, 0: none. */
static uint64_t most(struct fid_domain *domain, enum fi_op op, uint64_t flags)
{
	struct fi_atomic_attr attr = {0};

	if (fi_query_atomic(domain, FI_UINT64, op, &attr, flags))
		return 0;
	return attr.count;
}

/* Opens what has to be open before it can be asked. */
static int ask(struct rmaext_library *lib, struct fi_info *info,
	       struct rmaext_survey *s)
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
		s->atomic_count = most(domain, FI_SUM, 0);
		s->fetch_count = most(domain, FI_SUM, FI_FETCH_ATOMIC);
		s->compare_count = most(domain, FI_CSWAP, FI_COMPARE_ATOMIC);
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

int rmaext_survey(rmaext_library *lib, const char *provider, int mr_basic,
		  struct rmaext_survey *survey_p)
{
	struct fi_info *info = first_info(lib, provider, mr_basic, 0);
	struct fi_info *atomic;
	struct rmx_signals *signals;
	int ret;

	memset(survey_p, 0, sizeof(*survey_p));
	if (!info)
		return rmx_fail(-FI_ENODATA, RMX_NO_RANK, "fi_getinfo",
				"no provider %s", provider);
	copy_attributes(info, survey_p);
	atomic = first_info(lib, provider, mr_basic, FI_ATOMIC);
	signals = rmx_signals_hold(); /* its threads inherit the mask */
	ret = ask(lib, atomic ? atomic : info, survey_p);
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
	size_t size = *len, used = 0;
	int count, ret;

	if (!get || !release)
		return rmx_fail(-FI_ENOSYS, RMX_NO_RANK, "dlsym",
				"fi_getparams is missing");
	memcpy(&getparams, &get, sizeof(get));
	memcpy(&freeparams, &release, sizeof(release));
	ret = getparams(&params, &count);
	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "fi_getparams", "%s",
				lib->strerror(-ret));
	for (int i = 0; i < count; i++) {
		int n = snprintf(used < size ? buf + used : NULL,
				 used < size ? size - used : 0, "%s\t%s\t%s\n",
				 params[i].name,
				 params[i].value ? params[i].value : "",
				 params[i].help_string);

		used += n > 0 ? (size_t)n : 0;
	}
	freeparams(params);
	*len = used + 1;
	if (used + 1 > size)
		return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, "rmaext_settings",
				"%zu bytes needed", used + 1);
	if (!used)
		buf[0] = '\0';
	return 0;
}
