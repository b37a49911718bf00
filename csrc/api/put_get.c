/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * put and get: they are checked at the origin; then, by their route, they are
 * carried out at once or posted.
 */
#include "api/api.h"

bool rmx_move_by_memory(struct rmaext_window *w, const struct rmaext_call *c,
			unsigned int kind, uint64_t place, int *ret_p)
{
	const bool put = c->kind == RMAEXT_PUT;
	const uint64_t offset = c->offset, len = c->count;
	const int64_t rank = c->rank;
	struct rmx_target *t = rmx_target_of(w, rank);

	*ret_p = 0;
	switch (t->route) {
	case RMAEXT_DIRECT:
		rmx_count_direct(&w->tally, rank, kind, place, len, false);
		if (put)
			rmx_copy(t->map + offset, c->operand, len);
		else
			rmx_copy(c->result, t->map + offset, len);
		return true;
	case RMAEXT_CMA:
		if (!rmx_copies(t))
			return false;
		*ret_p =
			put ? rmx_target_write(t, rank, offset, c->operand, len)
			    : rmx_target_read(t, rank, offset, c->result, len);
		if (*ret_p && !rmx_copies(t))
			return false;
		break;
	case RMAEXT_IPC:
		if (!len) /* it only notifies */
			break;
		return false;
	default:
		return false;
	}
	rmx_count_copy(&w->tally, rank, kind, t->route, place, len, *ret_p);
	return true;
}

/* The network writes it; a short put is a copy, for which nobody waits. */
static int put_write(struct rmaext_window *w, const struct rmaext_call *c,
		     struct rmaext_op **op_p)
{
	const uint64_t len = c->count;
	/* a copy is one chunk: then the CQ's reader knows when it is complete
	 */
	const bool copy = len <= RMX_COPY_MAX && len <= w->fabric->limits.chunk;
	struct rmx_op *op;
	int ret = rmx_op_over(w, c, copy, 0, &op);

	return ret ? ret : rmx_op_run(op, op_p);
}

static int put_start(struct rmaext_window *w, const struct rmaext_call *c,
		     struct rmaext_op **op_p)
{
	if (w->attached ||
	    rmx_by_message(w, rmx_target_of(w, c->rank), c->count))
		return rmx_message_put(w, c, op_p);
	switch (rmx_coalesce(w, c)) {
	case RMX_IN_LINE:
		return 0;
	case RMX_LINE_FULL:
		return rmx_message_put(w, c, op_p);
	default:
		return put_write(w, c, op_p);
	}
}

int rmx_move_start(struct rmaext_window *w, const struct rmaext_call *c,
		   struct rmaext_op **op_p)
{
	struct rmx_op *op;
	int ret = rmx_check(w, rmx_call_name(c), c->rank, c->offset, c->count,
			    c->kind == RMAEXT_PUT ? RMAEXT_WRITE : RMAEXT_READ);

	if (ret || !c->count ||
	    rmx_move_by_memory(w, c, rmx_counted_as(c->kind, false), c->offset,
			       &ret))
		return ret;
	if (rmx_device_of(w, c->rank))
		return rmx_by_stream(w, c, op_p);
	if (c->kind == RMAEXT_PUT && !c->ended)
		return put_start(w, c, op_p);
	ret = rmx_move_new(w, c, &op);
	if (ret)
		return ret;
	return rmx_op_run(op, op_p);
}
