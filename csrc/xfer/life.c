/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The life of an operation on the network route: it is begun, waited for,
 * cancelled, and let go of. It goes on whether or not anybody waits for it. A
 * call that blocks begins one and waits for it; a request is one whose owner
 * waits later, or never.
 *
 * An operation counts in its target's `pending` from its begin to its end: a
 * flush and a close wait for it. A request does not lie in a context: an owner
 * who keeps a thousand that have ended must not keep others from being posted.
 *
 * A copy has no owner. Its call waits only until it is handed over, which keeps
 * the number of copies within bounds.
 */
#include "xfer/operation.h"

static const struct rmx_life op_life;

/* -- begin */

static int op_begin(struct rmx_op *op, struct rmaext_op **op_p)
{
	if (!op->ended)
		op->ended = &op->over;
	op->owned.life = &op_life;
	atomic_store(&op->open, 1);
	*op_p = &op->owned;
	if (op->is_message) {
		op->fabric->hooks->send(&op); /* counts it in pending */
	} else {
		rmx_pending_add(op);
		if (atomic_load(&op->note))
			op->fabric->hooks->notify(op);
		rmx_op_post(op);
	}
	return RMAEXT_PENDING;
}

/* -- copies */

/* arg: a pointer to the copy, which is NULL once it is handed over. */
static enum rmx_step copy_step(void *arg)
{
	struct rmx_op **op_p = arg, *op = *op_p;
	int ret;

	if (op->is_message)
		return op->fabric->hooks->send(op_p);
	ret = rmx_op_post_chunk(op);
	if (ret == -FI_ENOSPC)
		return RMX_SLEEP;
	if (ret == -FI_EAGAIN)
		return RMX_RETRY;
	if (ret)
		op->outcome = ret;
	else
		*op_p = NULL;
	return RMX_DONE;
}

/*
 * Hands a copy over: 0, or the error with a record, and it is gone.
 * RMAEXT_PENDING: nothing takes it for so long that its caller is to own it.
 */
static int copy_hand_over(struct rmx_op *op)
{
	struct rmaext_peer *peer = op->target->member->peer;
	struct rmaext_fabric *f = op->fabric;
	const uint32_t window = op->window->tally.id;
	struct rmaext_error record;
	struct rmx_op *left = op;
	int ret = 0;

	if (copy_step(&left) != RMX_DONE) {
		const int64_t now = rmx_now_in(rmx_op_counts_as(op), window,
					       op->rank, op->offset, op->len);

		op->look = now;
		op->deadline = now + op->timeout;
		ret = rmx_wait(f, peer, copy_step, &left,
			       op->timeout < RMX_SLICE ? op->deadline
						       : now + RMX_SLICE,
			       1);
	}
	rmx_now_out(window, ret, false); /* its event has it */
	if (ret || !left)
		return ret;
	record = rmx_post_failure(f, op->rank, op->outcome);
	rmx_op_free(op);
	return rmx_fail_record(&record);
}

/* -- the owner waits */

enum rmx_step rmx_op_step(void *arg)
{
	struct rmx_op *op = arg;

	if (rmx_op_has_ended(op))
		return RMX_DONE;
	if (op->is_message) /* it is in line: send() says how that goes */
		return op->fabric->hooks->send(&op) == RMX_RETRY ? RMX_RETRY
								 : RMX_SLEEP;
	/* this thread may be the one that tries the rest again, or messages */
	return op->fabric->hooks->restless(op->fabric) ? RMX_RETRY : RMX_SLEEP;
}

/*
 * A number that changes while there is progress: where others stand before it,
 * that of operations to the same target.
 */
static unsigned int op_moves(const struct rmx_op *op)
{
	const bool notes = atomic_load(&op->note); /* its message waits, too */
	unsigned int moves = 0;

	if (op->is_message || notes)
		moves = atomic_load(&op->target->member->peer->answers);
	if (op->is_message)
		return moves;
	return moves + (rmx_op_is_request(op) || atomic_load(&op->waits)
				? atomic_load(&op->target->finished)
				: atomic_load(&op->completed));
}

int rmx_op_overdue(struct rmx_op *op, int64_t now)
{
	unsigned int moves = op_moves(op);
	int ret;

	op->look = now + RMX_SLICE;
	ret = rmx_deadline(op->target->member->peer, op->rank, "wait",
			   op->timeout, &op->deadline, moves != op->seen);
	op->seen = moves;
	if (ret == -FI_ETIMEDOUT)
		op->deadline = 0; /* the owner may wait for it again */
	if (ret == -FI_ENOTCONN) {
		pthread_mutex_lock(&op->window->lock);
		op->told = true;
		pthread_mutex_unlock(&op->window->lock);
	}
	return ret;
}

void rmx_op_waits(struct rmx_op *op, int64_t now)
{
	/* of a request it counts anew where nobody has waited for a while */
	if (op->deadline &&
	    (!rmx_op_is_request(op) || now <= op->look + 5 * RMX_SLICE))
		return;
	op->seen = op_moves(op);
	op->deadline = now + op->timeout;
}

/* Inside the window. */
static int op_wait_inside(struct rmx_op *op, int64_t slice)
{
	const bool request = rmx_op_is_request(op);
	struct rmaext_fabric *f = op->fabric;
	int64_t now = rmx_now(), until = now + slice;
	int ret;

	rmx_op_waits(op, now);
	if (slice <= 0) {
		rmx_look(f);
		rmaext_mpi_glance();
		if (!rmx_op_has_ended(op) && now < op->look)
			return RMAEXT_PENDING;
	} else {
		rmx_now_in(request ? RMAEXT_IN_REQUEST : rmx_op_counts_as(op),
			   op->window->tally.id, op->rank, op->offset, op->len);
		rmx_wait(f, op->target->member->peer, rmx_op_step, op,
			 until < op->deadline ? until : op->deadline,
			 rmx_op_spins(op));
	}
	ret = rmx_op_has_ended(op) ? rmx_op_report(op)
				   : rmx_op_overdue(op, now);
	if (slice > 0) /* of a call that blocks, the event has it */
		rmx_now_out(op->window->tally.id, ret, request);
	return ret;
}

static int op_wait(struct rmaext_op *owned, int64_t slice)
{
	struct rmx_op *op = rmx_op_of(owned);
	struct rmaext_window *w = op->window;
	int ret;

	if (rmx_op_has_ended(op)) {
		ret = rmx_op_report(op);
		if (rmx_op_is_request(op)) /* of the last slice */
			rmx_now_leave(RMAEXT_IN_REQUEST, ret);
		else
			rmx_now_out(w->tally.id, ret, false);
		return ret;
	}
	ret = rmx_window_enter(w, "wait");
	if (ret)
		return ret;
	ret = op_wait_inside(op, slice);
	rmx_window_leave(w);
	return ret;
}

int rmx_op_run(struct rmx_op *op, struct rmaext_op **op_p)
{
	int ret;

	rmx_op_note(op);
	rmx_op_count(op);
	if (rmx_op_is_request(op))
		return op_begin(op, op_p);
	if (op->buffered) {
		ret = copy_hand_over(op);
		if (ret != RMAEXT_PENDING)
			return ret;
		op->buffered = false;
	}
	op_begin(op, op_p);
	if (rmx_op_has_ended(op)) {
		ret = rmx_op_report(op);
		rmx_now_out(op->window->tally.id, ret, false);
	} else {
		ret = op_wait_inside(op, RMX_SLICE);
	}
	/* it may have ended since, and then the next wait reports it */
	if (ret == RMAEXT_PENDING || !rmx_op_has_ended(op))
		return ret;
	rmx_op_dispose(op);
	*op_p = NULL;
	return ret;
}

/* -- the owner lets go of it */

static int op_release(struct rmaext_op *owned)
{
	struct rmx_op *op = rmx_op_of(owned);
	struct rmx_backlog *backlog = &op->fabric->transfers->backlog;
	const bool request = rmx_op_is_request(op);

	rmx_op_abandon(op);
	/* a request goes on by itself; of what a call has waited for the rest
	 * is not sent any more */
	if ((op->is_message || atomic_load(&op->note)) &&
	    (!request || atomic_load(&op->target->member->peer->gone)))
		op->fabric->hooks->give_up(op);
	if (!op->is_message && !request) {
		pthread_mutex_lock(&backlog->lock);
		if (atomic_load(&op->waits)) {
			op->outcome = -FI_ECANCELED;
			rmx_backlog_take_out(op);
		}
		pthread_mutex_unlock(&backlog->lock);
	}
	if (!rmx_op_has_ended(op))
		return RMAEXT_PENDING;
	rmx_op_dispose(op);
	return 0;
}

static int64_t op_rank(const struct rmaext_op *owned)
{
	return ((const struct rmx_op *)owned)->rank;
}

static bool op_cancel(struct rmaext_op *owned)
{
	const struct rmaext_error record = {
		.code = -FI_ECANCELED,
		.call = "cancel",
		.detail = "the request was cancelled",
	};
	struct rmx_op *op = rmx_op_of(owned);
	struct rmx_backlog *backlog = &op->fabric->transfers->backlog;
	bool unsent;

	pthread_mutex_lock(&backlog->lock);
	/* one that notifies counts as sent */
	unsent = rmx_op_is_request(op) && atomic_load(&op->waits) &&
		 !op->sent && op->notify < 0;
	if (unsent) {
		rmx_op_told(op);
		rmx_op_failed(op, &record);
		rmx_backlog_take_out(op);
	}
	pthread_mutex_unlock(&backlog->lock);
	return unsent;
}

static const struct rmx_life op_life = {
	.wait = op_wait,
	.release = op_release,
	.cancel = op_cancel,
	.rank = op_rank,
};

/* -- others */

struct ended {
	struct rmaext_fabric *fabric;
	uint64_t seen;
};

static enum rmx_step ended_step(void *arg)
{
	struct ended *e = arg;

	return atomic_load(&e->fabric->transfers->backlog.ended) == e->seen
		       ? RMX_SLEEP
		       : RMX_DONE;
}

int rmaext_fabric_wait_ended(rmaext_fabric *f, uint64_t *seen, int64_t slice)
{
	struct ended e = {.fabric = f, .seen = *seen};
	int ret = rmx_fabric_enter(f, "wait");

	if (ret)
		return ret;
	if (ended_step(&e) != RMX_DONE)
		rmx_wait(f, NULL, ended_step, &e,
			 rmx_now() + (slice < RMX_SLICE ? slice : RMX_SLICE),
			 1);
	*seen = atomic_load(&f->transfers->backlog.ended);
	rmx_fabric_leave(f);
	return 0;
}
