/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Life of an operation on the fabric route. It is posted in chunks, each with
 * a slot of its own as context, and freed by whoever drops the last reference:
 * the owner holds one, each chunk in flight another. So an owner that leaves
 * early (timeout, Ctrl-C, a put from the payload) leaves nothing dangling.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define RMX_OP_CHUNKS                                          \
	16u /* in flight, so that one op cannot take all slots \
	     */

int rmx_op_new(struct rmaext_window *window, int64_t rank, enum rmx_kind kind,
	       uint64_t offset, uint64_t len, size_t payload,
	       struct rmaext_op **op_p)
{
	struct rmaext_fabric *f = window->fabric;
	struct rmaext_op *op = malloc(sizeof(*op) + payload);
	int ret;

	if (!op)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "operation");
	memset(op, 0, sizeof(*op));
	op->fabric = f;
	op->window = window;
	op->target = &window->targets[rank];
	op->rank = rank;
	op->kind = kind;
	op->offset = offset;
	op->len = len;
	op->chunk = f->chunk;
	op->deadline = rmx_now() + window->timeout;
	atomic_init(&op->refs, 1);
	ret = rmx_key_map(window, rank);
	if (ret) {
		free(op);
		return ret;
	}
	pthread_mutex_lock(&f->lock);
	op->next = f->ops;
	op->prev = &f->ops;
	if (op->next)
		op->next->prev = &op->next;
	f->ops = op;
	pthread_mutex_unlock(&f->lock);
	*op_p = op;
	return 0;
}

/* The window may be closed by now; its struct may be gone. */
static void op_unref(struct rmaext_op *op)
{
	struct rmaext_fabric *f = op->fabric;

	if (atomic_fetch_sub(&op->refs, 1) != 1)
		return;
	if (f) { /* else it was closed, and has unlinked this */
		pthread_mutex_lock(&f->lock);
		*op->prev = op->next;
		if (op->next)
			op->next->prev = op->prev;
		pthread_mutex_unlock(&f->lock);
	}
	free(op);
}

/* The endpoint is gone: nothing is in flight any more. */
void rmx_op_shut_all(struct rmaext_fabric *f)
{
	for (struct rmaext_op *op; (op = f->ops);) {
		f->ops = op->next;
		op->fabric = NULL;
		if (atomic_load(&op->detached))
			free(op);
		else
			atomic_store(&op->refs, 1);
	}
}

static struct rmx_slot *slot_take(struct rmaext_fabric *f)
{
	struct rmx_slot *slot;

	pthread_mutex_lock(&f->lock);
	slot = f->free_slots;
	if (slot)
		f->free_slots = slot->next;
	pthread_mutex_unlock(&f->lock);
	return slot;
}

static void slot_give(struct rmaext_fabric *f, struct rmx_slot *slot)
{
	pthread_mutex_lock(&f->lock);
	slot->next = f->free_slots;
	f->free_slots = slot;
	pthread_mutex_unlock(&f->lock);
}

static void op_failed(struct rmaext_op *op, const struct rmaext_error *record)
{
	pthread_mutex_lock(&op->window->lock);
	if (!op->error) {
		op->failure = *record;
		op->failure.rank = op->rank;
		op->error = record->code;
	}
	pthread_mutex_unlock(&op->window->lock);
}

/* Nobody waits for this operation: leave its error to the next flush. */
static void op_leave_error(struct rmaext_op *op)
{
	pthread_mutex_lock(&op->window->lock);
	if (op->error) {
		op->window->failure = op->failure;
		op->target->error = op->error;
		op->error = 0;
	}
	pthread_mutex_unlock(&op->window->lock);
}

/*
 * Called by whoever reads the CQ. The window may go once nothing is pending, and
 * the owner counts on that as soon as its operation is done: so the reference
 * goes last.
 */
void rmx_op_complete(struct rmx_slot *slot, const struct rmaext_error *failure)
{
	struct rmaext_op *op = slot->op;
	struct rmaext_fabric *f = op->fabric;

	if (failure) {
		op_failed(op, failure);
		/* pairs with the owner's store: one of the two sees the other
		 */
		if (atomic_load(&op->detached) || atomic_load(&op->abandoned))
			op_leave_error(op);
		atomic_fetch_add(&f->failed, 1);
	}
	slot_give(f, slot);
	atomic_fetch_add(&f->completed, 1);
	atomic_fetch_add(&op->window->finished, 1);
	atomic_fetch_add(&op->completed, 1);
	atomic_fetch_sub(&op->target->pending, 1);
	op_unref(op);
}

/* -FI_EAGAIN: the provider wants progress first; -FI_ENOSPC: own limits. */
static int op_post_chunk(struct rmaext_op *op)
{
	struct rmaext_fabric *f = op->fabric;
	size_t left = op->len - op->posted;
	size_t len = left < op->chunk ? left : op->chunk;
	struct rmx_slot *slot;
	int ret;

	if (atomic_load(&op->refs) > RMX_OP_CHUNKS)
		return -FI_ENOSPC;
	slot = slot_take(f);
	if (!slot)
		return -FI_ENOSPC;
	slot->op = op;
	/* counted before it is posted: it may complete at once */
	atomic_fetch_add(&op->refs, 1);
	atomic_fetch_add(&op->target->pending, 1);
	ret = op->kind == RMX_PUT || op->kind == RMX_GET
		      ? rmx_rma_post(op, op->posted, len, &slot->context)
		      : rmx_atomic_post(op, op->posted, len, &slot->context);
	if (!ret) {
		op->posted += len;
		atomic_fetch_add(&f->posted, 1);
		return 0;
	}
	atomic_fetch_sub(&op->target->pending, 1);
	atomic_fetch_sub(&op->refs, 1);
	slot_give(f, slot);
	return ret;
}

static enum rmx_step op_step(void *arg)
{
	struct rmaext_op *op = arg;
	struct rmaext_error record;
	int ret;

	while (op->posted < op->len && !atomic_load(&op->error)) {
		ret = op_post_chunk(op);
		if (ret == -FI_ENOSPC)
			return RMX_SLEEP;
		if (ret == -FI_EAGAIN)
			return RMX_RETRY;
		if (ret) {
			rmx_fail(ret, op->rank, "post", "%s",
				 op->fabric->lib->strerror(-ret));
			rmaext_error_last(&record);
			op_failed(op, &record);
		}
	}
	if (op->buffered || atomic_load(&op->refs) == 1)
		return RMX_DONE;
	return RMX_SLEEP;
}

int rmaext_op_wait(rmaext_op *op)
{
	struct rmaext_window *w = op->window;
	int64_t until = rmx_now() + RMX_SLICE;
	unsigned int completed;
	int ret = rmx_window_enter(w, "rmaext_op_wait");

	if (ret)
		return ret;
	if (until > op->deadline)
		until = op->deadline;
	ret = rmx_wait(w->fabric, op->target->peer, op_step, op, until);
	if (!ret) {
		/* taken: the flush to come must not report it again */
		if (atomic_exchange(&op->error, 0))
			ret = rmx_fail_record(&op->failure);
	} else {
		completed = atomic_load(&op->completed);
		ret = rmx_deadline(op->target->peer, op->rank, "wait",
				   w->timeout, &op->deadline,
				   completed != op->seen);
		op->seen = completed;
	}
	rmx_window_leave(w);
	return ret;
}

/* The owner leaves; what is in flight goes on. */
static void op_detach(struct rmaext_op *op)
{
	atomic_store(&op->detached, true);
	op_leave_error(op);
	op_unref(op);
}

int rmaext_op_release(rmaext_op **op)
{
	struct rmaext_op *it = *op;

	if (!it)
		return 0;
	it->len = it->posted; /* only the owner posts */
	if (atomic_load(&it->refs) > 1 && !it->buffered) {
		atomic_store(&it->abandoned, true);
		return RMAEXT_PENDING;
	}
	*op = NULL;
	if (it->buffered)
		op_detach(it);
	else
		op_unref(it);
	return 0;
}

/*
 * First slice of a new operation; the caller is inside the window. On success
 * the operation is gone, else it is the caller's.
 */
int rmx_op_run(struct rmaext_op *op, struct rmaext_op **op_p)
{
	int ret = rmaext_op_wait(op);

	if (ret) {
		*op_p = op;
		return ret;
	}
	return rmaext_op_release(&op);
}
