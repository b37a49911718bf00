/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An operation on its way, as its owner sees it: its chunks are posted, as many
 * as may be in flight, and waited for. Of a request, nonblocking.c posts them.
 */
#include "xfer/operation.h"

#include <string.h>

#define RMX_OP_CHUNKS                                             \
	16u /* in flight, so that one op cannot take all contexts \
	     */

/* A chunk more in flight, or one that is not. */
static void op_count(struct rmaext_op *op, int by)
{
	if (op->ended) /* one as a whole: see rmx_begin() */
		atomic_fetch_add(&op->open, (unsigned int)by);
	else
		atomic_fetch_add(&op->target->pending,
				 (uint64_t)by * rmx_counts_as(op));
}

/*
 * -FI_EAGAIN: the provider wants progress first; -FI_ENOSPC: own limits. When a
 * copy has been posted, it may be gone already.
 */
int rmx_op_post_chunk(struct rmaext_op *op)
{
	struct rmaext_fabric *f = op->fabric;
	struct rmaext_peer *peer = op->target->member->peer;
	const uint64_t at = op->posted, left = op->len - at;
	const uint64_t run =
		op->strides ? op->strides->run - at % op->strides->run : left;
	const size_t most = left < op->chunk ? left : op->chunk;
	size_t len = run < most ? run : most;
	struct rmx_context *context = op->context;
	int ret;

	/* what is left of the run must not be too short */
	if (run - len && run - len < f->least)
		len -= f->least;
	if (op->sent - atomic_load(&op->completed) >= RMX_OP_CHUNKS)
		return -FI_ENOSPC;
	if (!context || op->sent)
		context = rmx_context_take(f, peer);
	if (!context)
		return -FI_ENOSPC;
	/* counted before it is posted: it may complete at once */
	op->posted += len;
	op->sent++;
	op_count(op, 1);
	atomic_store_explicit(&context->op, op, memory_order_release);
	ret = rmx_rma_post(op, at, len, &context->fi);
	if (!ret)
		return 0;
	atomic_store_explicit(&context->op, NULL, memory_order_relaxed);
	op_count(op, -1);
	op->sent--;
	op->posted = at;
	if (context != op->context)
		rmx_context_give(f, peer, context);
	return ret;
}

static void op_post_failed(struct rmaext_op *op)
{
	struct rmaext_error record;

	rmaext_error_last(&record);
	rmx_op_failed(op, &record);
}

/* Once: the flush to come must not report it again. */
static int op_take_error(struct rmaext_op *op)
{
	int code;

	pthread_mutex_lock(&op->window->lock);
	code = op->error ? rmx_fail_record(&op->failure) : 0;
	op->error = 0;
	pthread_mutex_unlock(&op->window->lock);
	return code;
}

static enum rmx_step op_step(void *arg);

/* The rest of a long put, copied while what was posted before is sent. */
static enum rmx_step op_put_rest(struct rmaext_op *op)
{
	struct rmaext_op *tail = op->tail;
	enum rmx_step next;

	if (!tail) {
		if (rmx_op_new(op->window, op->rank, RMX_PUT,
			       op->offset + op->len, op->rest, op->rest,
			       &tail)) {
			op_post_failed(op);
			return RMX_DONE;
		}
		memcpy(tail->local, op->local + op->len, op->rest);
		tail->buffered = true;
		op->tail = tail;
	}
	next = op_step(&tail);
	if (next != RMX_DONE)
		return next;
	if (tail) { /* it could not be posted */
		rmx_op_failed(op, &tail->failure);
		op_take_error(tail);
	}
	op->rest = 0;
	return RMX_DONE;
}

/* arg: the operation; set to NULL once it is the reader's */
static enum rmx_step op_step(void *arg)
{
	struct rmaext_op **op_p = arg, *op = *op_p;
	const bool buffered = op->buffered;
	enum rmx_step next;
	int ret;

	if (rmx_is_message(op))
		return op->fabric->hooks->send(op_p);
	while (op->posted < op->len && !atomic_load(&op->error)) {
		ret = rmx_op_post_chunk(op);
		if (ret == -FI_ENOSPC)
			return RMX_SLEEP;
		if (ret == -FI_EAGAIN)
			return RMX_RETRY;
		if (ret) {
			rmx_fail(ret, op->rank, "post", "%s",
				 op->fabric->lib->strerror(-ret));
			op_post_failed(op);
		} else if (buffered) {
			*op_p = NULL;
			return RMX_DONE;
		}
	}
	if (op->rest && !atomic_load(&op->error)) {
		next = op_put_rest(op);
		if (next != RMX_DONE)
			return next;
	}
	if (atomic_load(&op->completed) < op->sent)
		return RMX_SLEEP;
	/* the error of its end is the same put's: wait for that too */
	if (atomic_load(&op->error) && op->tail && op->tail->posted &&
	    !atomic_load(&op->tail->left))
		return RMX_SLEEP;
	return RMX_DONE;
}

/* For as long as so many bytes may well take: at 1 GB/s, if the usual is 50 us.
 */
static unsigned int op_spins(const struct rmaext_op *op)
{
	return 1 + (unsigned int)(op->len < op->chunk ? op->len : op->chunk) /
			   (64 << 10);
}

/*
 * One slice of the wait for *op_p. It is NULL afterwards if the operation is no
 * longer the owner's: a copy that was posted.
 */
static int op_slice(struct rmaext_op **op_p)
{
	struct rmaext_op *op = *op_p;
	struct rmaext_peer *peer = op->target->member->peer;
	const bool message = rmx_is_message(op);
	unsigned int completed;
	int64_t now, until;
	int ret = 0;

	if (op_step(op_p) != RMX_DONE) {
		now = rmx_now();
		if (!op->deadline)
			op->deadline = now + op->timeout;
		until = now + RMX_SLICE;
		if (until > op->deadline)
			until = op->deadline;
		ret = rmx_wait(op->fabric, peer, op_step, op_p, until,
			       op_spins(op));
	}
	if (!ret) {
		if (!*op_p)
			return 0;
		if (!atomic_load(&op->error)) {
			if (op->result)
				memcpy(op->result, op->local, op->len);
			return 0;
		}
		if (op->tail)
			op_take_error(op->tail);
		return op_take_error(op);
	}
	/* for one in line, those before it count too */
	completed = atomic_load(message ? &peer->answers : &op->completed);
	ret = rmx_deadline(peer, op->rank, "wait", op->timeout, &op->deadline,
			   completed != op->seen);
	op->seen = completed;
	return ret;
}

int rmx_op_wait(struct rmaext_op *op)
{
	return op_slice(&op);
}

/* Post as much of a new operation as is possible at once; it is the caller's.
 */
int rmx_op_begin(struct rmaext_op *op, struct rmaext_op **op_p)
{
	*op_p = op;
	op_step(&op);
	return RMAEXT_PENDING;
}

/*
 * First slice of a new operation; the caller is inside the window. On success
 * the operation is gone, else it is the caller's.
 */
int rmx_op_run(struct rmaext_op *op, struct rmaext_op **op_p)
{
	int ret = op_slice(&op);

	if (!op)
		return 0;
	if (!ret) {
		rmx_op_free(op);
		return 0;
	}
	if (op->buffered) /* not posted yet; the caller keeps it to the end */
		op->buffered = false;
	*op_p = op;
	return ret;
}
