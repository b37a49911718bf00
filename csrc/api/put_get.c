/* SPDX-License-Identifier: BSD-3-Clause */
/* put and get: check at the origin, choose the route, carry out or post. */
#include "api/api.h"

#include <string.h>

/*
 * Of a put from RMX_LONG on, the end goes as a copy, in one chunk, that is on
 * its way while the caller prepares the next one; see op_put_rest().
 */
#define RMX_LONG ((uint64_t)256 << 10)
#define RMX_REST ((uint64_t)32 << 10)

int rmaext_put(rmaext_window *w, int64_t rank, uint64_t offset, const void *buf,
	       uint64_t len, rmaext_op **op_p)
{
	struct rmaext_op *op;
	bool copy;
	int ret = rmx_window_enter(w, "put");

	*op_p = NULL;
	if (ret)
		return ret;
	ret = rmx_check(w, "put", rank, offset, len, RMAEXT_WRITE);
	if (ret || !len)
		goto leave;
	if (w->attached || w->visits) {
		ret = rmx_message_put(w, rank, offset, buf, len, -1, op_p);
		goto leave;
	}
	switch (rmx_target_of(w, rank)->route) {
	case RMAEXT_DIRECT:
		rmx_copy(rmx_target_of(w, rank)->map + offset, buf, len);
		goto leave;
	case RMAEXT_CMA:
		ret = rmx_target_write(rmx_target_of(w, rank), rank, offset,
				       buf, len);
		goto leave;
	}
	if (len < w->fabric->least) {
		ret = rmx_message_put(w, rank, offset, buf, len, -1, op_p);
		goto leave;
	}
	/* one chunk, so that the CQ's reader can tell when it is complete */
	copy = len <= RMX_COPY_MAX && len <= w->fabric->chunk;
	ret = copy ? rmx_op_new(w, rank, RMX_PUT, offset, len, len, &op)
		   : rmx_op_over(w, rank, RMX_PUT, offset, buf, len, 0, &op);
	if (ret)
		goto leave;
	op->buffered = copy;
	if (copy) {
		atomic_store_explicit(&op->left, true, memory_order_relaxed);
		memcpy(op->local, buf, len);
		if (w->fabric->cache.demanded)
			atomic_fetch_add(&w->fabric->cache.bounced, 1);
	} else {
		if (len >= RMX_LONG && RMX_REST <= op->chunk)
			op->rest = RMX_REST;
		op->len -= op->rest;
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
	ret = rmx_check(w, "get", rank, offset, len, RMAEXT_READ);
	if (ret || !len)
		goto leave;
	switch (rmx_target_of(w, rank)->route) {
	case RMAEXT_DIRECT:
		rmx_copy(buf, rmx_target_of(w, rank)->map + offset, len);
		goto leave;
	case RMAEXT_CMA:
		ret = rmx_target_read(rmx_target_of(w, rank), rank, offset, buf,
				      len);
		goto leave;
	}
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
	least = w->fabric->least;
	if (rmx_target_of(w, rank)->size < least)
		goto leave;
	/* the bytes go where a copy would lie */
	ret = rmx_op_new(w, rank, RMX_GET, 0, least, least, &op);
	if (!ret)
		ret = rmx_op_begin(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}
