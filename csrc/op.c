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

/*
 * Several reads on their way keep the target sending: gets of 1 MiB run at
 * 0.93 of MPICH's rate instead of 0.78. Puts lose by it: 0.80 instead of 0.94.
 */
#define RMX_GET_CHUNK ((size_t)512 << 10)

int rmx_op_new(struct rmaext_window *window, int64_t rank, enum rmx_kind kind,
	       uint64_t offset, uint64_t len, size_t payload,
	       struct rmaext_op **op_p)
{
	struct rmaext_op *op = malloc(sizeof(*op) + payload);
	int ret;

	if (!op)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "operation");
	memset(op, 0, sizeof(*op));
	op->window = window;
	op->target = &window->targets[rank];
	op->rank = rank;
	op->kind = kind;
	op->offset = offset;
	op->len = len;
	op->chunk = window->fabric->chunk;
	if (kind == RMX_GET && op->chunk > RMX_GET_CHUNK)
		op->chunk = RMX_GET_CHUNK;
	op->deadline = rmx_now() + window->timeout;
	atomic_init(&op->refs, 1);
	ret = rmx_key_map(window, rank);
	if (ret) {
		free(op);
		return ret;
	}
	*op_p = op;
	return 0;
}

static void op_unref(struct rmaext_op *op)
{
	if (atomic_fetch_sub(&op->refs, 1) == 1)
		free(op);
}

/*
 * The endpoint is gone: nothing is in flight any more. The owners may release
 * theirs at this moment, or later.
 */
void rmx_op_shut_all(struct rmaext_fabric *f)
{
	for (int i = 0; f->slots && i < RMX_SLOTS; i++)
		if (f->slots[i].op)
			op_unref(f->slots[i].op);
}

/*
 * One peer gets no more slots than are left for the others: what is on its way
 * to one that has stopped must not keep us from the rest.
 */
static struct rmx_slot *slot_take(struct rmaext_fabric *f, struct rmaext_op *op)
{
	struct rmaext_peer *peer = op->target->peer;
	struct rmx_slot *slot = NULL;

	pthread_mutex_lock(&f->lock);
	if (peer->slots < f->free_count) {
		slot = f->free_slots;
		f->free_slots = slot->next;
		f->free_count--;
		peer->slots++;
		slot->op = op;
	}
	pthread_mutex_unlock(&f->lock);
	return slot;
}

static void slot_give(struct rmaext_fabric *f, struct rmx_slot *slot)
{
	pthread_mutex_lock(&f->lock);
	slot->op->target->peer->slots--;
	slot->op = NULL;
	slot->next = f->free_slots;
	f->free_slots = slot;
	f->free_count++;
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

/*
 * Nobody waits for this operation: leave its error to the next flush, if it is
 * one that a flush waits for.
 */
static void op_leave_error(struct rmaext_op *op)
{
	pthread_mutex_lock(&op->window->lock);
	if (op->error && op->kind == RMX_PUT) {
		op->window->failure = op->failure;
		op->target->error = op->error;
		op->error = 0;
	}
	pthread_mutex_unlock(&op->window->lock);
}

/*
 * A flush waits for puts only: everything else has been waited for when its
 * call returned, or was given up with an error. (ofi_rxm forgets an atomic
 * whose answer went with a connection; no flush would ever end again.)
 */
static uint64_t counts_as(const struct rmaext_op *op)
{
	return op->kind == RMX_PUT ? RMX_A_PUT + 1 : 1;
}

/* Called by whoever reads the CQ. */
void rmx_op_complete(struct rmx_slot *slot, const struct rmaext_error *failure)
{
	struct rmaext_op *op = slot->op;
	struct rmaext_window *w = op->window;
	struct rmx_target *target = op->target;
	struct rmaext_fabric *f = w->fabric;
	const uint64_t count = counts_as(op);

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
	atomic_fetch_add(&target->finished, 1);
	atomic_fetch_add(&op->completed, 1);
	/*
	 * Last what is waited for, a flush for pending, an owner for refs: the
	 * window may be closed and freed at once. Only a buffered put can be
	 * freed here.
	 */
	if (op->buffered) {
		op_unref(op);
		atomic_fetch_sub(&target->pending, count);
	} else {
		atomic_fetch_sub(&target->pending, count);
		atomic_fetch_sub(&op->refs, 1);
	}
}

/* -FI_EAGAIN: the provider wants progress first; -FI_ENOSPC: own limits. */
static int op_post_chunk(struct rmaext_op *op)
{
	struct rmaext_fabric *f = op->window->fabric;
	size_t left = op->len - op->posted;
	size_t len = left < op->chunk ? left : op->chunk;
	struct rmx_slot *slot;
	int ret;

	if (atomic_load(&op->refs) > RMX_OP_CHUNKS)
		return -FI_ENOSPC;
	slot = slot_take(f, op);
	if (!slot)
		return -FI_ENOSPC;
	/* counted before it is posted: it may complete at once */
	atomic_fetch_add(&op->refs, 1);
	atomic_fetch_add(&op->target->pending, counts_as(op));
	ret = op->kind == RMX_PUT || op->kind == RMX_GET
		      ? rmx_rma_post(op, op->posted, len, &slot->context)
		      : rmx_atomic_post(op, op->posted, len, &slot->context);
	if (!ret) {
		op->posted += len;
		atomic_fetch_add(&f->posted, 1);
		return 0;
	}
	atomic_fetch_sub(&op->target->pending, counts_as(op));
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
				 op->window->fabric->lib->strerror(-ret));
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
		if (atomic_load(&op->error))
			ret = op_take_error(op);
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
	if (it->buffered) {
		*op = NULL;
		op_detach(it);
		return 0;
	}
	atomic_store(&it->abandoned, true);
	if (atomic_load(&it->error)) /* since the last wait */
		op_leave_error(it);
	if (atomic_load(&it->refs) > 1)
		return RMAEXT_PENDING;
	*op = NULL;
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
