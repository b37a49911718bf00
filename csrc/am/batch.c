/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The requests of a batch (rmaext_many) at the origin: they are packed, sent,
 * answered or given up.
 */
#include "am/am.h"

#define RMX_UNANSWERED 64u /* requests of one batch, at most */
/* bytes of places and values in a message */
#define RMX_ROOM (RMX_MESSAGE - sizeof(struct rmx_request_header))

/* What a request is to have: `count` elements, or bytes of one from `part` on.
 */
struct ask {
	struct rmaext_batch *batch;
	struct rmx_lane *lane;
	struct rmaext_peer *peer;
	uint64_t part;
	uint32_t first;
	uint16_t count, unit;
};

/*
 * A request goes after the operations that were in line when its lane began,
 * and not while parts of a bulk operation are on their way. NULL: not yet.
 */
static struct rmx_send_buffer *request_new(struct rmaext_fabric *f,
					   const struct ask *like)
{
	struct rmx_am *am = f->am;
	struct rmaext_peer *peer = like->peer;
	struct rmx_send_buffer *buffer = NULL;

	pthread_mutex_lock(&am->lock);
	if (!like->lane->ticket) {
		like->lane->ticket = 1 + peer->line->came;
		atomic_store(&peer->line->open, NULL);
	}
	if (peer->line->went + 1 >= like->lane->ticket && !peer->line->bulks &&
	    peer->line->requests < am->credits)
		buffer = rmx_message_new(f, peer, like->batch->window);
	peer->line->denied = !buffer;
	if (buffer) {
		buffer->batch = like->batch;
		buffer->lane = like->lane;
		buffer->part = like->part;
		buffer->first = like->first;
		buffer->count = like->count;
		buffer->unit = like->unit;
		if (like->batch->results)
			buffer->results = (uint32_t)like->count * like->unit;
	}
	pthread_mutex_unlock(&am->lock);
	return buffer;
}

static int request_send(struct rmaext_fabric *f, struct rmx_send_buffer *buffer,
			size_t len)
{
	struct rmx_am *am = f->am;
	struct rmaext_peer *peer = buffer->peer;
	int ret = rmx_message_send(f, buffer,
				   &(struct iovec){buffer->data, len}, 1, NULL);

	if (!ret)
		return 0;
	pthread_mutex_lock(&am->lock);
	buffer->batch = NULL;
	rmx_message_drop(am, buffer);
	rmx_message_pump(f, peer); /* others saw the credit taken */
	pthread_mutex_unlock(&am->lock);
	return ret;
}

/*
 * Replies that come later find another generation. A buffer that the provider
 * still sends stays until it is sent; the others return their credits, which a
 * reply that was lost with its connection would keep for ever.
 */
void rmx_batch_give_up(struct rmaext_batch *batch)
{
	struct rmx_am *am = batch->fabric->am;

	pthread_mutex_lock(&am->lock);
	for (size_t k = 0; k < batch->lane_count; k++) {
		struct rmx_lane *lane = &batch->lanes[k];
		struct rmaext_peer *peer = lane->target->member->peer;
		struct rmx_send_buffer *buffer =
			lane->messages ? peer->line->send_buffers : NULL;

		for (struct rmx_send_buffer *next; buffer; buffer = next) {
			next = buffer->next;
			if (buffer->batch != batch)
				continue;
			buffer->batch = NULL;
			rmx_message_free(am, buffer);
		}
		if (lane->messages)
			rmx_message_pump(batch->fabric, peer);
	}
	pthread_mutex_unlock(&am->lock);
}

/* The request was answered, or will not be. The caller holds am->lock. */
static void request_end(struct rmx_send_buffer *buffer)
{
	struct rmaext_batch *b = buffer->batch;

	buffer->batch = NULL;
	atomic_fetch_sub(&buffer->lane->unanswered, 1);
	atomic_fetch_add(&b->answers, 1);
	atomic_fetch_sub(&b->unanswered, 1);
}

/* The first error counts. The caller holds am->lock. */
static void batch_set_error(struct rmaext_batch *b, int64_t rank,
			    const struct rmaext_error *record)
{
	if (atomic_load(&b->error))
		return;
	b->failure = *record;
	b->failure.rank = rank;
	atomic_store(&b->error, record->code);
}

void rmx_batch_fail(struct rmx_send_buffer *buffer,
		    const struct rmaext_error *record)
{
	batch_set_error(buffer->batch, buffer->lane->rank, record);
	request_end(buffer);
}

bool rmx_batch_answer(struct rmx_send_buffer *buffer,
		      const struct rmx_reply_header *reply, const char *values,
		      size_t len)
{
	struct rmaext_batch *b = buffer->batch;
	struct rmaext_error record;

	if (!rmx_same_token(reply->token, b->window->token))
		return false;
	if (reply->status || len != buffer->results) {
		record = rmx_refusal(b->window, rmx_batch_name(b),
				     reply->status);
		rmx_batch_fail(buffer, &record);
		return true;
	}
	for (uint32_t k = 0; len && k < buffer->count; k++) {
		const uint64_t i = b->start + b->order[buffer->first + k];

		memcpy(rmx_result_at(b, i) + buffer->part,
		       values + (size_t)k * buffer->unit, buffer->unit);
	}
	request_end(buffer);
	return true;
}

/* Writes where the elements are; returns the bytes. */
static size_t request_pack_places(const struct rmaext_batch *b,
				  const struct rmx_send_buffer *buffer,
				  size_t loops, uint64_t *offsets)
{
	const uint32_t *order = b->order + buffer->first;
	const uint64_t first = b->window->first;

	if (loops) { /* there is one lane, with the elements in order */
		rmx_loops_pack(b->strides, first + b->strides->first,
			       b->start + *order, offsets);
		return loops;
	}
	for (uint32_t k = 0; k < buffer->count; k++)
		offsets[k] = first +
			     rmx_offset_at(b, b->start + order[k]) * b->scale +
			     buffer->part;
	return buffer->count * sizeof(*offsets);
}

/* The bytes of the loops if the elements go as such: one must fit; else 0. */
static size_t batch_loops_bytes(const struct rmaext_batch *b, size_t unit)
{
	const size_t bytes = b->strides ? rmx_loops_bytes(b->strides) : 0;

	return unit == b->unit && unit <= RMX_ROOM - bytes ? bytes : 0;
}

/* Writes places and values; returns the length of the message. */
static size_t request_pack(const struct rmaext_batch *b,
			   struct rmx_send_buffer *buffer)
{
	struct rmx_request_header *q =
		(struct rmx_request_header *)buffer->data;
	const size_t loops = batch_loops_bytes(b, buffer->unit);
	const size_t width = rmx_operands(b->op) * buffer->unit;
	char *values = (char *)(q + 1);

	q->form = loops ? RMX_LOOPS : RMX_ELEMENTS;
	q->kind = (uint8_t)b->kind;
	q->type = (uint8_t)b->type;
	q->op = (uint8_t)b->op;
	q->fetch = b->kind == RMAEXT_UPDATE && b->results;
	q->count = buffer->count;
	q->unit = buffer->unit;
	values += request_pack_places(b, buffer, loops, (uint64_t *)(q + 1));
	if (b->kind == RMAEXT_GET)
		return (size_t)(values - buffer->data);
	if (loops) {
		const uint64_t i = b->start + b->order[buffer->first];

		memcpy(values, rmx_value_at(b, i), buffer->count * b->unit);
		return (size_t)(values - buffer->data) +
		       buffer->count * b->unit;
	}
	for (uint32_t k = 0; k < buffer->count; k++) {
		const uint64_t i = b->start + b->order[buffer->first + k];

		memcpy(values, rmx_value_at(b, i) + buffer->part, width);
		values += width;
	}
	return (size_t)(values - buffer->data);
}

/*
 * Sends the next elements of a lane. One too long for a message goes in parts.
 * -FI_ENOSPC: a reply must come first; -FI_EAGAIN: the provider wants progress.
 */
static int lane_send_next(struct rmaext_batch *b, struct rmx_lane *lane)
{
	struct rmaext_fabric *f = b->fabric;
	const uint32_t left = lane->end - lane->next;
	size_t unit = b->unit - lane->part, most = 1;
	struct ask like = {
		.batch = b,
		.lane = lane,
		.peer = lane->target->member->peer,
		.part = lane->part,
		.first = lane->next,
	};
	struct rmx_send_buffer *buffer;
	int ret;

	if (unit > RMX_ROOM - sizeof(uint64_t))
		unit = RMX_ROOM - sizeof(uint64_t);
	if (batch_loops_bytes(b, unit))
		most = (RMX_ROOM - batch_loops_bytes(b, unit)) / unit;
	else if (unit == b->unit)
		most = RMX_ROOM / (sizeof(uint64_t) + b->width);
	like.unit = (uint16_t)unit;
	like.count = (uint16_t)(left < most ? left : most);
	if (atomic_load(&b->unanswered) >= RMX_UNANSWERED)
		return -FI_ENOSPC;
	buffer = request_new(f, &like);
	if (!buffer)
		return -FI_ENOSPC;
	/* a request is counted before it is sent: the reply may come at once */
	atomic_fetch_add(&lane->unanswered, 1);
	atomic_fetch_add(&b->unanswered, 1);
	ret = request_send(f, buffer, request_pack(b, buffer));
	if (ret) {
		atomic_fetch_sub(&lane->unanswered, 1);
		atomic_fetch_sub(&b->unanswered, 1);
		return ret;
	}
	lane->part += unit;
	if (lane->part == b->unit) {
		lane->part = 0;
		lane->next += like.count;
	}
	return 0;
}

static void batch_post_failed(struct rmaext_batch *b, int64_t rank, int code)
{
	const struct rmaext_error record =
		rmx_post_failure(b->fabric, rank, code);

	pthread_mutex_lock(&b->fabric->am->lock);
	batch_set_error(b, rank, &record);
	pthread_mutex_unlock(&b->fabric->am->lock);
}

/* Sends a message of each lane in turn, until none may send. */
enum rmx_step rmx_batch_step(void *arg)
{
	struct rmaext_batch *b = arg;
	bool retry = false, open = false;
	size_t idle = 0;

	while (idle < b->lane_count && !atomic_load(&b->error)) {
		struct rmx_lane *lane = &b->lanes[b->turn];
		int ret;

		idle++;
		b->turn = (b->turn + 1) % b->lane_count;
		if (!lane->messages || lane->next == lane->end)
			continue;
		open = true;
		ret = lane_send_next(b, lane);
		if (!ret)
			idle = 0;
		else if (ret == -FI_EAGAIN)
			retry = true;
		else if (ret != -FI_ENOSPC)
			batch_post_failed(b, lane->rank, ret);
	}
	if (atomic_load(&b->error))
		return RMX_DONE;
	if (retry)
		return RMX_RETRY;
	return open || atomic_load(&b->unanswered) ? RMX_SLEEP : RMX_DONE;
}

int rmx_batch_overdue(struct rmaext_batch *b)
{
	const unsigned int answers = atomic_load(&b->answers);
	const bool moved = answers != b->seen;
	int ret = RMAEXT_PENDING;

	b->seen = answers;
	for (size_t k = 0; k < b->lane_count && ret == RMAEXT_PENDING; k++) {
		struct rmx_lane *lane = &b->lanes[k];

		if (lane->messages &&
		    (lane->next < lane->end || atomic_load(&lane->unanswered)))
			ret = rmx_deadline(lane->target->member->peer,
					   lane->rank, rmx_batch_name(b),
					   b->window->timeout, &b->deadline,
					   moved);
	}
	return ret;
}
