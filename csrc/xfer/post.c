/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How reads and writes are posted, in chunks. What cannot be posted at once
 * waits in the target's queue; all queues together are the backlog. Whichever
 * thread reads the CQ posts from it, so an operation that its owner never looks
 * at goes on. Who begins an operation posts it until it is in the backlog; then
 * the holder of backlog.lock does.
 */
#include "xfer/operation.h"

#include <stdlib.h>

/* Chunks in flight, so that one operation cannot take all contexts. */
#define RMX_OP_CHUNKS 16u

/* Counts a chunk that is in flight. */
static void op_count(struct rmx_op *op)
{
	if (op->ended) /* its begin counts it as a whole */
		atomic_fetch_add(&op->open, 1);
	else
		rmx_pending_add(op);
}

/* It was not posted. */
static void op_count_down(struct rmx_op *op)
{
	if (op->ended)
		atomic_fetch_sub(&op->open, 1);
	else
		rmx_pending_sub(op->target, op->share);
}

/* The byte of the root window where that byte of the operation lies. */
static uint64_t op_place(const struct rmx_op *op, uint64_t offset)
{
	const struct rmx_places *p = op->places;

	return p ? rmx_place_at(p, offset / p->unit).offset + offset % p->unit
		 : op->offset + offset;
}

/* Hands len bytes, from `offset` within the operation on, to the network. */
static int op_hand_over(struct rmx_op *op, uint64_t offset, size_t len,
			struct rmx_call *call)
{
	struct rmaext_fabric *f = op->fabric;
	const struct rmx_remote at =
		rmx_remote_at(f, op->target, op_place(op, offset));
	char *local = op->local + offset;

	if (op->kind == RMAEXT_GET)
		return f->transport->read(f, &at, local, len, op->desc, call);
	return f->transport->write(f, &at, local, len, op->desc, call);
}

int rmx_op_post_chunk(struct rmx_op *op)
{
	struct rmaext_fabric *f = op->fabric;
	struct rmaext_peer *peer = op->target->member->peer;
	const uint64_t at = op->posted, left = op->len - at;
	const uint64_t run =
		op->places ? op->places->unit - at % op->places->unit : left;
	const size_t most = left < f->limits.chunk ? left : f->limits.chunk;
	size_t len = run < most ? run : most;
	struct rmx_context *context = op->context;
	int ret;

	/* the rest of the run must not be too short for the provider */
	if (run - len && run - len < f->limits.least)
		len -= f->limits.least;
	if (op->sent - atomic_load(&op->completed) >= RMX_OP_CHUNKS)
		return -FI_EBUSY;
	if (!context || op->sent)
		context = rmx_context_take(f, peer);
	if (!context)
		return -FI_ENOSPC;
	/* a chunk is counted before it is posted: it may complete at once */
	op->posted += len;
	op->sent++;
	op_count(op);
	atomic_store_explicit(&context->op, op, memory_order_release);
	ret = op_hand_over(op, at, len, &context->call);
	if (!ret)
		return 0;
	atomic_store_explicit(&context->op, NULL, memory_order_relaxed);
	op_count_down(op);
	op->sent--;
	op->posted = at;
	if (context != op->context)
		rmx_context_give(f, peer, context);
	return ret;
}

/* -- the backlog: the callers hold its lock */

/* The operations to one target. */
struct rmx_queue {
	struct rmx_target *target;
	struct rmx_op *first, **end; /* oldest first */
	struct rmx_queue *next;
};

/* 0: all of it is posted, or it has failed; else why the rest is left. */
static int op_post(struct rmx_op *op)
{
	struct rmaext_error record;
	int ret;

	while (op->posted < op->len && !atomic_load(&op->error)) {
		ret = atomic_load(&op->target->member->peer->gone)
			      ? -FI_ENOTCONN
			      : rmx_op_post_chunk(op);
		if (ret == -FI_ENOSPC || ret == -FI_EAGAIN || ret == -FI_EBUSY)
			return ret;
		if (ret) {
			record = rmx_post_failure(op->fabric, op->rank, ret);
			rmx_op_failed(op, &record);
		}
	}
	return 0;
}

/*
 * What is waited for in its call goes before requests. False: there is no
 * memory for it.
 */
static bool backlog_add(struct rmx_target *t, struct rmx_op *op)
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
	if (rmx_op_is_request(op) || !q->first) {
		*q->end = op;
		q->end = &op->behind;
	} else {
		op->behind = q->first;
		q->first = op;
	}
	atomic_store(&op->waits, true);
	atomic_fetch_add(&backlog->count, 1);
	return true;
}

/* Afterwards the operation may be freed; after the last one, so is its queue.
 */
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
	rmx_op_part_ended(op);
}

void rmx_backlog_take_out(struct rmx_op *op)
{
	struct rmx_op **op_p = &op->target->queue->first;

	while (*op_p != op)
		op_p = &(*op_p)->behind;
	backlog_remove(op->target->queue, op_p);
}

/* One that has as many chunks in flight as may be does not keep up others. */
static void queue_push(struct rmx_queue *q)
{
	struct rmx_op **op_p = &q->first, *op;

	while ((op = *op_p)) {
		const bool alone = op == q->first && !op->behind;
		const int ret = op_post(op);

		if (!ret)
			backlog_remove(q, op_p);
		else if (ret == -FI_EBUSY)
			op_p = &op->behind;
		else
			return;
		if (!ret && alone) /* the queue is gone with it */
			return;
	}
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

void rmx_backlog_push(struct rmaext_fabric *f, const struct rmaext_error *shut)
{
	struct rmx_queue *q, *next;

	pthread_mutex_lock(&f->transfers->backlog.lock);
	for (q = f->transfers->backlog.first; q; q = next) {
		next = q->next;
		if (shut)
			queue_fail(q, shut);
		else
			queue_push(q);
	}
	pthread_mutex_unlock(&f->transfers->backlog.lock);
}

void rmx_op_post(struct rmx_op *op)
{
	static const struct rmaext_error no_memory = {
		.code = -FI_ENOMEM,
		.call = "malloc",
		.detail = "the place of an operation in the backlog",
	};
	struct rmaext_fabric *f = op->fabric;
	struct rmx_backlog *backlog = &f->transfers->backlog;
	bool first, done;

	/* who waits in its call does not wait for requests to be posted */
	if (!rmx_op_is_request(op) && !op_post(op)) {
		rmx_op_part_ended(op);
		return;
	}
	pthread_mutex_lock(&backlog->lock);
	first = !op->target->queue;
	done = first && !op_post(op);
	if (!done && !backlog_add(op->target, op)) {
		rmx_op_failed(op, &no_memory);
		done = true;
	}
	if (done)
		rmx_op_part_ended(op);
	pthread_mutex_unlock(&backlog->lock);
	if (!done && first)
		rmx_progress_call(f);
}
