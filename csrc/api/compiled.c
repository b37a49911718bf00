/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations for compiled Python. The caller can neither keep a buffer for an
 * operation that was given up nor continue a wait. So the network uses copies
 * of ours only, and the waits go on until the time limit.
 */
#include "am/am.h"
#include "exec/update.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_JIT_GET ((uint64_t)1 << 20) /* bytes copied at a time, at most */

static const struct rmx_typed *typed_of(uint64_t window)
{
	return (const struct rmx_typed *)(uintptr_t)window;
}

static void *address_pointer(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

/* Checks the place, and turns elements into bytes. */
static int typed_locate(const struct rmx_typed *it, const char *call,
			int64_t rank, int64_t index, int64_t count, int access,
			uint64_t *offset_p, uint64_t *len_p)
{
	if (__atomic_load_n(&it->closed, __ATOMIC_RELAXED))
		return rmx_fail(-FI_ESHUTDOWN, rank, call,
				"the window is closed");
	if (index < 0 || count < 0 ||
	    __builtin_mul_overflow((uint64_t)index, it->unit, offset_p) ||
	    __builtin_mul_overflow((uint64_t)count, it->unit, len_p))
		return rmx_fail(-ERANGE, rank, call,
				"%lld elements from element %lld on are in no "
				"window: count and index must not be negative",
				(long long)count, (long long)index);
	return rmx_check(it->window, call, rank, *offset_p, *len_p, access);
}

/*
 * Waits for an operation whose call returned `ret`, and releases it. *in_use_p:
 * the network still uses its memory.
 */
static int op_finish(int ret, rmaext_op *op, bool *in_use_p)
{
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, RMX_SLICE);
	*in_use_p = rmaext_op_release(&op) == RMAEXT_PENDING;
	return ret;
}

int rmaext_nb_put(uint64_t window, int64_t rank, int64_t index,
		  uint64_t address, int64_t count)
{
	const struct rmx_typed *it = typed_of(window);
	const char *from = address_pointer(address);
	uint64_t offset, len, part;
	rmaext_op *op;
	bool in_use;
	int ret;

	ret = typed_locate(it, "put", rank, index, count, RMAEXT_WRITE, &offset,
			   &len);
	for (; !ret && len; len -= part, from += part, offset += part) {
		part = len;
		if (rmx_target_of(it->window, rank)->route == RMAEXT_FABRIC &&
		    part > RMX_COPY_MAX)
			part = RMX_COPY_MAX;
		ret = rmaext_start(it->window,
				   &(struct rmaext_call){
					   .kind = RMAEXT_PUT,
					   .rank = rank,
					   .offset = offset,
					   .operand = from,
					   .count = part,
				   },
				   &op);
		ret = op_finish(ret, op, &in_use);
	}
	return ret;
}

int rmaext_nb_get(uint64_t window, int64_t rank, int64_t index,
		  uint64_t address, int64_t count)
{
	const struct rmx_typed *it = typed_of(window);
	char *to = address_pointer(address), *bounce = NULL;
	uint64_t offset, len, part;
	bool in_use = false, far;
	rmaext_op *op;
	int ret;

	ret = typed_locate(it, "get", rank, index, count, RMAEXT_READ, &offset,
			   &len);
	if (ret || !len)
		return ret;
	far = rmx_target_of(it->window, rank)->route == RMAEXT_FABRIC;
	part = far && len > RMX_JIT_GET ? RMX_JIT_GET : len;
	if (far)
		bounce = malloc(part);
	if (far && !bounce)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "get");
	for (; !ret && len; len -= part, to += part, offset += part) {
		if (part > len)
			part = len;
		ret = rmaext_start(it->window,
				   &(struct rmaext_call){
					   .kind = RMAEXT_GET,
					   .rank = rank,
					   .offset = offset,
					   .result = far ? bounce : to,
					   .count = part,
				   },
				   &op);
		ret = op_finish(ret, op, &in_use);
		if (!ret && far)
			memcpy(to, bounce, part);
	}
	if (!in_use)
		free(bounce);
	return ret;
}

/* What an update reads and writes; the network may keep it. */
struct update_cells {
	char value[RMX_MOST_UNIT], compare[RMX_MOST_UNIT], old[RMX_MOST_UNIT];
};

/*
 * An update of one element of a window of u->type. Its operand, what it
 * compares with, and its result, if that is wanted, are the caller's.
 */
static int typed_update(uint64_t window, int64_t rank, int64_t index,
			const struct rmaext_call *u)
{
	const bool swaps = u->op == RMAEXT_CSWAP;
	const char *call = swaps ? "compare_and_swap" : "fetch_add";
	const struct rmx_typed *it = typed_of(window);
	/* 0 of a type without updates: rmaext_start() refuses it */
	const size_t unit = rmx_unit_of(u->type);
	struct update_cells here, *cells = &here;
	struct rmaext_call update = *u;
	rmaext_op *op;
	bool in_use;
	uint64_t len;
	int ret;

	ret = typed_locate(it, call, rank, index, 1, RMAEXT_READ | RMAEXT_WRITE,
			   &update.offset, &len);
	if (ret)
		return ret;
	if (it->type != u->type)
		return rmx_fail(-FI_EINVAL, rank, call,
				"the elements are of another type: a window of "
				"int64 or float64 has its own %s",
				call);
	if (!rmx_update_is_local(it->window, rank))
		cells = malloc(sizeof(*cells));
	if (!cells)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "%s", call);
	memcpy(cells->value, u->operand, unit);
	if (swaps)
		memcpy(cells->compare, u->compare, unit);
	update.kind = RMAEXT_UPDATE;
	update.rank = rank;
	update.operand = cells->value;
	update.compare = swaps ? cells->compare : NULL;
	update.result = cells->old;
	update.count = 1;
	ret = rmaext_start(it->window, &update, &op);
	ret = op_finish(ret, op, &in_use);
	if (!ret && u->result)
		memcpy(u->result, cells->old, unit);
	if (cells != &here && !in_use)
		free(cells);
	return ret;
}

int rmaext_nb_fetch_add_int64(uint64_t window, int64_t rank, int64_t index,
			      int64_t value, uint64_t old)
{
	return typed_update(window, rank, index,
			    &(struct rmaext_call){
				    .op = RMAEXT_SUM,
				    .type = RMAEXT_INT64,
				    .operand = &value,
				    .result = address_pointer(old),
			    });
}

int rmaext_nb_fetch_add_float64(uint64_t window, int64_t rank, int64_t index,
				double value, uint64_t old)
{
	return typed_update(window, rank, index,
			    &(struct rmaext_call){
				    .op = RMAEXT_SUM,
				    .type = RMAEXT_DOUBLE,
				    .operand = &value,
				    .result = address_pointer(old),
			    });
}

static int typed_swap(uint64_t window, int64_t rank, int64_t index, int type,
		      const void *compare, const void *value, uint64_t old)
{
	return typed_update(window, rank, index,
			    &(struct rmaext_call){
				    .op = RMAEXT_CSWAP,
				    .type = type,
				    .operand = value,
				    .compare = compare,
				    .result = address_pointer(old),
			    });
}

int rmaext_nb_compare_and_swap(uint64_t window, int64_t rank, int64_t index,
			       uint64_t compare, uint64_t value, uint64_t old)
{
	return typed_swap(window, rank, index, typed_of(window)->type,
			  address_pointer(compare), address_pointer(value),
			  old);
}

int rmaext_nb_compare_and_swap_int64(uint64_t window, int64_t rank,
				     int64_t index, int64_t compare,
				     int64_t value, uint64_t old)
{
	return typed_swap(window, rank, index, RMAEXT_INT64, &compare, &value,
			  old);
}

int rmaext_nb_compare_and_swap_float64(uint64_t window, int64_t rank,
				       int64_t index, double compare,
				       double value, uint64_t old)
{
	return typed_swap(window, rank, index, RMAEXT_DOUBLE, &compare, &value,
			  old);
}

int rmaext_nb_flush(uint64_t window, int64_t rank)
{
	const struct rmx_typed *it = typed_of(window);
	struct rmaext_wait wait = {0};
	int ret;

	if (__atomic_load_n(&it->closed, __ATOMIC_RELAXED))
		return rmx_fail(-FI_ESHUTDOWN, rank, "flush",
				"the window is closed");
	wait.timeout = it->window->timeout;
	do {
		ret = rmaext_flush(it->window, rank, &wait);
	} while (ret == RMAEXT_PENDING);
	return ret;
}
