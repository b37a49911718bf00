/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Life of an operation on the fabric route. It is posted in chunks, each with
 * a slot as context, and lies itself in the slot of its first chunk. Its owner,
 * who made it, frees it once all chunks that were sent have completed; if the
 * owner leaves early (timeout, Ctrl-C), later. A put from a copy that has been
 * posted has no owner any more: the reader of the CQ frees it.
 *
 * Only the owner posts, only the CQ's one reader completes. What both change
 * is the list of free slots and the target's count of what is pending.
 *
 * An update goes as messages instead, which message.c sends and completes,
 * under the executor's lock; for its owner it is one chunk, sent when it has
 * been put in line. One that waits for nobody is given up with its owner.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define RMX_OP_CHUNKS                                          \
	16u /* in flight, so that one op cannot take all slots \
	     */

static bool is_block(const struct rmaext_fabric *f, size_t payload)
{
	return payload && rmx_block_fits(f, sizeof(struct rmaext_op) + payload);
}

static struct rmaext_op *op_alloc(struct rmaext_fabric *f, size_t payload,
				  void **desc_p)
{
	return is_block(f, payload)
		       ? rmx_block_take(f, desc_p)
		       : malloc(sizeof(struct rmaext_op) + payload);
}

char *rmx_op_payload(struct rmaext_op *op)
{
	return op->slot ? op->slot->payload : (char *)(op + 1);
}

int rmx_op_new(struct rmaext_window *window, int64_t rank, enum rmx_kind kind,
	       uint64_t offset, uint64_t len, size_t payload,
	       struct rmaext_op **op_p)
{
	struct rmaext_window *root = window->root;
	struct rmx_target *target = rmx_target_of(root, rank);
	struct rmaext_fabric *f = root->fabric;
	struct rmx_slot *slot = NULL;
	struct rmaext_op *op;
	void *desc = NULL;
	int ret = kind < RMX_UPDATE ? rmx_key_map(root, rank) : 0;

	if (!ret && (root->attached || root->visits) && kind < RMX_UPDATE)
		ret = rmx_fail(-FI_EOPNOTSUPP, rank, "rmx_op_new",
			       "no key leads to the memory there");
	if (ret)
		return ret;
	if (!target->member->peer)
		return rmx_fail(-FI_EOPNOTSUPP, rank, "rmaext_op",
				"there is no network to it");
	if (payload <= RMX_INLINE)
		slot = rmx_slot_take(f, target->member->peer);
	if (slot)
		desc = rmx_region_desc(&f->origins.slots);
	op = slot ? &slot->own : op_alloc(f, payload, &desc);
	if (!op)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "operation");
	memset(op, 0, offsetof(struct rmaext_op, failure));
	op->fabric = f;
	op->window = root;
	op->timeout = window->timeout;
	op->target = target;
	op->slot = slot;
	op->rank = rank;
	op->kind = kind;
	op->offset = window->first + offset;
	op->len = len;
	op->chunk = f->chunk;
	op->block = !slot && is_block(f, payload);
	if (payload) {
		op->local = rmx_op_payload(op);
		op->desc = desc;
	}
	*op_p = op;
	return 0;
}

int rmx_op_over(struct rmaext_window *w, int64_t rank, enum rmx_kind kind,
		uint64_t offset, const void *buf, uint64_t len, size_t room,
		struct rmaext_op **op_p)
{
	struct rmaext_fabric *f = w->fabric;
	const bool demanded = f->origins.demanded, get = kind == RMX_GET;
	const size_t before = (room + 15) & ~(size_t)15;
	const bool copy =
		demanded && len <= RMX_COPY_MAX &&
		rmx_block_fits(f, sizeof(struct rmaext_op) + before + len);
	struct rmx_origin *origin = NULL;
	struct rmaext_op *op;
	int ret = 0;

	if (demanded && !copy)
		ret = rmx_origin_get(f, buf, len, get, &origin);
	if (!ret)
		ret = rmx_op_new(w, rank, kind, offset, len,
				 copy ? before + len : room, &op);
	if (ret) {
		if (origin)
			rmx_origin_put(f, origin);
		return ret;
	}
	*op_p = op;
	if (!copy) {
		op->local = (char *)(uintptr_t)buf;
		op->origin = origin;
		op->desc = origin ? rmx_region_desc(&origin->region) : NULL;
		return 0;
	}
	op->local += before;
	if (get)
		op->result = (char *)(uintptr_t)buf;
	else
		memcpy(op->local, buf, len);
	atomic_fetch_add(&f->origins.bounced, 1);
	return 0;
}

struct rmaext_op *rmx_op_apart(struct rmaext_op *op)
{
	/* a copy; else nothing in it points to itself */
	const uint64_t payload = op->desc && !op->origin ? op->len : 0;
	struct rmaext_op *it;
	void *desc = NULL;

	if (!op->slot)
		return op;
	it = op_alloc(op->fabric, payload, &desc);
	if (it) {
		memcpy(it, op, sizeof(*it));
		it->slot = NULL;
		it->block = is_block(op->fabric, payload);
	}
	if (it && payload) {
		it->desc = desc;
		it->local = rmx_op_payload(it);
		memcpy(it->local, op->local, payload);
	}
	if (!it)
		rmx_op_let_go(op);
	rmx_slot_give(op->fabric, op->target->member->peer, op->slot);
	return it;
}

void rmx_op_let_go(struct rmaext_op *op)
{
	if (op->origin)
		rmx_origin_put(op->fabric, op->origin);
	op->origin = NULL;
}

void rmx_op_dispose(struct rmaext_op *op)
{
	if (op->block)
		rmx_block_give(op->fabric, op);
	else
		free(op);
}

void rmx_op_buffer(struct rmaext_op *op)
{
	if (op->len)
		memcpy(op->local, op->operand, op->len);
	op->operand = op->local;
	op->local = NULL;
	op->buffered = true;
	atomic_store_explicit(&op->left, true, memory_order_relaxed);
}

static void op_leave_error(struct rmaext_op *op);

/* Is the caller, owner or reader of the CQ, the second to leave it? */
static bool op_left(struct rmaext_op *op)
{
	return atomic_load(&op->left) || atomic_exchange(&op->left, true);
}

static void op_free(struct rmaext_op *op)
{
	struct rmaext_op *tail = op->tail;

	if (tail && (!tail->posted || op_left(tail))) {
		op_leave_error(tail);
		op_free(tail);
	}
	rmx_op_let_go(op);
	if (op->slot)
		rmx_slot_give(op->fabric, op->target->member->peer, op->slot);
	else
		rmx_op_dispose(op);
}

/* For a counter that only the CQ's reader changes. */
#define COUNT(counter)                                                   \
	atomic_store_explicit(                                           \
		counter,                                                 \
		atomic_load_explicit(counter, memory_order_relaxed) + 1, \
		memory_order_release)

/*
 * The endpoint is gone: nothing is in flight any more. The owners may release
 * theirs at this moment, or later: then the slots stay.
 */
void rmx_op_shut_all(struct rmaext_fabric *f)
{
	const struct rmaext_error shut = {
		.code = -FI_ESHUTDOWN,
		.call = "rmaext_fabric_close",
		.detail = "the endpoint was closed",
	};

	rmx_backlog_shut(f, &shut);
	for (int i = 0; f->slots && i < RMX_SLOTS; i++) {
		struct rmaext_op *op = atomic_load(&f->slots[i].op);

		if (op && op->ended) {
			rmx_op_failed(op, &shut);
			rmx_begun_less(op);
		} else if (op && !op->buffered)
			COUNT(&op->completed);
		else if (op && op_left(op))
			op_free(op);
	}
	rmx_slots_end(f);
}

/* Is the answer to a read on its way? */
bool rmx_op_reads(const struct rmaext_fabric *f)
{
	for (int i = 0; f->slots && i < RMX_SLOTS; i++) {
		const struct rmaext_op *op = atomic_load(&f->slots[i].op);

		if (op && op->kind == RMX_GET)
			return true;
	}
	return false;
}

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
		rmx_begun_failed(op);
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

/*
 * Last what is waited for, a flush for pending, an owner for completed: the
 * window may be closed and freed at once.
 */
static void op_count_down(struct rmaext_op *op, uint64_t count)
{
	struct rmx_target *target = op->target;

	if (op->ended) {
		COUNT(&op->completed);
		rmx_begun_less(op);
	} else if (op->buffered) {
		if (op_left(op)) {
			op_leave_error(op);
			op_free(op);
		}
		atomic_fetch_sub(&target->pending, count);
	} else {
		atomic_fetch_sub(&target->pending, count);
		COUNT(&op->completed);
	}
}

/* A chunk more in flight, or one that is not. */
static void op_count(struct rmaext_op *op, int by)
{
	if (op->ended) /* one as a whole: see rmx_begin() */
		atomic_fetch_add(&op->open, (unsigned int)by);
	else
		atomic_fetch_add(&op->target->pending,
				 (uint64_t)by * rmx_counts_as(op));
}

/* Called by whoever reads the CQ. */
void rmx_op_complete(struct rmx_slot *slot, const struct rmaext_error *failure)
{
	struct rmaext_op *op = atomic_load(&slot->op);
	struct rmx_target *target = op->target;
	struct rmaext_fabric *f = op->fabric;
	const uint64_t count = rmx_counts_as(op);

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
	atomic_store_explicit(&slot->op, NULL, memory_order_relaxed);
	if (slot != op->slot)
		rmx_slot_give(f, target->member->peer, slot);
	op_count_down(op, count);
}

/* Called with the executor's lock. */
void rmx_op_end(struct rmaext_op *op)
{
	atomic_fetch_add(&op->target->finished, 1);
	if (atomic_load(&op->abandoned))
		op_leave_error(op);
	op_count_down(op, rmx_counts_as(op));
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
	struct rmx_slot *slot = op->slot;
	int ret;

	/* what is left of the run must not be too short */
	if (run - len && run - len < f->least)
		len -= f->least;
	if (op->sent - atomic_load(&op->completed) >= RMX_OP_CHUNKS)
		return -FI_ENOSPC;
	if (!slot || op->sent)
		slot = rmx_slot_take(f, peer);
	if (!slot)
		return -FI_ENOSPC;
	/* counted before it is posted: it may complete at once */
	op->posted += len;
	op->sent++;
	op_count(op, 1);
	atomic_store_explicit(&slot->op, op, memory_order_release);
	ret = rmx_rma_post(op, at, len, &slot->context);
	if (!ret)
		return 0;
	atomic_store_explicit(&slot->op, NULL, memory_order_relaxed);
	op_count(op, -1);
	op->sent--;
	op->posted = at;
	if (slot != op->slot)
		rmx_slot_give(f, peer, slot);
	return ret;
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
		return rmx_message_step(op_p);
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

int rmaext_op_wait(rmaext_op *op)
{
	struct rmaext_window *w = op->window;
	int ret;

	if (op->ended)
		return rmaext_op_wait_for(op, RMX_SLICE);
	ret = rmx_window_enter(w, "rmaext_op_wait");
	if (ret)
		return ret;
	ret = op->kind == RMX_HERE ? rmx_here_wait(op) : op_slice(&op);
	rmx_window_leave(w);
	return ret;
}

int rmaext_op_release(rmaext_op **op)
{
	struct rmaext_op *it = *op;

	if (!it)
		return 0;
	if (it->kind == RMX_HERE) {
		*op = NULL;
		free(it); /* nobody else knows of it */
		return 0;
	}
	if (it->ended) { /* goes on by itself */
		atomic_store(&it->abandoned, true);
		if (rmx_is_message(it) &&
		    atomic_load(&it->target->member->peer->gone))
			rmx_message_give_up(it);
		if (!__atomic_load_n(it->ended, __ATOMIC_ACQUIRE))
			return RMAEXT_PENDING;
		*op = NULL;
		rmx_begun_free(it);
		return 0;
	}
	atomic_store(&it->abandoned, true);
	if (!rmx_is_message(it)) {
		it->len = it->posted; /* only the owner posts */
		it->rest = 0;
	} else if (it->sent) {
		rmx_message_give_up(it);
	}
	op_leave_error(it); /* of since the last wait */
	if (atomic_load(&it->completed) < it->sent)
		return RMAEXT_PENDING;
	*op = NULL;
	op_free(it);
	return 0;
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
		op_free(op);
		return 0;
	}
	if (op->buffered) /* not posted yet; the caller keeps it to the end */
		op->buffered = false;
	*op_p = op;
	return ret;
}
