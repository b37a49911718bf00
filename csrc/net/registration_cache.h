/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Local memory that a provider wants registered (FI_MR_LOCAL): buffers of the
 * caller (registration_cache.c) and bounce buffers (bounce.c).
 */
#ifndef RMAEXT_REGISTRATION_CACHE_H
#define RMAEXT_REGISTRATION_CACHE_H

#include "net/transport.h"

/* A piece of the caller's memory. The cache owns the struct. */
struct rmx_cached_buffer {
	struct rmx_region region;
	uintptr_t start;
	uint64_t len;
	uint64_t token;	   /* 0: it is of one operation, or was forgotten */
	uint64_t used;	   /* the cache's clock at its last use */
	bool pinned;	   /* it is never evicted */
	bool once;	   /* it was registered for one operation */
	atomic_uint users; /* operations; grows under the lock only */
	struct rmx_cached_buffer *next;
};

/* Memory of many bounce buffers, registered at once. */
struct rmx_slab {
	struct rmx_region region;
	struct rmx_slab *next;
	char *blocks;
};

struct rmx_registration_cache {
	/* without limits.registers nothing of it is in use */
	uint64_t most, most_bytes; /* limits of registrations that are kept */
	pthread_mutex_t lock;	   /* guards all up to next_key */
	struct rmx_cached_buffer **known; /* sorted by start */
	size_t count, room;
	struct rmx_cached_buffer *others; /* without a token */
	uint64_t registered, bytes;	  /* of the known ones */
	uint64_t clock, last_token, next_key;
	pthread_mutex_t bounce_lock; /* guards slabs and free_bounces */
	size_t bounce_bytes;	     /* of one bounce buffer */
	struct rmx_slab *slabs;
	void *free_bounces; /* each begins with a pointer to the next */
	atomic_uint bounces_used;
	atomic_uint_fast64_t hits, misses, evictions, bounced;
};

/* -- registration_cache.c */

/*
 * Prepares the cache of a fabric that opens. `bounce_bytes` is the size of a
 * bounce buffer. Returns 0, or -FI_EIO without a record.
 */
int rmx_cache_start(struct rmaext_fabric *fabric,
		    const struct rmaext_fabric_options *options,
		    size_t bounce_bytes);

/*
 * Deregisters all, after the endpoint was closed. Returns 0 or the first error,
 * without a record.
 */
int rmx_cache_close(struct rmaext_fabric *fabric);

/* Frees all that no operation has any more, after rmx_cache_close(). */
void rmx_cache_free(struct rmaext_fabric *fabric);

/*
 * Returns a registration of own memory for one operation: the network reads it,
 * or writes it if `result` is set. Where FI_MR_LOCAL is demanded only. Any
 * thread inside a call on the fabric may call it; it takes the cache's lock.
 * Returns 0, and rmx_cache_put() is due, or an error with a record.
 */
int rmx_cache_get(struct rmaext_fabric *fabric, const void *addr, uint64_t len,
		  bool result, struct rmx_cached_buffer **buffer_p);

/*
 * Gives the registration back, when the operation has ended and before its
 * owner is told so. The reader of the CQ may call it.
 */
void rmx_cache_put(struct rmaext_fabric *fabric,
		   struct rmx_cached_buffer *buffer);

/* -- bounce.c: any thread may call these; they take bounce_lock */

/* Is an operation with so many bytes to lie in a bounce buffer? */
bool rmx_bounce_fits(const struct rmaext_fabric *fabric, size_t bytes);

/*
 * Returns a bounce buffer, which is the caller's until rmx_bounce_give(), and
 * its descriptor in *desc_p; or NULL if memory is short.
 */
void *rmx_bounce_take(struct rmaext_fabric *fabric, void **desc_p);
void rmx_bounce_give(struct rmaext_fabric *fabric, void *block);

#endif
