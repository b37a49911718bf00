/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Layouts: where the data of an element of one of MPI's datatypes lies, in the
 * order of the type map; or a part of an array, which is one run, and loops.
 * See layout.c.
 */
#ifndef RMAEXT_LAYOUT_H
#define RMAEXT_LAYOUT_H

#include "base/common.h"

#define RMX_DIMS 64 /* NumPy has no more, nor do 63 bits hold more loops */

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
	uint64_t runs;	   /* of one turn of all loops; none is empty */
	struct rmx_run
		*run; /* behind the struct; of a part of an array `one` */
	struct rmx_run one;
	int loops;
	/* the innermost first; a copy of a part may end after the last one */
	struct rmx_turns loop[RMX_DIMS];
};

/*
 * Makes the fewest loops that visit the elements of a part of an array, of
 * `unit` bytes each, in the caller's struct; but for basic and grain.
 * Returns false if there is no such array. Places that do not fit 63 bits are
 * beyond any window's: then rmx_side_within() fails.
 */
bool rmx_layout_part(struct rmx_layout *layout, uint64_t unit, int ndim,
		     const int64_t *shape, const int64_t *steps);
/* The bytes that a copy of such a layout needs, and the copy. */
static inline size_t rmx_part_bytes(const struct rmx_layout *part)
{
	return offsetof(struct rmx_layout, loop) +
	       (size_t)part->loops * sizeof(*part->loop);
}
struct rmx_layout *rmx_part_copy(void *room, const struct rmx_layout *part);

/*
 * Returns the bytes from the first run of a part to run number i. Loops that
 * came in a message may overflow: the result then wraps around, and fails the
 * check of the window's bounds.
 */
static inline uint64_t rmx_part_at(const struct rmx_layout *l, uint64_t i)
{
	uint64_t at = 0;
	int k = 0;

	for (; k + 1 < l->loops; k++) {
		at += i % (uint64_t)l->loop[k].count *
		      (uint64_t)l->loop[k].step;
		i /= (uint64_t)l->loop[k].count;
	}
	return l->loops ? at + i * (uint64_t)l->loop[k].step : 0;
}

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

/* Widens [low, high) by what a loop reaches; false: that does not fit. */
static inline bool rmx_span_widen(int64_t *low_p, int64_t *high_p,
				  int64_t count, int64_t step)
{
	int64_t reach;

	return !__builtin_mul_overflow(count - 1, step, &reach) &&
	       !__builtin_add_overflow(reach < 0 ? *low_p : *high_p, reach,
				       reach < 0 ? low_p : high_p);
}

/*
 * The bytes that they reach, from the place of the first one. False: they do
 * not fit 63 bits.
 */
static inline bool rmx_side_span(const struct rmx_side *side, int64_t *low_p,
				 int64_t *high_p)
{
	const struct rmx_layout *l = side->layout;

	*low_p = l ? l->low : 0;
	*high_p = l ? l->high : (int64_t)side->bytes;
	return !l || side->count < 2 ||
	       rmx_span_widen(low_p, high_p, side->count, l->extent);
}

/*
 * The same in a window, if the first one is at `offset`: `len` bytes from
 * `first` on. False, too: they begin before the window.
 */
bool rmx_side_within(const struct rmx_side *side, uint64_t offset,
		     uint64_t *first_p, uint64_t *len_p);
/* Do two of them overlap, if they are in memory there? */
static inline bool rmx_sides_overlap(const struct rmx_side *a, const char *a_at,
				     const struct rmx_side *b, const char *b_at)
{
	const uintptr_t x = (uintptr_t)a_at, y = (uintptr_t)b_at;
	int64_t low, high, b_low, b_high;

	return !rmx_side_span(a, &low, &high) ||
	       !rmx_side_span(b, &b_low, &b_high) ||
	       (x + (uintptr_t)low < y + (uintptr_t)b_high &&
		y + (uintptr_t)b_low < x + (uintptr_t)high);
}

/* Copies from one to the other, which has as many bytes. */
void rmx_side_copy(const struct rmx_side *to, char *to_at,
		   const struct rmx_side *from, const char *from_at);
/* Is it one piece? */
static inline bool rmx_side_is_whole(const struct rmx_side *side)
{
	return !side->layout ||
	       (rmx_layout_is_whole(side->layout) && side->count == 1);
}

/* A walk through them, from run to run. */
struct rmx_walk {
	char *at;      /* the rest of the run */
	uint64_t left; /* its bytes */
	const struct rmx_layout *layout;
	char *element, *turn; /* where these begin */
	int64_t done[RMX_DIMS];
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

#endif
