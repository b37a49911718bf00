/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How an operation ends. Its place in the backlog and its chunks or messages on
 * their way hold it open; it has ended once there are none, and then its owner
 * frees it. A copy has no owner: the CQ's reader frees it.
 *
 * Its owner is told of its failure; if a flush comes before the owner has
 * looked, or there is none, the flush reports it.
 */
#include "xfer/siblings.h"

#include <stdio.h>
#include <string.h>

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

/* -- failures */

/*
 * May a flush report its failure? It reports that of a request until the owner
 * has looked, as that may never be; and of what an owner waits for only if it
 * is given up, and has no result.
 */
static bool op_is_left_to_flush(const struct rmx_op *op)
{
	if (!op->ended)
		return op->buffered && !op->hint && !rmx_op_fetches(op);
	if (rmx_op_is_request(op))
		return true;
	return atomic_load(&op->abandoned) && !rmx_op_fetches(op);
}

/* The caller holds window->lock. */
static void op_show(struct rmx_op *op)
{
	struct rmx_target *t = op->target;

	if (op->told || op->shown || !op_is_left_to_flush(op))
		return;
	op->shown = t->reports + 1u;
	t->unseen++;
	op->window->failure = op->failure;
	t->error = (short)op->error;
}

void rmx_op_failed(struct rmx_op *op, const struct rmaext_error *record)
{
	/* a call that needs nothing of the network is to know it, too */
	rmx_peer_look(op->target->member->peer);
	pthread_mutex_lock(&op->window->lock);
	if (!op->error) {
		op->failure = *record;
		op->failure.rank = op->rank;
		op->outcome = record->code;
		op->error = record->code;
		op_show(op);
	}
	pthread_mutex_unlock(&op->window->lock);
	if (op->siblings)
		atomic_store(&op->siblings->failed, true);
}

void rmx_op_abandon(struct rmx_op *op)
{
	atomic_store(&op->abandoned, true);
	pthread_mutex_lock(&op->window->lock);
	if (op->error)
		op_show(op);
	pthread_mutex_unlock(&op->window->lock);
}

void rmx_op_told(struct rmx_op *op)
{
	struct rmx_target *t = op->target;

	pthread_mutex_lock(&op->window->lock);
	op->told = true;
	if (op->shown == t->reports + 1u && !--t->unseen)
		t->error = 0;
	op->shown = 0;
	pthread_mutex_unlock(&op->window->lock);
}

int rmx_op_report(struct rmx_op *op)
{
	rmx_op_told(op);
	return op->error ? rmx_fail_record(&op->failure) : 0;
}

/* -- the end */

void rmx_sibling_ended(struct rmx_siblings *siblings)
{
	int *ended = siblings->ended;

	if (atomic_fetch_sub(&siblings->left, 1) == 1)
		__atomic_store_n(ended, 1, __ATOMIC_RELEASE);
}

/*
 * `ended` is set before `pending` is counted down: what a flush has waited for
 * has ended. The owner may free the operation at once, but nobody frees the
 * window, and the target, before pending is 0.
 */
void rmx_op_part_ended(struct rmx_op *op)
{
	struct rmx_target *target = op->target;
	struct rmaext_fabric *f = op->fabric;
	const uint64_t share = op->share;

	if (atomic_load(&op->note) && f->hooks->written(op))
		return;
	if (atomic_fetch_sub(&op->open, 1) > 1)
		return;
	/* whoever gave up a call has its buffer back */
	if (op->result && !atomic_load(&op->error) &&
	    (rmx_op_is_request(op) || !atomic_load(&op->abandoned)))
		memcpy(op->result, op->local, op->len);
	rmx_op_note_end(op);
	rmx_op_let_go(op);
	if (op->siblings)
		rmx_sibling_ended(op->siblings);
	__atomic_store_n(op->ended, 1, __ATOMIC_RELEASE);
	rmx_pending_sub(target, share);
	atomic_fetch_add(&f->transfers->backlog.ended, 1);
}

/* The message of a write that notifies has ended; am->lock is held. */
static void write_notified(struct rmx_op *note)
{
	struct rmx_op *write = note->write;

	if (note->error)
		rmx_op_failed(write, &note->failure);
	atomic_store(&write->note, NULL);
	rmx_op_part_ended(write);
}

/* A chunk, or all messages, of it have completed. */
static void op_completed(struct rmx_op *op)
{
	struct rmx_target *target = op->target;
	const uint64_t share = op->share;

	if (op->ended) {
		COUNT(&op->completed);
		rmx_op_part_ended(op);
		return;
	}
	if (op->write)
		write_notified(op);
	rmx_op_free(op);
	/* last: at once a flush may end, and its caller free the window */
	rmx_pending_sub(target, share);
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
	struct rmaext_peer *peer;
	struct rmx_op *op;

	if (!context)
		return false;
	op = atomic_load(&context->op);
	target = op->target;
	peer = target->member->peer;
	if (failure) {
		rmx_op_failed(op, failure);
		COUNT(&f->failed);
	}
	COUNT(&f->completed);
	atomic_fetch_add(&target->finished, 1);
	if (atomic_load(&peer->held)) /* who waits behind it sees progress */
		atomic_fetch_add(&peer->answers, 1);
	atomic_store_explicit(&context->op, NULL, memory_order_relaxed);
	if (context != op->context)
		rmx_context_give(f, peer, context);
	op_completed(op);
	return true;
}

void rmx_op_settle(struct rmx_op *op)
{
	if (op->queued || op->flying)
		return;
	atomic_fetch_add(&op->target->finished, 1);
	op_completed(op);
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
			rmx_op_part_ended(op);
		} else if (op) {
			rmx_op_free(op);
		}
	}
	rmx_contexts_free(f);
}

bool rmx_op_reads(const struct rmaext_fabric *f)
{
	for (int i = 0; f->transfers->contexts && i < RMX_CONTEXTS; i++) {
		const struct rmx_op *op =
			atomic_load(&f->transfers->contexts[i].op);

		if (op && op->kind == RMAEXT_GET)
			return true;
	}
	return false;
}
