/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Updates: they are checked at the origin, and made by this CPU or by a message
 * to the target.
 */
#include "api/api.h"
#include "exec/guard.h"
#include "exec/update.h"

#include <stdlib.h>

int rmaext_update_valid(int op, int type)
{
	return rmx_update_valid(op, type);
}

int rmaext_type_align(int type)
{
	return rmx_type_of(type).align;
}

/* Checks that the operation exists, that a route leads there, and alignment. */
static int update_check(const struct rmaext_window *w, const char *call,
			int64_t rank, uint64_t offset, int op, int type,
			uint64_t count)
{
	const struct rmx_target *t = rmx_target_of(w, rank);

	if (!rmx_update_valid(op, type))
		return rmx_fail(-FI_EOPNOTSUPP, rank, call,
				"there is no such operation on this dtype");
	if (rmx_update_is_local(w, rank)
		    ? rmx_wide(type) && !rmx_control_block_of(w, rank)
		    : !w->fabric || !rmx_peer_of(w, rank))
		return rmx_fail(-FI_EOPNOTSUPP, rank, call,
				"no route leads to an update there: that rank "
				"has no network, and no guard in memory");
	if (count && !rmx_update_aligned(t, offset, type))
		return rmx_fail(-FI_EFAULT, rank, call,
				"byte %llu is not aligned to %u, as updates of "
				"this dtype need it",
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
		ret = update_check(w, "check", rank, offset, RMAEXT_SUM, type,
				   len);
	rmx_window_leave(w);
	return ret;
}

/* An update of memory that is mapped here, which waits for the guard there. */
struct local {
	struct rmaext_op owned;
	struct rmaext_window *window;
	struct rmaext_call update;
	uint64_t done;	  /* elements */
	int64_t deadline; /* 0: not waited for yet */
};

/* It goes on for a slice. Inside the window. */
static int local_go_on(struct local *l, int64_t slice)
{
	const struct rmaext_call *u = &l->update;

	return rmx_update_apply(
		l->window, rmx_target_of(l->window, u->rank)->map + u->offset,
		u, &l->done, slice);
}

static int local_overdue(struct local *l)
{
	return rmx_guard_overdue(l->update.rank, l->window->timeout,
				 &l->deadline);
}

static int local_wait(struct rmaext_op *owned, int64_t slice)
{
	struct local *l = (struct local *)owned;
	const struct rmaext_call *u = &l->update;
	struct rmaext_window *w = l->window;
	const int64_t left = l->deadline - rmx_now();
	const uint64_t before = l->done;
	int ret = rmx_window_enter(w, "wait");

	if (ret)
		return ret;
	rmx_now_in(RMAEXT_IN_GUARD, w->tally.id, u->rank, u->offset, u->count);
	ret = local_go_on(l, left < slice ? left : slice);
	if (ret == RMAEXT_PENDING) {
		if (l->done != before)
			l->deadline = 0;
		ret = local_overdue(l);
	}
	rmx_now_out(w->tally.id, ret, true);
	rmx_window_leave(w);
	return ret;
}

static int local_release(struct rmaext_op *owned)
{
	free(owned);
	return 0;
}

static int64_t local_rank(const struct rmaext_op *owned)
{
	return ((const struct local *)owned)->update.rank;
}

static const struct rmx_life local_life = {
	.wait = local_wait,
	.release = local_release,
	.rank = local_rank,
};

/* By this CPU. There is an operation only if it must wait for the guard. */
static int update_local(struct rmaext_window *w, const struct rmaext_call *u,
			struct rmaext_op **op_p)
{
	struct local here = {{&local_life}, w, *u, 0, 0}, *l;
	int ret = local_go_on(&here,
			      w->timeout < RMX_SLICE ? w->timeout : RMX_SLICE);

	rmx_count_direct(&w->tally, u->rank,
			 rmx_counted_as(RMAEXT_UPDATE, u->result), u->offset,
			 u->count * rmx_unit_of(u->type), false);
	if (ret != RMAEXT_PENDING)
		return ret;
	l = malloc(sizeof(*l));
	if (!l)
		return rmx_fail(-FI_ENOMEM, u->rank, "malloc", "operation");
	*l = here;
	*op_p = &l->owned;
	return local_overdue(l);
}

/* By message to the target's progress thread. */
static int update_remote(struct rmaext_window *w, const struct rmaext_call *u,
			 struct rmaext_op **op_p)
{
	const bool copy = !u->ended && !u->result &&
			  u->count * rmx_unit_of(u->type) <= RMX_COPY_MAX;
	struct rmx_op *op;
	int ret;

	if (copy && u->count == 1 && rmx_coalesce(w, u) == RMX_IN_LINE)
		return 0;
	ret = rmx_message_op(w, u, copy, 0, &op);
	if (ret)
		return ret;
	return rmx_op_run(op, op_p);
}

int rmx_update_start(struct rmaext_window *w, const struct rmaext_call *u,
		     struct rmaext_op **op_p)
{
	const int access = rmx_update_access(u->op, u->result != NULL);
	const char *call = rmx_call_name(u);
	uint64_t len;
	int ret;

	if (__builtin_mul_overflow(u->count, rmx_unit_of(u->type), &len) ||
	    (u->count && !u->operand && u->op != RMAEXT_NO_OP) ||
	    (u->op == RMAEXT_CSWAP && !(u->result && u->compare)))
		return rmx_fail(-FI_EINVAL, u->rank, call,
				"%llu elements are too many, or an operand, "
				"compare or result is missing",
				(unsigned long long)u->count);
	ret = rmx_check(w, call, u->rank, u->offset, len, access);
	if (!ret)
		ret = update_check(w, call, u->rank, u->offset, u->op, u->type,
				   u->count);
	if (ret || !u->count || (u->op == RMAEXT_NO_OP && !u->result))
		return ret;
	if (!rmx_update_is_local(w, u->rank)) {
		ret = rmx_update_copied(w, u);
		return ret != RMAEXT_PENDING ? ret : update_remote(w, u, op_p);
	}
	ret = update_local(w, u, op_p);
	/* what waits for the guard does not go on by itself: no request yet */
	return ret == RMAEXT_PENDING && u->ended ? -FI_EAGAIN : ret;
}
