/* SPDX-License-Identifier: BSD-3-Clause */
/* Opens and closes an endpoint of libfabric, and has its limits. */
#define _GNU_SOURCE
#include "net/libfabric/libfabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The demands of providers that this library can meet. FI_MR_BASIC stands
 * alone: it is the old spelling of VIRT_ADDR | ALLOCATED | PROV_KEY, as the
 * mode FI_LOCAL_MR is of LOCAL.
 */
#define MR_BASIC_MEANS (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)
#define MR_MODES                                                       \
	(FI_MR_LOCAL | MR_BASIC_MEANS | FI_MR_RAW | FI_MR_MMU_NOTIFY | \
	 FI_MR_RMA_EVENT | FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_COLLECTIVE)

struct fi_info *rmx_hints(struct rmaext_library *lib, const char *provider,
			  const char *domain, int mr_basic)
{
	struct fi_info *hints = lib->dupinfo(NULL);

	if (!hints)
		return NULL;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2 | (mr_basic ? RMX_LOCAL_MR : 0);
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = mr_basic ? RMX_MR_BASIC : MR_MODES;
	/* application threads post while another thread reads the CQ */
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	if (provider)
		hints->fabric_attr->prov_name = strdup(provider);
	if (domain)
		hints->domain_attr->name = strdup(domain);
	if ((provider && !hints->fabric_attr->prov_name) ||
	    (domain && !hints->domain_attr->name)) {
		lib->freeinfo(hints);
		return NULL;
	}
	return hints;
}

struct fi_info *rmx_info_exact(struct rmaext_library *lib,
			       struct fi_info *infos, const char *provider,
			       const char *domain)
{
	struct fi_info *found = NULL;

	for (struct fi_info *i = infos; i && !found; i = i->next)
		if (!strcmp(i->fabric_attr->prov_name, provider) &&
		    (!domain || !strcmp(i->domain_attr->name, domain)))
			found = lib->dupinfo(i);
	if (infos)
		lib->freeinfo(infos);
	return found;
}

static int info_find(struct rmaext_library *lib,
		     const struct rmaext_fabric_options *options,
		     struct fi_info **info_p)
{
	struct fi_info *hints, *infos = NULL;
	const char *node = options->address;
	int ret;

	if (node && !rmx_takes_address(options->provider))
		node = NULL;
	hints = rmx_hints(lib, options->provider, options->domain,
			  options->mr_basic);
	if (!hints)
		return rmx_no_memory("the hints of fi_getinfo");
	if (options->hmem)
		hints->caps |= FI_HMEM;
	ret = rmx_getinfo(lib, node, node ? FI_SOURCE : 0, hints, &infos);
	lib->freeinfo(hints);
	*info_p = rmx_info_exact(lib, ret ? NULL : infos, options->provider,
				 options->domain);
	if (!*info_p)
		return rmx_fail(-FI_ENODATA, RMX_NO_RANK, "fi_getinfo",
				"provider %s, domain %s, address %s%s: %s",
				options->provider,
				options->domain ? options->domain : "any",
				node ? node : "any",
				options->hmem ? ", with FI_HMEM" : "",
				lib->strerror(ret ? -ret : FI_ENODATA));
	return 0;
}

/* Opens the CQ, with a descriptor to sleep on where the provider has one. */
static int cq_open(struct rmx_endpoint *e, int *fd_p)
{
	struct fi_cq_attr attr = {
		.size = RMX_COMPLETIONS,
		.format = FI_CQ_FORMAT_MSG, /* has the length of a message */
		.wait_obj = FI_WAIT_FD,
	};
	int ret;

	ret = fi_cq_open(e->domain, &attr, &e->cq, NULL);
	if (!ret) {
		ret = fi_control(&e->cq->fid, FI_GETWAIT, fd_p);
		if (!ret)
			return 0;
		fi_close(&e->cq->fid);
		e->cq = NULL;
		*fd_p = -1;
	}
	attr.wait_obj = FI_WAIT_NONE;
	return fi_cq_open(e->domain, &attr, &e->cq, NULL);
}

static size_t chunk_of(const struct fi_info *info)
{
	const size_t most = (size_t)4 << 20; /* long ones show progress */
	const size_t chunk = info->ep_attr->max_msg_size;

	if (chunk > most)
		return most;
	return chunk > 64 ? chunk & ~(size_t)63 : chunk;
}

/* Notes what the provider demands, and how much it takes at a time. */
static void limits_set(struct rmaext_fabric *f)
{
	struct rmx_endpoint *e = f->endpoint;
	const struct fi_info *info = e->info;
	const char *name = info->fabric_attr->prov_name;
	const size_t key = info->domain_attr->mr_key_size;

	e->mr_mode = (uint64_t)info->domain_attr->mr_mode;
	if (e->mr_mode & RMX_MR_BASIC)
		e->mr_mode |= MR_BASIC_MEANS;
	if (info->mode & RMX_LOCAL_MR)
		e->mr_mode |= FI_MR_LOCAL;
	e->mr_mode &= ~(uint64_t)RMX_MR_SCALABLE; /* is no demand */
	e->tagged = rmx_has_rails(name);
	e->two_pieces = rmx_forgets_injected(name);
	f->limits = (struct rmx_limits){
		.message = rmx_message_most(info),
		.chunk = chunk_of(info),
		.least = rmx_least(name, key),
		.copied = info->tx_attr->inject_size,
		.pieces = info->tx_attr->iov_limit,
		.region_pieces = rmx_pieces(info),
		.keys = e->mr_mode & (FI_MR_PROV_KEY | FI_MR_RAW) || !key ||
					key >= 8
				? UINT64_MAX
				: (uint64_t)1 << (8 * key),
		.in_order = info->tx_attr->msg_order &
				    info->rx_attr->msg_order & FI_ORDER_SAS &&
			    !rmx_has_rails(name),
		.ip = info->addr_format == FI_SOCKADDR_IN ||
		      info->addr_format == FI_SOCKADDR_IN6,
		.tcp = rmx_listens_on_tcp(name),
		.registers = e->mr_mode & FI_MR_LOCAL,
		.bound = e->mr_mode & FI_MR_ENDPOINT,
		.addressed = e->mr_mode & FI_MR_VIRT_ADDR,
		.raw_keys = e->mr_mode & FI_MR_RAW,
		.devices = info->caps & FI_HMEM,
	};
	snprintf(f->limits.provider, sizeof(f->limits.provider), "%s", name);
}

#define TRY(call, ...)                                                        \
	do {                                                                  \
		ret = (__VA_ARGS__);                                          \
		if (ret)                                                      \
			return rmx_fail(ret, RMX_NO_RANK, call,               \
					"provider %s: %s", options->provider, \
					lib->strerror(-ret));                 \
	} while (0)

/* Has the endpoint listen, and its connections checked from the first on. */
static int endpoint_enable(struct rmaext_fabric *f)
{
	const char *name = f->limits.provider;
	bool sees = rmx_redirect(RMX_ADDRESS(f->lib->getinfo)) &&
		    !rmx_accepts_in_kernel();
	int ret;

	/* that of ofi_mrail is a list of its rails' */
	f->admission.anywhere = !rmx_takes_address(name);
	f->admission.requests = f->limits.tcp;
	f->admission.native = f->limits.tcp && !strchr(name, ';');
	rmx_admission_begin(&f->admission, sees);
	ret = fi_enable(f->endpoint->ep);
	rmx_admission_end();
	return ret;
}

static int endpoint_make(struct rmaext_fabric *f,
			 const struct rmaext_fabric_options *options)
{
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC};
	struct rmaext_library *lib = f->lib;
	struct rmx_endpoint *e = f->endpoint;
	int ret;

	TRY("fi_fabric", lib->fabric(e->info->fabric_attr, &e->fabric, NULL));
	TRY("fi_domain", fi_domain(e->fabric, e->info, &e->domain, NULL));
	TRY("fi_av_open", fi_av_open(e->domain, &av_attr, &e->av, NULL));
	TRY("fi_cq_open", cq_open(e, &f->progress.cq_fd));
	TRY("fi_endpoint", fi_endpoint(e->domain, e->info, &e->ep, NULL));
	TRY("fi_ep_bind", fi_ep_bind(e->ep, &e->av->fid, 0));
	TRY("fi_ep_bind", fi_ep_bind(e->ep, &e->cq->fid, FI_RECV));
	TRY("fi_ep_bind", fi_ep_bind(e->ep, &e->cq->fid,
				     FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
	TRY("fi_enable", endpoint_enable(f));
	return 0;
}

/*
 * ofi_rxm of 2.5.1 frees the buffers of an endpoint that could not be enabled,
 * and frees them again when it is closed (rxm_ep_ctrl, rxm_ep_close). So such
 * an endpoint stays, with all that it was made of.
 */
static void endpoint_abandon(struct rmx_endpoint *e)
{
	e->ep = NULL;
	e->av = NULL;
	e->cq = NULL;
	e->domain = NULL;
	e->fabric = NULL;
}

static int endpoint_open(struct rmaext_fabric *f,
			 const struct rmaext_fabric_options *options,
			 size_t least_message)
{
	enum { N = sizeof(rmx_rxm_over_tcp) / sizeof(*rmx_rxm_over_tcp) };
	struct rmaext_library *lib = f->lib;
	bool ours[N];
	size_t count;
	int ret;

	if (rmx_runs_dry(options->provider, lib->version()))
		return rmx_fail(-FI_ENODATA, RMX_NO_RANK, "rmaext_fabric_open",
				"provider %s: takes some 2,048 messages only "
				"in libfabric 2.x; name a library of 1.x in "
				"RMAEXT_LIBFABRIC",
				options->provider);
	f->endpoint = calloc(1, sizeof(*f->endpoint));
	if (!f->endpoint)
		return rmx_no_memory("an endpoint");
	pthread_mutex_init(&f->endpoint->registering, NULL);
	ret = rmx_admission_init(&f->admission, options);
	if (!ret)
		ret = info_find(lib, options, &f->endpoint->info);
	if (ret)
		return ret;
	limits_set(f);
	if (f->limits.message < least_message)
		return rmx_fail(
			-FI_ENODATA, RMX_NO_RANK, "rmaext_fabric_open",
			"provider %s takes messages of %zu bytes at most, %zu "
			"are needed; set RMAEXT_PROVIDER to another one",
			options->provider, f->limits.message, least_message);
	count = f->limits.tcp ? N : 0;
	if (count && lib->shared && options->processes > RMX_UNSHARED_MOST)
		count--; /* without FI_OFI_RXM_USE_SRX */
	rmx_settings_hold(lib, rmx_rxm_over_tcp, count, ours);
	ret = endpoint_make(f, options);
	rmx_settings_give_back(lib, rmx_rxm_over_tcp, count, ours);
	if (ret && f->endpoint->ep)
		endpoint_abandon(f->endpoint);
	if (ret)
		return ret;
	f->address_len = sizeof(f->address);
	TRY("fi_getname",
	    fi_getname(&f->endpoint->ep->fid, f->address, &f->address_len));
	if (options->secret && !rmx_admission_signs(&f->admission))
		return rmx_fail(-FI_ENOSYS, RMX_NO_RANK, "rmaext_fabric_open",
				"provider %s: what it sends cannot be signed; "
				"set RMAEXT_PROVIDER to \"tcp;ofi_rxm\", or "
				"unset RMAEXT_SECRET",
				options->provider);
	return 0;
}

static void fid_close(struct fid *fid, int *ret_p)
{
	int ret = fid ? fi_close(fid) : 0;

	if (ret && !*ret_p)
		*ret_p = rmx_fail(ret, RMX_NO_RANK, "fi_close",
				  "object of class %zu", fid->fclass);
}

static void endpoint_close(struct rmaext_fabric *f, int *ret_p)
{
	struct rmx_endpoint *e = f->endpoint;

	fid_close(e && e->ep ? &e->ep->fid : NULL, ret_p);
}

static void endpoint_end(struct rmaext_fabric *f, bool stays, int *ret_p)
{
	struct rmx_endpoint *e = f->endpoint;
	int ignored = 0;
	int *code_p = stays ? &ignored : ret_p;
	struct fid_eq *eq = e ? atomic_load(&e->eq) : NULL;

	if (!e)
		return;
	fid_close(e->av ? &e->av->fid : NULL, ret_p);
	fid_close(e->cq ? &e->cq->fid : NULL, ret_p);
	fid_close(e->domain ? &e->domain->fid : NULL, code_p);
	fid_close(eq ? &eq->fid : NULL, code_p);
	fid_close(e->fabric ? &e->fabric->fid : NULL, code_p);
	if (e->info)
		f->lib->freeinfo(e->info);
	rmx_admission_close(&f->admission);
	pthread_mutex_destroy(&e->registering);
	free(e);
	f->endpoint = NULL;
}

static const char *words_of(const struct rmaext_fabric *f, int code)
{
	return rmaext_strerror(f->lib, code);
}

static void endpoint_describe(const struct rmaext_fabric *f,
			      struct rmaext_fabric_info *info_p)
{
	const struct rmx_endpoint *e = f->endpoint;
	const struct fi_domain_attr *domain = e->info->domain_attr;
	size_t text = sizeof(info_p->address);

	snprintf(info_p->domain, sizeof(info_p->domain), "%s", domain->name);
	fi_av_straddr(e->av, f->address, info_p->address, &text);
	info_p->address[sizeof(info_p->address) - 1] = '\0';
	info_p->mr_mode = e->mr_mode;
	info_p->caps = e->info->caps;
	info_p->key_size = domain->mr_key_size;
	info_p->auth_key_size = domain->auth_key_size;
	info_p->max_msg_size = e->info->ep_attr->max_msg_size;
}

static int peer_add(struct rmaext_fabric *f, const void *address, size_t len,
		    uint64_t *peer_p)
{
	int ret = fi_av_insert(f->endpoint->av, address, 1, peer_p, 0, NULL);

	(void)len;
	if (ret == 1)
		return 0;
	return rmx_fail(ret < 0 ? ret : -FI_EADDRNOTAVAIL, RMX_NO_RANK,
			"fi_av_insert", "%s",
			ret < 0 ? f->lib->strerror(-ret)
				: "the provider refuses a peer's address");
}

/*
 * A connection to the address stays until that process ends it (ofi_rxm, unless
 * FI_AV_REMOVE_CLEANUP is set).
 */
static void peer_remove(struct rmaext_fabric *f, uint64_t peer)
{
	fi_av_remove(f->endpoint->av, &peer, 1, 0);
}

const struct rmx_transport rmx_libfabric = {
	.open = endpoint_open,
	.close = endpoint_close,
	.end = endpoint_end,
	.words = words_of,
	.describe = endpoint_describe,
	.add = peer_add,
	.remove = peer_remove,
	.receive = rmx_fi_receive,
	.send = rmx_fi_send,
	.inject = rmx_fi_inject,
	.read = rmx_fi_read,
	.write = rmx_fi_write,
	.put_copy = rmx_fi_put_copy,
	.cancel = rmx_fi_cancel,
	.poll = rmx_fi_poll,
	.arm = rmx_fi_arm,
	.register_memory = rmx_fi_register,
	.deregister = rmx_fi_deregister,
	.deregister_call = "fi_close",
	.refresh = rmx_fi_refresh,
	.writes = rmx_fi_writes,
	.key = rmx_fi_key,
	.key_map = rmx_fi_key_map,
	.key_unmap = rmx_fi_key_unmap,
};
