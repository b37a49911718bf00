/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How an operation ends. The CQ's reader counts its chunks as they complete or
 * fail, and its owner lets go of it; the last to do so frees it. An error that
 * no owner will see is left to the next flush.
 */
#include "xfer/operation.h"

#include <stdlib.h>

/* For a counter that only the CQ's reader changes. */
#define COUNT(counter)                                                   \
	atomic_store_explicit(                                           \
		counter,                                                 \
		atomic_load_explicit(counter, memory_order_relaxed) + 1, \
		memory_order_release)

void rmx_op_failed(struct rmaext_op *op, const struct rmaext_error *record)
{
	pthread_mutex_lock(&op->window->lock);
	if (!op->error) {
		op->failure = *record;
		op->failure.rank = op->rank;
		op->error = record->code;
	}
	pthread_mutex_unlock(&op->window->lock);
	if (op->ended)
		rmx_request_failed(op);
}

/* Has it no result, so that its error may be left to a flush? */
static bool is_mute(const struct rmaext_op *op)
{
	return op->kind == RMX_PUT || op->kind == RMX_MESSAGE_PUT ||
	       (op->kind == RMX_UPDATE && !op->local);
}

/*
 * Nobody waits for this operation: leave its error to the next flush, if it is
 * one that a flush waits for.
 */
static void op_leave_error(struct rmaext_op *op)
{
	if (!atomic_load(&op->error) || op->ended)
		return;
	pthread_mutex_lock(&op->window->lock);
	if (op->error && is_mute(op)) {
		op->window->failure = op->failure;
		op->target->error = op->error;
		op->target->unseen++;
		op->error = 0;
	}
	pthread_mutex_unlock(&op->window->lock);
}

/* Is the caller, owner or reader of the CQ, the second to leave it? */
static bool op_left(struct rmaext_op *op)
{
	return atomic_load(&op->left) || atomic_exchange(&op->left, true);
}

void rmx_op_let_go(struct rmaext_op *op)
{
	if (op->registered)
		rmx_cache_put(op->fabric, op->registered);
	op->registered = NULL;
}

void rmx_op_dispose(struct rmaext_op *op)
{
	if (op->bounce)
		rmx_bounce_give(op->fabric, op);
	else
		free(op);
}

void rmx_op_free(struct rmaext_op *op)
{
	struct rmaext_op *tail = op->tail;

	if (tail && (!tail->posted || op_left(tail))) {
		op_leave_error(tail);
		rmx_op_free(tail);
	}
	rmx_op_let_go(op);
	if (op->context)
		rmx_context_give(op->fabric, op->target->member->peer,
				 op->context);
	else
		rmx_op_dispose(op);
}

/*
 * Last what is waited for, a flush for pending, an owner for completed: the
 * window may be closed and freed at once.
 */
static void op_count_down(struct rmaext_op *op, uint64_t count)
{
	struct rmx_target *target = op->target;

	if (op->ended) {
		COUNT(&op->completed);
		rmx_request_release(op);
	} else if (op->buffered) {
		if (op_left(op)) {
			op_leave_error(op);
			rmx_op_free(op);
		}
		atomic_fetch_sub(&target->pending, count);
	} else {
		atomic_fetch_sub(&target->pending, count);
		COUNT(&op->completed);
	}
}

/* What a completion names, if that is one of ours, and in flight. */
static struct rmx_context *context_of(struct rmaext_fabric *f, void *named)
{
	const struct rmx_context *all = f->transfers->contexts;
	const uintptr_t first = (uintptr_t)all, it = (uintptr_t)named;
	struct rmx_context *context = named;

	if (it < first || it >= (uintptr_t)(all + RMX_CONTEXTS) ||
	    (it - first) % sizeof(*context) || !context->op) {
		atomic_fetch_add(&f->failed, 1);
		return NULL;
	}
	return context;
}

void rmx_op_complete(struct rmaext_fabric *f, void *named,
		     const struct rmaext_error *failure)
{
	struct rmx_context *context = context_of(f, named);
	struct rmx_target *target;
	struct rmaext_op *op;
	uint64_t count;

	if (!context)
		return;
	op = atomic_load(&context->op);
	target = op->target;
	count = rmx_counts_as(op);
	if (failure) {
		rmx_op_failed(op, failure);
		/* pairs with the owner's store: one of the two sees the other
		 */
		if (atomic_load(&op->abandoned))
			op_leave_error(op);
		COUNT(&f->failed);
	}
	COUNT(&f->completed);
	atomic_fetch_add(&target->finished, 1); /* as rmx_op_end() does */
	atomic_store_explicit(&context->op, NULL, memory_order_relaxed);
	if (context != op->context)
		rmx_context_give(f, target->member->peer, context);
	op_count_down(op, count);
}

/* Called with the lock. */
void rmx_op_end(struct rmaext_op *op)
{
	atomic_fetch_add(&op->target->finished, 1);
	if (atomic_load(&op->abandoned))
		op_leave_error(op);
	op_count_down(op, rmx_counts_as(op));
}

int rmaext_op_release(rmaext_op **op)
{
	struct rmaext_op *it = *op;

	if (!it)
		return 0;
	if (it->kind == RMX_LOCAL_UPDATE) {
		*op = NULL;
		free(it); /* nobody else knows of it */
		return 0;
	}
	if (it->ended) { /* goes on by itself */
		atomic_store(&it->abandoned, true);
		if (rmx_is_message(it) &&
		    atomic_load(&it->target->member->peer->gone))
			it->fabric->hooks->give_up(it);
		if (!__atomic_load_n(it->ended, __ATOMIC_ACQUIRE))
			return RMAEXT_PENDING;
		*op = NULL;
		rmx_request_free(it);
		return 0;
	}
	atomic_store(&it->abandoned, true);
	if (!rmx_is_message(it)) {
		it->len = it->posted; /* only the owner posts */
		it->rest = 0;
	} else if (it->sent) {
		it->fabric->hooks->give_up(it);
	}
	op_leave_error(it); /* of since the last wait */
	if (atomic_load(&it->completed) < it->sent)
		return RMAEXT_PENDING;
	*op = NULL;
	rmx_op_free(it);
	return 0;
}

/*
 * The endpoint is gone: nothing is in flight any more. The owners may release
 * theirs at this moment, or later: then the contexts stay.
 */
void rmx_op_shut_all(struct rmaext_fabric *f)
{
	const struct rmaext_error shut = {
		.code = -FI_ESHUTDOWN,
		.call = "rmaext_fabric_close",
		.detail = "the endpoint was closed",
	};

	rmx_backlog_shut(f, &shut);
	for (int i = 0; f->transfers->contexts && i < RMX_CONTEXTS; i++) {
		struct rmaext_op *op =
			atomic_load(&f->transfers->contexts[i].op);

		if (op && op->ended) {
			rmx_op_failed(op, &shut);
			rmx_request_release(op);
		} else if (op && !op->buffered)
			COUNT(&op->completed);
		else if (op && op_left(op))
			rmx_op_free(op);
	}
	rmx_contexts_free(f);
}

/* Is the answer to a read on its way? */
bool rmx_op_reads(const struct rmaext_fabric *f)
{
	for (int i = 0; f->transfers->contexts && i < RMX_CONTEXTS; i++) {
		const struct rmaext_op *op =
			atomic_load(&f->transfers->contexts[i].op);

		if (op && op->kind == RMX_GET)
			return true;
	}
	return false;
}
