/* SPDX-License-Identifier: BSD-3-Clause */
/* Updates of memory that is mapped here, by this CPU. */
#include "exec/update.h"
#include "exec/overlap.h"

#define RMX_BULK 1024 /* bytes from which an update is made in bulk */
#define RMX_HOLD ((uint64_t)256 << 10) /* bytes a hold of the guard: 20 us */
#define RMX_OLD 4096		       /* bytes of old values at a time */

static bool is_bulk(const struct rmaext_window *w, int64_t rank, int type,
		    uint64_t bytes)
{
	return rmx_wide(type) ||
	       (rmx_control_block_of(w, rank) && bytes >= RMX_BULK);
}

static bool update_is_bulk(const struct rmaext_window *w,
			   const struct rmaext_call *u)
{
	return is_bulk(w, u->rank, u->type, u->count * rmx_unit_of(u->type));
}

/* Updates each element by itself, without a lock. */
static void update_singly(char *memory, const struct rmaext_call *u)
{
	const struct rmx_element *e = rmx_element_of(u->op, u->type);
	const size_t unit = rmx_unit_of(u->type), end = u->count * unit;
	const char *operand = u->operand, *compare = u->compare;
	char *result = u->result;

	if (u->op == RMAEXT_CSWAP)
		for (size_t at = 0; at < end; at += unit)
			rmx_swap_one(u->type, memory + at, compare + at,
				     operand + at, result + at);
	else if (result)
		for (size_t at = 0; at < end; at += unit)
			e->one(memory + at, operand ? operand + at : NULL,
			       result + at);
	else
		for (size_t at = 0; at < end; at += unit)
			e->one(memory + at, operand ? operand + at : NULL,
			       NULL);
}

/* Updates n elements from `first` on; the caller is in bulk. */
static void update_row(char *memory, const struct rmaext_call *u,
		       uint64_t first, size_t n)
{
	const size_t at = first * rmx_unit_of(u->type);
	const char *operand = u->operand;

	if (operand)
		operand += at;
	if (u->op == RMAEXT_CSWAP)
		rmx_swap_row(u->type, memory + at,
			     (const char *)u->compare + at, operand, n);
	else
		rmx_element_of(u->op, u->type)->row(memory + at, operand, n);
}

/* Does the same. Old values go by way of the stack: result may be operand. */
static void update_row_with_result(char *memory, const struct rmaext_call *u,
				   uint64_t first, size_t n)
{
	const size_t unit = rmx_unit_of(u->type);
	const size_t most = RMX_OLD / unit;
	char *result = u->result;
	char old[RMX_OLD];

	for (const uint64_t end = first + n; first < end; first += n) {
		n = end - first < most ? end - first : most;
		memcpy(old, memory + first * unit, n * unit);
		update_row(memory, u, first, n);
		memcpy(result + first * unit, old, n * unit);
	}
}

static void update_rows(char *memory, const struct rmaext_call *u,
			uint64_t first, size_t n)
{
	if (u->result)
		update_row_with_result(memory, u, first, n);
	else
		update_row(memory, u, first, n);
}

void rmx_update_in_bulk(char *memory, const struct rmaext_call *u)
{
	update_rows(memory, u, 0, u->count);
}

int rmx_update_apply(struct rmaext_window *w, void *memory,
		     const struct rmaext_call *u, uint64_t *done, int64_t ns)
{
	const int64_t rank = u->rank;
	const uint64_t most = RMX_HOLD / rmx_unit_of(u->type);
	int ret;

	if (!update_is_bulk(w, u)) {
		ret = rmx_singles_enter(w, rank, ns);
		if (ret)
			return ret;
		update_singly(memory, u);
		rmx_singles_leave(w, rank);
		return 0;
	}
	for (uint64_t n; *done < u->count; *done += n) {
		n = u->count - *done < most ? u->count - *done : most;
		ret = rmx_bulk_enter(w, rank, ns);
		if (ret)
			return ret;
		update_rows(memory, u, *done, n);
		rmx_bulk_leave(w, rank);
	}
	return 0;
}

/* Takes the next row, of so many bytes at most; returns where it is. */
static char *rows_take(struct rmx_rows *r, uint64_t most, struct rmaext_call *u)
{
	char *memory = r->memory.at;
	uint64_t n = r->memory.left < most ? r->memory.left : most;

	*u = (struct rmaext_call){.op = r->op, .type = r->type};
	if (r->with_operand) {
		n = r->operand.left < n ? r->operand.left : n;
		u->operand = r->operand.at;
	}
	if (r->with_result) {
		n = r->result.left < n ? r->result.left : n;
		u->result = r->result.at;
		rmx_walk_on(&r->result, n);
	}
	if (r->with_operand)
		rmx_walk_on(&r->operand, n);
	rmx_walk_on(&r->memory, n);
	u->count = n / rmx_unit_of(r->type);
	r->left -= n;
	return memory;
}

int rmx_update_rows(struct rmaext_window *w, int64_t rank, struct rmx_rows *r,
		    int64_t ns)
{
	const uint64_t most = RMX_HOLD - RMX_HOLD % rmx_unit_of(r->type);
	const bool bulk = is_bulk(w, rank, r->type, r->left);
	struct rmaext_call u;
	char *memory;
	int ret;

	while (r->left) {
		const uint64_t end = r->left < most ? 0 : r->left - most;

		ret = bulk ? rmx_bulk_enter(w, rank, ns)
			   : rmx_singles_enter(w, rank, ns);
		if (ret)
			return ret;
		while (r->left > end) {
			memory = rows_take(r, r->left - end, &u);
			if (bulk)
				update_rows(memory, &u, 0, u.count);
			else
				update_singly(memory, &u);
		}
		if (bulk)
			rmx_bulk_leave(w, rank);
		else
			rmx_singles_leave(w, rank);
	}
	return 0;
}

/*
 * Writes the elements that an update has changed: what it leaves alone others
 * may put meanwhile. Returns as rmx_update_copied().
 */
static int changes_write(const struct rmx_target *t, int64_t rank,
			 uint64_t offset, const char *cells, const char *old,
			 size_t unit, size_t len)
{
	bool written = false;

	for (size_t at = 0, end; at < len; at = end) {
		int ret;

		end = at + unit;
		if (!memcmp(cells + at, old + at, unit))
			continue;
		while (end < len && memcmp(cells + end, old + end, unit))
			end += unit;
		ret = rmx_target_write(t, rank, offset + at, cells + at,
				       end - at);
		if (ret) /* or does it refuse copies by now? */
			return written || rmx_copies(t) ? ret : RMAEXT_PENDING;
		written = true;
	}
	return 0;
}

/* In the guard it is the answer; without it, most often. */
static bool copies_are_made(const struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);

	return b && atomic_load(&b->copies) == RMX_COPIES_MADE;
}

/* The caller is in bulk there. Returns as rmx_update_copied(). */
static int copies_make(struct rmaext_window *w, const struct rmaext_call *u,
		       char *old)
{
	const int64_t rank = u->rank;
	const size_t unit = rmx_unit_of(u->type), len = u->count * unit;
	const struct rmx_target *t = rmx_target_of(w, rank);
	_Alignas(max_align_t) char cells[RMX_OLD];

	if (!copies_are_made(w, rank) ||
	    rmx_target_read(t, rank, u->offset, old, len))
		return RMAEXT_PENDING; /* the message finds out why */
	if (u->op == RMAEXT_NO_OP)
		return 0;
	memcpy(cells, old, len);
	update_row(cells, u, 0, u->count);
	return changes_write(t, rank, u->offset, cells, old, unit, len);
}

int rmx_update_copied(struct rmaext_window *w, const struct rmaext_call *u)
{
	const int64_t rank = u->rank;
	const struct rmx_target *t = rmx_target_of(w, rank);
	const size_t len = u->count * rmx_unit_of(u->type);
	char old[RMX_OLD];
	int ret;

	if ((!u->result && u->count == 1) || len > RMX_OLD || !rmx_copies(t) ||
	    !copies_are_made(w, rank) ||
	    rmx_counted(atomic_load(&rmx_target_of(w->root, rank)->pending)) ||
	    rmx_bulk_enter(w, rank, RMX_PATIENCE))
		return RMAEXT_PENDING;
	ret = copies_make(w, u, old);
	rmx_bulk_leave(w, rank);
	if (ret == RMAEXT_PENDING)
		return ret;
	if (u->result && !ret)
		memcpy(u->result, old, len);
	rmx_count_copy(&w->tally, rank,
		       rmx_counted_as(RMAEXT_UPDATE, u->result), RMAEXT_CMA,
		       u->offset, len, ret);
	return ret;
}

bool rmx_update_direct(struct rmaext_window *w, const struct rmaext_call *u)
{
	const int64_t rank = u->rank;
	const uint64_t offset = u->offset;
	const int access = rmx_update_access(u->op, u->result != NULL);
	const uint64_t len = u->count * rmx_unit_of(u->type);
	char *memory;

	/* the product fits 64 bits: the caller has so many elements */
	if (!rmx_update_valid(u->op, u->type) ||
	    !rmx_passes(w, rank, offset, len, access) ||
	    !rmx_update_is_local(w, rank) ||
	    !rmx_update_aligned(rmx_target_of(w, rank), offset, u->type))
		return false;
	memory = rmx_target_of(w, rank)->map + offset;
	if (!update_is_bulk(w, u)) {
		if (!rmx_singles_try(w, rank))
			return false;
		update_singly(memory, u);
		rmx_singles_leave(w, rank);
	} else {
		if (len > RMX_HOLD || !rmx_bulk_try(w, rank))
			return false;
		update_rows(memory, u, 0, u->count);
		rmx_bulk_leave(w, rank);
	}
	rmx_count_direct(&w->tally, rank,
			 rmx_counted_as(RMAEXT_UPDATE, u->result), offset, len,
			 true);
	return true;
}

void rmx_cells_update(int op, int type, void *const *cells, size_t n,
		      const char *values, size_t step, char *results)
{
	const struct rmx_element *e = rmx_element_of(op, type);
	const size_t unit = rmx_unit_of(type);

	if (op == RMAEXT_CSWAP)
		for (size_t k = 0; k < n; k++)
			rmx_swap_one(type, cells[k], values + k * step,
				     values + k * step + unit,
				     results + k * unit);
	else if (results)
		for (size_t k = 0; k < n; k++)
			e->one(cells[k], values + k * step, results + k * unit);
	else
		for (size_t k = 0; k < n; k++)
			e->one(cells[k], values + k * step, NULL);
}

void rmx_cells_in_bulk(int op, int type, void *const *cells, size_t n,
		       const char *values, size_t step, char *results)
{
	const struct rmx_element *e = rmx_element_of(op, type);
	const size_t unit = rmx_unit_of(type);
	char old[RMX_MOST_UNIT];

	for (size_t k = 0; k < n; k++) {
		const char *value = values + k * step;

		memcpy(old, cells[k], unit);
		if (op == RMAEXT_CSWAP)
			rmx_swap_row(type, cells[k], value, value + unit, 1);
		else
			e->row(cells[k], value, 1);
		if (results)
			memcpy(results + k * unit, old, unit);
	}
}

int rmx_update_cells(struct rmaext_window *w, int64_t rank, int op, int type,
		     void *const *cells, size_t n, const char *values,
		     size_t step, char *results, int64_t ns)
{
	const bool bulk = rmx_wide(type);
	int ret = bulk ? rmx_bulk_enter(w, rank, ns)
		       : rmx_singles_enter(w, rank, ns);

	if (ret)
		return ret;
	if (bulk) {
		rmx_cells_in_bulk(op, type, cells, n, values, step, results);
		rmx_bulk_leave(w, rank);
	} else {
		rmx_cells_update(op, type, cells, n, values, step, results);
		rmx_singles_leave(w, rank);
	}
	return 0;
}
