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
#include "am/series.h"
#include "am/wire.h"

/* -- the line */

/* The operation has left the line. */
static void line_left(struct rmaext_peer *peer, struct rmaext_op *op)
{
	op->queued = false;
	peer->line->went++;
	if (op == atomic_load(&peer->line->open))
		atomic_store(&peer->line->open, NULL);
	if (op->buffered)
		peer->line->queued -= op->len + RMX_OVERHEAD;
}

void rmx_line_join(struct rmaext_peer *peer, struct rmaext_op *op)
{
	struct rmx_line *line = peer->line;

	op->sent = 1;
	op->queued = true;
	if (op->buffered)
		line->queued += op->len + RMX_OVERHEAD;
	line->came++;
	*line->queue_end = op;
	line->queue_end = &op->next;
	atomic_store(&line->open, op->series ? op : NULL);
	rmx_pending_add(op);
}

void rmx_op_unqueue(struct rmaext_op *op)
{
	struct rmaext_peer *peer = op->target->member->peer;
	struct rmaext_op **link = &peer->line->queue;

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

/* -- what a message has of operations */

static struct rmx_share op_share(const struct rmaext_op *op, uint64_t values)
{
	return rmx_share_of(op->kind, op->op, rmx_op_fetches(op), values);
}

static bool op_has_places(const struct rmaext_op *op)
{
	return op->pieces || op->strides;
}

/* The operands or the results are too long for a send buffer. */
static bool op_is_bulk(const struct rmaext_op *op)
{
	const struct rmx_share s = op_share(op, op->len);
	const uint64_t room = RMX_MESSAGE - RMX_HEADERS;

	return !op_has_places(op) && !op->series &&
	       (s.values > room || s.values * s.operands > room);
}

/*
 * The most bytes of each operand in a message, and whether they are loaned.
 *
 * ofi_rxm has a message of more than 16 KiB fetched by its receiver, and never
 * gives up one whose receiver has died: its buffers stay, and if the fetching
 * one closes its endpoint then, it crashes (1.17). Guests come and go while
 * their owner lives on, so messages between them are short over tcp.
 */
static uint64_t op_bulk_most(const struct rmx_am *am,
			     const struct rmaext_op *op, bool *loaned)
{
	const struct rmx_share s = op_share(op, op->len);
	uint64_t most = am->bulk;

	*loaned = s.operands && am->iov > s.operands &&
		  (!op->fabric->cache.demanded || op->desc);
	if (((s.operands && !*loaned) ||
	     (op->window->root->visits && am->puts)) &&
	    most > RMX_MESSAGE - RMX_HEADERS)
		most = RMX_MESSAGE - RMX_HEADERS;
	if (s.operands > 1)
		most /= s.operands;
	return most - most % op->unit;
}

static bool op_notifies(const struct rmaext_op *op)
{
	return op->kind == RMX_MESSAGE_PUT && op->notify >= 0;
}

/* The last part of an operation notifies. */
static struct rmx_range op_range(const struct rmaext_op *op, uint64_t at,
				 const struct rmx_share *s)
{
	const bool notify = op_notifies(op) && at + s->values == op->len;

	return (struct rmx_range){
		.offset = op->offset + at,
		.count = s->values / op->unit,
		.unit = (uint32_t)op->unit,
		.kind = (uint8_t)op->kind,
		.op = op->kind == RMX_UPDATE ? (uint8_t)op->op : 0,
		.type = op->kind == RMX_UPDATE ? (uint8_t)op->type : 0,
		.flags = (uint8_t)((s->results ? RMX_WITH_FETCH : 0) |
				   (notify ? RMX_WITH_NOTIFY : 0)),
		.slot = notify ? (uint16_t)op->notify : 0,
	};
}

/* Appends an operation to a message; returns the message's new end. */
static size_t message_append(struct rmx_send_buffer *buffer, size_t end,
			     struct rmaext_op *op)
{
	const struct rmx_share s = op_share(op, op->len);
	const struct rmx_range range = op_range(op, 0, &s);
	struct rmx_request_header *q =
		(struct rmx_request_header *)buffer->data;
	char *at = buffer->data + RMX_ALIGNED(end);

	if (op->series)
		return rmx_series_append(buffer, end, op);
	q->count++;
	memcpy(at, &range, sizeof(range));
	at += sizeof(range);
	if (s.operands > 1) {
		memcpy(at, op->compare, s.values);
		at += s.values;
	}
	if (s.operands && s.values) {
		memcpy(at, op->operand, s.values);
		at += s.values;
	}
	if (s.results) {
		op->results_at = (uint32_t)RMX_ALIGNED(buffer->results);
		buffer->results = op->results_at + (uint32_t)s.values;
	}
	return (size_t)(at - buffer->data);
}

/* A put of nothing to another job announces a guest: its card takes room. */
static bool op_is_announcement(const struct rmaext_op *op)
{
	return op->window->visits && !op->len;
}

static bool message_has_room(const struct rmx_send_buffer *buffer, size_t end,
			     const struct rmaext_op *op)
{
	const struct rmx_share s = op_share(op, op->len);

	if (op->series)
		return rmx_series_has_room(end, op);
	return RMX_ALIGNED(end) + sizeof(struct rmx_range) +
			       s.values * s.operands <=
		       RMX_MESSAGE &&
	       RMX_ALIGNED(buffer->results) + s.values <= RMX_MESSAGE;
}

/* -- sending */

/*
 * Sends the first operation of the line, with those behind it that have room in
 * its message.
 */
static int line_send_short(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmaext_op *op = peer->line->queue, *last;
	struct rmx_send_buffer *buffer = rmx_message_new(f, peer, op->window);
	size_t end = sizeof(struct rmx_request_header);
	struct rmx_request_header *q;
	bool announces, with_reply;
	int ret;

	if (!buffer)
		return -FI_EAGAIN;
	q = (struct rmx_request_header *)buffer->data;
	q->form = RMX_RANGES;
	do {
		end = message_append(buffer, end, op);
		announces = op_is_announcement(op);
		last = op;
		op = op->next;
		/*
		 * Only operations that the target accepts or refuses together
		 * share a message.
		 */
	} while (op && !op_has_places(op) && op->window == last->window &&
		 !op->window->attached && !announces &&
		 !op_is_announcement(op) && !op_is_bulk(op) &&
		 message_has_room(buffer, end, op));
	if (announces) { /* a guest's first message, alone in it */
		q->visits = RMX_WITH_CARD;
		end += rmx_card_write(last->window, peer, buffer->data + end);
	}
	with_reply = atomic_load(&f->am->deferred_to) == peer && !announces &&
		     end <= RMX_MESSAGE - sizeof(f->am->deferred);
	if (with_reply) {
		q->replies = 1;
		memcpy(buffer->data + end, &f->am->deferred,
		       sizeof(f->am->deferred));
		end += sizeof(f->am->deferred);
	}
	ret = rmx_message_send(f, buffer, &(struct iovec){buffer->data, end}, 1,
			       NULL);
	if (ret) {
		rmx_message_drop(f->am, buffer);
		return ret;
	}
	if (with_reply)
		atomic_store(&f->am->deferred_to, NULL);
	/* the operations leave the line; op->next now links the buffer's */
	buffer->op = peer->line->queue;
	peer->line->queue = op;
	if (!op)
		peer->line->queue_end = &peer->line->queue;
	last->next = NULL;
	for (op = buffer->op; op; op = op->next) {
		op->posted = op->len;
		op->flying = 1;
		line_left(peer, op);
	}
	return 0;
}

/* Sends the next part of the first operation of the line. */
static int line_send_part(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmx_am *am = f->am;
	struct rmaext_op *op = peer->line->queue;
	struct iovec iov[RMX_WIRE_PIECES];
	struct rmx_range range;
	struct rmx_request_header *q;
	struct rmx_send_buffer *buffer;
	size_t count = 1;
	struct rmx_share s;
	bool loaned;
	int ret;

	s = op_share(op, op_bulk_most(am, op, &loaned));
	if (!s.values)
		return -FI_EMSGSIZE;
	if (s.values > op->len - op->posted)
		s.values = op->len - op->posted;
	buffer = rmx_message_new(f, peer, op->window);
	if (!buffer)
		return -FI_EAGAIN;
	buffer->shared = buffer->bulk = true;
	buffer->loaned = loaned;
	peer->line->bulks++;
	peer->line->bulk = op;
	q = (struct rmx_request_header *)buffer->data;
	q->form = RMX_RANGES;
	q->count = 1;
	range = op_range(op, op->posted, &s);
	memcpy(q + 1, &range, sizeof(range));
	iov[0] = (struct iovec){buffer->data, RMX_HEADERS};
	for (unsigned int i = 0; i < s.operands; i++) {
		const char *from =
			i + 1 < s.operands ? op->compare : op->operand;
		char *to = buffer->data + iov[0].iov_len;

		from += op->posted;
		if (loaned) {
			iov[count++] = (struct iovec){
				(char *)(uintptr_t)from,
				s.values,
			};
		} else {
			memcpy(to, from, s.values);
			iov[0].iov_len += s.values;
		}
	}
	ret = rmx_message_send(f, buffer, iov, count, op->desc);
	if (ret) {
		rmx_message_drop(am, buffer);
		return ret;
	}
	buffer->op = op;
	buffer->part = op->posted;
	buffer->results = s.results ? (uint32_t)s.values : 0;
	op->posted += s.values;
	op->flying++;
	if (op->posted == op->len)
		rmx_op_unqueue(op);
	return 0;
}

/* Appends a piece to a message; returns its new end, or 0: there is no room. */
static size_t message_append_piece(struct rmx_send_buffer *buffer, size_t end,
				   const struct rmaext_op *op,
				   const struct rmx_piece *piece)
{
	const struct rmx_share s = op_share(op, piece->len);
	/* the last one notifies: it is carried out after all others */
	const bool notify = op_notifies(op) &&
			    piece == &op->pieces->of[op->pieces->count - 1];
	const struct rmx_range range = {
		.offset = piece->offset,
		.count = piece->len / op->unit,
		.unit = (uint32_t)op->unit,
		.kind = (uint8_t)op->kind,
		.op = op->kind == RMX_UPDATE ? (uint8_t)op->op : 0,
		.type = op->kind == RMX_UPDATE ? (uint8_t)op->type : 0,
		.flags = (uint8_t)((s.results ? RMX_WITH_FETCH : 0) |
				   (notify ? RMX_WITH_NOTIFY : 0)),
		.slot = notify ? (uint16_t)op->notify : 0,
	};
	const size_t values = s.operands * piece->len;

	end = RMX_ALIGNED(end);
	if (end + sizeof(range) + values > RMX_MESSAGE ||
	    (s.results &&
	     RMX_ALIGNED(buffer->results) + piece->len > RMX_MESSAGE))
		return 0;
	memcpy(buffer->data + end, &range, sizeof(range));
	if (values)
		memcpy(buffer->data + end + sizeof(range), piece->value,
		       values);
	if (s.results)
		buffer->results =
			(uint32_t)RMX_ALIGNED(buffer->results) + piece->len;
	return end + sizeof(range) + values;
}

/* Sends the next pieces of the first operation of the line. */
static int line_send_pieces(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmaext_op *op = peer->line->queue;
	struct rmx_pieces *pieces = op->pieces;
	struct rmx_send_buffer *buffer = rmx_message_new(f, peer, op->window);
	size_t end = sizeof(struct rmx_request_header), more = end;
	struct rmx_request_header *q;
	uint16_t n = 0;
	int ret;

	if (!buffer)
		return -FI_EAGAIN;
	while (more && pieces->sent + n < pieces->count && n < UINT16_MAX) {
		more = message_append_piece(buffer, end, op,
					    &pieces->of[pieces->sent + n]);
		end = more ? more : end;
		n += more != 0;
	}
	q = (struct rmx_request_header *)buffer->data;
	q->form = RMX_RANGES;
	q->count = n;
	buffer->shared = true;
	ret = rmx_message_send(f, buffer, &(struct iovec){buffer->data, end}, 1,
			       NULL);
	if (ret) {
		rmx_message_drop(f->am, buffer);
		return ret;
	}
	buffer->op = op;
	buffer->first = (uint32_t)pieces->sent;
	buffer->count = n;
	pieces->sent += n;
	op->flying++;
	if (pieces->sent == pieces->count) {
		op->posted = op->len;
		rmx_op_unqueue(op);
	}
	return 0;
}

/* Sends the next runs of the first operation of the line, a put in loops. */
static int line_send_runs(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmaext_op *op = peer->line->queue;
	const struct rmx_strides *s = op->strides;
	const size_t ahead =
		sizeof(struct rmx_request_header) + rmx_loops_bytes(s);
	const uint64_t first = op->posted / s->run, left = s->runs - first;
	const uint64_t most = (RMX_MESSAGE - ahead) / s->run;
	const uint64_t count = left < most ? left : most;
	struct rmx_send_buffer *buffer = rmx_message_new(f, peer, op->window);
	struct rmx_request_header *q;
	int ret;

	if (!buffer)
		return -FI_EAGAIN;
	q = (struct rmx_request_header *)buffer->data;
	q->form = RMX_LOOPS;
	q->kind = RMAEXT_PUT;
	q->count = (uint32_t)count;
	q->unit = s->run;
	rmx_loops_pack(s, op->offset, first, q + 1);
	memcpy(buffer->data + ahead, op->operand + op->posted, count * s->run);
	buffer->shared = true;
	ret = rmx_message_send(
		f, buffer,
		&(struct iovec){buffer->data, ahead + count * s->run}, 1, NULL);
	if (ret) {
		rmx_message_drop(f->am, buffer);
		return ret;
	}
	buffer->op = op;
	op->posted += count * s->run;
	op->flying++;
	if (op->posted == op->len)
		rmx_op_unqueue(op);
	return 0;
}

/* Sends something of the line. */
static int line_send(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	const struct rmaext_op *op = peer->line->queue;

	return op->pieces	    ? line_send_pieces(f, peer)
	       : op->strides	    ? line_send_runs(f, peer)
	       : op_is_bulk(op)	    ? line_send_part(f, peer)
	       : rmx_goes_alone(op) ? rmx_series_send(f, peer)
				    : line_send_short(f, peer);
}

static void op_post_failed(struct rmaext_fabric *f, struct rmaext_op *op,
			   int code)
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
	const struct rmaext_op *op = peer->line->queue;

	if (op == atomic_load(&peer->line->open) && peer->line->requests)
		return false;  /* it may grow until they are answered */
	if (peer->line->bulks) /* the part that notifies goes alone */
		return peer->line->bulk == op &&
		       peer->line->bulks < RMX_CREDITS && !op_notifies(op);
	return op_is_bulk(op) ? !peer->line->requests
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
static void op_lend(struct rmaext_op *op)
{
	struct rmaext_fabric *f = op->fabric;

	if (!f->cache.demanded || op->desc || !op_is_bulk(op) ||
	    op_share(op, op->len).operands != 1)
		return;
	if (!rmx_cache_get(f, op->operand, op->len, false, &op->registered))
		op->desc = rmx_region_desc(&op->registered->region);
}

/*
 * This is for messages what op_step() is for chunks. A copy has no owner once
 * it is in the line; the line takes only so many bytes of copies.
 */
enum rmx_step rmx_message_step(struct rmaext_op **op_p)
{
	struct rmaext_op *op = *op_p;
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
