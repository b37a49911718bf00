/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A libfabric provider that demands what no software provider demands. It sits
 * over tcp;ofi_rxm, whose objects it hands out with some of their operations
 * replaced; only memory regions are its own.
 */
#ifndef DEMAND_H
#define DEMAND_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include "net/libfabric/quirks.h"

#define LOWER "tcp;ofi_rxm"
#define DM_IOV 16	  /* pieces of one operation */
#define DM_RAW_LIMIT 4096 /* bytes of a raw key */
#define DM_PIECES 4	  /* of a region */

/* -- what is imposed ------------------------------------------------------ */

struct dm_demands {
	uint64_t mr_mode; /* FI_MR_* */
	bool async;	  /* registration completes through an EQ */
	bool pmem;	  /* FI_RMA_PMEM and FI_COMMIT_COMPLETE */
	size_t key_size, auth_key_size, iov_limit;
	size_t max_msg;		 /* bytes; 0: as long as below */
	uint64_t delay_ns;	 /* of completions */
	uint64_t async_delay_ns; /* of asynchronous registrations */
};

/* From the environment; the process' first call reads it. */
const struct dm_demands *dm_demands(void);

/* -- what is counted (report.c) ------------------------------------------- */

/* clang-format off */
#define DM_CALLS(X) \
	X(reg) X(regv) X(regattr) X(close_mr) X(bind) X(enable) \
	X(eq_read) X(refresh) X(raw_attr) X(map_raw) X(unmap_key) \
	X(mr_complete) X(read) X(write) X(inject_write) X(send) \
	X(inject) X(recv) X(atomic) X(completion) X(commit) \
	X(auth_key) X(close_ep) X(close_domain)
/* clang-format on */

#define DM_VIOLATIONS(X)                                                \
	X(argument) /* what the man page forbids */                     \
	X(flags)    /* unknown registration flags */                    \
	X(requested_key)                                                \
	X(allocated)  /* pages missing when registered */               \
	X(os_access)  /* more rights than the pages have */             \
	X(hmem)	      /* device memory, or none, said wrongly */        \
	X(collective) /* no FI_COLLECTIVE */                            \
	X(origin)     /* a buffer that no registration covers */        \
	X(desc)	      /* of no live registration */                     \
	X(rights)     /* not those that the registration was given */   \
	X(disabled)   /* used before fi_mr_enable */                    \
	X(unbound)    /* enabled before the bind, or bound too late */  \
	X(key)	      /* no such region at that peer */                 \
	X(raw_key)    /* malformed, not mapped, or no longer */         \
	X(address)    /* outside the region: base or length is wrong */ \
	X(refresh)    /* pages that came after the registration */      \
	X(busy)	      /* closed under an operation */                   \
	X(order)      /* closed before what depends on it */            \
	X(leak)	      /* a registration or mapped key left behind */

enum dm_call {
#define X(name) DM_CALL_##name,
	DM_CALLS(X)
#undef X
		DM_N_CALLS
};

enum dm_violation {
#define X(name) DM_##name,
	DM_VIOLATIONS(X)
#undef X
		DM_N_VIOLATIONS
};

/* Count a call; the error that DEMAND_FAULT wants it to have, or 0. */
int dm_called(enum dm_call call);

/* Count a violation and report it. Returns code, for the caller to return. */
int dm_violated(enum dm_violation kind, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void dm_report_begin(void);
void dm_report_event(const char *event, size_t left);

/* -- objects -------------------------------------------------------------- */

/* A libfabric in this process: there may be two. */
struct dm_library {
	struct dm_library *next;
	const void *base; /* where it is loaded */
	struct fi_provider provider;
	int (*getinfo)(uint32_t version, const char *node, const char *service,
		       uint64_t flags, const struct fi_info *hints,
		       struct fi_info **info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	void (*freeinfo)(struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
		      void *context);
};

/*
 * A table of operations, copied so that some can be replaced, and preceded by
 * the object that it belongs to. `table` is that of the lower object.
 */
void *dm_ops_copy(const void *table, void *owner);
void *dm_ops_owner(const void *copy);
void dm_ops_free(void *copy);

struct dm_fabric {
	struct dm_library *library;
	struct fi_ops *fid_ops;
	struct fi_ops_fabric *ops;
};

struct dm_mapped { /* a raw key */
	struct dm_mapped *next;
	uint64_t handle, key;
	bool live;
};

struct dm_domain {
	struct fid_domain *fid;
	struct dm_fabric *fabric;
	struct fi_ops *fid_ops;
	struct fi_ops_domain *ops;
	struct fi_ops_mr *mr, *own_mr;
	struct dm_eq *eq; /* bound with FI_REG_MR */
	struct dm_mapped *mapped;
	uint64_t id; /* random */
	uint64_t last_key;
	size_t regions, mappings;
	size_t objects; /* endpoints, queues, counters, address vectors */
};

/* That a registration is done, or has failed; it comes after its close, too. */
struct dm_event {
	struct dm_event *next;
	struct dm_region *region; /* NULL: closed meanwhile */
	struct fid *fid;
	void *context;
	uint64_t due_ns;
	int fault;
};

struct dm_eq {
	struct fi_ops *fid_ops;
	struct fi_ops_eq *ops;
	struct dm_event *pending; /* oldest first */
	size_t domains;
};

struct dm_cntr {
	struct fid_cntr *fid;
	struct dm_domain *domain;
	struct fi_ops *fid_ops;
	struct fi_ops_cntr *ops;
	struct dm_region *bound;
	uint64_t past; /* of regions that are closed */
};

struct dm_endpoint {
	struct fid_ep *fid;
	struct dm_domain *domain;
	struct fid_av *av;
	struct fid *cqs[2];
	size_t n_cqs;
	struct fi_ops *fid_ops;
	struct fi_ops_ep *ops;
	struct fi_ops_msg *msg;
	struct fi_ops_tagged *tagged;
	struct fi_ops_rma *rma;
	struct fi_ops_atomic *atomic;
	struct dm_op *pending;
	size_t regions; /* bound to it */
	bool enabled;
};

/* One that was posted, and what it uses until it completes. */
struct dm_op {
	struct dm_op *next, **prev;
	struct dm_endpoint *ep;
	void *context; /* the application's */
	struct dm_region *regions[3 * DM_IOV];
	size_t n_regions;
	struct dm_entry *written; /* the target's region */
};

struct dm_region {
	struct fid_mr fid;
	struct dm_region *chain;   /* of the hash table */
	struct dm_region *counted; /* next of the counter */
	struct dm_domain *domain;
	struct dm_endpoint *ep;
	struct dm_cntr *cntr;
	struct dm_entry *entry;
	struct fid_mr
		*lower[DM_PIECES]; /* none where only this process uses it */
	struct iovec pieces[DM_PIECES];
	size_t n_pieces;
	void *context;
	char *base;
	size_t len;
	uint64_t access, flags, key;
	enum fi_hmem_iface iface;
	size_t ops;
	bool enabled, ready;
};

/* One lock for all of it: nothing here needs to be fast. */
void dm_lock(void);
void dm_unlock(void);

void dm_domain_patch(struct dm_fabric *fabric, struct fid_domain *fid);
void dm_region_patch(struct dm_domain *domain);
int dm_endpoint_patch(struct dm_domain *domain, struct fid_ep *fid);
int dm_cq_patch(struct dm_domain *domain, struct fid_cq *fid,
		const struct fi_cq_attr *attr);
void dm_domain_count(struct dm_domain *domain, int change);
void dm_av_count(struct fid_av *av, int change);
void dm_cq_count(struct fid *cq, int change);
int dm_eq_patch(struct fid_eq *fid);
struct fi_info *dm_lower_info(struct dm_library *library,
			      const struct fi_info *info);
uint64_t dm_now_ns(void);
uint64_t dm_random(void);

/* What became of those that a provider refuses to close: it is in use. */
int dm_close_lower(const struct fi_ops *lower, struct fid *fid,
		   const char *what);

/* The owner of a patched object, or NULL. */
struct dm_endpoint *dm_endpoint_of(struct fid *fid);
struct dm_cntr *dm_cntr_of(struct fid *fid);
struct dm_eq *dm_eq_of(struct fid *fid);

/* -- regions (region.c, use.c, raw.c, pages.c) ---------------------------- */

/* The list that a region is in. The lock is held. */
struct dm_region **dm_region_bucket(const void *region);

/* Whether [buf, len) may be used so; holds the region until the op is done. */
int dm_region_use(struct dm_op *op, struct dm_endpoint *ep, const void *buf,
		  size_t len, void *desc, uint64_t access);

/* Let others see whether it may be used. */
void dm_region_show(struct dm_region *region);

int dm_raw_attr(struct dm_region *region, const struct fi_mr_raw_attr *attr);
int dm_raw_map(struct dm_domain *domain, struct fi_mr_map_raw *map);
int dm_raw_unmap(struct dm_domain *domain, uint64_t handle);
int dm_raw_find(struct dm_domain *domain, uint64_t handle, uint64_t *key_p);

bool dm_demanded(uint64_t bit);
int dm_iface_of(const char *start, size_t len);
size_t dm_page_size(void);
char *dm_page_of(const void *address);
size_t dm_pages(const void *start, size_t len);
int dm_check_allocated(const struct iovec *iov);
int dm_check_os_access(const struct iovec *iov, uint64_t access);

/* The pages that the device knows of, from now on. */
void dm_watch(struct dm_region *region, const char *start, size_t len);

/* -- operations (queue.c, post.c) ----------------------------------------- */

struct dm_op *dm_op_begin(struct dm_endpoint *ep, void *context);
void dm_op_drop(struct dm_op *op); /* it was not posted */
void dm_op_forget_all(struct dm_endpoint *ep);
struct dm_op *dm_op_of(struct dm_endpoint *ep, void *context);
bool dm_cq_waiting(struct fid *cq);

struct dm_endpoint *dm_ep_of(struct fid_ep *fid);
int dm_post_begin(struct dm_endpoint *ep, enum dm_call call, void *context,
		  struct dm_op **op_p);
ssize_t dm_post_end(struct dm_op *op, ssize_t ret);
int dm_use_iov(struct dm_op *op, const struct iovec *iov, void **desc,
	       size_t count, uint64_t access);

/*
 * May this be done there? Appends to the n_p that `to` has what the lower
 * provider takes: more than one where the region is of several pieces.
 */
int dm_check_target(struct dm_endpoint *ep, fi_addr_t peer,
		    const struct fi_rma_iov *from, uint64_t access,
		    struct fi_rma_iov *to, size_t *n_p,
		    struct dm_entry **entry_p);

void dm_message_patch(struct dm_endpoint *ep);
void dm_transfer_patch(struct dm_endpoint *ep);
void dm_atomic_patch(struct dm_endpoint *ep);

/* -- what ranks know of each other (registry.c) --------------------------- */

/*
 * A region, where the other ranks can see it: in a file that all of a job map.
 * So an origin is told what it does wrong, rather than its target harmed.
 */
struct dm_entry {
	_Atomic uint32_t state;
	_Atomic uint32_t enabled;
	uint64_t domain, key, base, len, access, flags;
	uint64_t first;	   /* where the region begins in its first page */
	uint64_t resident; /* offset of a byte for each page; 0: not watched */
	_Atomic uint64_t writes;
	uint64_t n_pieces;
	struct dm_piece {
		uint64_t len, key; /* the lower provider's */
	} pieces[DM_PIECES];
};

struct dm_entry *dm_registry_add(uint64_t domain, uint64_t key);
void dm_registry_publish(struct dm_entry *entry);
struct dm_entry *dm_registry_find(uint64_t domain, uint64_t key);
void dm_registry_remove(struct dm_entry *entry);
unsigned char *dm_registry_bytes(struct dm_entry *entry, size_t n);
void dm_registry_name(const void *name, size_t len, uint64_t domain);
int dm_registry_domain(const void *name, size_t len, uint64_t *domain_p);

#endif
