/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The entries: one for a single operation, which put_get.c, strided.c, notify.c
 * and update.c check at the origin, and carry out or begin by its route; and
 * one for many places, which many.c does so with.
 */
#include "api/api.h"
#include "exec/many.h"
#include "win/notify.h"

/* -- a single operation */

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
		ret = rmx_window_enter(w, rmx_call_name(c));
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

/* -- many places */

static int many_refuse(const struct rmaext_places_call *c, int code,
		       const char *why)
{
	return rmx_fail(code, RMX_NO_RANK, "rmaext_start_many",
			"kind %d, %llu places of %llu bytes: %s", c->kind,
			(unsigned long long)c->count,
			(unsigned long long)c->unit, why);
}

/* Are its numbers such that no sum or product of them overflows? */
static bool many_is_sane(const struct rmaext_places_call *c)
{
	return c->kind >= RMAEXT_PUT && c->kind <= RMAEXT_UPDATE && c->unit &&
	       c->unit <= INT64_MAX && c->scale <= INT64_MAX &&
	       c->count <= (c->ended ? UINT32_MAX : INT64_MAX) &&
	       (!c->ended || c->elements <= INT64_MAX / c->unit / 2);
}

static bool many_is_aligned(const struct rmaext_places_call *c)
{
	return !(((uintptr_t)c->ranks | (uintptr_t)c->offsets |
		  (uintptr_t)c->counts) %
		 sizeof(*c->ranks));
}

/* Checks what only a request has. */
static int request_check(const struct rmaext_window *w,
			 const struct rmaext_places_call *c)
{
	if (c->counts &&
	    (c->kind == RMAEXT_UPDATE || c->ones & RMAEXT_ONE_VALUE))
		return many_refuse(c, -FI_EINVAL, "there are no such ranges");
	if (!c->counts && c->elements != c->count)
		return many_refuse(c, -FI_EINVAL,
				   "there are other numbers of elements");
	if (c->counts && w->stride && w->stride != c->unit)
		return many_refuse(c, -FI_EOPNOTSUPP,
				   "the elements of a field are not one after "
				   "another");
	if (c->notify && (c->kind != RMAEXT_PUT || !c->elements ||
			  !(c->ones & RMAEXT_ONE_RANK) || c->notify < 0 ||
			  !rmx_notify_slot(c->notify - 1)))
		return many_refuse(c, -FI_EINVAL,
				   "only a put to one rank notifies, and a "
				   "slot that there is");
	return 0;
}

static int many_check(const struct rmaext_window *w,
		      const struct rmaext_places_call *c)
{
	const bool no_op = c->ended && c->op == RMAEXT_NO_OP;

	if (!many_is_sane(c) || (!c->ended && (c->counts || c->notify)))
		return many_refuse(c, -FI_EINVAL,
				   "it is no put, get or update, or is too "
				   "large, or has ranges and is no request");
	if (c->count && !many_is_aligned(c))
		return many_refuse(c, -FI_EINVAL,
				   "ranks, offsets or counts are not aligned "
				   "as int64");
	if (!rmx_cells_valid(c->kind, c->op, c->type, c->unit) ||
	    (c->kind == RMAEXT_UPDATE && !c->results &&
	     (c->op == RMAEXT_CSWAP || no_op)))
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK,
				rmx_kind_name(c->kind, c->op, c->results),
				"there is no such operation on this dtype");
	return c->ended ? request_check(w, c) : 0;
}

int rmaext_start_many(rmaext_window *w, const struct rmaext_places_call *c,
		      rmaext_op **op_p, int64_t *bad_p)
{
	int ret = many_check(w, c);

	*op_p = NULL;
	*bad_p = -1;
	if (c->ended)
		*c->ended = 0;
	if (ret || (c->ended && !c->count))
		return ret;
	ret = rmx_window_enter(w, rmx_kind_name(c->kind, c->op, c->results));
	if (ret)
		return ret;
	if (c->count)
		ret = rmx_many_start(w, c, op_p, bad_p);
	rmx_window_leave(w);
	return ret;
}
