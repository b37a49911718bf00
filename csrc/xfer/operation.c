/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How an operation on the fabric route is made, and where it lies. A read or
 * write is posted in chunks (post.c), each with a context of its own; the
 * operation itself may lie in the context of its first chunk. What goes as
 * messages is in its peer's line, and then in the buffers that were sent
 * (am/send_queue.c, am/replies.c). It is begun and waited for by life.c, and
 * ends in completion.c.
 */
#include "xfer/operation.h"

#include "dtype/atomic_ops.h"

#include <stdlib.h>
#include <string.h>

static bool op_fits_bounce(const struct rmaext_fabric *f, size_t payload)
{
	return payload && rmx_bounce_fits(f, sizeof(struct rmx_op) + payload);
}

static struct rmx_op *op_alloc(struct rmaext_fabric *f, size_t payload,
			       void **desc_p)
{
	return op_fits_bounce(f, payload)
		       ? rmx_bounce_take(f, desc_p)
		       : malloc(sizeof(struct rmx_op) + payload);
}

char *rmx_op_payload(struct rmx_op *op)
{
	return op->context ? op->context->payload : (char *)(op + 1);
}

/* Of `len` bytes; op->local is the payload, if there is any. */
static int op_new(struct rmaext_window *window, const struct rmaext_call *c,
		  bool is_message, uint64_t len, size_t payload,
		  struct rmx_op **op_p)
{
	const int64_t rank = c->rank;
	struct rmaext_window *root = window->root;
	struct rmx_target *target = rmx_target_of(root, rank);
	struct rmaext_fabric *f = root->fabric;
	struct rmx_context *context = NULL;
	struct rmx_op *op;
	void *desc = NULL;
	int ret = is_message ? 0 : rmx_key_map(root, rank);

	if (!ret && !is_message &&
	    (root->attached || root->is_client || rmx_on_device(target)))
		ret = rmx_fail(-FI_EOPNOTSUPP, rank, "operation",
			       "no key leads to the memory there: it is "
			       "reached by messages only");
	if (ret)
		return ret;
	if (!rmx_peer_of(root, rank))
		return rmx_peer_missing(root->members, rank, "operation");
	/* messages may stand in line for long, even for a write of chunks */
	if (payload <= RMX_INLINE && !c->ended && !is_message)
		context = rmx_context_take(f, target->member->peer);
	if (context)
		desc = f->transfers->region.desc;
	op = context ? &context->own : op_alloc(f, payload, &desc);
	if (!op)
		return rmx_fail(-FI_ENOMEM, rank, "malloc", "operation");
	memset(op, 0, offsetof(struct rmx_op, failure));
	op->fabric = f;
	op->window = root;
	op->timeout = window->timeout;
	op->target = target;
	op->context = context;
	op->ended = c->ended;
	op->rank = rank;
	op->kind = c->kind;
	op->is_message = is_message;
	op->offset = window->first + c->offset;
	op->len = len;
	op->notify = c->notify - 1;
	op->bounce = !context && op_fits_bounce(f, payload);
	if (payload) {
		op->local = rmx_op_payload(op);
		op->desc = desc;
	}
	*op_p = op;
	return 0;
}

int rmx_message_op(struct rmaext_window *w, const struct rmaext_call *c,
		   bool buffered, size_t room, struct rmx_op **op_p)
{
	const bool update = c->kind == RMAEXT_UPDATE;
	const size_t unit = update ? rmx_unit_of(c->type) : 1;
	const uint64_t len = c->count * unit;
	struct rmx_op *op;
	int ret = op_new(w, c, true, len, room + (buffered ? len : 0), &op);

	if (ret)
		return ret;
	op->op = update ? c->op : 0;
	op->type = update ? c->type : 0;
	op->unit = unit;
	op->operand = c->operand;
	op->compare = c->compare;
	op->buffered = buffered;
	if (buffered && len)
		op->operand = memcpy(op->local + room, c->operand, len);
	op->local = buffered ? NULL : c->result;
	*op_p = op;
	return 0;
}

int rmx_op_over(struct rmaext_window *w, const struct rmaext_call *c,
		bool buffered, size_t room, struct rmx_op **op_p)
{
	struct rmaext_fabric *f = w->fabric;
	const bool demanded = f->limits.registers, get = c->kind == RMAEXT_GET;
	const void *buf = get ? c->result : c->operand;
	const uint64_t len = c->count;
	const size_t before = (room + 15) & ~(size_t)15;
	const bool copy =
		buffered ||
		(demanded && len <= RMX_COPY_MAX &&
		 rmx_bounce_fits(f, sizeof(struct rmx_op) + before + len));
	struct rmx_cached_buffer *origin = NULL;
	struct rmx_op *op;
	int ret = 0;

	if (demanded && !copy)
		ret = rmx_cache_get(f, buf, len, get, &origin);
	if (!ret)
		ret = op_new(w, c, false, len, copy ? before + len : room, &op);
	if (ret) {
		if (origin)
			rmx_cache_put(f, origin);
		return ret;
	}
	*op_p = op;
	op->buffered = buffered;
	if (!copy) {
		op->local = (char *)(uintptr_t)buf;
		op->registered = origin;
		op->desc = origin ? origin->region.desc : NULL;
		return 0;
	}
	op->local += before;
	if (get)
		op->result = (char *)(uintptr_t)buf;
	else
		memcpy(op->local, buf, len);
	if (demanded)
		atomic_fetch_add(&f->cache.bounced, 1);
	return 0;
}

void rmx_op_let_go(struct rmx_op *op)
{
	struct rmx_op *note = atomic_load(&op->note);

	if (note) /* the write was not begun */
		rmx_op_free(note);
	atomic_store_explicit(&op->note, NULL, memory_order_relaxed);
	if (op->registered)
		rmx_cache_put(op->fabric, op->registered);
	op->registered = NULL;
	if (rmx_is_coalesced(op))
		free(op->places);
	op->places = NULL;
}

void rmx_op_dispose(struct rmx_op *op)
{
	if (op->context)
		rmx_context_give(op->fabric, op->target->member->peer,
				 op->context);
	else if (op->bounce)
		rmx_bounce_give(op->fabric, op);
	else
		free(op);
}

unsigned int rmx_op_counts_as(const struct rmx_op *op)
{
	return op->notify < 0 ? rmx_counted_as(op->kind, op->local)
			      : RMAEXT_DID_NOTIFY;
}

static uint8_t op_route(const struct rmx_op *op)
{
	return op->is_message ? RMAEXT_MESSAGE : RMAEXT_FABRIC;
}

void rmx_op_note(struct rmx_op *op)
{
	if (!op->window->tally.id)
		return;
	op->begun = rmx_now();
	op->site = rmx_event_site();
	op->thread = rmx_thread_index();
}

void rmx_op_count(const struct rmx_op *op)
{
	const unsigned int kind = rmx_op_counts_as(op);
	const struct rmx_tally *tally = &op->window->tally;

	rmx_count(tally, op->rank, kind, op_route(op), 1, op->len);
	if (kind == RMAEXT_DID_NOTIFY)
		rmx_sent_count(rmx_sent(tally, op->rank, op->notify), false);
}

void rmx_op_note_end(const struct rmx_op *op)
{
	const struct rmx_tally *tally = &op->window->tally;
	const unsigned int kind = rmx_op_counts_as(op);
	const uint64_t calls = rmx_is_coalesced(op) ? op->places->count : 1;

	if (!op->begun)
		return;
	if (op->outcome)
		rmx_count_errors(tally, op->rank, kind, op_route(op), calls);
	rmx_event_write(&(struct rmaext_record_event){
		.begin = op->begun,
		.end = rmx_now(),
		.offset = kind == RMAEXT_DID_NOTIFY ? (uint64_t)op->notify
						    : op->offset,
		.bytes = op->len,
		.window = tally->id,
		.target = (int32_t)op->rank,
		.site = op->site,
		.outcome = op->outcome,
		.kind = (uint8_t)kind,
		.route = op_route(op),
		.thread = op->thread,
		.more = (uint32_t)calls - 1,
	});
}

void rmx_op_free(struct rmx_op *op)
{
	rmx_op_note_end(op);
	rmx_op_let_go(op);
	rmx_op_dispose(op);
}
