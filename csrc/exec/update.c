/* SPDX-License-Identifier: BSD-3-Clause */
/* Updates: checks at the origin, and the own CPU's way. */
#include "exec/update.h"
#include "exec/guard.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_BULK 1024		       /* bytes: from here in a plain loop */
#define RMX_HOLD ((uint64_t)256 << 10) /* bytes at a time: 20 us */
#define RMX_OLD 4096		       /* bytes of old values at a time */

static bool in_bulk(const struct rmaext_window *w, int64_t rank,
		    const struct rmx_update *u)
{
	return rmx_wide(u->type) ||
	       (rmx_block_of(w, rank) &&
		u->count * rmx_unit_of(u->type) >= RMX_BULK);
}

/* Without a lock, each element by itself. */
static void singles(char *memory, const struct rmx_update *u)
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

/* n elements from the first on; the guard is held. */
static void row(char *memory, const struct rmx_update *u, uint64_t first,
		size_t n)
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

/* The same; old values by way of the stack, as they may go to the operand. */
static void row_with_result(char *memory, const struct rmx_update *u,
			    uint64_t first, size_t n)
{
	const size_t unit = rmx_unit_of(u->type);
	const size_t most = RMX_OLD / unit;
	char *result = u->result;
	char old[RMX_OLD];

	for (const uint64_t end = first + n; first < end; first += n) {
		n = end - first < most ? end - first : most;
		memcpy(old, memory + first * unit, n * unit);
		row(memory, u, first, n);
		memcpy(result + first * unit, old, n * unit);
	}
}

static void rows(char *memory, const struct rmx_update *u, uint64_t first,
		 size_t n)
{
	if (u->result)
		row_with_result(memory, u, first, n);
	else
		row(memory, u, first, n);
}

int rmx_update_apply(struct rmaext_window *w, int64_t rank, void *memory,
		     const struct rmx_update *u, uint64_t *done, int64_t ns)
{
	const uint64_t most = RMX_HOLD / rmx_unit_of(u->type);
	int ret;

	if (!in_bulk(w, rank, u)) {
		ret = rmx_singles_enter(w, rank, ns);
		if (ret)
			return ret;
		singles(memory, u);
		rmx_singles_leave(w, rank);
		return 0;
	}
	for (uint64_t n; *done < u->count; *done += n) {
		n = u->count - *done < most ? u->count - *done : most;
		ret = rmx_bulk_enter(w, rank, ns);
		if (ret)
			return ret;
		rows(memory, u, *done, n);
		rmx_bulk_leave(w, rank);
	}
	return 0;
}

bool rmx_update_direct(struct rmaext_window *w, int64_t rank, uint64_t offset,
		       const struct rmx_update *u)
{
	const int access = rmx_update_access(u->op, u->result != NULL);
	const uint64_t len = u->count * rmx_unit_of(u->type);
	char *memory;

	/* the caller has count elements in memory: the product fits */
	if (!rmx_update_valid(u->op, u->type) ||
	    !rmx_passes(w, rank, offset, len, access) ||
	    !rmx_update_here(w, rank) ||
	    !rmx_update_aligned(rmx_target_of(w, rank), offset, u->type))
		return false;
	memory = rmx_target_of(w, rank)->map + offset;
	if (!in_bulk(w, rank, u)) {
		if (!rmx_singles_try(w, rank))
			return false;
		singles(memory, u);
		rmx_singles_leave(w, rank);
		return true;
	}
	if (len > RMX_HOLD || !rmx_bulk_try(w, rank))
		return false;
	rows(memory, u, 0, u->count);
	rmx_bulk_leave(w, rank);
	return true;
}

static void cells_singly(const struct rmx_element *e, size_t unit,
			 void *const *cells, size_t n, const char *values,
			 size_t step, char *results)
{
	if (results)
		for (size_t k = 0; k < n; k++)
			e->one(cells[k], values + k * step, results + k * unit);
	else
		for (size_t k = 0; k < n; k++)
			e->one(cells[k], values + k * step, NULL);
}

static void cells_in_bulk(const struct rmx_element *e, size_t unit,
			  void *const *cells, size_t n, const char *values,
			  size_t step, char *results)
{
	char old[RMX_MOST_UNIT];

	for (size_t k = 0; k < n; k++) {
		memcpy(old, cells[k], unit);
		e->row(cells[k], values + k * step, 1);
		if (results)
			memcpy(results + k * unit, old, unit);
	}
}

int rmx_update_cells(struct rmaext_window *w, int64_t rank, int op, int type,
		     void *const *cells, size_t n, const char *values,
		     size_t step, char *results, int64_t ns)
{
	const struct rmx_element *e = rmx_element_of(op, type);
	const bool bulk = rmx_wide(type);
	int ret = bulk ? rmx_bulk_enter(w, rank, ns)
		       : rmx_singles_enter(w, rank, ns);

	if (ret)
		return ret;
	if (bulk) {
		cells_in_bulk(e, rmx_unit_of(type), cells, n, values, step,
			      results);
		rmx_bulk_leave(w, rank);
	} else {
		cells_singly(e, rmx_unit_of(type), cells, n, values, step,
			     results);
		rmx_singles_leave(w, rank);
	}
	return 0;
}

/* -- calls -- */

int rmaext_update_valid(int op, int type)
{
	return rmx_update_valid(op, type);
}

int rmaext_type_align(int type)
{
	return rmx_type_of(type).align;
}

static const char *name_of(const struct rmx_update *u)
{
	if (u->op == RMAEXT_CSWAP)
		return "compare_and_swap";
	return u->result ? "get_accumulate" : "accumulate";
}

/* Is there a way to do that, and a place? */
static int check(const struct rmaext_window *w, const char *call, int64_t rank,
		 uint64_t offset, int op, int type, uint64_t count)
{
	const struct rmx_target *t = rmx_target_of(w, rank);

	if (!rmx_update_valid(op, type))
		return rmx_fail(-FI_EOPNOTSUPP, rank, call,
				"no such operation on this dtype");
	if (rmx_update_here(w, rank) ? rmx_wide(type) && !rmx_block_of(w, rank)
				     : !w->fabric || !t->member->peer)
		return rmx_fail(-FI_EOPNOTSUPP, rank, call,
				"no way to update the memory there");
	if (count && !rmx_update_aligned(t, offset, type))
		return rmx_fail(-FI_EFAULT, rank, call,
				"byte %llu is not aligned to %u",
				(unsigned long long)offset,
				rmx_type_of(type).align);
	return 0;
}

int rmaext_window_check(rmaext_window *w, int64_t rank, uint64_t offset,
			uint64_t len, int access, int type)
{
	int ret = rmx_window_enter(w, "check");

	if (ret)
		return ret;
	ret = rmx_check(w, "check", rank, offset, len, access);
	if (!ret && type >= 0)
		ret = check(w, "check", rank, offset, RMAEXT_SUM, type, len);
	rmx_window_leave(w);
	return ret;
}

static char *memory_of(const struct rmaext_window *w, int64_t rank,
		       uint64_t offset)
{
	return rmx_target_of(w, rank)->map + offset;
}

/* By the own CPU; an operation only for what has to wait for the guard. */
static int here(struct rmaext_window *w, int64_t rank, uint64_t offset,
		const struct rmx_update *u, struct rmaext_op **op_p)
{
	const int64_t slice = w->timeout < RMX_SLICE ? w->timeout : RMX_SLICE;
	uint64_t done = 0;
	struct rmaext_op *op;
	int ret = rmx_update_apply(w, rank, memory_of(w, rank, offset), u,
				   &done, slice);

	if (ret != RMAEXT_PENDING)
		return ret;
	op = calloc(1, sizeof(*op));
	if (!op)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "operation");
	*op = (struct rmaext_op){
		.window = w,
		.rank = rank,
		.kind = RMX_HERE,
		.op = u->op,
		.type = u->type,
		.offset = offset,
		.len = u->count,
		.posted = done,
		.local = u->result,
		.operand = u->operand,
		.compare = u->compare,
		.timeout = w->timeout,
	};
	*op_p = op;
	return rmx_guard_overdue(rank, op->timeout, &op->deadline);
}

int rmx_here_wait(struct rmaext_op *op)
{
	const struct rmx_update u = {
		op->op, op->type, op->operand, op->compare, op->local, op->len,
	};
	const int64_t left = op->deadline - rmx_now();
	const uint64_t before = op->posted;
	int ret = rmx_update_apply(op->window, op->rank,
				   memory_of(op->window, op->rank, op->offset),
				   &u, &op->posted,
				   left < RMX_SLICE ? left : RMX_SLICE);

	if (ret != RMAEXT_PENDING)
		return ret;
	if (op->posted != before)
		op->deadline = 0;
	return rmx_guard_overdue(op->rank, op->timeout, &op->deadline);
}

/* By message to the target's progress thread. */
static int remote(struct rmaext_window *w, int64_t rank, uint64_t offset,
		  const struct rmx_update *u, int *ended,
		  struct rmaext_op **op_p)
{
	const size_t unit = rmx_unit_of(u->type);
	const uint64_t len = u->count * unit;
	const bool copy = !ended && !u->result && len <= RMX_COPY_MAX;
	struct rmaext_op *op;
	int ret = rmx_op_new(w, rank, RMX_UPDATE, offset, len, copy ? len : 0,
			     &op);

	if (ret)
		return ret;
	op->op = u->op;
	op->type = u->type;
	op->unit = unit;
	op->operand = u->operand;
	op->compare = u->compare;
	if (copy)
		rmx_op_buffer(op);
	else
		op->local = u->result;
	return ended ? rmx_begin(op, ended, op_p) : rmx_op_run(op, op_p);
}

/* ended: of a request, else NULL */
static int update(struct rmaext_window *w, int64_t rank, uint64_t offset,
		  const struct rmx_update *u, int *ended,
		  struct rmaext_op **op_p)
{
	const int access = rmx_update_access(u->op, u->result != NULL);
	const char *call = name_of(u);
	uint64_t len;
	int ret;

	if (__builtin_mul_overflow(u->count, rmx_unit_of(u->type), &len) ||
	    (u->count && !u->operand && u->op != RMAEXT_NO_OP) ||
	    (u->op == RMAEXT_CSWAP && !(u->result && u->compare)))
		return rmx_fail(-FI_EINVAL, rank, call,
				"%llu elements, or a buffer is missing",
				(unsigned long long)u->count);
	ret = rmx_check(w, call, rank, offset, len, access);
	if (!ret)
		ret = check(w, call, rank, offset, u->op, u->type, u->count);
	if (ret || !u->count || (u->op == RMAEXT_NO_OP && !u->result))
		return ret;
	if (!rmx_update_here(w, rank))
		return remote(w, rank, offset, u, ended, op_p);
	ret = here(w, rank, offset, u, op_p);
	/* of a request: it is none yet */
	return ret == RMAEXT_PENDING && ended ? -FI_EAGAIN : ret;
}

int rmaext_update(rmaext_window *w, int64_t rank, uint64_t offset, int op,
		  int type, const void *operand, const void *compare,
		  void *result, uint64_t count, rmaext_op **op_p)
{
	const struct rmx_update u = {op, type, operand, compare, result, count};
	int ret = rmx_window_enter(w, name_of(&u));

	*op_p = NULL;
	if (ret)
		return ret;
	ret = update(w, rank, offset, &u, NULL, op_p);
	rmx_window_leave(w);
	return ret;
}

int rmx_begin_update(struct rmaext_window *w, const struct rmaext_call *call,
		     struct rmaext_op **op_p)
{
	const struct rmx_update u = {
		call->op,      call->type,   call->operand,
		call->compare, call->result, call->count,
	};

	return update(w, call->rank, call->offset, &u, call->ended, op_p);
}
