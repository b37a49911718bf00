/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Layouts: where the data of an element of one of MPI's datatypes lies, in the
 * order of the type map. See layout.c.
 */
#ifndef RMAEXT_LAYOUT_H
#define RMAEXT_LAYOUT_H

#include "base/common.h"

#define RMX_LAYOUT_LOOPS 16

struct rmx_turns { /* of a loop */
	int64_t count, step;
};

struct rmx_run { /* bytes in one piece */
	int64_t offset, len;
};

/* Of what type all elements are; unit 0: they are of several, or of none. */
struct rmx_basic {
	int type;      /* RMAEXT_INT8 and so on; -1: it has no updates */
	uint64_t unit; /* bytes from one to the next */
	bool gaps;     /* some of these bytes are none of its data */
};

/*
 * Runs, gone through again at the steps of nested loops. A layout does not
 * change once it is made, so that any thread may read it; free() ends it.
 */
struct rmx_layout {
	struct rmx_basic basic;
	int64_t extent;	   /* bytes from one element to the next */
	uint64_t bytes;	   /* of the data */
	int64_t low, high; /* the bytes between which all of it lies */
	uint64_t grain;	   /* divides all lengths, and distances of runs */
	int loops;
	struct rmx_turns loop[RMX_LAYOUT_LOOPS]; /* the outermost first */
	uint64_t runs; /* of one turn of all loops; none is empty */
	struct rmx_run run[];
};

/*
 * The functions that make one return NULL, with *why_p a code: -FI_ENOMEM, or
 * -FI_EOVERFLOW if its bytes or places do not fit 63 bits.
 */
struct rmx_layout *rmx_layout_new(const struct rmx_run *runs, uint64_t count,
				  struct rmx_basic basic, int64_t extent,
				  int *why_p);
/* `count` of it, `step` bytes from one to the next. */
struct rmx_layout *rmx_layout_loop(const struct rmx_layout *layout,
				   int64_t count, int64_t step, int *why_p);
/* counts[i] elements, or counts[0] of one_count, at places[i]. */
struct rmx_layout *rmx_layout_blocks(const struct rmx_layout *layout,
				     uint64_t count, const int64_t *counts,
				     bool one_count, const int64_t *places,
				     int *why_p);
/* The same, `by` bytes further on. */
struct rmx_layout *rmx_layout_shift(const struct rmx_layout *layout, int64_t by,
				    int *why_p);
/* Its first bytes. */
struct rmx_layout *rmx_layout_head(const struct rmx_layout *layout,
				   uint64_t bytes, int *why_p);
/* The same runs without loops. */
struct rmx_layout *rmx_layout_flat(const struct rmx_layout *layout, int *why_p);

/* Is it one run, or nothing? */
static inline bool rmx_layout_is_whole(const struct rmx_layout *layout)
{
	return layout->runs < 2 && !layout->loops;
}

/* How often the loops go through the runs; the product fits. */
static inline uint64_t rmx_layout_turns(const struct rmx_layout *layout)
{
	uint64_t turns = 1;

	for (int k = 0; k < layout->loops; k++)
		turns *= (uint64_t)layout->loop[k].count;
	return turns;
}

/* So many elements of a layout, or (layout NULL) bytes in one piece. */
struct rmx_side {
	const struct rmx_layout *layout;
	int64_t count;
	uint64_t bytes; /* of all of them */
};

/*
 * The bytes that they reach, from the place of the first one. False: they do
 * not fit 63 bits.
 */
bool rmx_side_span(const struct rmx_side *side, int64_t *low_p,
		   int64_t *high_p);

/* A walk through them, from run to run. */
struct rmx_walk {
	char *at;      /* the rest of the run */
	uint64_t left; /* its bytes */
	const struct rmx_layout *layout;
	char *element, *turn; /* where these begin */
	int64_t done[RMX_LAYOUT_LOOPS];
	uint64_t run;
};

void rmx_walk_start(struct rmx_walk *walk, const struct rmx_side *side,
		    char *base);
/* Goes on to the first run of the next turn, or element. */
void rmx_walk_turn(struct rmx_walk *walk);
static inline void rmx_walk_enter_run(struct rmx_walk *walk)
{
	walk->at = walk->turn + walk->layout->run[walk->run].offset;
	walk->left = (uint64_t)walk->layout->run[walk->run].len;
}
/*
 * Goes on by so many bytes, no more than are left of the run. After the last
 * one `at` is not used any more.
 */
static inline void rmx_walk_on(struct rmx_walk *walk, uint64_t bytes)
{
	walk->at += bytes;
	walk->left -= bytes;
	if (walk->left || !walk->layout)
		return;
	if (++walk->run == walk->layout->runs)
		rmx_walk_turn(walk);
	rmx_walk_enter_run(walk);
}

/* Copies between two walks, which both have so many bytes. */
void rmx_walk_copy(struct rmx_walk *to, struct rmx_walk *from, uint64_t bytes);

#endif
