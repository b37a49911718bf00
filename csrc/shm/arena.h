/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The arena: its segments, and the extents that they are cut into. All
 * functions here are the arena's own: their callers hold arena->lock.
 */
#ifndef RMAEXT_ARENA_H
#define RMAEXT_ARENA_H

#include "shm/neighbour.h"

#define RMX_BINS 64

/* A part of a segment, free or in use. Those of a segment lie side by side. */
struct rmx_extent {
	char *addr;
	uint64_t len;
	bool used;
	struct rmx_extent *before, *after;
	/* the list of a bin if it is free, of a bucket if it is in use */
	struct rmx_extent *next, **prev;
};

/*
 * All extents of an arena. The time that a call takes does not grow with their
 * number.
 */
struct rmx_extents {
	/* free extents; bin k has those of 2^k lines of cache, or more */
	struct rmx_extent *bins[RMX_BINS];
	uint64_t filled;	     /* a bit for each bin that is not empty */
	struct rmx_extent **buckets; /* extents in use, by address */
	unsigned int bits;	     /* there are 2^bits buckets */
	uint64_t used;		     /* number of extents in use */
};

struct rmx_segment {
	struct rmaext_block block; /* fd, inode, size; offset 0 */
	char *base;
	uint64_t room;	 /* bytes from base that are for blocks */
	uint64_t mapped; /* bytes, of a placed one; 0: it is not in use */
	bool huge;
	struct rmx_segment *next;
};

struct rmaext_arena {
	pid_t pid; /* of the owner, which a forked child is not */
	uint8_t nonce[RMX_TOKEN];
	pthread_mutex_t lock;
	struct rmx_segment *segments; /* the newest first */
	struct rmx_segment *placed;   /* of arena_placed.c */
	struct rmx_extents extents;
	struct rmx_segment_tail *tail;
	bool lives; /* a thread holds tail->life */
};

/* Returns the next multiple of `unit`. */
static inline uint64_t rmx_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* -- arena_segment.c */

/*
 * Makes a segment with a file of `size` bytes, which is not mapped yet. The
 * caller owns it. Returns 0 or -errno, without a record.
 */
int rmx_segment_make(struct rmaext_arena *arena, uint64_t size, bool huge,
		     struct rmx_segment **segment_p);

/* -- arena_placed.c */

/* Unmaps a placed segment, and keeps its file for the next one that fits. */
void rmx_place_end(struct rmx_segment *segment);

/* -- arena_extents.c */

/* Adds a segment's memory as one free extent; 0 or -ENOMEM. */
int rmx_extent_add(struct rmx_extents *extents, char *addr, uint64_t len);

/*
 * Cuts `len` bytes, a multiple of RMX_LINE, out of a free extent, at a multiple
 * of `align`. Returns their address, or NULL if there is no room.
 */
char *rmx_extent_take(struct rmx_extents *extents, uint64_t len,
		      uint64_t align);

/* Returns the extent in use that begins at the address, or NULL. */
struct rmx_extent *rmx_extent_find(const struct rmx_extents *extents,
				   const void *addr);

/* Makes an extent free, and joins it with free ones beside it. */
void rmx_extent_free(struct rmx_extents *extents, struct rmx_extent *extent);

#endif
