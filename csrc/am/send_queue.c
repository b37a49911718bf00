/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations that go as messages, until they are sent; then replies.c has them.
 * They line up at their peer in the order in which they were begun. Owners, and
 * the CQ's reader with each reply, send from the head of the line as far as
 * credits go. So a copy need not be sent when its call returns, and operations
 * that wait share a message.
 *
 * A bulk operation, too long for a send buffer, goes in parts, its values from
 * where they are. A long message may be carried out later than a short one that
 * was sent after it: hence a bulk operation is alone on its way to its peer.
 * Its own parts are not ordered, as no two have a place in common.
 *
 * An operation on many places, in pieces or in loops, goes in parts too, but in
 * short messages, which are carried out in their order: others may follow at
 * once.
 *
 * am->lock is held wherever the line is used.
 */
#include "am/pack.h"

/* -- the line */

/* The line takes only so many bytes of copies, but all notes. */
static uint64_t line_bytes(const struct rmx_op *op)
{
	return op->buffered && !op->write ? op->len + RMX_OVERHEAD : 0;
}

/* A message does not wait for its write any more. */
static void note_let_go(struct rmaext_peer *peer, struct rmx_op *note)
{
	if (note->held)
		atomic_fetch_sub(&peer->held, 1);
	note->held = false;
}

/* The operation has left the line. */
static void line_left(struct rmaext_peer *peer, struct rmx_op *op)
{
	op->queued = false;
	if (op == atomic_load(&peer->line->open))
		atomic_store(&peer->line->open, NULL);
	peer->line->queued -= line_bytes(op);
	note_let_go(peer, op);
}

void rmx_line_join(struct rmaext_peer *peer, struct rmx_op *op)
{
	struct rmx_line *line = peer->line;

	op->sent = 1;
	op->queued = true;
	line->queued += line_bytes(op);
	*line->queue_end = op;
	line->queue_end = &op->next;
	atomic_store(&line->open, rmx_is_coalesced(op) ? op : NULL);
	rmx_pending_add(op);
}

void rmx_op_unqueue(struct rmx_op *op)
{
	struct rmaext_peer *peer = op->target->member->peer;
	struct rmx_op **link = &peer->line->queue;

	if (!op->queued)
		return;
	while (*link != op)
		link = &(*link)->next;
	*link = op->next;
	if (!*link)
		peer->line->queue_end = link;
	op->next = NULL;
	line_left(peer, op);
}

/* -- sending */

/* Some places of the first operation, or a part of it, are in a message now. */
static void line_sent_some(const struct rmx_send_buffer *buffer)
{
	struct rmx_op *op = buffer->op;
	struct rmx_places *p = op->places;

	op->flying++;
	if (p)
		rmx_places_advance(p, &buffer->some);
	else
		op->posted = buffer->some.next_part;
	if (p ? p->next == p->count : op->posted == op->len) {
		op->posted = op->len;
		rmx_op_unqueue(op);
	}
}

/*
 * The operations up to `last` leave the line for a message: op->next now links
 * those of its buffer.
 */
static void line_sent_whole(struct rmaext_peer *peer,
			    const struct rmx_send_buffer *buffer,
			    struct rmx_op *last)
{
	peer->line->queue = last->next;
	if (!last->next)
		peer->line->queue_end = &peer->line->queue;
	last->next = NULL;
	for (struct rmx_op *op = buffer->op; op; op = op->next) {
		op->posted = op->len;
		op->flying = 1;
		line_left(peer, op);
	}
}

/* What may go with a message besides its operations; returns its length. */
static size_t message_append(struct rmaext_fabric *f,
			     struct rmx_send_buffer *buffer,
			     const struct rmx_op *op, size_t end)
{
	struct rmx_am *am = f->am;

	if (rmx_op_is_announcement(op)) { /* a client's first, alone in it */
		buffer->request.sender = RMX_WITH_INTRODUCTION;
		return end + rmx_introduction_write(op->window, buffer->peer,
						    buffer->data + end);
	}
	if (buffer->bulk || atomic_load(&am->deferred_to) != buffer->peer ||
	    end > RMX_MESSAGE - sizeof(am->deferred))
		return end;
	buffer->request.replies = 1;
	memcpy(buffer->data + end, &am->deferred, sizeof(am->deferred));
	return end + sizeof(am->deferred);
}

/*
 * Sends the first operation of the line, or some of its places, with those
 * behind it that share its message; or the next part of a bulk one.
 */
static int line_send(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmx_op *op = peer->line->queue;
	struct rmx_send_buffer *buffer = rmx_message_new(f, peer, op->window);
	struct rmx_packed packed;
	int ret;

	if (!buffer)
		return -FI_EAGAIN;
	ret = rmx_pack(buffer, op, &packed);
	if (buffer->bulk) { /* whoever gives its credit back counts it down */
		peer->line->bulks++;
		peer->line->bulk = op;
	}
	if (!ret) {
		packed.iov->iov_len =
			message_append(f, buffer, op, packed.iov->iov_len);
		ret = rmx_message_send(f, buffer, packed.iov, packed.count,
				       op->desc);
	}
	if (ret) {
		rmx_message_drop(f->am, buffer);
		return ret;
	}
	if (buffer->request.replies)
		atomic_store(&f->am->deferred_to, NULL);
	buffer->op = op;
	if (buffer->shared)
		line_sent_some(buffer);
	else
		line_sent_whole(peer, buffer, packed.last);
	return 0;
}

static void op_post_failed(struct rmaext_fabric *f, struct rmx_op *op, int code)
{
	const struct rmaext_error record = rmx_post_failure(f, op->rank, code);

	rmx_op_failed(op, &record);
	rmx_op_unqueue(op);
	rmx_op_settle(op);
}

static void line_stall(struct rmx_am *am, struct rmaext_peer *peer)
{
	if (peer->line->stalled)
		return;
	peer->line->stalled = true;
	peer->line->next_stalled = atomic_load(&am->stalled);
	atomic_store(&am->stalled, peer);
}

/* May the first operation of the line be sent, or its next part? */
static bool line_may_send(const struct rmx_am *am,
			  const struct rmaext_peer *peer)
{
	const struct rmx_op *op = peer->line->queue;

	if (op->held)
		return false;
	if (op == atomic_load(&peer->line->open) && peer->line->requests)
		return false;  /* it may grow until they are answered */
	if (peer->line->bulks) /* the part that notifies goes alone */
		return peer->line->bulk == op &&
		       peer->line->bulks < RMX_CREDITS && op->notify < 0;
	return rmx_op_is_bulk(op) ? !peer->line->requests
				  : peer->line->requests < am->credits;
}

void rmx_message_pump(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmx_am *am = f->am;
	int ret;

	while (!am->mute && peer->line->queue && line_may_send(am, peer)) {
		ret = line_send(f, peer);
		if (ret == -FI_EAGAIN) {
			line_stall(am, peer);
			return;
		}
		if (ret)
			op_post_failed(f, peer->line->queue, ret);
	}
}

void rmx_message_retry(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmaext_peer *peer, *next;

	pthread_mutex_lock(&am->lock);
	peer = atomic_exchange(&am->stalled, NULL);
	for (; peer; peer = next) {
		next = peer->line->next_stalled;
		peer->line->stalled = false;
		rmx_message_pump(f, peer);
	}
	pthread_mutex_unlock(&am->lock);
}

/*
 * Registers the values of a bulk operation where that is demanded, so that they
 * are sent from where they are. If that fails, they are copied, a buffer at a
 * time.
 */
static void op_lend(struct rmx_op *op)
{
	struct rmaext_fabric *f = op->fabric;

	if (!f->limits.registers || op->desc || !rmx_op_is_bulk(op) ||
	    rmx_op_share(op, op->len).operands != 1)
		return;
	if (!rmx_cache_get(f, op->operand, op->len, false, &op->registered))
		op->desc = op->registered->region.desc;
}

/* -- notes: messages that wait for a write */

void rmx_note_join(struct rmx_op *write)
{
	struct rmaext_peer *peer = write->target->member->peer;
	struct rmx_op *note = atomic_load(&write->note);
	struct rmx_am *am = write->fabric->am;

	note->held = true;
	atomic_fetch_add(&peer->held, 1);
	atomic_fetch_add(&write->open, 1);
	pthread_mutex_lock(&am->lock);
	rmx_line_join(peer, note);
	pthread_mutex_unlock(&am->lock);
}

/*
 * Under the lock, as whoever ends the message ends the write, too, if nothing
 * else holds that open.
 */
bool rmx_note_release(struct rmx_op *write)
{
	struct rmaext_peer *peer = write->target->member->peer;
	struct rmaext_fabric *f = write->fabric;
	bool stalled = false;
	struct rmx_op *note;

	pthread_mutex_lock(&f->am->lock);
	note = atomic_load(&write->note);
	if (note && atomic_fetch_sub(&write->open, 1) == 2) {
		note_let_go(peer, note);
		if (write->error || write->posted < write->len) {
			rmx_op_unqueue(note);
			rmx_op_settle(note);
		}
		rmx_message_pump(f, peer);
		stalled = peer->line->stalled;
	}
	pthread_mutex_unlock(&f->am->lock);
	if (stalled)
		rmx_progress_call(f);
	return note;
}

/*
 * The hook `send`: its first call puts the operation in line. A copy has no
 * owner once it is there; the line takes only so many bytes of copies.
 */
enum rmx_step rmx_message_step(struct rmx_op **op_p)
{
	struct rmx_op *op = *op_p;
	struct rmaext_peer *peer = op->target->member->peer;
	struct rmaext_fabric *f = op->fabric;
	struct rmx_am *am = f->am;
	const bool buffered = op->buffered;
	bool stalled;

	if (!op->sent) {
		op_lend(op);
		pthread_mutex_lock(&am->lock);
		if (buffered && peer->line->queued >= RMX_QUEUED) {
			pthread_mutex_unlock(&am->lock);
			return RMX_SLEEP;
		}
		rmx_line_join(peer, op);
		rmx_message_pump(f, peer);
		stalled = peer->line->stalled;
		pthread_mutex_unlock(&am->lock);
		if (stalled) /* the caller need not come again */
			rmx_progress_call(f);
		if (buffered) {
			*op_p = NULL;
			return RMX_DONE;
		}
	}
	if (atomic_load(&op->completed))
		return RMX_DONE;
	return atomic_load(&am->stalled) ? RMX_RETRY : RMX_SLEEP;
}
