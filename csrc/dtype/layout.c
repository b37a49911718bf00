/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How layouts are made of others, and the walk through them. What is regular
 * stays loops, however many elements it has: only what is not is written out as
 * runs.
 */
#include "dtype/layout.h"

#include <stdlib.h>

#define MOST_BYTES ((uint64_t)1 << 46) /* of runs: no machine has more */

/* -- making */

static struct rmx_layout *failed(struct rmx_layout *l, int why, int *why_p)
{
	free(l);
	*why_p = why;
	return NULL;
}

/* Like another one, with room for so many runs, and no loops and runs yet. */
static struct rmx_layout *layout_like(const struct rmx_layout *of,
				      uint64_t room, int *why_p)
{
	struct rmx_layout *l = NULL;
	uint64_t bytes;

	if (!__builtin_mul_overflow(room, sizeof(*l->run), &bytes) &&
	    bytes < MOST_BYTES)
		l = malloc(sizeof(*l) + bytes);
	if (!l)
		return failed(l, -FI_ENOMEM, why_p);
	*l = *of;
	l->loops = 0;
	l->runs = 0;
	return l;
}

static uint64_t divisor(uint64_t a, uint64_t b)
{
	while (b) {
		const uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static uint64_t distance(int64_t a, int64_t b)
{
	return a < b ? (uint64_t)b - (uint64_t)a : (uint64_t)a - (uint64_t)b;
}

/* Widens [low, high) by what a loop reaches; false: that does not fit. */
static bool span_widen(int64_t *low_p, int64_t *high_p, int64_t count,
		       int64_t step)
{
	int64_t reach;

	return !__builtin_mul_overflow(count - 1, step, &reach) &&
	       !__builtin_add_overflow(reach < 0 ? *low_p : *high_p, reach,
				       reach < 0 ? low_p : high_p);
}

/* Computes what follows from loops and runs; ends it if that does not fit. */
static struct rmx_layout *layout_finish(struct rmx_layout *l, int *why_p)
{
	int64_t bytes = 0, end;

	l->low = l->runs ? INT64_MAX : 0;
	l->high = l->runs ? INT64_MIN : 0;
	l->grain = 0;
	for (uint64_t i = 0; i < l->runs; i++) {
		const struct rmx_run *run = &l->run[i];

		if (__builtin_add_overflow(run->offset, run->len, &end) ||
		    __builtin_add_overflow(bytes, run->len, &bytes))
			return failed(l, -FI_EOVERFLOW, why_p);
		l->low = run->offset < l->low ? run->offset : l->low;
		l->high = end > l->high ? end : l->high;
		l->grain = divisor(l->grain, (uint64_t)run->len);
		l->grain = divisor(l->grain,
				   distance(run->offset, l->run->offset));
	}
	for (int k = 0; k < l->loops; k++) {
		const struct rmx_turns *t = &l->loop[k];

		if (__builtin_mul_overflow(bytes, t->count, &bytes) ||
		    !span_widen(&l->low, &l->high, t->count, t->step))
			return failed(l, -FI_EOVERFLOW, why_p);
		l->grain = divisor(l->grain, distance(t->step, 0));
	}
	l->bytes = (uint64_t)bytes;
	return l;
}

/* Adds a run, or makes the last one longer. There is room. */
static void run_add(struct rmx_layout *l, int64_t offset, int64_t len)
{
	struct rmx_run *last = &l->run[l->runs];

	if (l->runs && last[-1].offset + last[-1].len == offset)
		last[-1].len += len;
	else if (len > 0)
		l->run[l->runs++] = (struct rmx_run){offset, len};
}

/* Adds the runs of a layout's next *left bytes, `by` bytes further on. */
static void runs_add_some(struct rmx_layout *to, const struct rmx_layout *l,
			  int loop, int64_t by, uint64_t *left)
{
	if (loop < l->loops) {
		const struct rmx_turns *t = &l->loop[loop];

		for (int64_t n = 0; n < t->count && *left; n++)
			runs_add_some(to, l, loop + 1, by + n * t->step, left);
		return;
	}
	for (uint64_t i = 0; i < l->runs && *left; i++) {
		const struct rmx_run *run = &l->run[i];
		const uint64_t len =
			(uint64_t)run->len < *left ? (uint64_t)run->len : *left;

		run_add(to, by + run->offset, (int64_t)len);
		*left -= len;
	}
}

/* Adds all runs of a layout, loops and all, `by` bytes further on. */
static void runs_add(struct rmx_layout *to, const struct rmx_layout *l,
		     int64_t by)
{
	uint64_t all = UINT64_MAX;

	runs_add_some(to, l, 0, by, &all);
}

/* Gives back the room that merged runs have left. */
static struct rmx_layout *layout_trim(struct rmx_layout *l, uint64_t room)
{
	struct rmx_layout *less = NULL;

	if (l && l->runs < room)
		less = realloc(l, sizeof(*l) + l->runs * sizeof(*l->run));
	return less ? less : l;
}

struct rmx_layout *rmx_layout_new(const struct rmx_run *runs, uint64_t count,
				  struct rmx_basic basic, int64_t extent,
				  int *why_p)
{
	const struct rmx_layout like = {.basic = basic, .extent = extent};
	struct rmx_layout *l = layout_like(&like, count, why_p);

	if (!l)
		return NULL;
	for (uint64_t i = 0; i < count; i++)
		run_add(l, runs[i].offset, runs[i].len);
	return layout_finish(l, why_p);
}

struct rmx_layout *rmx_layout_flat(const struct rmx_layout *l, int *why_p)
{
	uint64_t room;
	struct rmx_layout *flat;

	if (__builtin_mul_overflow(l->runs, rmx_layout_turns(l), &room))
		return failed(NULL, -FI_ENOMEM, why_p);
	flat = layout_like(l, room, why_p);
	if (!flat)
		return NULL;
	runs_add(flat, l, 0);
	return layout_trim(layout_finish(flat, why_p), room);
}

static struct rmx_layout *layout_copy(const struct rmx_layout *l, int *why_p)
{
	struct rmx_layout *copy = layout_like(l, l->runs, why_p);

	if (copy) {
		copy->loops = l->loops;
		copy->runs = l->runs;
		memcpy(copy->run, l->run, l->runs * sizeof(*l->run));
	}
	return copy;
}

/* Does each turn of the outermost loop begin where the one before has ended? */
static bool loop_goes_on(const struct rmx_layout *l, int64_t step)
{
	int64_t reach;

	return l->loops &&
	       !__builtin_mul_overflow(l->loop->count, l->loop->step, &reach) &&
	       reach == step;
}

struct rmx_layout *rmx_layout_loop(const struct rmx_layout *l, int64_t count,
				   int64_t step, int *why_p)
{
	struct rmx_layout *made, *flat;

	if (count <= 0 || !l->runs) {
		made = layout_like(l, 0, why_p);
		return made ? layout_finish(made, why_p) : NULL;
	}
	if (count > 1 && l->loops == RMX_LAYOUT_LOOPS &&
	    !loop_goes_on(l, step)) {
		flat = rmx_layout_flat(l, why_p);
		made = flat ? rmx_layout_loop(flat, count, step, why_p) : NULL;
		free(flat);
		return made;
	}
	made = layout_copy(l, why_p);
	if (!made || count == 1)
		return made;
	if (loop_goes_on(l, step)) {
		if (__builtin_mul_overflow(count, l->loop->count,
					   &made->loop->count))
			return failed(made, -FI_EOVERFLOW, why_p);
	} else if (rmx_layout_is_whole(l) && l->run->len == step) {
		if (__builtin_mul_overflow(count, step, &made->run->len))
			return failed(made, -FI_EOVERFLOW, why_p);
	} else {
		memmove(made->loop + 1, made->loop,
			(size_t)made->loops * sizeof(*made->loop));
		made->loop[0] = (struct rmx_turns){count, step};
		made->loops++;
	}
	return layout_finish(made, why_p);
}

struct rmx_layout *rmx_layout_shift(const struct rmx_layout *l, int64_t by,
				    int *why_p)
{
	struct rmx_layout *made = layout_copy(l, why_p);

	if (!made || !by)
		return made;
	for (uint64_t i = 0; i < made->runs; i++)
		if (__builtin_add_overflow(made->run[i].offset, by,
					   &made->run[i].offset))
			return failed(made, -FI_EOVERFLOW, why_p);
	return layout_finish(made, why_p);
}

/* Blocks of one length, at places at equal distances. */
static struct rmx_layout *layout_series(const struct rmx_layout *l,
					int64_t each, int64_t count,
					int64_t first, int64_t step, int *why_p)
{
	struct rmx_layout *block = rmx_layout_loop(l, each, l->extent, why_p);
	struct rmx_layout *all =
		block ? rmx_layout_loop(block, count, step, why_p) : NULL;
	struct rmx_layout *made =
		all ? rmx_layout_shift(all, first, why_p) : NULL;

	free(block);
	free(all);
	return made;
}

/* Some blocks of elements. */
struct blocks {
	uint64_t count;
	const int64_t *counts, *places;
	bool one_count;
};

static int64_t block_count(const struct blocks *b, uint64_t i)
{
	return b->counts[b->one_count ? 0 : i];
}

/* Do they have one length, and one distance? */
static bool blocks_are_series(const struct blocks *b, int64_t *step_p)
{
	*step_p = 0;
	if (b->count > 1 &&
	    __builtin_sub_overflow(b->places[1], b->places[0], step_p))
		return false;
	for (uint64_t i = 1; i < b->count; i++) {
		int64_t step;

		if (block_count(b, i) != block_count(b, 0) ||
		    __builtin_sub_overflow(b->places[i], b->places[i - 1],
					   &step) ||
		    step != *step_p)
			return false;
	}
	return true;
}

/* Do the bytes of a block's elements fit? */
static bool block_fits(const struct rmx_layout *l, int64_t count, int64_t at)
{
	int64_t low = l->low, high = l->high;

	return span_widen(&low, &high, count, l->extent) &&
	       !__builtin_add_overflow(low, at, &low) &&
	       !__builtin_add_overflow(high, at, &high);
}

/* Writes out the runs of all blocks. */
static struct rmx_layout *layout_of_blocks(const struct rmx_layout *l,
					   const struct blocks *b, int *why_p)
{
	const bool row =
		rmx_layout_is_whole(l) && l->runs && l->run->len == l->extent;
	uint64_t each = row ? 1 : l->runs * rmx_layout_turns(l), room = 0;
	struct rmx_layout *made;

	for (uint64_t i = 0; i < b->count; i++) {
		const int64_t n = block_count(b, i);
		uint64_t some;

		if (n > 0 && !block_fits(l, n, b->places[i]))
			return failed(NULL, -FI_EOVERFLOW, why_p);
		if (n > 0 && (__builtin_mul_overflow(row ? 1 : (uint64_t)n,
						     each, &some) ||
			      __builtin_add_overflow(room, some, &room)))
			return failed(NULL, -FI_ENOMEM, why_p);
	}
	made = layout_like(l, room, why_p);
	if (!made)
		return NULL;
	for (uint64_t i = 0; i < b->count; i++) {
		const int64_t n = block_count(b, i), at = b->places[i];

		if (row && n > 0)
			run_add(made, at + l->run->offset, n * l->extent);
		for (int64_t k = row ? n : 0; k < n; k++)
			runs_add(made, l, at + k * l->extent);
	}
	return layout_trim(layout_finish(made, why_p), room);
}

struct rmx_layout *rmx_layout_blocks(const struct rmx_layout *l, uint64_t count,
				     const int64_t *counts, bool one_count,
				     const int64_t *places, int *why_p)
{
	const struct blocks b = {count, counts, places, one_count};
	int64_t step;

	if (!count || !l->runs)
		return rmx_layout_loop(l, 0, 0, why_p);
	if (blocks_are_series(&b, &step))
		return layout_series(l, counts[0], (int64_t)count, places[0],
				     step, why_p);
	return layout_of_blocks(l, &b, why_p);
}

struct rmx_layout *rmx_layout_head(const struct rmx_layout *l, uint64_t bytes,
				   int *why_p)
{
	uint64_t shortest = UINT64_MAX, left = bytes, room, all;
	struct rmx_layout *made;

	if (bytes >= l->bytes)
		return layout_copy(l, why_p);
	for (uint64_t i = 0; i < l->runs; i++)
		if ((uint64_t)l->run[i].len < shortest)
			shortest = (uint64_t)l->run[i].len;
	/* as many runs as the bytes may have, or as there are */
	room = bytes / shortest + 1;
	if (!__builtin_mul_overflow(l->runs, rmx_layout_turns(l), &all) &&
	    all < room)
		room = all;
	made = layout_like(l, room, why_p);
	if (!made)
		return NULL;
	runs_add_some(made, l, 0, 0, &left);
	return layout_trim(layout_finish(made, why_p), room);
}

/* -- walking */

bool rmx_side_span(const struct rmx_side *side, int64_t *low_p, int64_t *high_p)
{
	const struct rmx_layout *l = side->layout;

	*low_p = l ? l->low : 0;
	*high_p = l ? l->high : (int64_t)side->bytes;
	return !l || span_widen(low_p, high_p, side->count, l->extent);
}

void rmx_walk_start(struct rmx_walk *w, const struct rmx_side *side, char *base)
{
	w->layout = side->layout;
	w->element = w->turn = base;
	w->run = 0;
	if (w->layout) {
		memset(w->done, 0, (size_t)w->layout->loops * sizeof(*w->done));
		rmx_walk_enter_run(w);
	} else {
		w->at = base;
		w->left = side->bytes;
	}
}

void rmx_walk_turn(struct rmx_walk *w)
{
	const struct rmx_layout *l = w->layout;
	int k = l->loops - 1;

	w->run = 0;
	for (; k >= 0; k--) {
		const struct rmx_turns *t = &l->loop[k];

		w->turn += t->step;
		if (++w->done[k] < t->count)
			return;
		w->turn -= t->step * t->count;
		w->done[k] = 0;
	}
	w->turn = w->element += l->extent;
}

void rmx_walk_copy(struct rmx_walk *to, struct rmx_walk *from, uint64_t bytes)
{
	while (bytes) {
		const uint64_t n =
			to->left < from->left ? to->left : from->left;

		if (n == 8)
			memmove(to->at, from->at, 8);
		else
			rmx_move(to->at, from->at, n);
		bytes -= n;
		rmx_walk_on(to, n);
		rmx_walk_on(from, n);
	}
}
