/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The target carries out a request. Anybody who reaches the port may send one:
 * so it is believed only if it has the secret token of a window, and even then
 * everything in it is checked before memory is touched.
 */
#include "am/wakeups.h"
#include "dtype/gather.h"
#include "exec/update.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct rmx_request_header) % RMX_ALIGN == 0 &&
		       sizeof(struct rmx_range) % RMX_ALIGN == 0 &&
		       sizeof(struct rmx_reply_header) % RMX_ALIGN == 0 &&
		       sizeof(struct rmx_reply_header) <=
			       sizeof(struct rmx_request_header),
	       "a reply's header fits before the values of a request");

bool rmx_same_token(const uint8_t *a, const uint8_t *b)
{
	uint64_t x[2], y[2];

	memcpy(x, a, sizeof(x));
	memcpy(y, b, sizeof(y));
	/* a window without a token is nobody's target */
	return !((x[0] ^ y[0]) | (x[1] ^ y[1])) && (x[0] | x[1]);
}

void rmx_serve_window(struct rmaext_fabric *f, struct rmaext_window *w)
{
	w->fabric = f;
	pthread_mutex_lock(&f->lock);
	w->next = f->windows;
	w->prev = &f->windows;
	if (w->next)
		w->next->prev = &w->next;
	f->windows = w;
	atomic_fetch_add(&f->links, 1);
	pthread_mutex_unlock(&f->lock);
}

void rmx_serve_no_more(struct rmaext_window *w)
{
	struct rmaext_fabric *f = w->fabric;
	struct rmx_am *am = f->am;

	pthread_mutex_lock(&f->lock);
	*w->prev = w->next;
	if (w->next)
		w->next->prev = w->prev;
	if (am->recent == w)
		am->recent = NULL;
	if (!w->is_client)
		memcpy(am->closed[am->closed_next++ % RMX_CLOSED], w->token,
		       sizeof(w->token));
	pthread_mutex_unlock(&f->lock);
}

/* A client's window, which may be of this process, is not a target. */
static bool window_is_named(const struct rmaext_window *w, const uint8_t *token)
{
	return !w->is_client && rmx_same_token(w->token, token);
}

bool rmx_grant_lives(struct rmaext_fabric *f, const uint8_t *token)
{
	const struct rmaext_window *w;
	bool lives;

	pthread_mutex_lock(&f->lock);
	w = f->windows;
	while (w && !(w->invites && window_is_named(w, token)))
		w = w->next;
	lives = w && !atomic_load(&w->served.closed);
	pthread_mutex_unlock(&f->lock);
	return lives;
}

/*
 * Enters the window that has this token. -FI_ESHUTDOWN: it is closed;
 * -FI_ENOENT: there was none, or it was closed long ago.
 */
static int window_enter_named(struct rmaext_fabric *f, const uint8_t *token,
			      struct rmaext_window **window_p)
{
	struct rmx_am *am = f->am;
	struct rmaext_window *w;
	int ret = -FI_ENOENT;

	pthread_mutex_lock(&f->lock);
	w = am->recent;
	if (!w || !window_is_named(w, token)) {
		w = f->windows;
		while (w && !window_is_named(w, token))
			w = w->next;
	}
	if (w) {
		am->recent = *window_p = w;
		ret = rmx_rundown_try(&w->served) ? 0 : -FI_ESHUTDOWN;
	}
	for (int i = 0; ret == -FI_ENOENT && i < RMX_CLOSED; i++)
		if (rmx_same_token(am->closed[i], token))
			ret = -FI_ESHUTDOWN;
	pthread_mutex_unlock(&f->lock);
	return ret;
}

/* Where the elements of a request are. */
struct places {
	const uint64_t *offsets; /* NULL: the loops compute them */
	struct rmx_strides loops;
	uint64_t start;
	size_t bytes;
};

static bool places_read(struct places *p, const struct rmx_request_header *q,
			const void *data, size_t len)
{
	if (q->form == RMX_LOOPS) {
		p->offsets = NULL;
		if (!rmx_loops_unpack(&p->loops, data, len, &p->start))
			return false;
		p->bytes = rmx_loops_bytes(&p->loops);
		return true;
	}
	p->offsets = data;
	p->bytes = q->count * sizeof(*p->offsets);
	return q->count <= RMX_MESSAGE / sizeof(*p->offsets);
}

static inline uint64_t places_at(const struct places *p, uint32_t i)
{
	return p->offsets ? p->offsets[i]
			  : p->loops.first +
				    rmx_strides_at(&p->loops, p->start + i);
}

/* Checks a request of elements or loops. `q` is a copy, which cannot change. */
static int elements_check(const struct rmaext_window *w,
			  const struct rmx_request_header *q, size_t len,
			  const void *data, struct places *places)
{
	const struct rmx_target *t = rmx_target_of(w, w->self);
	const bool update = q->kind == RMAEXT_UPDATE;
	const int access = rmx_cells_access(q->kind, q->op, q->fetch);
	const bool swap = update && q->op == RMAEXT_CSWAP;
	uint64_t low = 0, high = 0;
	size_t values, at;

	if (!rmx_cells_valid(q->kind, q->op, q->type, q->unit) ||
	    (!update && (q->op || q->fetch)) || (swap && !q->fetch) ||
	    !q->count || q->count > RMX_MESSAGE || q->unit > RMX_MESSAGE ||
	    !places_read(places, q, data, len - sizeof(*q)))
		return -FI_EINVAL;
	values = q->count * q->unit;
	if (swap)
		values *= 2;
	at = places->bytes + sizeof(*q);
	if (at + values > RMX_MESSAGE ||
	    len != (q->kind == RMAEXT_GET ? at : at + values))
		return -FI_EINVAL;
	if ((!w->own && !w->attached) || (t->access & access) != access)
		return -FI_EACCES;
	for (uint32_t i = 0; i < q->count; i++) {
		const uint64_t place = places_at(places, i);

		low |= place;
		high = place > high ? place : high;
		if (w->attached && !rmx_has(w, place, q->unit))
			return -ERANGE;
	}
	if (!rmx_has(w, high, q->unit))
		return -ERANGE;
	if (update && rmx_wide(q->type) && !rmx_control_block_of(w, w->self))
		return -FI_EOPNOTSUPP; /* nothing guards it */
	if (update &&
	    (((uintptr_t)w->own | low) & (rmx_type_of(q->type).align - 1u)))
		return -FI_EFAULT;
	return 0;
}

/*
 * The results of a get or an update overwrite its values: no result reaches
 * the value of a later element, also where values are twice as long.
 */
static int elements_apply(struct rmaext_window *w,
			  const struct rmx_request_header *q,
			  const struct places *places, char *values,
			  uint32_t *done, int64_t ns)
{
	const size_t width = rmx_operands(q->op) * q->unit;
	void *cells[RMX_CELLS];
	int ret = 0;

	for (uint32_t i = *done; !ret && i < q->count; i = *done) {
		const uint32_t left = q->count - i;
		const uint32_t n = left < RMX_CELLS ? left : RMX_CELLS;
		char *at = values + i * width, *to = values + i * q->unit;

		for (uint32_t k = 0; k < n; k++) {
			cells[k] = rmx_own(w, places_at(places, i + k));
			__builtin_prefetch(cells[k], 1);
		}
		if (q->kind == RMAEXT_UPDATE)
			ret = rmx_update_cells(w, w->self, q->op, q->type,
					       cells, n, at, width,
					       q->fetch ? to : NULL, ns);
		else
			rmx_cells_move(q->kind, q->unit, cells, n, at, q->unit,
				       at);
		*done += ret ? 0 : n;
	}
	return ret;
}

/* Returns the status for the reply, and notes where its results are. */
static int elements_serve(struct rmaext_window *w,
			  const struct rmx_request_header *q,
			  struct rmx_receive_buffer *message, int64_t ns)
{
	char *values = message->data + sizeof(*q);
	struct rmx_lock_update lock = {0};
	struct places places;
	int ret = elements_check(w, q, message->len, values, &places);

	if (ret)
		return ret;
	values += places.bytes;
	if (atomic_load(&w->control_end) && q->kind == RMAEXT_UPDATE &&
	    q->op == RMAEXT_SUM && q->unit == sizeof(int64_t) && places.offsets)
		lock = rmx_lock_update_find(w, places.offsets, values,
					    q->count);
	ret = elements_apply(w, q, &places, values, &message->done.parts, ns);
	atomic_thread_fence(memory_order_seq_cst);
	if (!ret)
		rmx_lock_update_tell(w, &lock);
	if (!ret && (q->fetch || q->kind == RMAEXT_GET)) {
		message->reply = (size_t)(values - message->data);
		message->reply_len = q->count * q->unit;
	}
	return ret;
}

static int ranges_serve(struct rmaext_window *w,
			struct rmx_receive_buffer *message, int64_t ns)
{
	struct rmx_range first;
	size_t results;
	int ret = rmx_ranges_check(w, message->data, message->len, &results);

	if (ret)
		return ret;
	/* a client that fetches no long reply would keep the buffer */
	if (w->invites && w->fabric->limits.tcp && results > RMX_MESSAGE)
		return -FI_EINVAL;
	/* the results go behind the request and the reply's header */
	message->reply = (message->len + sizeof(struct rmx_reply_header) + 63) &
			 ~(size_t)63;
	message->reply_len = results;
	ret = rmx_ranges_apply(w, message->data, message->data + message->reply,
			       &message->done, ns);
	if (!ret && atomic_load(&w->control_end)) {
		memcpy(&first,
		       message->data + sizeof(struct rmx_request_header),
		       sizeof(first));
		if (first.kind == RMX_UPDATE && first.op == RMAEXT_CSWAP)
			rmx_lock_swap_tell(w, first.offset);
	}
	return ret;
}

static int request_carry_out(struct rmaext_window *w,
			     const struct rmx_request_header *q,
			     struct rmx_receive_buffer *message, int64_t ns)
{
	int ret = -FI_EINVAL;

	if (ns < 0)
		return -FI_ETIMEDOUT;
	rmx_attached_lock(w->attached);
	if (q->form == RMX_ELEMENTS || q->form == RMX_LOOPS)
		ret = elements_serve(w, q, message, ns);
	else if (q->form == RMX_RANGES)
		ret = ranges_serve(w, message, ns);
	rmx_attached_unlock(w->attached);
	return ret;
}

/* What was done first, and the bytes of all, of a request that was checked. */
static void request_describe(const struct rmx_request_header *q,
			     const struct rmx_receive_buffer *message,
			     struct rmaext_record_event *event)
{
	const char *at = message->data + sizeof(*q);
	unsigned int kind = rmx_counted_as(q->kind, q->fetch);
	struct rmx_range range;

	event->bytes = (uint64_t)q->count * q->unit;
	if (q->form == RMX_ELEMENTS)
		memcpy(&event->offset, at, sizeof(event->offset));
	if (q->form == RMX_RANGES) {
		memcpy(&range, at, sizeof(range));
		kind = range.kind == RMX_MESSAGE_PUT   ? RMAEXT_DID_PUT
		       : range.kind == RMX_MESSAGE_GET ? RMAEXT_DID_GET
		       : range.flags & RMX_WITH_FETCH  ? RMAEXT_DID_FETCH
						       : RMAEXT_DID_UPDATE;
		if (range.flags & RMX_WITH_NOTIFY)
			kind = RMAEXT_DID_NOTIFY;
		event->offset = range.flags & RMX_WITH_NOTIFY ? range.slot
							      : range.offset;
		event->bytes = rmx_ranges_bytes(message->data);
	}
	event->kind = (uint8_t)(kind + RMAEXT_SERVED_PUT - RMAEXT_DID_PUT);
}

/* Adds the event of a request that was carried out here, or refused. */
static void request_record(const struct rmaext_window *w,
			   const struct rmx_request_header *q,
			   const struct rmx_receive_buffer *message, int status)
{
	struct rmaext_record_event event = {
		.begin = message->since,
		.window = w->tally.id,
		.target = (int32_t)q->rank,
		.outcome = status,
		.kind = RMAEXT_SERVED_PUT,
		.route = RMAEXT_MESSAGE,
		.more = q->count ? q->count - 1 : 0,
	};

	if (!w->tally.id) /* a grant, which clients use, has none */
		return;
	event.end = rmx_now();
	event.thread = rmx_thread_index();
	if (!status)
		request_describe(q, message, &event);
	rmx_event_write(&event);
}

enum rmx_served rmx_serve(struct rmaext_fabric *f,
			  struct rmx_receive_buffer *message, bool may_wait,
			  int64_t ns)
{
	struct rmx_reply_header reply = {.magic = RMX_REPLY};
	struct rmaext_window *w = NULL;
	struct rmx_request_header q;
	bool late;

	if (message->len < sizeof(q))
		return RMX_NOTHING;
	memcpy(&q, message->data, sizeof(q));
	reply.id = q.id;
	memcpy(reply.token, q.token, sizeof(reply.token));
	message->reply = sizeof(q);
	message->reply_len = 0;
	reply.status = message->refusal;
	if (!reply.status)
		reply.status = window_enter_named(f, q.token, &w);
	if (!reply.status) {
		message->patience = 2 * w->timeout;
		message->peer = w->invites ? rmx_peer_find(f, q.name, true)
				: q.rank < w->count
					? rmx_member_peer(w->members, q.rank)
					: NULL;
		if (message->peer) {
			message->peer->line->heard = message->since;
			reply.status = request_carry_out(w, &q, message, ns);
			if (reply.status != RMAEXT_PENDING)
				request_record(w, &q, message, reply.status);
		}
		late = reply.status == RMAEXT_PENDING &&
		       rmx_now() - message->since > w->timeout;
		rmx_rundown_leave(&w->served);
		if (reply.status == RMAEXT_PENDING && !late)
			return RMX_NO_GUARD;
		if (late)
			reply.status = -FI_ETIMEDOUT;
	} else {
		message->peer = rmx_origin_find(f, q.name, q.rank);
		if (reply.status == -FI_ENOENT && message->peer && may_wait &&
		    !q.sender)
			return RMX_NO_WINDOW;
		if (!message->refusal)
			reply.status = -FI_ESHUTDOWN;
	}
	if (!message->peer)
		return RMX_NOTHING;
	if (reply.status)
		message->reply_len = 0;
	message->reply -= sizeof(reply);
	message->reply_len += sizeof(reply);
	memcpy(message->data + message->reply, &reply, sizeof(reply));
	return RMX_ANSWER;
}
