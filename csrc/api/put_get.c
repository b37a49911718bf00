/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * put and get: they are checked at the origin; then, by their route, they are
 * carried out at once or posted.
 */
#include "api/api.h"

#include <string.h>

bool rmx_move_by_memory(struct rmaext_window *w, bool put, int64_t rank,
			uint64_t offset, const void *buf, uint64_t len,
			int *ret_p)
{
	const unsigned int kind = put ? RMAEXT_DID_PUT : RMAEXT_DID_GET;
	void *to = (void *)(uintptr_t)buf; /* of a get */
	struct rmx_target *t;

	*ret_p = rmx_check(w, put ? "put" : "get", rank, offset, len,
			   put ? RMAEXT_WRITE : RMAEXT_READ);
	if (*ret_p || !len)
		return true;
	t = rmx_target_of(w, rank);
	switch (t->route) {
	case RMAEXT_DIRECT:
		rmx_count_direct(&w->tally, rank, kind, offset, len, false);
		if (put)
			rmx_copy(t->map + offset, buf, len);
		else
			rmx_copy(to, t->map + offset, len);
		return true;
	case RMAEXT_CMA:
		if (!rmx_copies(t))
			return false;
		*ret_p = put ? rmx_target_write(t, rank, offset, buf, len)
			     : rmx_target_read(t, rank, offset, to, len);
		if (*ret_p && !rmx_copies(t))
			return false;
		rmx_count_copy(&w->tally, rank, kind, offset, len, *ret_p);
		return true;
	}
	return false;
}

int rmaext_put(rmaext_window *w, int64_t rank, uint64_t offset, const void *buf,
	       uint64_t len, rmaext_op **op_p)
{
	const struct rmx_single single = {
		.kind = RMX_MESSAGE_PUT,
		.rank = rank,
		.offset = offset,
		.unit = len,
		.value = buf,
	};
	enum rmx_joined joined;
	struct rmaext_op *op;
	bool copy;
	int ret = rmx_window_enter(w, "put");

	*op_p = NULL;
	if (ret)
		return ret;
	if (rmx_move_by_memory(w, true, rank, offset, buf, len, &ret))
		goto leave;
	if (w->attached || rmx_by_message(w, rmx_target_of(w, rank), len)) {
		ret = rmx_message_put(w, rank, offset, buf, len, -1, op_p);
		goto leave;
	}
	joined = rmx_series_add(w, &single);
	if (joined == RMX_IN_LINE)
		goto leave;
	if (joined == RMX_LINE_FULL) {
		ret = rmx_message_put(w, rank, offset, buf, len, -1, op_p);
		goto leave;
	}
	/* a copy is one chunk: then the CQ's reader knows when it is complete
	 */
	copy = len <= RMX_COPY_MAX && len <= w->fabric->limits.chunk;
	ret = copy ? rmx_op_new(w, rank, RMX_PUT, offset, len, len, &op)
		   : rmx_op_over(w, rank, RMX_PUT, offset, buf, len, 0, &op);
	if (ret)
		goto leave;
	op->buffered = copy;
	if (copy) {
		atomic_store_explicit(&op->left, true, memory_order_relaxed);
		memcpy(op->local, buf, len);
		if (w->fabric->limits.registers)
			atomic_fetch_add(&w->fabric->cache.bounced, 1);
	}
	ret = rmx_op_run(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}

int rmaext_get(rmaext_window *w, int64_t rank, uint64_t offset, void *buf,
	       uint64_t len, rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = rmx_window_enter(w, "get");

	*op_p = NULL;
	if (ret)
		return ret;
	if (rmx_move_by_memory(w, false, rank, offset, buf, len, &ret))
		goto leave;
	ret = rmx_get_new(w, rank, offset, buf, len, &op);
	if (!ret)
		ret = rmx_op_run(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}

int rmaext_connect(rmaext_window *w, int64_t rank, rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = rmx_window_enter(w, "connect");
	size_t least;

	*op_p = NULL;
	if (ret)
		return ret;
	ret = rmx_check(w, "connect", rank, 0, 1, RMAEXT_READ);
	if (ret || rmx_target_of(w, rank)->route != RMAEXT_FABRIC)
		goto leave;
	least = w->fabric->limits.least;
	if (rmx_target_of(w, rank)->size < least)
		goto leave;
	/* the bytes are read to where a copy would lie, and ignored */
	ret = rmx_op_new(w, rank, RMX_GET, 0, least, least, &op);
	if (!ret)
		ret = rmx_op_begin(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}
