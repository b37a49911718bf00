/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations that go as messages, until they are sent. They line up at their
 * peer in the order in which they were begun, and whoever comes by sends from
 * the head of the line, as far as credits go: owners, and the CQ's reader with
 * each answer. So a copy need not be sent when its call returns, and those that
 * wait share a message. replies.c has them from there.
 *
 * An operation too long for a buffer, `bulk`, goes in parts, its values from
 * where they are. Long messages may be carried out later than short ones that
 * were sent after them. Hence a bulk operation is alone on the way to its peer.
 * Its own parts are not ordered: no two have a place in common.
 *
 * The lock is the; see message.c.
 */
#include "am/wire.h"

#include <stdio.h>

#define RMX_QUEUED                                                  \
	((size_t)256 << 10) /* bytes of copies that wait for a peer \
			     */
#define RMX_OVERHEAD 64	    /* bytes that a short one counts more */

/* -- the line */

/* It has left the line. */
static void gone_from(struct rmaext_peer *peer, struct rmaext_op *op)
{
	op->queued = false;
	peer->line->went++;
	if (op->buffered)
		peer->line->queued -= op->len + RMX_OVERHEAD;
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
	gone_from(peer, op);
}

/* -- what a message has of them */

/* What a message has of an operation. */
struct share {
	uint64_t values; /* bytes of each operand */
	unsigned int operands;
	bool results;
};

static struct share share_of(const struct rmaext_op *op, uint64_t values)
{
	return (struct share){
		.values = values,
		.operands = op->kind != RMX_UPDATE   ? 1
			    : op->op == RMAEXT_NO_OP ? 0
			    : op->op == RMAEXT_CSWAP ? 2
						     : 1,
		.results = rmx_op_fetches(op),
	};
}

/* Too long for a buffer, or its results are. */
static bool is_bulk(const struct rmaext_op *op)
{
	const struct share s = share_of(op, op->len);
	const uint64_t room = RMX_MESSAGE - RMX_HEADERS;

	return s.values > room || s.values * s.operands > room;
}

/* Most values of a bulk operation in a message, and where they are sent from.
 */
static uint64_t bulk_most(const struct rmx_am *am, const struct rmaext_op *op,
			  bool *loaned)
{
	const struct share s = share_of(op, op->len);
	uint64_t most = am->bulk;

	*loaned = s.operands && am->iov > s.operands &&
		  (!op->fabric->cache.demanded || op->desc);
	if (s.operands && !*loaned && most > RMX_MESSAGE - RMX_HEADERS)
		most = RMX_MESSAGE - RMX_HEADERS;
	if (s.operands > 1)
		most /= s.operands;
	return most - most % op->unit;
}

static bool notifies(const struct rmaext_op *op)
{
	return op->kind == RMX_MESSAGE_PUT && op->notify >= 0;
}

/* The last of several parts notifies. */
static struct rmx_range range_of(const struct rmaext_op *op, uint64_t at,
				 const struct share *s)
{
	const bool notify = notifies(op) && at + s->values == op->len;

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

/* Appends what is after the header to a message; returns its new end. */
static size_t append(struct rmx_send_buffer *buffer, size_t end,
		     struct rmaext_op *op)
{
	const struct share s = share_of(op, op->len);
	const struct rmx_range range = range_of(op, 0, &s);
	char *at = buffer->data + RMX_ALIGNED(end);

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

/* A put of nothing to another job: the card that goes with it takes room. */
static bool is_announcement(const struct rmaext_op *op)
{
	return op->window->visits && !op->len;
}

static bool has_room(const struct rmx_send_buffer *buffer, size_t end,
		     const struct rmaext_op *op)
{
	const struct share s = share_of(op, op->len);

	return RMX_ALIGNED(end) + sizeof(struct rmx_range) +
			       s.values * s.operands <=
		       RMX_MESSAGE &&
	       RMX_ALIGNED(buffer->results) + s.values <= RMX_MESSAGE;
}

/* -- sending */

/* The first of the line, and those behind it that have room in its message. */
static int send_short(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmaext_op *op = peer->line->queue, *last;
	struct rmx_send_buffer *buffer = rmx_message_new(f, peer, op->window);
	size_t end = sizeof(struct rmx_request_header);
	struct rmx_request_header *q;
	bool announces, pays;
	int ret;

	if (!buffer)
		return -FI_EAGAIN;
	q = (struct rmx_request_header *)buffer->data;
	q->form = RMX_RANGES;
	do {
		end = append(buffer, end, op);
		announces = is_announcement(op);
		q->count++;
		last = op;
		op = op->next;
		/* what the target may refuse takes no others with it */
	} while (op && op->window == last->window && !op->window->attached &&
		 !announces && !is_announcement(op) && !is_bulk(op) &&
		 has_room(buffer, end, op));
	if (announces) { /* the first of all, and alone */
		q->visits = RMX_WITH_CARD;
		end += rmx_card_write(last->window, buffer->data + end);
	}
	pays = atomic_load(&f->am->deferred_to) == peer && !announces &&
	       end <= RMX_MESSAGE - sizeof(f->am->deferred);
	if (pays) {
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
	if (pays)
		atomic_store(&f->am->deferred_to, NULL);
	/* they leave the line, their links are the buffer's */
	buffer->op = peer->line->queue;
	peer->line->queue = op;
	if (!op)
		peer->line->queue_end = &peer->line->queue;
	last->next = NULL;
	for (op = buffer->op; op; op = op->next) {
		op->posted = op->len;
		op->flying = 1;
		gone_from(peer, op);
	}
	return 0;
}

/* The next part of the first of the line. */
static int send_part(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmx_am *am = f->am;
	struct rmaext_op *op = peer->line->queue;
	struct iovec iov[RMX_WIRE_PIECES];
	struct rmx_range range;
	struct rmx_request_header *q;
	struct rmx_send_buffer *buffer;
	size_t count = 1;
	struct share s;
	bool loaned;
	int ret;

	s = share_of(op, bulk_most(am, op, &loaned));
	if (!s.values)
		return -FI_EMSGSIZE;
	if (s.values > op->len - op->posted)
		s.values = op->len - op->posted;
	buffer = rmx_message_new(f, peer, op->window);
	if (!buffer)
		return -FI_EAGAIN;
	buffer->bulk = true;
	buffer->loaned = loaned;
	peer->line->bulks++;
	peer->line->bulk = op;
	q = (struct rmx_request_header *)buffer->data;
	q->form = RMX_RANGES;
	q->count = 1;
	range = range_of(op, op->posted, &s);
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

static void post_failed(struct rmaext_fabric *f, struct rmaext_op *op, int code)
{
	struct rmaext_error record = {.code = code, .rank = op->rank};

	snprintf(record.call, sizeof(record.call), "post");
	snprintf(record.detail, sizeof(record.detail), "%s",
		 f->lib->strerror(-code));
	rmx_op_failed(op, &record);
	rmx_op_unqueue(op);
	rmx_op_settle(op);
}

static void stall(struct rmx_am *am, struct rmaext_peer *peer)
{
	if (peer->line->stalled)
		return;
	peer->line->stalled = true;
	peer->line->next_stalled = atomic_load(&am->stalled);
	atomic_store(&am->stalled, peer);
}

/* May the first of the line be sent? */
static bool may_send(const struct rmx_am *am, const struct rmaext_peer *peer)
{
	const struct rmaext_op *op = peer->line->queue;

	if (peer->line->bulks) /* parts are not ordered */
		return peer->line->bulk == op &&
		       peer->line->bulks < RMX_CREDITS && !notifies(op);
	return is_bulk(op) ? !peer->line->requests
			   : peer->line->requests < am->credits;
}

/* Sends what may be sent. The lock is held. */
void rmx_message_pump(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmx_am *am = f->am;
	int ret;

	while (!am->mute && peer->line->queue && may_send(am, peer)) {
		ret = is_bulk(peer->line->queue) ? send_part(f, peer)
						 : send_short(f, peer);
		if (ret == -FI_EAGAIN) {
			stall(am, peer);
			return;
		}
		if (ret)
			post_failed(f, peer->line->queue, ret);
	}
}

/* To whom the provider took nothing before. */
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
 * So that the values of a long one are sent from where they are, if they have
 * to be registered for it. Else they are copied, a buffer at a time.
 */
static void lend(struct rmaext_op *op)
{
	struct rmaext_fabric *f = op->fabric;

	if (!f->cache.demanded || op->desc || !is_bulk(op) ||
	    share_of(op, op->len).operands != 1)
		return;
	if (!rmx_cache_get(f, op->operand, op->len, false, &op->registered))
		op->desc = rmx_region_desc(&op->registered->region);
}

/*
 * As op_step() of others. A copy is nobody's once it is in the line, where many
 * may not be.
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
		lend(op);
		pthread_mutex_lock(&am->lock);
		if (buffered && peer->line->queued >= RMX_QUEUED) {
			pthread_mutex_unlock(&am->lock);
			return RMX_SLEEP;
		}
		op->sent = 1;
		op->queued = true;
		if (buffered)
			peer->line->queued += op->len + RMX_OVERHEAD;
		peer->line->came++;
		*peer->line->queue_end = op;
		peer->line->queue_end = &op->next;
		atomic_fetch_add(&op->target->pending, rmx_counts_as(op));
		rmx_message_pump(f, peer);
		stalled = peer->line->stalled;
		pthread_mutex_unlock(&am->lock);
		if (stalled) /* the caller may not wait */
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
