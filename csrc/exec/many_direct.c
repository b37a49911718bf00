/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations on many elements whose targets are all mapped here: loops over
 * memory.
 *
 * All elements are checked before the first one is touched, and each is checked
 * again when it is touched, as another thread, or a peer's put, may have
 * changed the caller's arrays in between.
 */
#include "exec/many.h"
#include "exec/guard.h"

#define RMX_PARTS 256 /* ranks at most */
#define RMX_SPARE 64  /* there may be so many more ranks than elements */

/*
 * The part of each rank's memory that the call may use: count[rank] elements
 * at map[rank].
 */
struct parts {
	struct rmaext_window *window;
	uint64_t ranks; /* 1 where all elements are of one rank, part 0 */
	uint64_t least; /* elements of the smallest part */
	bool one;	/* all elements are of one rank */
	bool even;	/* all elements lie among the first `least` of a part */
	bool aligned;	/* all parts are aligned to the unit */
	int64_t first;	/* rank of part 0 */
	char *map[RMX_PARTS];
	uint64_t count[RMX_PARTS];
};

/* Four indices, for arithmetic on all at once, which gcc's -O2 does not find.
 */
typedef uint64_t four __attribute__((vector_size(32)));

/*
 * Another thread may change the indices meanwhile. This look at them says only
 * that the call may begin; cursor_next() checks each index that is used.
 */
#if RMX_SANITIZED /* clang does not take it beside target_clones */
#define MAY_CHANGE __attribute__((no_sanitize("thread")))
#else
#define MAY_CHANGE
#endif

/*
 * Are all indices `low` or more, and below `low + limit`? For one that is not,
 * its distance from `low`, or from there to the last one, is negative.
 */
MAY_CHANGE RMX_WIDER static bool
indices_within(const int64_t *index, uint64_t n, uint64_t low, uint64_t limit)
{
	const uint64_t last = limit - 1;
	four a = {0}, b = {0}, c, d;
	uint64_t i = 0, at;

	if (!limit || limit > INT64_MAX)
		return false;
	for (; i + 8 <= n; i += 8) {
		memcpy(&c, index + i, sizeof(c));
		memcpy(&d, index + i + 4, sizeof(d));
		c -= low;
		d -= low;
		a |= c | (last - c);
		b |= d | (last - d);
	}
	for (; i < n; i++) {
		at = (uint64_t)index[i] - low;
		a[0] |= at | (last - at);
	}
	a |= b;
	return !((a[0] | a[1] | a[2] | a[3]) >> 63);
}

/* Do the elements have that rank, all? Where they differ, the first ones do. */
static bool ranks_are(const struct rmx_many *b, uint64_t start, uint64_t end,
		      int64_t rank)
{
	const uint64_t n = end - start, some = n < 16 ? n : 16;
	const int64_t *ranks = b->ranks + start;

	if (!b->rank_mask)
		return true;
	return n && indices_within(ranks, some, (uint64_t)rank, 1) &&
	       indices_within(ranks + some, n - some, (uint64_t)rank, 1);
}

static void part_add(struct parts *p, const struct rmx_many *b, int64_t rank,
		     bool checked)
{
	const struct rmx_target *t = rmx_target_of(b->window, rank);
	const bool may =
		rmx_many_is_local(b, rank) && (checked || !rmx_doubtful(t)) &&
		(t->access & b->access) == b->access && rmx_many_aligned(b, t);
	const uint64_t count = may ? t->size / b->all.unit : 0;

	p->map[p->ranks] = t->map;
	p->count[p->ranks++] = count;
	if (count < p->least)
		p->least = count;
	if (count && (uintptr_t)t->map % b->all.unit)
		p->aligned = false;
}

/*
 * Makes the parts for the elements from `start` to `end`. Returns false if
 * there are more than `most` ranks, or if the only one does not exist.
 * `checked` says that ranks in doubt were found to live.
 */
static bool parts_make(struct parts *p, const struct rmx_many *b,
		       uint64_t start, uint64_t end, uint64_t most,
		       bool checked)
{
	const uint64_t ranks = (uint64_t)b->window->count;
	const int64_t rank =
		start < end || !b->rank_mask ? rmx_rank_at(b, start) : -1;

	p->window = b->window;
	p->first = 0;
	p->ranks = 0;
	p->least = UINT64_MAX;
	p->aligned = true;
	p->even = false;
	p->one = ranks_are(b, start, end, rank);
	if (p->one) {
		if ((uint64_t)rank >= ranks)
			return false;
		p->first = rank;
		part_add(p, b, rank, checked);
		return true;
	}
	if (ranks > RMX_PARTS || ranks > most)
		return false;
	for (uint64_t r = 0; r < ranks; r++)
		part_add(p, b, (int64_t)r, checked);
	return true;
}

/* What loops know of the parts, as constants. */
enum how {
	ONE,	/* all elements are of part 0 */
	EVEN,	/* of several, and there is one limit for their offsets */
	UNEVEN, /* each part has a limit of its own */
};

/*
 * A position in the arrays of ranks and offsets. It has copies of what the
 * call and the parts have, as the compiler cannot know that the loops do not
 * write to these.
 */
struct cursor {
	const int64_t *rank, *offset;
	uint64_t offset_step; /* 0: one offset for all */
	uint64_t ranks, least;
	char *first;
	char *const *map;
	const uint64_t *count;
};

static const int64_t *offsets_from(const struct rmx_many *b, uint64_t i)
{
	return (const void *)(b->all.offsets + i * b->all.offset_step);
}

static inline struct cursor cursor_at(const struct rmx_many *b,
				      const struct parts *p, uint64_t i)
{
	return (struct cursor){
		b->ranks + (i & b->rank_mask),
		offsets_from(b, i),
		b->all.offset_step / sizeof(int64_t),
		p->ranks,
		p->least,
		p->map[0],
		p->map,
		p->count,
	};
}

/* Returns the next element; or NULL, if it is not in the window. */
static inline __attribute__((always_inline)) void *
cursor_next(struct cursor *at, enum how how, size_t unit)
{
	uint64_t rank = 0, offset;

	offset = (uint64_t)__atomic_load_n(at->offset, __ATOMIC_RELAXED);
	at->offset += at->offset_step;
	if (how != ONE) {
		rank = (uint64_t)__atomic_load_n(at->rank++, __ATOMIC_RELAXED);
		if (rank >= at->ranks)
			return NULL;
	}
	if (offset >= (how == UNEVEN ? at->count[rank] : at->least))
		return NULL;
	return (how == ONE ? at->first : at->map[rank]) + offset * unit;
}

/* -- checks */

static bool many_is_inside(const struct rmx_many *b, struct parts *p)
{
	struct cursor at = cursor_at(b, p, 0);

	p->even = (p->one ||
		   indices_within(b->ranks, b->all.count, 0, p->ranks)) &&
		  indices_within(offsets_from(b, 0),
				 b->all.offset_step ? b->all.count : 1, 0,
				 p->least);
	if (p->even || p->one)
		return p->even;
	/* the parts may differ in size, so each element is checked */
	for (uint64_t i = 0; i < b->all.count; i++)
		if (!cursor_next(&at, UNEVEN, 1))
			return false;
	return true;
}

/* -- operations */

typedef void element(void *cell, const void *value, void *result);

/* It is inlined for each unit, operation and `how`, which are constants. */
static inline __attribute__((always_inline)) int
many_loop(const struct rmx_many *b, const struct parts *p, uint64_t start,
	  uint64_t end, size_t unit, element *operation, enum how how)
{
	const char *value = rmx_value_at(b, start);
	char *result = rmx_result_at(b, start);
	const size_t step = value ? b->all.value_step : 0,
		     room = result ? unit : 0;
	struct cursor at = cursor_at(b, p, start);

#pragma GCC unroll 4
	for (uint64_t n = end - start; n; n--) {
		void *cell = cursor_next(&at, how, unit);

		if (!cell)
			return rmx_changed(b);
		operation(cell, value, result);
		value += step;
		result += room;
	}
	return 0;
}

static inline __attribute__((always_inline)) int
many_each(const struct rmx_many *b, const struct parts *p, uint64_t start,
	  uint64_t end, size_t unit, element *operation)
{
	if (p->one)
		return many_loop(b, p, start, end, unit, operation, ONE);
	if (p->even)
		return many_loop(b, p, start, end, unit, operation, EVEN);
	return many_loop(b, p, start, end, unit, operation, UNEVEN);
}

/*
 * Element i, of that rank, which may be any; or NULL, if it is not in the
 * window. The caller has read the rank, which another thread may have changed.
 */
static void *many_find(const struct rmx_many *b, int64_t rank, uint64_t i)
{
	uint64_t at;
	const struct rmx_target *t = rmx_place(
		b, rank, rmx_offset_number(&b->all, i), b->all.unit, &at);

	return t && rmx_many_is_local(b, rank) ? t->map + at : NULL;
}

/*
 * For units, types and operations that have no loop of their own, and (p NULL)
 * for puts and gets of what no parts are made of.
 */
static int many_by_cells(const struct rmx_many *b, const struct parts *p,
			 uint64_t start, uint64_t end)
{
	const enum how how = p && p->one ? ONE : UNEVEN;
	struct cursor at = {.rank = NULL};
	void *cells[RMX_CELLS];

	if (p)
		at = cursor_at(b, p, start);

	for (uint64_t i = start, n; i < end; i += n) {
		n = end - i < RMX_CELLS ? end - i : RMX_CELLS;
		for (uint64_t k = 0; k < n; k++) {
			cells[k] =
				p ? cursor_next(&at, how, b->all.unit)
				  : many_find(b, rmx_rank_at(b, i + k), i + k);
			if (!cells[k])
				return rmx_changed(b);
		}
		if (rmx_updates(b))
			rmx_cells_update(b->op, b->type, cells, n,
					 rmx_value_at(b, i), b->all.value_step,
					 rmx_result_at(b, i));
		else
			rmx_cells_move(b->kind, b->all.unit, cells, n,
				       rmx_value_at(b, i), b->all.value_step,
				       rmx_result_at(b, i));
	}
	return 0;
}

/* Updates that no parts are made of: each enters its guard, and moves b->at. */
static int many_one_by_one(struct rmx_many *b, uint64_t end)
{
	for (; b->at < end; b->at++) {
		const uint64_t i = b->at;
		const int64_t rank = rmx_rank_at(b, i);
		void *cell = many_find(b, rank, i);
		int ret;

		if (!cell)
			return rmx_changed(b);
		b->busy = rank;
		ret = rmx_update_cells(b->window, rank, b->op, b->type, &cell,
				       1, rmx_value_at(b, i), 0,
				       rmx_result_at(b, i), RMX_SLICE);
		if (ret)
			return ret;
	}
	return 0;
}

#define EACH(name, type) many_each(b, p, start, end, sizeof(type), rmx_##name)

static int many_sum(const struct rmx_many *b, const struct parts *p,
		    uint64_t start, uint64_t end)
{
	switch (b->type) {
	case RMAEXT_INT32:
	case RMAEXT_UINT32:
		return EACH(add_u4, uint32_t);
	case RMAEXT_INT64:
	case RMAEXT_UINT64:
		return EACH(add_u8, uint64_t);
	case RMAEXT_FLOAT:
		return EACH(add_f4, float);
	case RMAEXT_DOUBLE:
		return EACH(add_f8, double);
	}
	return many_by_cells(b, p, start, end);
}

static int many_move(const struct rmx_many *b, const struct parts *p,
		     uint64_t start, uint64_t end)
{
	if (!p->aligned || (b->all.unit != 4 && b->all.unit != 8))
		return many_by_cells(b, p, start, end);
	if (b->kind == RMAEXT_PUT)
		return b->all.unit == 4 ? EACH(put_uint32_t, uint32_t)
					: EACH(put_uint64_t, uint64_t);
	return b->all.unit == 4 ? EACH(get_uint32_t, uint32_t)
				: EACH(get_uint64_t, uint64_t);
}

static int many_apply(const struct rmx_many *b, const struct parts *p,
		      uint64_t start, uint64_t end)
{
	if (!rmx_updates(b))
		return many_move(b, p, start, end);
	return b->op == RMAEXT_SUM ? many_sum(b, p, start, end)
				   : many_by_cells(b, p, start, end);
}

/* -- the guards of all parts */

/*
 * Leaves out the parts that no element uses, where that is less work than to
 * enter the guards of all. If another thread changes the ranks later,
 * cursor_next() finds no elements in these parts.
 */
static void parts_drop_unused(struct parts *p, const struct rmx_many *b,
			      uint64_t start, uint64_t end)
{
	bool used[RMX_PARTS] = {false};

	if (p->one || (end - start) / 16 > p->ranks)
		return;
	for (uint64_t i = start; i < end; i++) {
		const uint64_t rank = (uint64_t)rmx_rank_at(b, i);

		if (rank < p->ranks)
			used[rank] = true;
	}
	for (uint64_t r = 0; r < p->ranks; r++) {
		if (used[r])
			continue;
		p->count[r] = 0;
		p->even = false; /* which looks at no count */
	}
}

static void parts_leave_guards(const struct parts *p, uint64_t end)
{
	for (uint64_t r = 0; r < end; r++)
		if (p->count[r])
			rmx_singles_leave(p->window, p->first + (int64_t)r);
}

/*
 * Enters the guards of all parts or of none, without waiting. *busy_p is the
 * rank whose guard was not free.
 */
static bool parts_try_guards(const struct parts *p, int64_t *busy_p)
{
	for (uint64_t r = 0; r < p->ranks; r++) {
		*busy_p = p->first + (int64_t)r;
		if (p->count[r] && !rmx_singles_try(p->window, *busy_p)) {
			parts_leave_guards(p, r);
			return false;
		}
	}
	return true;
}

static int parts_enter_guards(const struct parts *p, int64_t *busy_p)
{
	int64_t until = 0, now;

	while (!parts_try_guards(p, busy_p)) {
		now = rmx_now();
		until = until ? until : now + RMX_SLICE;
		if (now >= until ||
		    rmx_bulk_await(p->window, *busy_p, until - now))
			return RMAEXT_PENDING;
	}
	return 0;
}

/*
 * Is it nothing for the loops over parts? They take offsets in elements,
 * and types that are updated without a lock.
 */
static bool many_is_odd(const struct rmx_many *b)
{
	return (rmx_updates(b) && rmx_wide(b->type)) ||
	       b->all.scale != b->all.unit;
}

/* -- the record */

static uint64_t elements_offset(const struct rmx_many *b, uint64_t i)
{
	return b->window->first + rmx_offset_number(&b->all, i) * b->all.scale;
}

/* Traces have the elements of each target, if there are not too many. */
static void parts_trace(const struct rmx_many *b, uint64_t start, uint64_t end)
{
	const uint64_t ranks = (uint64_t)b->window->count;
	uint64_t counts[RMX_PARTS] = {0};

	for (uint64_t i = start; i < end; i++) {
		const uint64_t rank = (uint64_t)rmx_rank_at(b, i);

		if (rank < ranks)
			counts[rank]++;
	}
	for (uint64_t rank = 0; rank < ranks; rank++)
		if (counts[rank])
			rmx_count_direct(&b->window->tally, (int64_t)rank,
					 rmx_many_counts_as(b), 0,
					 counts[rank] * b->all.unit, false);
}

/*
 * Counts elements that were carried out here, all on `rank`, or on
 * RMX_SEVERAL: these are not counted one by one, which would take a good part
 * of the time.
 */
static void elements_count(const struct rmx_many *b, int64_t rank,
			   uint64_t start, uint64_t end)
{
	const bool one = rank != RMX_SEVERAL;

	if (!b->window->tally.of || end == start)
		return;
	if (!one && rmx_record.traced && b->window->count <= RMX_PARTS)
		parts_trace(b, start, end);
	else
		rmx_count_direct(&b->window->tally, rank, rmx_many_counts_as(b),
				 one ? elements_offset(b, start) : 0,
				 (end - start) * b->all.unit, false);
}

bool rmx_direct_all(const struct rmx_many *b, int *ret_p, uint64_t *done_p)
{
	const uint64_t end =
		b->all.count < RMX_PORTION ? b->all.count : RMX_PORTION;
	struct parts p;
	int64_t busy;

	if (many_is_odd(b) ||
	    !parts_make(&p, b, 0, b->all.count, b->all.count + RMX_SPARE,
			false) ||
	    (!b->fresh && !many_is_inside(b, &p)))
		return false;
	if (rmx_updates(b)) {
		parts_drop_unused(&p, b, 0, end);
		if (!parts_try_guards(&p, &busy))
			return false;
	}
	*ret_p = many_apply(b, &p, 0, end);
	if (rmx_updates(b))
		parts_leave_guards(&p, p.ranks);
	if (b->fresh && *ret_p)
		return false;
	elements_count(b, p.one ? p.first : RMX_SEVERAL, 0, end);
	*done_p = end;
	return true;
}

int rmx_direct_portion(struct rmx_many *b, uint64_t end)
{
	const uint64_t start = b->at;
	int64_t rank = b->rank_mask && end - start > 1 ? RMX_SEVERAL
						       : rmx_rank_at(b, start);
	struct parts p = {.one = false};
	int ret = 0;

	if (many_is_odd(b) ||
	    !parts_make(&p, b, start, end, end - start, true)) {
		if (rmx_updates(b)) {
			ret = many_one_by_one(b, end);
			elements_count(b, rank, start, b->at);
			return ret;
		}
		ret = many_by_cells(b, NULL, start, end);
	} else if (!rmx_updates(b)) {
		ret = many_apply(b, &p, start, end);
	} else {
		parts_drop_unused(&p, b, start, end);
		ret = parts_enter_guards(&p, &b->busy);
		if (ret)
			return ret;
		ret = many_apply(b, &p, start, end);
		parts_leave_guards(&p, p.ranks);
	}
	elements_count(b, p.one ? p.first : rank, start, end);
	b->at = end;
	return ret;
}
