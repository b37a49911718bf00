/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The target carries out a request. Anybody who reaches the port may send one:
 * so it is believed only if it has the secret token of a window, and even then
 * everything in it is checked before memory is touched.
 */
#include "am/am.h"

#include <string.h>

_Static_assert(sizeof(struct rmx_request_header) % RMX_ALIGN == 0 &&
		       sizeof(struct rmx_item) % RMX_ALIGN == 0 &&
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

/* Returns the status for the reply, and notes where its results are. */
static int request_carry_out(struct rmaext_window *w,
			     struct rmx_receive_buffer *message, int64_t ns)
{
	int ret;

	if (ns < 0)
		return -FI_ETIMEDOUT;
	rmx_attached_lock(w->attached);
	ret = rmx_items_check(w, message->data, message->len, &message->sum);
	/* a client that fetches no long reply would keep the buffer */
	if (!ret && w->invites && w->fabric->limits.tcp &&
	    message->sum.results > RMX_MESSAGE)
		ret = -FI_EINVAL;
	if (!ret) { /* the results go behind the request, and a header */
		message->reply =
			(message->len + sizeof(struct rmx_reply_header) + 63) &
			~(size_t)63;
		message->reply_len = message->sum.results;
		ret = rmx_items_apply(w, message->data, message->len,
				      message->data + message->reply,
				      &message->done, ns);
	}
	rmx_attached_unlock(w->attached);
	return ret;
}

/* What was done first, and the bytes of all, of a request that was checked. */
static void request_describe(const struct rmx_receive_buffer *message,
			     struct rmaext_record_event *event)
{
	const struct rmx_item *item = (const void *)(message->request + 1);
	unsigned int kind =
		rmx_counted_as(item->kind, item->flags & RMX_WITH_FETCH);

	event->offset = item->offset;
	if (item->form == RMX_ELEMENTS)
		memcpy(&event->offset, item + 1, sizeof(event->offset));
	if (item->flags & RMX_WITH_NOTIFY) {
		kind = RMAEXT_DID_NOTIFY;
		event->offset = item->slot;
	}
	event->bytes = message->sum.bytes;
	event->more = (uint32_t)message->sum.elements - 1;
	event->kind = (uint8_t)(kind + RMAEXT_SERVED_PUT - RMAEXT_DID_PUT);
}

/* Adds the event of a request that was carried out here, or refused. */
static void request_record(const struct rmaext_window *w,
			   const struct rmx_receive_buffer *message, int status)
{
	const struct rmx_request_header *q = message->request;
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
		request_describe(message, &event);
	rmx_event_write(&event);
}

enum rmx_served rmx_serve(struct rmaext_fabric *f,
			  struct rmx_receive_buffer *message, bool may_wait,
			  int64_t ns)
{
	const struct rmx_request_header *q = message->request;
	struct rmx_reply_header reply = {
		.magic = RMX_REPLY,
		.id = q->id,
		.status = message->refusal,
	};
	struct rmaext_window *w = NULL;
	bool late;

	memcpy(reply.token, q->token, sizeof(reply.token));
	message->reply = sizeof(*q);
	message->reply_len = 0;
	if (!reply.status)
		reply.status = window_enter_named(f, q->token, &w);
	if (!reply.status) {
		message->patience = 2 * w->timeout;
		message->peer = w->invites ? rmx_peer_find(f, q->name, true)
				: q->rank < w->count
					? rmx_member_peer(w->members, q->rank)
					: NULL;
		if (message->peer) {
			message->peer->line->heard = message->since;
			reply.status = request_carry_out(w, message, ns);
			if (reply.status != RMAEXT_PENDING)
				request_record(w, message, reply.status);
		}
		late = reply.status == RMAEXT_PENDING &&
		       rmx_now() - message->since > w->timeout;
		rmx_rundown_leave(&w->served);
		if (reply.status == RMAEXT_PENDING && !late)
			return RMX_NO_GUARD;
		if (late)
			reply.status = -FI_ETIMEDOUT;
	} else {
		message->peer = rmx_origin_find(f, q->name, q->rank);
		if (reply.status == -FI_ENOENT && message->peer && may_wait &&
		    !q->sender)
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
