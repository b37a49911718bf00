/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests: operations that are begun, and that end whether or not anybody
 * waits for them.
 *
 * Updates go as messages, see am/send_queue.c. The chunks of a put or get that
 * cannot be posted at once wait in the target's queue; all queues together are
 * the backlog. Whichever thread reads the CQ posts from it, so a request that
 * its owner never looks at goes on. Only the holder of backlog.lock posts.
 *
 * A request counts in its target's `pending` as one put does, from its begin to
 * its end: a flush and a close wait for it. It does not lie in a context: an
 * owner who keeps a thousand requests that have ended must not keep others from
 * being posted.
 *
 * requests.c says when one has ended.
 */
#include "xfer/operation.h"

#include <stdlib.h>

/* -- the backlog: the callers hold its lock */

/* The requests to one target. */
struct rmx_queue {
	struct rmx_target *target;
	struct rmx_op *first, **end; /* oldest first */
	struct rmx_queue *next;
};

/* False: some chunks are left to be posted later. */
static bool request_post(struct rmx_op *op)
{
	struct rmaext_error record;
	int ret;

	while (op->posted < op->len && !atomic_load(&op->error)) {
		ret = atomic_load(&op->target->member->peer->gone)
			      ? -FI_ENOTCONN
			      : rmx_op_post_chunk(op);
		if (ret == -FI_ENOSPC || ret == -FI_EAGAIN)
			return false;
		if (ret) {
			record = rmx_post_failure(op->fabric, op->rank, ret);
			rmx_op_failed(op, &record);
		}
	}
	return true;
}

/* False: there is no memory for it. */
static bool backlog_append(struct rmx_target *t, struct rmx_op *op)
{
	struct rmx_backlog *backlog = &op->fabric->transfers->backlog;
	struct rmx_queue *q = t->queue;

	if (!q) {
		q = malloc(sizeof(*q));
		if (!q)
			return false;
		*q = (struct rmx_queue){t, NULL, &q->first, backlog->first};
		t->queue = backlog->first = q;
	}
	*q->end = op;
	q->end = &op->behind;
	atomic_store(&op->waits, true);
	atomic_fetch_add(&backlog->count, 1);
	return true;
}

/* Afterwards the request may be freed; after the last one, so is its queue. */
static void backlog_remove(struct rmx_queue *q, struct rmx_op **op_p)
{
	struct rmx_op *op = *op_p;
	struct rmx_backlog *backlog = &op->fabric->transfers->backlog;
	struct rmx_queue **q_p = &backlog->first;

	*op_p = op->behind;
	if (!op->behind)
		q->end = op_p;
	if (!q->first) {
		while (*q_p != q)
			q_p = &(*q_p)->next;
		*q_p = q->next;
		q->target->queue = NULL;
		free(q);
	}
	atomic_store(&op->waits, false);
	atomic_fetch_sub(&backlog->count, 1);
	rmx_request_part_ended(op);
}

static void queue_push(struct rmx_queue *q)
{
	bool more = true;

	while (more && request_post(q->first)) {
		more = q->first->behind; /* q goes with the last one */
		backlog_remove(q, &q->first);
	}
}

void rmx_backlog_push(struct rmaext_fabric *f)
{
	struct rmx_queue *q, *next;

	pthread_mutex_lock(&f->transfers->backlog.lock);
	for (q = f->transfers->backlog.first; q; q = next) {
		next = q->next;
		queue_push(q);
	}
	pthread_mutex_unlock(&f->transfers->backlog.lock);
}

static void queue_fail(struct rmx_queue *q, const struct rmaext_error *record)
{
	bool more = true;

	while (more) {
		more = q->first->behind;
		rmx_op_failed(q->first, record);
		backlog_remove(q, &q->first);
	}
}

void rmx_backlog_shut(struct rmaext_fabric *f,
		      const struct rmaext_error *record)
{
	struct rmx_queue *q, *next;

	pthread_mutex_lock(&f->transfers->backlog.lock);
	for (q = f->transfers->backlog.first; q; q = next) {
		next = q->next;
		queue_fail(q, record);
	}
	pthread_mutex_unlock(&f->transfers->backlog.lock);
}

/* -- begin */

static const struct rmx_life request_life;

int rmx_begin(struct rmx_op *op, int *ended, struct rmaext_op **op_p)
{
	struct rmaext_fabric *f = op->fabric;
	struct rmx_target *t = op->target;
	const int64_t rank = op->rank;
	struct rmaext_error record;
	bool first, done;

	op = rmx_op_apart(op);
	if (!op)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "request");
	op->owned.life = &request_life;
	op->ended = ended;
	rmx_op_note(op);
	rmx_op_count(op);
	atomic_store(&op->open, 1);
	*op_p = &op->owned;
	if (rmx_is_message(op)) {
		f->hooks->send(&op); /* counts it in pending */
		return RMAEXT_PENDING;
	}
	rmx_pending_add(op);
	pthread_mutex_lock(&f->transfers->backlog.lock);
	first = !t->queue;
	done = first && request_post(op);
	if (!done && !backlog_append(t, op)) {
		rmx_fail(-FI_ENOMEM, rank, "malloc", "request");
		rmaext_error_last(&record);
		rmx_op_failed(op, &record);
		done = true;
	}
	if (done)
		rmx_request_part_ended(op);
	pthread_mutex_unlock(&f->transfers->backlog.lock);
	if (!done && first)
		rmx_progress_call(f);
	return RMAEXT_PENDING;
}

/* -- test, wait */

enum rmx_step rmx_request_step(void *arg)
{
	struct rmx_op *op = arg;

	if (rmx_request_has_ended(op))
		return RMX_DONE;
	if (rmx_is_message(op)) /* it is in line: send() says how that goes */
		return op->fabric->hooks->send(&op) == RMX_RETRY ? RMX_RETRY
								 : RMX_SLEEP;
	/* else this thread may be the one that tries messages again */
	return atomic_load(&op->waits) ||
			       op->fabric->hooks->restless(op->fabric)
		       ? RMX_RETRY
		       : RMX_SLEEP;
}

/* A number that changes while operations to the same target complete. */
static unsigned int request_moves(const struct rmx_op *op)
{
	return rmx_is_message(op)
		       ? atomic_load(&op->target->member->peer->answers)
		       : atomic_load(&op->target->finished);
}

int rmx_request_overdue(struct rmx_op *op, int64_t now)
{
	unsigned int moves = request_moves(op);
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

void rmx_request_waits(struct rmx_op *op, int64_t now)
{
	/* the limit counts anew where nobody has waited for a while */
	if (op->deadline && now <= op->look + 5 * RMX_SLICE)
		return;
	op->seen = request_moves(op);
	op->deadline = now + op->timeout;
}

static int request_wait(struct rmx_op *op, int64_t slice)
{
	struct rmaext_fabric *f = op->fabric;
	int64_t now = rmx_now(), until = now + slice;
	int ret;

	rmx_request_waits(op, now);
	if (slice <= 0) {
		rmx_look(f);
		rmaext_mpi_glance();
		if (!rmx_request_has_ended(op) && now < op->look)
			return RMAEXT_PENDING;
	} else {
		rmx_now_in(RMAEXT_IN_REQUEST, op->window->tally.id, op->rank,
			   op->offset, op->len);
		rmx_wait(f, op->target->member->peer, rmx_request_step, op,
			 until < op->deadline ? until : op->deadline,
			 rmx_op_spins(op));
	}
	ret = rmx_request_has_ended(op) ? rmx_request_report(op)
					: rmx_request_overdue(op, now);
	if (slice > 0)
		rmx_now_out(op->window->tally.id, ret, true);
	return ret;
}

int rmx_request_wait(struct rmx_op *op, int64_t slice)
{
	struct rmaext_window *w = op->window;
	int ret;

	if (rmx_request_has_ended(op)) {
		ret = rmx_request_report(op);
		rmx_now_leave(RMAEXT_IN_REQUEST, ret); /* of the last slice */
		return ret;
	}
	ret = rmx_window_enter(w, "wait");
	if (ret)
		return ret;
	ret = request_wait(op, slice);
	rmx_window_leave(w);
	return ret;
}

/* -- its owner lets go of it */

/* It goes on by itself. */
int rmx_request_release(struct rmx_op *op)
{
	atomic_store(&op->abandoned, true);
	if (rmx_is_message(op) && atomic_load(&op->target->member->peer->gone))
		op->fabric->hooks->give_up(op);
	if (!rmx_request_has_ended(op))
		return RMAEXT_PENDING;
	rmx_op_dispose(op);
	return 0;
}

static int owned_wait(struct rmaext_op *owned, int64_t slice)
{
	return rmx_request_wait(rmx_op_of(owned), slice);
}

static int owned_release(struct rmaext_op *owned)
{
	return rmx_request_release(rmx_op_of(owned));
}

static bool owned_cancel(struct rmaext_op *owned)
{
	const struct rmaext_error record = {
		.code = -FI_ECANCELED,
		.call = "cancel",
		.detail = "the request was cancelled",
	};
	struct rmx_op *op = rmx_op_of(owned), **op_p;
	struct rmaext_fabric *f = op->fabric;
	bool unsent;

	pthread_mutex_lock(&f->transfers->backlog.lock);
	unsent = atomic_load(&op->waits) && !op->sent;
	if (unsent) {
		rmx_request_report(op);
		rmx_op_failed(op, &record);
		op_p = &op->target->queue->first;
		while (*op_p != op)
			op_p = &(*op_p)->behind;
		backlog_remove(op->target->queue, op_p);
	}
	pthread_mutex_unlock(&f->transfers->backlog.lock);
	return unsent;
}

static const struct rmx_life request_life = {
	.wait = owned_wait,
	.release = owned_release,
	.cancel = owned_cancel,
	.rank = rmx_owned_rank,
};

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
