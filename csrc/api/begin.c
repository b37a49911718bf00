/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests: check at the origin, choose the route, carry out or begin. */
#include "api/api.h"

static int begin_copy(struct rmaext_window *w, const struct rmaext_call *call,
		      struct rmaext_op **op_p)
{
	const bool is_put = call->kind == RMAEXT_PUT;
	const uint64_t offset = call->offset, len = call->count;
	const int64_t rank = call->rank;
	struct rmx_target *t;
	struct rmaext_op *op;
	int ret = rmx_check(w, is_put ? "put" : "get", rank, offset, len,
			    is_put ? RMAEXT_WRITE : RMAEXT_READ);

	if (ret || !len)
		return ret;
	t = rmx_target_of(w, rank);
	switch (t->route) {
	case RMAEXT_DIRECT:
		if (is_put)
			rmx_copy(t->map + offset, call->operand, len);
		else
			rmx_copy(call->result, t->map + offset, len);
		return 0;
	case RMAEXT_CMA:
		if (is_put)
			return rmx_target_write(t, rank, offset, call->operand,
						len);
		return rmx_target_read(t, rank, offset, call->result, len);
	}
	if (is_put)
		ret = rmx_put_new(w, rank, offset, call->operand, len, &op);
	else
		ret = rmx_get_new(w, rank, offset, call->result, len, &op);
	return ret ? ret : rmx_begin(op, call->ended, op_p);
}

int rmaext_begin(rmaext_window *w, const struct rmaext_call *call,
		 rmaext_op **op_p)
{
	int ret = rmx_window_enter(w, "begin");

	*op_p = NULL;
	if (ret)
		return ret;
	*call->ended = 0;
	switch (call->kind) {
	case RMAEXT_PUT:
	case RMAEXT_GET:
		ret = begin_copy(w, call, op_p);
		break;
	case RMAEXT_UPDATE:
		ret = rmx_update_begin(w, call, op_p);
		break;
	default:
		ret = rmx_fail(-FI_EINVAL, call->rank, "begin", "kind %d",
			       call->kind);
	}
	rmx_window_leave(w);
	return ret;
}
