/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How an owner posts the chunks of its operation, as many as may be in flight,
 * and waits for them. The chunks of a request are posted by nonblocking.c.
 */
#include "xfer/operation.h"

#include <string.h>

/* Chunks in flight, so that one operation cannot take all contexts. */
#define RMX_OP_CHUNKS 16u

/* Counts a chunk that is in flight. */
static void op_count(struct rmx_op *op)
{
	if (op->ended) /* rmx_begin() counts a request as a whole */
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

	if (op->kind == RMX_GET)
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
	const size_t most = left < op->chunk ? left : op->chunk;
	size_t len = run < most ? run : most;
	struct rmx_context *context = op->context;
	int ret;

	/* the rest of the run must not be too short for the provider */
	if (run - len && run - len < f->limits.least)
		len -= f->limits.least;
	if (op->sent - atomic_load(&op->completed) >= RMX_OP_CHUNKS)
		return -FI_ENOSPC;
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

/* Takes the error off the operation: the next flush must not report it again.
 */
static int op_take_error(struct rmx_op *op)
{
	int code;

	pthread_mutex_lock(&op->window->lock);
	code = op->error ? rmx_fail_record(&op->failure) : 0;
	op->error = 0;
	pthread_mutex_unlock(&op->window->lock);
	return code;
}

/* arg: a pointer to the operation, set to NULL once the CQ's reader has it */
static enum rmx_step op_step(void *arg)
{
	struct rmx_op **op_p = arg, *op = *op_p;
	const bool buffered = op->buffered;
	struct rmaext_error record;
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
			record = rmx_post_failure(op->fabric, op->rank, ret);
			rmx_op_failed(op, &record);
		} else if (buffered) {
			*op_p = NULL;
			return RMX_DONE;
		}
	}
	return atomic_load(&op->completed) < op->sent ? RMX_SLEEP : RMX_DONE;
}

/*
 * Waits for *op_p, which is NULL afterwards if the operation was a copy
 * that has been posted: then it is no longer the owner's.
 */
static int op_wait(struct rmx_op **op_p, int64_t slice)
{
	struct rmx_op *op = *op_p;
	struct rmaext_peer *peer = op->target->member->peer;
	const bool message = rmx_is_message(op);
	unsigned int completed;
	int64_t now, until;
	int ret = 0;

	if (op_step(op_p) != RMX_DONE) {
		now = rmx_now_in(rmx_op_counts_as(op), op->window->tally.id,
				 op->rank, op->offset, op->len);
		if (!op->deadline)
			op->deadline = now + op->timeout;
		until = now + slice;
		if (until > op->deadline)
			until = op->deadline;
		ret = rmx_wait(op->fabric, peer, op_step, op_p, until,
			       rmx_op_spins(op));
	}
	if (!ret) {
		if (!*op_p)
			return 0;
		if (!atomic_load(&op->error)) {
			if (op->result)
				memcpy(op->result, op->local, op->len);
			return 0;
		}
		return op_take_error(op);
	}
	/* for an operation in line, answers to those before it count too */
	completed = atomic_load(message ? &peer->answers : &op->completed);
	ret = rmx_deadline(peer, op->rank, "wait", op->timeout, &op->deadline,
			   completed != op->seen);
	op->seen = completed;
	return ret;
}

static int op_wait_slice(struct rmx_op **op_p, int64_t slice)
{
	const uint32_t window = (*op_p)->window->tally.id;
	const int ret = op_wait(op_p, slice);

	rmx_now_out(window, ret, false); /* the operation's event has it */
	return ret;
}

int rmx_op_wait(struct rmx_op *op, int64_t slice)
{
	return op_wait_slice(&op, slice);
}

int rmx_owned_wait(struct rmaext_op *owned, int64_t slice,
		   int (*go_on)(struct rmx_op *op, int64_t slice))
{
	struct rmx_op *op = rmx_op_of(owned);
	struct rmaext_window *w = op->window;
	int ret = rmx_window_enter(w, "wait");

	if (ret)
		return ret;
	ret = go_on(op, slice);
	rmx_window_leave(w);
	return ret;
}

static int owned_wait(struct rmaext_op *owned, int64_t slice)
{
	return rmx_owned_wait(owned, slice, rmx_op_wait);
}

static int owned_release(struct rmaext_op *owned)
{
	return rmx_op_release(rmx_op_of(owned));
}

/* Its owner is to wait for it, and to let go of it. */
static void op_give(struct rmx_op *op, struct rmaext_op **op_p)
{
	static const struct rmx_life life = {
		.wait = owned_wait,
		.release = owned_release,
		.rank = rmx_owned_rank,
	};

	op->owned.life = &life;
	*op_p = &op->owned;
}

int rmx_op_begin(struct rmx_op *op, struct rmaext_op **op_p)
{
	op_give(op, op_p);
	op_step(&op);
	return RMAEXT_PENDING;
}

int rmx_op_run(struct rmx_op *op, struct rmaext_op **op_p)
{
	int ret;

	rmx_op_note(op);
	rmx_op_count(op);
	ret = op_wait_slice(&op, RMX_SLICE);

	if (!op)
		return 0;
	if (!ret) {
		rmx_op_free(op);
		return 0;
	}
	/* a copy that was not posted: the caller keeps it to the end */
	if (op->buffered)
		op->buffered = false;
	op_give(op, op_p);
	return ret;
}
