/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a request ends. Its place in the backlog and its chunks in flight hold it
 * open; it has ended once there are none. Its owner is told of its failure; if
 * a flush comes before the owner has looked, the flush reports it.
 */
#include "xfer/operation.h"

/*
 * `ended` is set before `pending` is counted down: what a flush has waited for
 * has ended. The owner may free the request at once, but nobody frees the
 * window, and the target, before pending is 0.
 */
void rmx_request_part_ended(struct rmx_op *op)
{
	struct rmx_target *target = op->target;
	struct rmaext_fabric *f = op->fabric;
	const uint64_t share = op->share;

	if (atomic_fetch_sub(&op->open, 1) > 1)
		return;
	if (op->result && !atomic_load(&op->error))
		memcpy(op->result, op->local, op->len);
	rmx_op_note_end(op);
	rmx_op_let_go(op);
	if (op->siblings)
		rmx_sibling_ended(op->siblings);
	__atomic_store_n(op->ended, 1, __ATOMIC_RELEASE);
	rmx_pending_sub(target, share);
	atomic_fetch_add(&f->transfers->backlog.ended, 1);
}

void rmx_sibling_ended(struct rmx_siblings *siblings)
{
	int *ended = siblings->ended;

	if (atomic_fetch_sub(&siblings->left, 1) == 1)
		__atomic_store_n(ended, 1, __ATOMIC_RELEASE);
}

void rmx_request_failed(struct rmx_op *op)
{
	struct rmaext_window *w = op->window;

	pthread_mutex_lock(&w->lock);
	if (!op->told && !op->shown) {
		op->shown = op->target->reports + 1u;
		op->target->unseen++;
		w->failure = op->failure;
		op->target->error = op->error;
	}
	pthread_mutex_unlock(&w->lock);
}

void rmx_request_told(struct rmx_op *op)
{
	struct rmx_target *t = op->target;

	pthread_mutex_lock(&op->window->lock);
	op->told = true;
	if (op->shown == t->reports + 1u && !--t->unseen)
		t->error = 0;
	op->shown = 0;
	pthread_mutex_unlock(&op->window->lock);
}

int rmx_request_report(struct rmx_op *op)
{
	rmx_request_told(op);
	return op->error ? rmx_fail_record(&op->failure) : 0;
}
