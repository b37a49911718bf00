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
	l->run = (struct rmx_run *)(l + 1);
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
		    !rmx_span_widen(&l->low, &l->high, t->count, t->step))
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
			  int loops, int64_t by, uint64_t *left)
{
	if (loops) {
		const struct rmx_turns *t = &l->loop[loops - 1];

		for (int64_t n = 0; n < t->count && *left; n++)
			runs_add_some(to, l, loops - 1, by + n * t->step, left);
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

	runs_add_some(to, l, l->loops, by, &all);
}

/* Gives back the room that merged runs have left. */
static struct rmx_layout *layout_trim(struct rmx_layout *l, uint64_t room)
{
	struct rmx_layout *less = NULL;

	if (l && l->runs < room)
		less = realloc(l, sizeof(*l) + l->runs * sizeof(*l->run));
	if (!less)
		return l;
	less->run = (struct rmx_run *)(less + 1);
	return less;
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

/* Writes out the runs of the first bytes, of as many as there are at most. */
static struct rmx_layout *layout_written(const struct rmx_layout *l,
					 uint64_t bytes, int *why_p)
{
	const uint64_t all = l->runs * rmx_layout_turns(l); /* <= l->bytes */
	uint64_t shortest = UINT64_MAX, room;
	struct rmx_layout *made;

	for (uint64_t i = 0; i < l->runs; i++)
		if ((uint64_t)l->run[i].len < shortest)
			shortest = (uint64_t)l->run[i].len;
	/* as many runs as the bytes may have, or as there are */
	room = bytes / shortest + 1;
	if (all < room)
		room = all;
	made = layout_like(l, room, why_p);
	if (!made)
		return NULL;
	runs_add_some(made, l, l->loops, 0, &bytes);
	return layout_trim(layout_finish(made, why_p), room);
}

struct rmx_layout *rmx_layout_flat(const struct rmx_layout *l, int *why_p)
{
	return layout_written(l, l->bytes, why_p);
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
	const struct rmx_turns *end = &l->loop[l->loops];
	int64_t reach;

	return l->loops &&
	       !__builtin_mul_overflow(end[-1].count, end[-1].step, &reach) &&
	       reach == step;
}

/* Has `count` turns more around all; false: these do not fit 63 bits. */
static bool loop_add(struct rmx_layout *l, int64_t count, int64_t step)
{
	if (loop_goes_on(l, step))
		return !__builtin_mul_overflow(count,
					       l->loop[l->loops - 1].count,
					       &l->loop[l->loops - 1].count);
	if (rmx_layout_is_whole(l) && l->run->len == step)
		return !__builtin_mul_overflow(count, step, &l->run->len);
	/* each has two turns or more: when this is full, it overflows */
	l->loop[l->loops++] = (struct rmx_turns){count, step};
	return true;
}

bool rmx_layout_part(struct rmx_layout *l, uint64_t unit, int ndim,
		     const int64_t *shape, const int64_t *steps)
{
	int64_t bytes = (int64_t)unit;

	l->run = &l->one;
	l->one = (struct rmx_run){0, bytes};
	l->runs = 1;
	l->loops = 0;
	l->low = l->extent = 0;
	l->bytes = 0;
	if (ndim < 0 || ndim > RMX_DIMS || bytes <= 0)
		return false;
	for (int k = ndim - 1; k >= 0; k--) {
		if (shape[k] < 0 ||
		    __builtin_mul_overflow(bytes, shape[k], &bytes))
			return false;
		if (shape[k] != 1)
			loop_add(l, shape[k], steps[k]);
	}
	l->bytes = (uint64_t)bytes;
	if (!bytes)
		l->loops = 0;
	l->runs = bytes > 0;
	l->high = bytes ? l->one.len : 0;
	for (int k = 0; k < l->loops; k++)
		if (!rmx_span_widen(&l->low, &l->high, l->loop[k].count,
				    l->loop[k].step)) {
			l->low = INT64_MIN;
			l->high = INT64_MAX;
			break;
		}
	return true;
}

struct rmx_layout *rmx_part_copy(void *room, const struct rmx_layout *part)
{
	struct rmx_layout *copy = memcpy(room, part, rmx_part_bytes(part));

	copy->run = &copy->one;
	return copy;
}

struct rmx_layout *rmx_layout_loop(const struct rmx_layout *l, int64_t count,
				   int64_t step, int *why_p)
{
	struct rmx_layout *made;

	if (count <= 0 || !l->runs) {
		made = layout_like(l, 0, why_p);
		return made ? layout_finish(made, why_p) : NULL;
	}
	made = layout_copy(l, why_p);
	if (!made || count == 1)
		return made;
	if (!loop_add(made, count, step))
		return failed(made, -FI_EOVERFLOW, why_p);
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

	return rmx_span_widen(&low, &high, count, l->extent) &&
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
	return bytes < l->bytes ? layout_written(l, bytes, why_p)
				: layout_copy(l, why_p);
}

/* -- walking */

bool rmx_side_within(const struct rmx_side *side, uint64_t offset,
		     uint64_t *first_p, uint64_t *len_p)
{
	int64_t low, high;

	if (!rmx_side_span(side, &low, &high) ||
	    __builtin_add_overflow(offset, low, &low) || low < 0 ||
	    __builtin_add_overflow(offset, high, &high))
		return false;
	*first_p = (uint64_t)low;
	*len_p = (uint64_t)(high - low);
	return true;
}

void rmx_walk_start(struct rmx_walk *w, const struct rmx_side *side, char *base)
{
	w->layout = side->layout;
	w->element = w->turn = base;
	w->run = 0;
	if (w->layout) {
		for (int k = 0; k < w->layout->loops; k++)
			w->done[k] = 0;
		rmx_walk_enter_run(w);
	} else {
		w->at = base;
		w->left = side->bytes;
	}
}

void rmx_walk_turn(struct rmx_walk *w)
{
	const struct rmx_layout *l = w->layout;

	w->run = 0;
	for (int k = 0; k < l->loops; k++) {
		const struct rmx_turns *t = &l->loop[k];

		w->turn += t->step;
		if (++w->done[k] < t->count)
			return;
		w->turn -= t->step * t->count;
		w->done[k] = 0;
	}
	w->turn = w->element += l->extent;
}

/* -- copying */

/* Pieces at equal distances, the next ones of a walk. */
struct row {
	char *at;
	int64_t step;
	uint64_t count;
};

/*
 * Those of `len` bytes, which the rest of the run has: it is cut into some, or
 * is one, as the runs of the innermost loop behind it are.
 */
static struct row walk_row(const struct rmx_walk *w, uint64_t len)
{
	const struct rmx_layout *l = w->layout;

	if (!l || l->runs > 1 || !l->loops || len != (uint64_t)l->run->len)
		return (struct row){w->at, (int64_t)len, w->left / len};
	return (struct row){w->at, l->loop->step,
			    (uint64_t)(l->loop->count - w->done[0])};
}

/* Is it one piece of `len` bytes? What walk_row() says, without its division.
 */
static bool row_is_one(const struct rmx_walk *w, uint64_t len)
{
	const struct rmx_layout *l = w->layout;

	return w->left - len < len && (!l || l->runs > 1 || !l->loops);
}

/* Goes on behind so many of them. */
static void walk_behind(struct rmx_walk *w, const struct row *row, uint64_t n,
			uint64_t len)
{
	if (n * len <= w->left) {
		rmx_walk_on(w, n * len);
		return;
	}
	w->done[0] += (int64_t)n - 1;
	w->turn += row->step * ((int64_t)n - 1);
	rmx_walk_on(w, len);
}

#define LOOP(type)                                                     \
	do {                                                           \
		for (; n; n--, to.at += to.step, from.at += from.step) \
			memcpy(to.at, from.at, sizeof(type));          \
	} while (0)

static void row_copy(struct row to, struct row from, uint64_t n, uint64_t len)
{
	switch (len) { /* memcpy of a constant length is a load and a store */
	case 1:
		LOOP(uint8_t);
		break;
	case 2:
		LOOP(uint16_t);
		break;
	case 4:
		LOOP(uint32_t);
		break;
	case 8:
		LOOP(uint64_t);
		break;
	case 16:
		LOOP(uint64_t[2]);
		break;
	default:
		for (; n; n--, to.at += to.step, from.at += from.step)
			rmx_move(to.at, from.at, len);
	}
}

static void sides_walk(const struct rmx_side *to, char *to_at,
		       const struct rmx_side *from, char *from_at)
{
	struct rmx_walk there, here;

	rmx_walk_start(&there, to, to_at);
	rmx_walk_start(&here, from, from_at);
	for (uint64_t bytes = to->bytes, n; bytes;) {
		const uint64_t len =
			there.left < here.left ? there.left : here.left;

		n = 1;
		if (row_is_one(&there, len) || row_is_one(&here, len)) {
			if (len > sizeof(uint64_t))
				rmx_move(there.at, here.at, len);
			else
				row_copy((struct row){.at = there.at},
					 (struct row){.at = here.at}, 1, len);
			rmx_walk_on(&there, len);
			rmx_walk_on(&here, len);
		} else {
			const struct row a = walk_row(&there, len),
					 b = walk_row(&here, len);

			n = a.count < b.count ? a.count : b.count;
			row_copy(a, b, n, len);
			walk_behind(&there, &a, n, len);
			walk_behind(&here, &b, n, len);
		}
		bytes -= n * len;
	}
}

void rmx_side_copy(const struct rmx_side *to, char *to_at,
		   const struct rmx_side *from, const char *from_at)
{
	char *source = (char *)(uintptr_t)from_at;

	if (rmx_side_is_whole(to) && rmx_side_is_whole(from))
		rmx_copy(to_at + (to->layout ? to->layout->low : 0),
			 source + (from->layout ? from->layout->low : 0),
			 to->bytes);
	else if (to->bytes)
		sides_walk(to, to_at, from, source);
}
