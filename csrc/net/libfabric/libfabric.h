/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The transport over libfabric: open.c opens a copy of it, which library.c has;
 * endpoint.c an endpoint; traffic.c hands over calls and reads completions;
 * region.c registers memory, and key.c has its keys. provider_info.c and
 * candidates.c say what there is. quirks.h has all that depends on a version or
 * a provider.
 */
#ifndef RMAEXT_LIBFABRIC_H
#define RMAEXT_LIBFABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "net/endpoint.h"
#include "net/libfabric/quirks.h"

/* libfabric's functions that are not inline, taken from one opened copy. */
struct rmaext_library {
	struct rmx_library head;
	void *handle;
	__typeof__(fi_getinfo) *getinfo;
	__typeof__(fi_freeinfo) *freeinfo;
	__typeof__(fi_dupinfo) *dupinfo;
	__typeof__(fi_fabric) *fabric;
	__typeof__(fi_version) *version;
	__typeof__(fi_strerror) *strerror;
	bool shared;	      /* others may have initialised it */
	atomic_bool tune;     /* its next fi_getinfo has settings of ours */
	char path[4096];      /* of the file, without links */
	char plugins[4200];   /* folder that its providers are loaded from */
	pthread_mutex_t lock; /* held around fi_getinfo and its setenv */
};

/* What an endpoint is made of. */
struct rmx_endpoint {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint64_t mr_mode; /* what the provider demands */
	bool tagged;	  /* messages are sent tagged, see rmx_has_rails() */
	bool two_pieces;  /* see rmx_forgets_injected() */
	pthread_mutex_t registering; /* guards asked, and who reads eq */
	uintptr_t asked; /* context of the last registration that eq reports */
	/* reports registrations, where the provider needs it; or NULL */
	_Atomic(struct fid_eq *) eq;
};

/* The table. */
extern const struct rmx_transport rmx_libfabric;

/* -- library.c */

/*
 * Looks a symbol up in an opened library. Returns its address, or NULL if the
 * library has none of that name and version.
 */
void *rmx_symbol(void *handle, const char *name, const char *version);

/*
 * Calls fi_getinfo, with the environment and the signals as this library needs
 * them. Any thread may call it; it takes lib->lock. Returns what fi_getinfo
 * returns; the caller frees *info_p by lib->freeinfo().
 */
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p);

/*
 * Set those of `count` environment variables (name, value) that are not set, as
 * ours[] notes, and unset them again. The lock of the library is held between
 * the two calls.
 */
void rmx_settings_hold(struct rmaext_library *lib,
		       const char *const (*settings)[2], size_t count,
		       bool *ours);
void rmx_settings_give_back(struct rmaext_library *lib,
			    const char *const (*settings)[2], size_t count,
			    const bool *ours);

/* -- endpoint.c */

/*
 * Makes the hints for fi_getinfo; a NULL provider or domain means any. Returns
 * what the caller frees by lib->freeinfo(), or NULL if memory is short.
 */
struct fi_info *rmx_hints(struct rmaext_library *lib, const char *provider,
			  const char *domain, int mr_basic);

/*
 * Returns a copy of the first entry of exactly that provider, and of that
 * domain unless it is NULL, which the caller frees by lib->freeinfo(), or NULL.
 * Frees the list, which may be NULL. The name "tcp" in the hints finds
 * "tcp;ofi_rxm" as well, and rxm of 1.17 does not heed the name of a domain.
 */
struct fi_info *rmx_info_exact(struct rmaext_library *lib,
			       struct fi_info *infos, const char *provider,
			       const char *domain);

/* -- traffic.c, region.c, key.c: what the table has of them */
int rmx_fi_receive(struct rmaext_fabric *f, void *buf, size_t len, void *desc,
		   struct rmx_call *call);
int rmx_fi_send(struct rmaext_fabric *f, uint64_t peer, const struct iovec *iov,
		void **descs, size_t count, struct rmx_call *call);
int rmx_fi_inject(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		  size_t len);
int rmx_fi_read(struct rmaext_fabric *f, const struct rmx_remote *from,
		void *buf, size_t len, void *desc, struct rmx_call *call);
int rmx_fi_write(struct rmaext_fabric *f, const struct rmx_remote *to,
		 void *buf, size_t len, void *desc, struct rmx_call *call);
int rmx_fi_put_copy(struct rmaext_fabric *f, const struct rmx_remote *to,
		    const void *buf, size_t len);
void rmx_fi_cancel(struct rmaext_fabric *f, struct rmx_call *call);
int rmx_fi_poll(struct rmaext_fabric *f, struct rmx_completion *done,
		struct rmaext_error *failure);
bool rmx_fi_arm(struct rmaext_fabric *f);
int rmx_fi_register(struct rmaext_fabric *f,
		    const struct rmx_registration *what,
		    struct rmx_region *region_p);
int rmx_fi_deregister(struct rmaext_fabric *f, struct rmx_region *region);
int rmx_fi_refresh(struct rmaext_fabric *f, struct rmx_region *region,
		   const struct iovec *iov, size_t count);
uint64_t rmx_fi_writes(const struct rmx_region *region);
int rmx_fi_key(struct rmaext_fabric *f, const struct rmx_region *region,
	       uint64_t *base, void *buf, size_t *len);
int rmx_fi_key_map(struct rmaext_fabric *f, uint64_t base, uint8_t *raw,
		   size_t len, uint64_t *key_p);
void rmx_fi_key_unmap(struct rmaext_fabric *f, uint64_t key);

#endif
