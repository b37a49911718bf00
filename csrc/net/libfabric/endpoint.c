/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening and closing an endpoint, and the addresses of its peers. */
#define _GNU_SOURCE
#include "net/endpoint.h"
#include "net/quirks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
static int cq_open(struct rmaext_fabric *f)
{
	struct fi_cq_attr attr = {
		.size = RMX_COMPLETIONS,
		.format = FI_CQ_FORMAT_MSG, /* has the length of a message */
		.wait_obj = FI_WAIT_FD,
	};
	int ret;

	f->progress.cq_fd = -1;
	ret = fi_cq_open(f->domain, &attr, &f->cq, NULL);
	if (!ret) {
		ret = fi_control(&f->cq->fid, FI_GETWAIT, &f->progress.cq_fd);
		if (!ret)
			return 0;
		fi_close(&f->cq->fid);
		f->cq = NULL;
		f->progress.cq_fd = -1;
	}
	attr.wait_obj = FI_WAIT_NONE;
	return fi_cq_open(f->domain, &attr, &f->cq, NULL);
}

/* Notes what the provider demands, and how much it takes at a time. */
static void fabric_set_limits(struct rmaext_fabric *f)
{
	f->mr_mode = (uint64_t)f->info->domain_attr->mr_mode;
	if (f->mr_mode & RMX_MR_BASIC)
		f->mr_mode |= MR_BASIC_MEANS;
	if (f->info->mode & RMX_LOCAL_MR)
		f->mr_mode |= FI_MR_LOCAL;
	f->mr_mode &= ~(uint64_t)RMX_MR_SCALABLE; /* is no demand */
	f->key_size = f->info->domain_attr->mr_key_size;
	f->chunk = f->info->ep_attr->max_msg_size;
	if (f->chunk > (size_t)4 << 20) /* so that long ones show progress */
		f->chunk = (size_t)4 << 20;
	if (f->chunk > 64)
		f->chunk &= ~(size_t)63;
	f->least = rmx_least(f->info->fabric_attr->prov_name, f->key_size);
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
	bool sees = rmx_redirect(RMX_ADDRESS(f->lib->getinfo)) &&
		    !rmx_accepts_in_kernel();
	int ret;

	/* that of ofi_mrail is a list of its rails' */
	f->admission.anywhere =
		!rmx_takes_address(f->info->fabric_attr->prov_name);
	f->admission.requests =
		rmx_listens_on_tcp(f->info->fabric_attr->prov_name);
	f->admission.native = f->admission.requests &&
			      !strchr(f->info->fabric_attr->prov_name, ';');
	rmx_admission_begin(&f->admission, sees);
	ret = fi_enable(f->ep);
	rmx_admission_end();
	return ret;
}

static int endpoint_make(struct rmaext_fabric *f,
			 const struct rmaext_fabric_options *options)
{
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC};
	struct rmaext_library *lib = f->lib;
	int ret;

	TRY("fi_fabric", lib->fabric(f->info->fabric_attr, &f->fabric, NULL));
	TRY("fi_domain", fi_domain(f->fabric, f->info, &f->domain, NULL));
	TRY("fi_av_open", fi_av_open(f->domain, &av_attr, &f->av, NULL));
	TRY("fi_cq_open", cq_open(f));
	TRY("fi_endpoint", fi_endpoint(f->domain, f->info, &f->ep, NULL));
	TRY("fi_ep_bind", fi_ep_bind(f->ep, &f->av->fid, 0));
	TRY("fi_ep_bind", fi_ep_bind(f->ep, &f->cq->fid, FI_RECV));
	TRY("fi_ep_bind", fi_ep_bind(f->ep, &f->cq->fid,
				     FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
	TRY("fi_enable", endpoint_enable(f));
	return 0;
}

/*
 * ofi_rxm of 2.5.1 frees the buffers of an endpoint that could not be enabled,
 * and frees them again when it is closed (rxm_ep_ctrl, rxm_ep_close). So such
 * an endpoint stays, with all that it was made of.
 */
static void endpoint_abandon(struct rmaext_fabric *f)
{
	f->ep = NULL;
	f->av = NULL;
	f->cq = NULL;
	f->domain = NULL;
	f->fabric = NULL;
}

int rmx_endpoint_open(struct rmaext_fabric *f,
		      const struct rmaext_fabric_options *options,
		      size_t least_message)
{
	enum { N = sizeof(rmx_rxm_over_tcp) / sizeof(*rmx_rxm_over_tcp) };
	struct rmaext_library *lib = f->lib;
	bool ours[N];
	size_t count;
	int ret = rmx_admission_init(&f->admission, options);

	if (ret)
		return ret;
	ret = info_find(lib, options, &f->info);

	if (ret)
		return ret;
	if (f->info->ep_attr->max_msg_size < least_message)
		return rmx_fail(
			-FI_ENODATA, RMX_NO_RANK, "rmaext_fabric_open",
			"provider %s takes messages of %zu bytes at most, %zu "
			"are needed; set RMAEXT_PROVIDER to another one",
			options->provider, f->info->ep_attr->max_msg_size,
			least_message);
	fabric_set_limits(f);
	count = rmx_listens_on_tcp(options->provider) ? N : 0;
	if (count && lib->shared && options->processes > RMX_UNSHARED_MOST)
		count--; /* without FI_OFI_RXM_USE_SRX */
	rmx_settings_hold(lib, rmx_rxm_over_tcp, count, ours);
	ret = endpoint_make(f, options);
	rmx_settings_give_back(lib, rmx_rxm_over_tcp, count, ours);
	if (ret && f->ep)
		endpoint_abandon(f);
	if (ret)
		return ret;
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

void rmx_endpoint_close(struct rmaext_fabric *f, int *ret_p)
{
	fid_close(f->ep ? &f->ep->fid : NULL, ret_p);
}

void rmx_domain_close(struct rmaext_fabric *f, bool stays, int *ret_p)
{
	struct fid_eq *eq = atomic_load(&f->registrar.eq);
	int ignored = 0;
	int *code_p = stays ? &ignored : ret_p;

	fid_close(f->av ? &f->av->fid : NULL, ret_p);
	fid_close(f->cq ? &f->cq->fid : NULL, ret_p);
	fid_close(f->domain ? &f->domain->fid : NULL, code_p);
	fid_close(eq ? &eq->fid : NULL, code_p);
	fid_close(f->fabric ? &f->fabric->fid : NULL, code_p);
	rmx_admission_close(&f->admission);
}

int rmx_fabric_enter(struct rmaext_fabric *f, const char *call)
{
	return rmx_rundown_enter(&f->rundown, call, "the fabric is closed");
}

void rmx_fabric_leave(struct rmaext_fabric *f)
{
	rmx_rundown_leave(&f->rundown);
}

void rmaext_fabric_describe(rmaext_fabric *f, struct rmaext_fabric_info *info_p)
{
	char raw[RMX_NAME];
	size_t len = sizeof(raw), text = sizeof(info_p->address);

	memset(info_p, 0, sizeof(*info_p));
	if (rmx_fabric_enter(f, "rmaext_fabric_describe"))
		return;
	snprintf(info_p->provider, sizeof(info_p->provider), "%s",
		 f->info->fabric_attr->prov_name);
	snprintf(info_p->domain, sizeof(info_p->domain), "%s",
		 f->info->domain_attr->name);
	if (!fi_getname(&f->ep->fid, raw, &len))
		fi_av_straddr(f->av, raw, info_p->address, &text);
	info_p->address[sizeof(info_p->address) - 1] = '\0';
	info_p->mr_mode = f->mr_mode;
	info_p->caps = f->info->caps;
	info_p->key_size = f->key_size;
	info_p->mr_iov_limit = rmx_pieces(f->info);
	info_p->auth_key_size = f->info->domain_attr->auth_key_size;
	info_p->max_msg_size = f->info->ep_attr->max_msg_size;
	info_p->wait_fd = f->progress.cq_fd >= 0;
	info_p->guarded = rmx_admission_works(&f->admission);
	rmx_fabric_leave(f);
}

int rmaext_fabric_address(rmaext_fabric *f, void *buf, size_t *len)
{
	int ret = rmx_fabric_enter(f, "rmaext_fabric_address");

	if (ret)
		return ret;
	ret = fi_getname(&f->ep->fid, buf, len);
	if (ret)
		rmx_fail(ret, RMX_NO_RANK, "fi_getname", "%s",
			 f->lib->strerror(-ret));
	rmx_fabric_leave(f);
	return ret;
}

/* fi_av_insert reads a whole address, whatever length the peer has sent. */
static bool address_is_like_own(struct rmaext_fabric *f, const void *address,
				size_t len)
{
	const bool ip = f->info->addr_format == FI_SOCKADDR_IN ||
			f->info->addr_format == FI_SOCKADDR_IN6;
	char own[RMX_NAME];
	size_t own_len = sizeof(own);

	if (fi_getname(&f->ep->fid, own, &own_len))
		return len == f->info->src_addrlen;
	return len == own_len &&
	       (!ip || !memcmp(address, own, sizeof(sa_family_t)));
}

int rmx_address_check(struct rmaext_fabric *f, const void *address, size_t len)
{
	if (address_is_like_own(f, address, len))
		return 0;
	return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "fi_av_insert",
			"a peer's address of %zu bytes is not of the own "
			"endpoint's kind: all ranks need the same provider",
			len);
}

/* The hash is FNV-1a. */
uint64_t rmx_name(const void *address, size_t len)
{
	const unsigned char *p = address;
	uint64_t name = 0xcbf29ce484222325;

	while (len--)
		name = (name ^ *p++) * 0x100000001b3;
	return name;
}

struct rmaext_peer *rmx_peer_find(struct rmaext_fabric *f, uint64_t name,
				  bool guests)
{
	struct rmaext_peer *found = NULL;

	pthread_mutex_lock(&f->lock);
	for (struct rmaext_peer *p = f->named[name % RMX_NAMES]; p; p = p->same)
		if (p->name == name && (guests || !p->guest) &&
		    (!found || atomic_load(&found->gone)))
			found = p;
	pthread_mutex_unlock(&f->lock);
	return found;
}

int rmx_peer_insert(struct rmaext_fabric *f, const void *address, size_t len,
		    int pidfd, struct rmaext_peer *peer)
{
	int ret = rmx_address_check(f, address, len);

	if (ret)
		return ret;
	ret = fi_av_insert(f->av, address, 1, &peer->addr, 0, NULL);
	if (ret != 1)
		return rmx_fail(ret < 0 ? ret : -FI_EADDRNOTAVAIL, RMX_NO_RANK,
				"fi_av_insert", "%s",
				ret < 0 ? f->lib->strerror(-ret)
					: "the provider refuses a peer's "
					  "address");
	peer->pidfd = pidfd;
	peer->name = rmx_name(address, len);
	rmx_probe_init(&peer->probe, f->info, address, len);
	pthread_mutex_lock(&f->lock);
	peer->next = f->peers;
	f->peers = peer;
	peer->same = f->named[peer->name % RMX_NAMES];
	f->named[peer->name % RMX_NAMES] = peer;
	if (peer->guest)
		f->guests++;
	else if (++f->ranks_met > f->ranks)
		f->ranks = f->ranks_met;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

/*
 * A connection to the address stays until that process ends it (ofi_rxm, unless
 * FI_AV_REMOVE_CLEANUP is set).
 */
void rmx_peer_remove(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmaext_peer **link = &f->peers;
	struct rmaext_peer **same = &f->named[peer->name % RMX_NAMES];

	pthread_mutex_lock(&f->lock);
	while (*link != peer)
		link = &(*link)->next;
	while (*same != peer)
		same = &(*same)->same;
	*link = peer->next;
	*same = peer->same;
	f->guests--;
	pthread_mutex_unlock(&f->lock);
	fi_av_remove(f->av, &peer->addr, 1, 0);
	rmx_probe_end(&peer->probe);
}
