/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Waiting until the puts and updates of a target have been applied there, those
 * that were on their way at the beginning; see win/pending.h.
 */
#include "xfer/operation.h"

struct flush {
	struct rmx_target *target;
	uint64_t begun; /* in that round */
};

static enum rmx_step flush_step(void *arg)
{
	const struct flush *f = arg;

	return rmx_completed_since(&f->target->pending, f->begun) ? RMX_DONE
								  : RMX_SLEEP;
}

/* Whatever nobody owns any more is given up: no answer will come. */
static void target_forget(struct rmaext_window *w, int64_t rank)
{
	if (w->fabric)
		w->fabric->hooks->forget(w, rank);
}

/*
 * Waits until *until, the end of this call's slice, which is set at the first
 * wait (it is 0 before). The time limit is one without progress at this rank.
 */
static int flush_wait(struct rmaext_window *w, int64_t rank, int64_t *until,
		      struct rmaext_wait *wait)
{
	struct rmx_target *t = rmx_target_of(w, rank);
	const bool goes_on = wait->deadline && wait->rank == rank;
	struct flush it = {
		.target = t,
		.begun = goes_on ? wait->begun
				 : rmx_round_of(atomic_load(&t->pending)),
	};
	unsigned int finished;
	int64_t now;
	int ret;

	if (flush_step(&it) == RMX_DONE) {
		wait->deadline = 0; /* the next rank has its own */
		return 0;
	}
	now = rmx_now_in(RMAEXT_IN_FLUSH, w->tally.id, rank, 0, 0);
	if (!*until)
		*until = now + RMX_SLICE;
	if (!goes_on) {
		wait->rank = rank;
		wait->begun = it.begun;
		wait->seen = atomic_load(&t->finished);
		wait->deadline = now + wait->timeout;
	}
	if (!rmx_wait(w->fabric, t->member->peer, flush_step, &it,
		      *until < wait->deadline ? *until : wait->deadline, 1)) {
		wait->deadline = 0;
		rmx_now_out(w->tally.id, 0, true);
		return 0;
	}
	finished = atomic_load(&t->finished);
	ret = rmx_deadline(t->member->peer, rank, "flush", wait->timeout,
			   &wait->deadline, finished != wait->seen);
	wait->seen = finished;
	rmx_now_out(w->tally.id, ret, true);
	/*
	 * The loss is reported now: what is still on its way to that rank must
	 * not hold up what comes next.
	 */
	if (ret != RMAEXT_PENDING) {
		wait->deadline = 0;
		target_forget(w, rank);
	}
	return ret;
}

/* The caller will not report that a rank is lost: a later slice, or flush, is
 * to. */
static void flush_leave_error(struct rmaext_window *w,
			      const struct rmaext_error *record)
{
	struct rmx_target *t = rmx_target_of(w, record->rank);

	pthread_mutex_lock(&w->lock);
	w->failure = *record;
	t->error = (short)record->code;
	t->unseen++;
	pthread_mutex_unlock(&w->lock);
}

/* Reports the error of puts that nobody waited for, once. */
static int flush_error(struct rmaext_window *w, int64_t rank)
{
	struct rmx_target *t = rmx_target_of(w, rank);
	int ret;

	if (!atomic_load(&t->error))
		return 0;
	pthread_mutex_lock(&w->lock);
	ret = atomic_exchange(&t->error, 0);
	t->unseen = 0;
	t->reports++;
	if (!ret) /* another thread was first */
		;
	else if (w->failure.rank == rank)
		rmx_fail_record(&w->failure);
	else
		rmx_fail(ret, rank, "put", "%s", rmx_words(w->fabric, ret));
	pthread_mutex_unlock(&w->lock);
	return ret;
}

int rmaext_flush(rmaext_window *w, int64_t rank, struct rmaext_wait *wait)
{
	int64_t first = rank < 0 ? 0 : rank;
	int64_t end = rank < 0 ? w->count : rank + 1;
	struct rmaext_error record;
	int64_t until = 0;
	int ret, lost = 0;

	ret = rmx_window_enter(w, "flush");
	if (ret)
		return ret;
	rmaext_mpi_glance();
	if (rank >= 0) { /* a rank that is named must be alive */
		ret = rmx_check(w, "flush", rank, 0, 0, 0);
		if (ret == -FI_ENOTCONN)
			target_forget(w->root, rank);
		if (ret)
			goto leave;
	}
	/* orders the stores of the direct route */
	atomic_thread_fence(memory_order_seq_cst);
	if (w->fabric)
		w->fabric->hooks->push(w->root, first, end);
	/* earlier slices have flushed those before the one they left at */
	for (rank = wait->deadline ? wait->rank : first; rank < end; rank++) {
		if (!rmx_filled(&w->root->targets[rank]))
			continue; /* never used */
		rmx_wake_waiters(w->members->of[rank].doorbell);
		ret = flush_wait(w->root, rank, &until, wait);
		if (ret == RMAEXT_PENDING || ret == -FI_ETIMEDOUT) {
			if (lost)
				flush_leave_error(w->root, &record);
			goto leave;
		}
		if (ret && !lost) { /* it is gone; the others are flushed */
			lost = ret;
			rmaext_error_last(&record);
		}
	}
	for (rank = first; w->fabric && rank < end; rank++) {
		if (!rmx_filled(&w->root->targets[rank]))
			continue; /* it is not filled for this: see above */
		ret = flush_error(w->root, rank);
		if (ret && !lost) {
			lost = ret;
			rmaext_error_last(&record);
		}
	}
	ret = lost ? rmx_fail_record(&record) : 0;
leave:
	/* what an earlier slice has waited for may have ended since */
	if (ret != RMAEXT_PENDING)
		rmx_now_leave(RMAEXT_IN_FLUSH, ret);
	rmx_window_leave(w);
	return ret;
}
