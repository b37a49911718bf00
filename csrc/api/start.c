/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The one entry for a single operation: put_get.c, strided.c, notify.c and
 * update.c check it at the origin, and carry it out or begin it by its route.
 */
#include "api/api.h"

static const char *call_name(const struct rmaext_call *c)
{
	if (c->kind == RMAEXT_GET)
		return "get";
	if (c->kind == RMAEXT_PUT)
		return c->notify ? "put_notify" : "put";
	if (c->op == RMAEXT_CSWAP)
		return "compare_and_swap";
	return c->result ? "get_accumulate" : "accumulate";
}

static int call_check(const struct rmaext_call *c)
{
	const bool put = c->kind == RMAEXT_PUT;
	const bool other = c->part || c->notify;

	if (put || c->kind == RMAEXT_GET || c->kind == RMAEXT_UPDATE)
		if (!(other && (c->ended || c->kind == RMAEXT_UPDATE)) &&
		    !(c->notify && (c->part || !put)))
			return 0;
	return rmx_fail(-FI_EINVAL, c->rank, "rmaext_start",
			"kind %d is no put, get or update, or has a part or a "
			"notification that it cannot have",
			c->kind);
}

int rmaext_start(rmaext_window *w, const struct rmaext_call *c,
		 rmaext_op **op_p)
{
	int ret = call_check(c);

	*op_p = NULL;
	if (!ret)
		ret = rmx_window_enter(w, call_name(c));
	if (ret)
		return ret;
	if (c->ended)
		*c->ended = 0;
	if (c->kind == RMAEXT_UPDATE)
		ret = rmx_update_start(w, c, op_p);
	else if (c->part)
		ret = rmx_strided_start(w, c, op_p);
	else if (c->notify)
		ret = rmx_notify_start(w, c, op_p);
	else
		ret = rmx_move_start(w, c, op_p);
	rmx_window_leave(w);
	return ret;
}
