/* SPDX-License-Identifier: BSD-3-Clause */
/* The arena: its segments, and the parts that they are cut into. */
#ifndef RMAEXT_ARENA_H
#define RMAEXT_ARENA_H

#include "shm/neighbour.h"

#define RMX_HUGE_PAGE ((uint64_t)2 << 20)
#define RMX_BINS 64

/* A part of a segment, free or in use; those of a segment lie side by side. */
struct rmx_extent {
	char *addr;
	uint64_t len;
	bool used;
	struct rmx_extent *before, *after;
	/* in a bin of free ones, or in a bucket of those in use */
	struct rmx_extent *next, **prev;
};

/* Nothing here takes longer when there are more of them. */
struct rmx_extents {
	struct rmx_extent *bins[RMX_BINS]; /* bin k: 2^k lines or more */
	uint64_t filled;		   /* bins that are not empty */
	struct rmx_extent **buckets;	   /* by address */
	unsigned int bits;		   /* there are 2^bits */
	uint64_t used;
};

struct rmx_segment {
	struct rmaext_block block; /* fd, inode, size; offset 0 */
	char *base;
	uint64_t room;	 /* bytes from base that are for blocks */
	uint64_t mapped; /* of a placed one; 0: nobody has it now */
	bool huge;
	struct rmx_segment *next;
};

struct rmaext_arena {
	pid_t pid; /* not that of a forked child */
	uint8_t nonce[RMX_TOKEN];
	pthread_mutex_t lock;
	struct rmx_segment *segments; /* the newest first */
	struct rmx_segment *placed;
	struct rmx_extents extents;
	struct rmx_segment_tail *tail;
	bool lives; /* its life is held by a thread */
};

static inline uint64_t rmx_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* arena.c; the caller holds the lock */
int rmx_segment_make(struct rmaext_arena *arena, uint64_t size, bool huge,
		     struct rmx_segment **segment_p);

/* arena_placed.c; the caller holds the lock */
void rmx_place_end(struct rmx_segment *segment);

/* arena_extents.c */
int rmx_extent_add(struct rmx_extents *extents, char *addr, uint64_t len);
/* NULL: no room */
char *rmx_extent_take(struct rmx_extents *extents, uint64_t len,
		      uint64_t align);
/* NULL: no block begins there */
struct rmx_extent *rmx_extent_find(const struct rmx_extents *extents,
				   const void *addr);
void rmx_extent_free(struct rmx_extents *extents, struct rmx_extent *extent);

#endif
