/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How an operation ends. The CQ's reader counts its chunks as they complete or
 * fail. The owner frees the operation after the last; of a copy, which nobody
 * waits for, the second of the two to leave it does. An error that no owner
 * will see is left to the next flush.
 */
#include "xfer/operation.h"

#include <stdio.h>
#include <stdlib.h>

/* Adds one to a counter that only the CQ's reader changes. */
#define COUNT(counter)                                                   \
	atomic_store_explicit(                                           \
		counter,                                                 \
		atomic_load_explicit(counter, memory_order_relaxed) + 1, \
		memory_order_release)

struct rmaext_error rmx_post_failure(const struct rmaext_fabric *f,
				     int64_t rank, int code)
{
	struct rmaext_error record = {
		.code = code,
		.rank = rank,
		.call = "post",
	};

	snprintf(record.detail, sizeof(record.detail), "%s",
		 rmx_words(f, code));
	return record;
}

void rmx_op_failed(struct rmx_op *op, const struct rmaext_error *record)
{
	pthread_mutex_lock(&op->window->lock);
	if (!op->error) {
		op->failure = *record;
		op->failure.rank = op->rank;
		op->outcome = record->code;
		op->error = record->code;
	}
	pthread_mutex_unlock(&op->window->lock);
	if (op->siblings)
		atomic_store(&op->siblings->failed, true);
	if (op->ended)
		rmx_request_failed(op);
}

/* An operation without a result may leave its error to a flush. */
static bool op_has_no_result(const struct rmx_op *op)
{
	return op->kind == RMX_PUT || op->kind == RMX_MESSAGE_PUT ||
	       (op->kind == RMX_UPDATE && !op->local);
}

/*
 * Nobody waits for this operation: its error is left to the next flush, if a
 * flush waits for such an operation.
 */
static void op_leave_error(struct rmx_op *op)
{
	if (!atomic_load(&op->error) || op->ended || op->hint)
		return;
	pthread_mutex_lock(&op->window->lock);
	if (op->error && op_has_no_result(op)) {
		op->window->failure = op->failure;
		op->target->error = op->error;
		op->target->unseen++;
		op->error = 0;
	}
	pthread_mutex_unlock(&op->window->lock);
}

/*
 * The owner or the CQ's reader leaves the operation. Returns whether the other
 * has left it before: then the caller frees it.
 */
static bool op_leave(struct rmx_op *op)
{
	return atomic_load(&op->left) || atomic_exchange(&op->left, true);
}

/*
 * A flush waits for target->pending, an owner for op->completed. These are
 * changed last: at once the waiter may close and free the window.
 */
static void op_count_down(struct rmx_op *op)
{
	struct rmx_target *target = op->target;
	const uint64_t share = op->share;

	if (op->ended) {
		COUNT(&op->completed);
		rmx_request_part_ended(op);
	} else if (op->buffered) {
		if (op_leave(op)) {
			op_leave_error(op);
			rmx_op_free(op);
		}
		rmx_pending_sub(target, share);
	} else {
		rmx_pending_sub(target, share);
		COUNT(&op->completed);
	}
}

/* The context that a completion names, or NULL if none of ours is in flight. */
static struct rmx_context *context_find(struct rmaext_fabric *f, void *named)
{
	const struct rmx_context *all = f->transfers->contexts;
	const uintptr_t first = (uintptr_t)all, it = (uintptr_t)named;
	struct rmx_context *context = named;

	if (!all || it < first || it >= (uintptr_t)(all + RMX_CONTEXTS) ||
	    (it - first) % sizeof(*context) || !context->op) {
		atomic_fetch_add(&f->failed, 1);
		return NULL;
	}
	return context;
}

bool rmx_op_complete(struct rmaext_fabric *f, void *named,
		     const struct rmaext_error *failure)
{
	struct rmx_context *context = context_find(f, named);
	struct rmx_target *target;
	struct rmx_op *op;

	if (!context)
		return false;
	op = atomic_load(&context->op);
	target = op->target;
	if (failure) {
		rmx_op_failed(op, failure);
		/*
		 * The owner stores `abandoned` and then looks for an error, we
		 * the other way round: at least one of the two sees the other.
		 */
		if (atomic_load(&op->abandoned))
			op_leave_error(op);
		COUNT(&f->failed);
	}
	COUNT(&f->completed);
	atomic_fetch_add(&target->finished, 1);
	atomic_store_explicit(&context->op, NULL, memory_order_relaxed);
	if (context != op->context)
		rmx_context_give(f, target->member->peer, context);
	op_count_down(op);
	return true;
}

void rmx_op_end(struct rmx_op *op)
{
	atomic_fetch_add(&op->target->finished, 1);
	if (atomic_load(&op->abandoned))
		op_leave_error(op);
	op_count_down(op);
}

int rmx_op_release(struct rmx_op *op)
{
	atomic_store(&op->abandoned, true);
	if (!rmx_is_message(op))
		op->len = op->posted; /* only the owner posts */
	else if (op->sent)
		op->fabric->hooks->give_up(op);
	op_leave_error(op); /* an error since the last wait */
	if (atomic_load(&op->completed) < op->sent)
		return RMAEXT_PENDING;
	rmx_op_free(op);
	return 0;
}

/*
 * Nothing is in flight any more. An owner may release its operation now or
 * later: until the last has, the contexts stay.
 */
void rmx_op_shut_all(struct rmaext_fabric *f, const struct rmaext_error *record)
{
	for (int i = 0; f->transfers->contexts && i < RMX_CONTEXTS; i++) {
		struct rmx_op *op = atomic_load(&f->transfers->contexts[i].op);

		if (op && op->ended) {
			rmx_op_failed(op, record);
			rmx_request_part_ended(op);
		} else if (op && !op->buffered)
			COUNT(&op->completed);
		else if (op && op_leave(op))
			rmx_op_free(op);
	}
	rmx_contexts_free(f);
}

bool rmx_op_reads(const struct rmaext_fabric *f)
{
	for (int i = 0; f->transfers->contexts && i < RMX_CONTEXTS; i++) {
		const struct rmx_op *op =
			atomic_load(&f->transfers->contexts[i].op);

		if (op && op->kind == RMX_GET)
			return true;
	}
	return false;
}
