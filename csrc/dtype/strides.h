/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Nested loops over runs of bytes: where the elements of a slice lie in a
 * window and in own memory. See strides.c.
 */
#ifndef RMAEXT_STRIDES_H
#define RMAEXT_STRIDES_H

#include "base/common.h"

#define RMX_DIMS 64 /* NumPy has no more */

struct rmx_dim { /* the innermost first */
	uint64_t count;
	int64_t step, local; /* bytes, in the window and in own memory */
};

struct rmx_strides {
	uint64_t
		first; /* byte of the window; of loops that came in a message */
	uint64_t run;  /* bytes in one piece on both sides */
	uint64_t runs; /* their number */
	uint32_t ndim; /* number of loops */
	struct rmx_dim dim[RMX_DIMS]; /* a copy may end after ndim of them */
};

/* The functions here work on the caller's memory; none needs a lock. */

/*
 * Makes the fewest loops that visit all elements of the part. Returns false if
 * there is no such array.
 */
bool rmx_strides_make(struct rmx_strides *strides,
		      const struct rmaext_part *part);

/* Returns how many bytes a copy of the struct needs. */
size_t rmx_strides_bytes(const struct rmx_strides *strides);

/*
 * Computes the bytes [low, high) of the window that the loops reach from
 * `offset` on. Returns false, and sets neither, where these do not fit 63 bits
 * or begin before the window.
 */
bool rmx_strides_span(const struct rmx_strides *strides, uint64_t offset,
		      int64_t *low_p, int64_t *high_p);

/*
 * Copies by memory: to `remote` if `put`, else to `local`. The caller has
 * checked the span of both sides, which must not overlap.
 */
void rmx_strides_copy(const struct rmx_strides *strides, bool put, char *remote,
		      char *local);

/* Do the two sides overlap, if they begin there? */
bool rmx_strides_overlap(const struct rmx_strides *strides, const char *remote,
			 const char *local);

/*
 * Returns the bytes from the first run to run number i. Loops that came in a
 * message may overflow: the result then wraps around, and fails the check of
 * the window's bounds.
 */
static inline uint64_t rmx_strides_at(const struct rmx_strides *s, uint64_t i)
{
	uint64_t at = 0;

	for (uint32_t d = 0; d + 1 < s->ndim; d++) {
		at += i % s->dim[d].count * (uint64_t)s->dim[d].step;
		i /= s->dim[d].count;
	}
	return s->ndim ? at + i * (uint64_t)s->dim[s->ndim - 1].step : 0;
}

/*
 * The loops in a message, with all that rmx_strides_at() needs. bytes returns
 * the length that they take, or 0 for loops that do not go into a message:
 * none, or too many. pack writes so many bytes: `first` is the window's byte in
 * its root, and `start` the number of the run that the message begins with.
 */
size_t rmx_loops_bytes(const struct rmx_strides *strides);
void rmx_loops_pack(const struct rmx_strides *strides, uint64_t first,
		    uint64_t start, void *buf);

/*
 * Reads what rmx_loops_pack() wrote; false if these are no such bytes. They may
 * come from anybody, so the offsets are to be checked one by one.
 */
bool rmx_loops_unpack(struct rmx_strides *strides, const void *buf, size_t len,
		      uint64_t *start_p);

#endif
