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
	int64_t rank;	/* of a batch only, as is first */
	uint64_t first; /* byte of the window */
	uint64_t run;	/* bytes in one piece on both sides */
	uint64_t runs;
	uint32_t ndim;
	struct rmx_dim dim[RMX_DIMS]; /* copies have ndim of them */
};

/* A part of an array, with bytes from element to element */
struct rmx_part {
	uint64_t unit;
	int ndim;
	const int64_t *shape, *steps;
};

bool rmx_strides_make(struct rmx_strides *strides, const struct rmx_part *part,
		      const int64_t *locals);
size_t rmx_strides_bytes(const struct rmx_strides *strides);
/* What they reach from offset on: [low, high). False: not within 63 bits. */
bool rmx_strides_span(const struct rmx_strides *strides, uint64_t offset,
		      int64_t *low_p, int64_t *high_p);
/* by memory; the two must not overlap */
void rmx_strides_copy(const struct rmx_strides *strides, bool put, char *remote,
		      char *local);

bool rmx_strides_overlap(const struct rmx_strides *strides, const char *remote,
			 const char *local);

/* Where run number i is, from the first. A stranger's loops may overflow. */
static inline uint64_t rmx_strides_at(const struct rmx_strides *s, uint64_t i)
{
	uint64_t at = 0;

	for (uint32_t d = 0; d + 1 < s->ndim; d++) {
		at += i % s->dim[d].count * (uint64_t)s->dim[d].step;
		i /= s->dim[d].count;
	}
	return s->ndim ? at + i * (uint64_t)s->dim[s->ndim - 1].step : 0;
}

/* in a message: what rmx_strides_at() needs, from number `start` on */
size_t rmx_loops_bytes(const struct rmx_strides *strides); /* 0: too many */
void rmx_loops_pack(const struct rmx_strides *strides, uint64_t first,
		    uint64_t start, void *buf);
bool rmx_loops_unpack(struct rmx_strides *strides, const void *buf, size_t len,
		      uint64_t *start_p);

#endif
