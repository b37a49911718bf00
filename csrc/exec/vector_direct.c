/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations on many elements whose targets are all mapped here: loops over
 * memory.
 *
 * All elements are checked before the first one is touched, and each is checked
 * again when it is touched, as another thread, or a peer's put, may have
 * changed the caller's arrays in between.
 */
#include "exec/vector.h"
#include "exec/guard.h"

#define RMX_PARTS 256 /* ranks at most */
#define RMX_SPARE 64  /* there may be so many more ranks than elements */

/*
 * The part of each rank's memory that the batch may use: count[rank] elements
 * at map[rank].
 */
struct parts {
	struct rmaext_window *window;
	uint64_t ranks; /* 1 where one rank stands for all, as part 0 */
	uint64_t least; /* elements of the smallest part */
	bool aligned;	/* all parts are aligned to the unit */
	int64_t first;	/* rank of part 0 */
	char *map[RMX_PARTS];
	uint64_t count[RMX_PARTS];
};

static void part_add(struct parts *p, const struct rmaext_batch *b,
		     int64_t rank, bool checked)
{
	const struct rmx_target *t = rmx_target_of(b->window, rank);
	const bool may =
		rmx_batch_is_local(b, rank) && (checked || !rmx_doubtful(t)) &&
		(t->access & b->access) == b->access && rmx_batch_aligned(b, t);
	const uint64_t count = may ? t->size / b->unit : 0;

	p->map[p->ranks] = t->map;
	p->count[p->ranks++] = count;
	if (count < p->least)
		p->least = count;
	if (count && (uintptr_t)t->map % b->unit)
		p->aligned = false;
}

/*
 * Returns false if there are more than `most` ranks, or if the only one does
 * not exist. `checked` says that ranks in doubt were found to live.
 */
static bool parts_make(struct parts *p, const struct rmaext_batch *b,
		       uint64_t most, bool checked)
{
	const uint64_t ranks = (uint64_t)b->window->count;

	p->window = b->window;
	p->first = 0;
	p->ranks = 0;
	p->least = UINT64_MAX;
	p->aligned = true;
	if (!b->rank_mask) {
		const uint64_t rank = (uint64_t)rmx_rank_at(b, 0);

		if (rank >= ranks)
			return false;
		p->first = (int64_t)rank;
		part_add(p, b, (int64_t)rank, checked);
		return true;
	}
	if (ranks > RMX_PARTS || ranks > most)
		return false;
	for (uint64_t r = 0; r < ranks; r++)
		part_add(p, b, (int64_t)r, checked);
	return true;
}

/*
 * A position in the arrays of ranks and offsets. It has copies of what the
 * batch has, as the compiler cannot know that the loops do not write to the
 * batch.
 */
struct cursor {
	const int64_t *rank, *offset;
	uint64_t offset_step; /* 0: one offset for all */
};

static inline struct cursor cursor_at(const struct rmaext_batch *b, uint64_t i)
{
	return (struct cursor){
		b->ranks + (i & b->rank_mask),
		b->offsets + (i & b->offset_mask),
		b->offset_mask & 1,
	};
}

/* Returns the next element's part and offset; false: it is not in the window.
 */
static inline __attribute__((always_inline)) bool
cursor_next(struct cursor *at, const struct parts *p, uint64_t ranks, bool one,
	    uint64_t *rank_p, uint64_t *offset_p)
{
	*rank_p = one ? 0
		      : (uint64_t)__atomic_load_n(at->rank++, __ATOMIC_RELAXED);
	*offset_p = (uint64_t)__atomic_load_n(at->offset, __ATOMIC_RELAXED);
	at->offset += at->offset_step;
	return (one || *rank_p < ranks) && *offset_p < p->count[*rank_p];
}

/* -- checks */

/* Two indices, for arithmetic on both at once, which gcc's -O2 does not find.
 */
typedef uint64_t pair __attribute__((vector_size(16)));

/*
 * Another thread may change the indices meanwhile. This look at them says only
 * that the call may begin; cursor_next() checks each index that is used.
 */
#define MAY_CHANGE __attribute__((no_sanitize("thread")))

MAY_CHANGE static inline pair pair_load(const int64_t *index)
{
	pair two;

	memcpy(&two, index, sizeof(two));
	return two;
}

/* If an index is not below the limit, it or `last - index` is negative. */
MAY_CHANGE static bool indices_below(const int64_t *index, uint64_t n,
				     uint64_t limit)
{
	const uint64_t last = limit - 1;
	pair a = {0}, b = {0}, c, d;
	uint64_t i = 0, at;

	if (!limit || limit > INT64_MAX)
		return false;
	for (; i + 8 <= n; i += 8) {
		c = pair_load(index + i);
		d = pair_load(index + i + 2);
		a |= c | (last - c);
		b |= d | (last - d);
		c = pair_load(index + i + 4);
		d = pair_load(index + i + 6);
		a |= c | (last - c);
		b |= d | (last - d);
	}
	for (; i < n; i++) {
		at = (uint64_t)index[i];
		a[0] |= at | (last - at);
	}
	a |= b;
	return !((a[0] | a[1]) >> 63);
}

static bool batch_is_inside(const struct rmaext_batch *b, const struct parts *p)
{
	const bool one = !b->rank_mask;
	struct cursor at = cursor_at(b, 0);
	uint64_t rank, offset;

	if ((one || indices_below(b->ranks, b->count, p->ranks)) &&
	    indices_below(b->offsets, b->offset_mask ? b->count : 1, p->least))
		return true;
	/* the parts may differ in size, so each element is checked */
	for (uint64_t i = 0; i < b->count; i++)
		if (!cursor_next(&at, p, p->ranks, one, &rank, &offset))
			return false;
	return true;
}

/* -- operations */

typedef void element(void *cell, const void *value, void *result);

/* It is inlined for each unit, operation and `one`, which are constants. */
static inline __attribute__((always_inline)) int
batch_loop(const struct rmaext_batch *b, const struct parts *p, uint64_t start,
	   uint64_t end, size_t unit, element *operation, bool one)
{
	const uint64_t ranks = p->ranks;
	const char *value = rmx_value_at(b, start);
	char *result = rmx_result_at(b, start);
	const size_t step = value ? b->step : 0, room = result ? unit : 0;
	struct cursor at = cursor_at(b, start);

	for (uint64_t n = end - start, rank, offset; n; n--) {
		if (!cursor_next(&at, p, ranks, one, &rank, &offset))
			return rmx_changed(b);
		operation(p->map[rank] + offset * unit, value, result);
		value += step;
		result += room;
	}
	return 0;
}

static inline __attribute__((always_inline)) int
batch_each(const struct rmaext_batch *b, const struct parts *p, uint64_t start,
	   uint64_t end, size_t unit, element *operation)
{
	return b->rank_mask
		       ? batch_loop(b, p, start, end, unit, operation, false)
		       : batch_loop(b, p, start, end, unit, operation, true);
}

/* For units, types and operations that have no loop of their own. */
static int batch_by_cells(const struct rmaext_batch *b, const struct parts *p,
			  uint64_t start, uint64_t end)
{
	struct cursor at = cursor_at(b, start);
	void *cells[RMX_CELLS];

	for (uint64_t i = start, n, rank, offset; i < end; i += n) {
		n = end - i < RMX_CELLS ? end - i : RMX_CELLS;
		for (uint64_t k = 0; k < n; k++) {
			if (!cursor_next(&at, p, p->ranks, !b->rank_mask, &rank,
					 &offset))
				return rmx_changed(b);
			cells[k] = p->map[rank] + offset * b->unit;
		}
		if (rmx_updates(b))
			rmx_cells_update(b->op, b->type, cells, n,
					 rmx_value_at(b, i), b->step,
					 rmx_result_at(b, i));
		else
			rmx_cells_move(b->kind, b->unit, cells, n,
				       rmx_value_at(b, i), b->step,
				       rmx_result_at(b, i));
	}
	return 0;
}

#define EACH(name, type) batch_each(b, p, start, end, sizeof(type), rmx_##name)

static int batch_sum(const struct rmaext_batch *b, const struct parts *p,
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
	return batch_by_cells(b, p, start, end);
}

static int batch_move(const struct rmaext_batch *b, const struct parts *p,
		      uint64_t start, uint64_t end)
{
	if (!p->aligned || (b->unit != 4 && b->unit != 8))
		return batch_by_cells(b, p, start, end);
	if (b->kind == RMAEXT_PUT)
		return b->unit == 4 ? EACH(put_uint32_t, uint32_t)
				    : EACH(put_uint64_t, uint64_t);
	return b->unit == 4 ? EACH(get_uint32_t, uint32_t)
			    : EACH(get_uint64_t, uint64_t);
}

static int batch_apply(const struct rmaext_batch *b, const struct parts *p,
		       uint64_t start, uint64_t end)
{
	if (!rmx_updates(b))
		return batch_move(b, p, start, end);
	return b->op == RMAEXT_SUM ? batch_sum(b, p, start, end)
				   : batch_by_cells(b, p, start, end);
}

/* -- the guards of all parts */

/*
 * Leaves out the parts that no element uses, where that is less work than to
 * enter the guards of all. If another thread changes the ranks later,
 * cursor_next() finds no elements in these parts.
 */
static void parts_drop_unused(struct parts *p, const struct rmaext_batch *b,
			      uint64_t start, uint64_t end)
{
	bool used[RMX_PARTS] = {false};

	if (!b->rank_mask || (end - start) / 16 > p->ranks)
		return;
	for (uint64_t i = start; i < end; i++) {
		const uint64_t rank = (uint64_t)rmx_rank_at(b, i);

		if (rank < p->ranks)
			used[rank] = true;
	}
	for (uint64_t r = 0; r < p->ranks; r++)
		if (!used[r])
			p->count[r] = 0;
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
 * Is the batch none for the loops over parts? They take offsets in elements,
 * and types that are updated without a lock.
 */
static bool batch_is_odd(const struct rmaext_batch *b)
{
	return (rmx_updates(b) && rmx_wide(b->type)) || b->strides ||
	       b->scale != b->unit;
}

bool rmx_direct_all(const struct rmaext_batch *b, int *ret_p, uint64_t *done_p)
{
	const uint64_t end = b->count < RMX_PORTION ? b->count : RMX_PORTION;
	struct parts p;
	int64_t busy;

	if (batch_is_odd(b) ||
	    !parts_make(&p, b, b->count + RMX_SPARE, false) ||
	    !batch_is_inside(b, &p))
		return false;
	if (rmx_updates(b)) {
		parts_drop_unused(&p, b, 0, end);
		if (!parts_try_guards(&p, &busy))
			return false;
	}
	*ret_p = batch_apply(b, &p, 0, end);
	if (rmx_updates(b))
		parts_leave_guards(&p, p.ranks);
	*done_p = end;
	return true;
}

int rmx_direct_portion(struct rmaext_batch *b, uint64_t end)
{
	const uint64_t start = b->at;
	struct parts p;
	int ret = 0;

	if (batch_is_odd(b) || !parts_make(&p, b, end - start, true)) {
		if (rmx_updates(b))
			return rmx_cells_update_each(b, end);
		ret = rmx_cells_move_each(b, start, end);
	} else if (!rmx_updates(b)) {
		ret = batch_apply(b, &p, start, end);
	} else {
		parts_drop_unused(&p, b, start, end);
		ret = parts_enter_guards(&p, &b->busy);
		if (ret)
			return ret;
		ret = batch_apply(b, &p, start, end);
		parts_leave_guards(&p, p.ranks);
	}
	b->at = end;
	return ret;
}
