/* SPDX-License-Identifier: BSD-3-Clause */
/* put, get, flush: check at the origin, choose the route, post. */
#include "am/am.h"

#include <errno.h>
#include <string.h>

static bool is_gone(const struct rmx_target *t)
{
	return (t->member->peer && atomic_load(&t->member->peer->gone)) ||
	       (rmx_near_doubtful(t->member->near) &&
		rmx_near_gone(t->member->near));
}

/*
 * Of a put from RMX_LONG on, the end goes as a copy, in one chunk, that is on
 * its way while the caller prepares the next one; see op_put_rest().
 */
#define RMX_LONG ((uint64_t)256 << 10)
#define RMX_REST ((uint64_t)32 << 10)

/*
 * Only the origin can refuse: providers let a put past the end land, lose it
 * together with the next good one, or hang (measured).
 */
int rmx_check(const struct rmaext_window *w, const char *call, int64_t rank,
	      uint64_t offset, uint64_t len, int access)
{
	const struct rmx_target *t;

	if (rmx_passes(w, rank, offset, len, access))
		return 0;
	if (rank < 0 || rank >= w->count)
		return rmx_fail(-ERANGE, rank, call,
				"rank %lld is not in 0..%lld", (long long)rank,
				(long long)w->count - 1);
	t = rmx_target_of(w, rank);
	if (offset > t->size || len > t->size - offset)
		return rmx_fail(-ERANGE, rank, call,
				"%llu bytes at byte %llu end after the %llu "
				"bytes of the window",
				(unsigned long long)len,
				(unsigned long long)offset,
				(unsigned long long)t->size);
	if ((t->access & access) != access)
		return rmx_fail(-FI_EACCES, rank, call,
				"the window there allows %s%s",
				t->access & RMAEXT_READ ? "r" : "",
				t->access & RMAEXT_WRITE ? "w" : "");
	if (is_gone(t))
		return rmx_fail(-FI_ENOTCONN, rank, call,
				"the target process, or its endpoint, is gone");
	return 0; /* its thread that we watched has ended, it has not */
}

/* From the operation's offset in the window. */
static uint64_t place_of(const struct rmaext_op *op, uint64_t offset)
{
	const struct rmx_strides *s = op->strides;

	return s ? rmx_strides_at(s, offset / s->run) + offset % s->run
		 : offset;
}

/* offset: within the operation */
int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context)
{
	struct rmaext_fabric *f = op->window->fabric;
	struct rmx_target *t = op->target;
	struct iovec iov = {.iov_base = op->local + offset, .iov_len = len};
	struct fi_rma_iov remote = {
		.addr = op->offset + place_of(op, offset),
		.len = len,
		.key = t->key,
	};
	struct fi_msg_rma msg = {
		.msg_iov = &iov,
		.desc = f->origins.demanded ? &op->desc : NULL,
		.iov_count = 1,
		.addr = t->member->peer->addr,
		.rma_iov = &remote,
		.rma_iov_count = 1,
		.context = context,
	};

	/* else that of a raw key; it may lie amid the region in any case */
	if (f->mr_mode & FI_MR_VIRT_ADDR || !(f->mr_mode & FI_MR_RAW))
		remote.addr += t->base;
	if (op->kind == RMX_GET)
		return (int)fi_readmsg(f->ep, &msg, FI_COMPLETION);
	/* a completion must mean: in the target's memory */
	return (int)fi_writemsg(f->ep, &msg,
				FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* A put by the target's hand. */
static int message_put_new(struct rmaext_window *w, int64_t rank,
			   uint64_t offset, const void *buf, uint64_t len,
			   int slot, struct rmaext_op **op_p)
{
	const bool copy = len <= RMX_COPY_MAX;
	struct rmaext_op *op;
	int ret = rmx_op_new(w, rank, RMX_MESSAGE_PUT, offset, len,
			     copy ? len : 0, &op);

	if (ret)
		return ret;
	op->unit = 1;
	op->notify = slot;
	op->operand = buf;
	if (copy)
		rmx_op_buffer(op);
	*op_p = op;
	return 0;
}

/* See rmx_notify_post(). */
int rmx_message_post(struct rmaext_window *w, int64_t rank, uint64_t offset,
		     const void *buf, uint64_t len, int slot)
{
	struct rmaext_op *op;
	int ret;

	if (len > RMX_COPY_MAX)
		return -FI_EAGAIN;
	ret = message_put_new(w, rank, offset, buf, len, slot, &op);
	if (ret || rmx_message_step(&op) == RMX_DONE)
		return ret;
	rmaext_op_release(&op);
	return -FI_EAGAIN;
}

/*
 * As rmaext_put(), but carried out by the target's process, which then counts
 * one up in the slot, unless that is -1. In order with the updates of this
 * rank.
 */
int rmx_message_put(struct rmaext_window *w, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot,
		    struct rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = message_put_new(w, rank, offset, buf, len, slot, &op);

	*op_p = NULL;
	return ret ? ret : rmx_op_run(op, op_p);
}

int rmaext_put(rmaext_window *w, int64_t rank, uint64_t offset, const void *buf,
	       uint64_t len, rmaext_op **op_p)
{
	struct rmaext_op *op;
	bool copy;
	int ret = rmx_window_enter(w, "put");

	*op_p = NULL;
	if (ret)
		return ret;
	ret = rmx_check(w, "put", rank, offset, len, RMAEXT_WRITE);
	if (ret || !len)
		goto leave;
	if (w->attached || w->visits) {
		ret = rmx_message_put(w, rank, offset, buf, len, -1, op_p);
		goto leave;
	}
	switch (rmx_target_of(w, rank)->route) {
	case RMAEXT_DIRECT:
		rmx_copy(rmx_target_of(w, rank)->map + offset, buf, len);
		goto leave;
	case RMAEXT_CMA:
		ret = rmx_cma_write(rmx_target_of(w, rank), rank, offset, buf,
				    len);
		goto leave;
	}
	if (len < w->fabric->least) {
		ret = rmx_message_put(w, rank, offset, buf, len, -1, op_p);
		goto leave;
	}
	/* one chunk, so that the CQ's reader can tell when it is complete */
	copy = len <= RMX_COPY_MAX && len <= w->fabric->chunk;
	ret = copy ? rmx_op_new(w, rank, RMX_PUT, offset, len, len, &op)
		   : rmx_op_over(w, rank, RMX_PUT, offset, buf, len, 0, &op);
	if (ret)
		goto leave;
	op->buffered = copy;
	if (copy) {
		atomic_store_explicit(&op->left, true, memory_order_relaxed);
		memcpy(op->local, buf, len);
		if (w->fabric->origins.demanded)
			atomic_fetch_add(&w->fabric->origins.bounced, 1);
	} else {
		if (len >= RMX_LONG && RMX_REST <= op->chunk)
			op->rest = RMX_REST;
		op->len -= op->rest;
	}
	ret = rmx_op_run(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}

/* What is too short to be read goes as an update that changes nothing. */
int rmx_get_new(struct rmaext_window *w, int64_t rank, uint64_t offset,
		void *buf, uint64_t len, struct rmaext_op **op_p)
{
	int ret;

	if (!rmx_by_message(w, len))
		return rmx_op_over(w, rank, RMX_GET, offset, buf, len, 0, op_p);
	ret = rmx_op_new(w, rank, RMX_UPDATE, offset, len, 0, op_p);
	if (ret)
		return ret;
	(*op_p)->local = buf;
	(*op_p)->op = RMAEXT_NO_OP;
	(*op_p)->type = RMAEXT_UINT8;
	(*op_p)->unit = 1;
	return 0;
}

int rmaext_get(rmaext_window *w, int64_t rank, uint64_t offset, void *buf,
	       uint64_t len, rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = rmx_window_enter(w, "get");

	*op_p = NULL;
	if (ret)
		return ret;
	ret = rmx_check(w, "get", rank, offset, len, RMAEXT_READ);
	if (ret || !len)
		goto leave;
	switch (rmx_target_of(w, rank)->route) {
	case RMAEXT_DIRECT:
		rmx_copy(buf, rmx_target_of(w, rank)->map + offset, len);
		goto leave;
	case RMAEXT_CMA:
		ret = rmx_cma_read(rmx_target_of(w, rank), rank, offset, buf,
				   len);
		goto leave;
	}
	ret = rmx_get_new(w, rank, offset, buf, len, &op);
	if (!ret)
		ret = rmx_op_run(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}

int rmaext_connect(rmaext_window *w, int64_t rank, rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = rmx_window_enter(w, "connect");
	size_t least;

	*op_p = NULL;
	if (ret)
		return ret;
	ret = rmx_check(w, "connect", rank, 0, 1, RMAEXT_READ);
	if (ret || rmx_target_of(w, rank)->route != RMAEXT_FABRIC)
		goto leave;
	least = w->fabric->least;
	if (rmx_target_of(w, rank)->size < least)
		goto leave;
	/* the bytes go where a copy would lie */
	ret = rmx_op_new(w, rank, RMX_GET, 0, least, least, &op);
	if (!ret)
		ret = rmx_op_begin(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}

static enum rmx_step flush_step(void *arg)
{
	struct rmx_target *target = arg;

	return atomic_load(&target->pending) < RMX_A_PUT ? RMX_DONE : RMX_SLEEP;
}

/*
 * The time limit is one without progress towards the rank waited for. *until:
 * of the slice, 0 before the first wait.
 */
static int flush_wait(struct rmaext_window *w, int64_t rank, int64_t *until,
		      struct rmaext_wait *wait)
{
	struct rmx_target *t = rmx_target_of(w, rank);
	unsigned int finished;
	int64_t now;
	int ret;

	if (flush_step(t) == RMX_DONE)
		return 0;
	now = rmx_now();
	if (!*until)
		*until = now + RMX_SLICE;
	if (!wait->deadline || wait->rank != rank) {
		wait->rank = rank;
		wait->seen = atomic_load(&t->finished);
		wait->deadline = now + wait->timeout;
	}
	if (!rmx_wait(w->fabric, t->member->peer, flush_step, t,
		      *until < wait->deadline ? *until : wait->deadline, 1))
		return 0;
	finished = atomic_load(&t->finished);
	ret = rmx_deadline(t->member->peer, rank, "flush", wait->timeout,
			   &wait->deadline, finished != wait->seen);
	wait->seen = finished;
	/* this is reported now; what is late must not hold up what comes next
	 */
	if (ret != RMAEXT_PENDING)
		rmx_message_forget(w, rank);
	return ret;
}

/* Errors of puts that nobody waited for are reported here, once. */
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
		rmx_fail(ret, rank, "put", "%s",
			 w->fabric->lib->strerror(-ret));
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
	if (rank >= 0) { /* one that is gone is an error, if it is named */
		ret = rmx_check(w, "flush", rank, 0, 0, 0);
		if (ret)
			goto leave;
	}
	/* orders what the direct route stored */
	atomic_thread_fence(memory_order_seq_cst);
	for (rank = first; rank < end; rank++) {
		if (!rmx_filled(&w->root->targets[rank]))
			continue; /* never used */
		rmx_tell(w->members->of[rank].bell);
		ret = flush_wait(w->root, rank, &until, wait);
		if (ret == RMAEXT_PENDING || ret == -FI_ETIMEDOUT)
			goto leave;
		if (ret && !lost) { /* gone: flush the others all the same */
			lost = ret;
			rmaext_error_last(&record);
		}
	}
	for (rank = first; w->fabric && rank < end; rank++) {
		ret = flush_error(w->root, rank);
		if (ret && !lost) {
			lost = ret;
			rmaext_error_last(&record);
		}
	}
	ret = lost ? rmx_fail_record(&record) : 0;
leave:
	rmx_window_leave(w);
	return ret;
}
