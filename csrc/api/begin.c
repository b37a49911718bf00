/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests: they are checked at the origin; then, by their route, they are
 * carried out at once or begun.
 */
#include "api/api.h"

static int begin_move(struct rmaext_window *w, const struct rmaext_call *call,
		      struct rmaext_op **op_p)
{
	const bool put = call->kind == RMAEXT_PUT;
	const uint64_t offset = call->offset, len = call->count;
	struct rmaext_op *op;
	int ret;

	if (rmx_move_by_memory(w, put, call->rank, offset,
			       put ? call->operand : call->result, len, &ret))
		return ret;
	ret = put ? rmx_put_new(w, call->rank, offset, call->operand, len, &op)
		  : rmx_get_new(w, call->rank, offset, call->result, len, &op);
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
		ret = begin_move(w, call, op_p);
		break;
	case RMAEXT_UPDATE:
		ret = rmx_update_begin(w, call, op_p);
		break;
	default:
		ret = rmx_fail(-FI_EINVAL, call->rank, "begin",
			       "kind %d is no put, get or update: pass "
			       "RMAEXT_PUT, RMAEXT_GET or RMAEXT_UPDATE",
			       call->kind);
	}
	rmx_window_leave(w);
	return ret;
}
