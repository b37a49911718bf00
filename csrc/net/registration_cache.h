/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Local memory that a provider wants registered (FI_MR_LOCAL); see
 * registration_cache.c.
 */
#ifndef RMAEXT_REGISTRATION_CACHE_H
#define RMAEXT_REGISTRATION_CACHE_H

#include <rdma/fi_domain.h>

#include "base/common.h"

/* A registration. */
struct rmx_region {
	struct fid_mr *mr;
	struct fid_cntr *writes; /* of others to it; or NULL */
};

/* A piece of the caller's memory. */
struct rmx_cached_buffer {
	struct rmx_region region; /* none: not registered at present */
	uintptr_t start;
	uint64_t len;
	uint64_t token; /* 0: of one operation, or forgotten while in use */
	uint64_t used;	/* when, for whoever was so the longest time ago */
	bool pinned, once;
	atomic_uint users; /* operations; grows under the lock only */
	struct rmx_cached_buffer *next;
};

/* Blocks of registered memory for operations with a copy, many to a slab. */
struct rmx_slab {
	struct rmx_region region;
	struct rmx_slab *next;
	char *blocks;
};

struct rmx_registration_cache {
	bool demanded; /* never changes; if not, nothing below is in use */
	uint64_t most, most_bytes; /* of registrations that are kept */
	pthread_mutex_t lock;
	struct rmx_cached_buffer **known; /* sorted by start */
	size_t count, room;
	struct rmx_cached_buffer *others; /* without a token */
	uint64_t registered, bytes;	  /* of the known */
	uint64_t clock, last_token, next_key;
	/* blocks; guarded by a lock of their own */
	pthread_mutex_t bounce_lock;
	size_t bounce_bytes;
	struct rmx_slab *slabs;
	void *free_bounces; /* each begins with a pointer to the next */
	atomic_uint bounces_used;
	atomic_uint_fast64_t hits, misses, evictions, bounced;
};

#endif
