/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What becomes of a message that came. A request is carried out and replied to,
 * or waits for its window or for the guard of updates. A reply is handed to the
 * operations that asked. Only the CQ's reader runs this.
 */
#include "exec/guard.h"
#include "am/coalesce.h"
#include "xfer/network_barrier.h"

/* ns that an early request waits for its window */
#define RMX_EARLY_MAX ((int64_t)10 * 1000 * 1000 * 1000)
/* ns that a reply to a rank waits, unless its window says twice its limit */
#define RMX_REPLY_MAX ((int64_t)60 * 1000 * 1000 * 1000)
#define RMX_TRIES 16u /* queued buffers that are tried at a time */

/* -- replies */

static void reply_end(struct rmaext_fabric *f,
		      struct rmx_receive_buffer *message)
{
	message->peer->line->replies--;
	rmx_receive_post(f, message);
}

static void reply_send(struct rmaext_fabric *f,
		       struct rmx_receive_buffer *message)
{
	const bool brief = message->reply_len <= f->limits.copied;
	char *reply = message->data + message->reply;
	const struct iovec all = {reply, message->reply_len};
	void *desc = message->region.desc;
	const uint64_t to = message->peer->addr;
	const bool first = message->state != RMX_WAITING;
	int ret = -FI_ENOTCONN;

	if (!atomic_load(&message->peer->gone)) {
		message->state = RMX_REPLYING;
		ret = brief ? f->transport->inject(f, to, reply,
						   message->reply_len)
			    : f->transport->send(f, to, &all, &desc, 1,
						 &message->call);
	}
	message->peer->line->replies += first;
	if (ret == -FI_EAGAIN && first)
		message->since = rmx_now();
	if (ret == -FI_EAGAIN && !rmx_reply_is_overdue(message))
		rmx_receive_enqueue(f->am, message, RMX_WAITING);
	else if (ret || brief) /* a lost reply: the origin will notice */
		reply_end(f, message);
}

/*
 * A rank that is notified was often waiting for it, and answers with a
 * notification of its own. So the reply to a notification is deferred: it goes
 * with the next message to that peer, or when the CQ is read next. That is
 * before the reader sleeps, and soon where there is a progress thread. Clients,
 * who may be nobody, do not notify.
 */
static bool reply_defer(struct rmaext_fabric *f,
			const struct rmx_receive_buffer *message)
{
	struct rmx_am *am = f->am;

	if (!f->progress.running || message->peer->client ||
	    message->reply_len != sizeof(am->deferred) ||
	    f->limits.copied < sizeof(am->deferred))
		return false;
	rmx_reply_send_deferred(f);
	if (rmx_reply_is_deferred(f)) /* another is; the provider is busy */
		return false;
	pthread_mutex_lock(&am->lock);
	memcpy(&am->deferred, message->data + message->reply,
	       sizeof(am->deferred));
	am->deferred_until = message->since + message->patience;
	atomic_store(&am->deferred_to, message->peer);
	pthread_mutex_unlock(&am->lock);
	return true;
}

void rmx_reply_send_deferred(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmaext_peer *peer;

	if (!rmx_reply_is_deferred(f))
		return;
	pthread_mutex_lock(&am->lock);
	peer = atomic_load(&am->deferred_to);
	/* after another error it is lost, and the origin will notice */
	if (peer && (atomic_load(&peer->gone) ||
		     f->transport->inject(f, peer->addr, &am->deferred,
					  sizeof(am->deferred)) != -FI_EAGAIN ||
		     rmx_now() > am->deferred_until))
		atomic_store(&am->deferred_to, NULL);
	pthread_mutex_unlock(&am->lock);
}

/* -- requests */

/* Does it only put and notify? Nothing of the request has been checked yet. */
static bool request_only_notifies(const struct rmx_receive_buffer *message)
{
	const struct rmx_request_header *q = message->request;
	const struct rmx_item *item = (const void *)(q + 1);

	return message->len >= sizeof(*q) + sizeof(*item) && q->count == 1 &&
	       item->flags == RMX_WITH_NOTIFY;
}

/* Takes the deferred reply to a request of ours off the end of a request. */
static void request_take_reply(struct rmaext_fabric *f,
			       struct rmx_receive_buffer *message)
{
	struct rmx_reply_header reply;

	if (message->len < sizeof(*message->request) + sizeof(reply) ||
	    !message->request->replies)
		return;
	message->len -= sizeof(reply);
	memcpy(&reply, message->data + message->len, sizeof(reply));
	if (reply.magic == RMX_REPLY)
		rmx_message_answered(f, (char *)&reply, sizeof(reply));
}

/* The list of those that wait of this origin, and of some others. */
static struct rmx_receive_buffer **
chain_find(struct rmx_am *am, const struct rmx_receive_buffer *message)
{
	return &am->chains[message->request->name % RMX_CHAINS];
}

static void request_postpone(struct rmx_am *am,
			     struct rmx_receive_buffer *message,
			     enum rmx_state state)
{
	struct rmx_receive_buffer **chain = chain_find(am, message);

	message->state = (uint8_t)state;
	message->next = NULL;
	*am->early_end = message;
	am->early_end = &message->next;
	message->chain = *chain;
	*chain = message;
	am->early_count += state == RMX_EARLY;
}

static bool request_may_be_early(const struct rmx_receive_buffer *message)
{
	return rmx_now() - message->since < RMX_EARLY_MAX;
}

/*
 * Carries a request out, or lets it wait behind another of its origin and
 * window that waits: the window may come between the two, and the updates of
 * one origin stay in order. If an origin has more requests blocked than it has
 * credits, it has given some of them up: then this one is refused. Who the
 * origin is, is taken on trust: who knows the window's token is one of its
 * ranks.
 */
static void request_dispatch(struct rmaext_fabric *f,
			     struct rmx_receive_buffer *message, int64_t ns)
{
	struct rmx_am *am = f->am;
	const struct rmx_request_header *q = message->request;
	const bool may_wait =
		am->early_count < RMX_CREDITS * rmx_peers_expected(f) &&
		request_may_be_early(message);
	const bool notice = request_only_notifies(message);
	enum rmx_served served = RMX_ANSWER;
	unsigned int blocked = 0;

	for (struct rmx_receive_buffer *it = *chain_find(am, message); it;
	     it = it->chain) {
		if (it->request->name != q->name)
			continue;
		blocked += it->state == RMX_BLOCKED;
		if (memcmp(it->request->token, q->token, RMX_TOKEN) != 0)
			continue;
		if (it->state == RMX_BLOCKED)
			served = RMX_NO_GUARD;
		else if (may_wait)
			served = RMX_NO_WINDOW;
	}
	if (served == RMX_ANSWER)
		served = rmx_serve(f, message, may_wait, ns);
	if (served == RMX_NO_GUARD && blocked >= RMX_CREDITS)
		served = rmx_serve(f, message, may_wait, -1);
	switch (served) {
	case RMX_NO_WINDOW:
		request_postpone(am, message, RMX_EARLY);
		break;
	case RMX_NO_GUARD:
		request_postpone(am, message, RMX_BLOCKED);
		break;
	case RMX_ANSWER:
		if (notice && reply_defer(f, message))
			rmx_receive_post(f, message);
		else
			reply_send(f, message);
		break;
	case RMX_NOTHING:
		rmx_receive_post(f, message);
		break;
	}
}

/* An early request is tried again only after a window was created. */
static void postponed_retry(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	const unsigned int links = atomic_load(&f->links);
	const bool come = links != am->links;
	struct rmx_receive_buffer *message = am->early, *next;

	if (!message)
		return;
	am->links = links;
	am->early = NULL;
	am->early_end = &am->early;
	am->early_count = 0;
	memset(am->chains, 0, sizeof(am->chains));
	for (; message; message = next) {
		next = message->next;
		if (message->state == RMX_EARLY && !come &&
		    request_may_be_early(message))
			request_postpone(am, message, RMX_EARLY);
		else
			request_dispatch(f, message, 0);
	}
}

static bool am_has_retries(const struct rmx_am *am)
{
	return am->queue || am->early || atomic_load(&am->stalled);
}

/* Tries some in turn, so that one peer that takes nothing holds nobody up. */
static void am_retry(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	unsigned int tries = am->queued < RMX_TRIES ? am->queued : RMX_TRIES;
	struct rmx_receive_buffer *message;

	if (atomic_load(&am->stalled))
		rmx_message_retry(f);
	postponed_retry(f);
	while (tries--) {
		message = am->queue;
		am->queue = message->next;
		if (!am->queue)
			am->queue_end = &am->queue;
		am->queued--;
		if (message->state == RMX_WAITING) {
			reply_send(f, message);
		} else {
			am->receiving--;
			rmx_receive_post(f, message);
		}
	}
}

/* -- completions */

static bool address_within(const void *it, const void *first, size_t len)
{
	return first && (uintptr_t)it >= (uintptr_t)first &&
	       (uintptr_t)it - (uintptr_t)first < len;
}

static void message_take(struct rmaext_fabric *f,
			 struct rmx_receive_buffer *message, size_t len)
{
	uint32_t magic = 0;

	message->len = len;
	if (len >= sizeof(magic) && len <= RMX_LONGEST)
		memcpy(&magic, message->data, sizeof(magic));
	if (magic == RMX_REQUEST && len >= sizeof(struct rmx_request_header)) {
		request_take_reply(f, message);
		message->since = rmx_now();
		message->patience = RMX_REPLY_MAX;
		message->done = (struct rmx_done){0};
		if (rmx_introduction_take(f, message)) {
			rmx_receive_post(f, message);
			return;
		}
		request_dispatch(f, message, RMX_PATIENCE);
		return;
	}
	if (magic == RMX_REPLY)
		rmx_message_answered(f, message->data, len);
	rmx_receive_post(f, message);
}

void rmx_am_complete(struct rmaext_fabric *f, void *context, size_t len,
		     const struct rmaext_error *failure)
{
	struct rmx_am *am = f->am;
	struct rmx_receive_buffer *message = context;
	struct rmx_send_buffer *buffer = context;
	size_t at;

	if (!context && failure && f->transport->lost) {
		rmx_messages_lost(f);
		return;
	}
	if (address_within(context, am->send_buffers, RMX_SEND_BYTES)) {
		at = (size_t)((char *)context - (char *)am->send_buffers);
		if (at % sizeof(*buffer) == 0 && buffer->state == RMX_ASKING)
			rmx_message_sent(f, buffer, failure);
		return;
	}
	if (!address_within(context, am->receive_buffers,
			    RMX_RECEIVE_BUFFERS *
				    sizeof(*am->receive_buffers))) {
		if (!rmx_op_complete(f, context, failure) && failure &&
		    context && f->limits.tcp)
			rmx_receive_lost(f);
		return;
	}
	at = (size_t)((char *)context - (char *)am->receive_buffers);
	if (at % sizeof(*message))
		return; /* no context of ours */
	switch (message->state) {
	case RMX_REPLYING: /* if it failed, the origin will notice */
		reply_end(f, message);
		break;
	case RMX_RECEIVING:
		am->receiving -= am->receiving > 0;
		if (failure)
			rmx_receive_failed(am, message);
		else
			message_take(f, message, len);
		break;
	}
	rmx_receive_more(f);
}

/* -- hooks for the rooms below, see struct rmx_hooks */

static void hook_after_read(struct rmaext_fabric *f)
{
	if (am_has_retries(f->am))
		am_retry(f);
	if (rmx_backlog_waits(f))
		rmx_backlog_push(f, NULL);
	if (rmx_meetings_wait(f))
		rmx_meetings_advance(f);
}

static bool hook_restless(const struct rmaext_fabric *f)
{
	return am_has_retries(f->am) || rmx_reply_is_deferred(f) ||
	       rmx_backlog_waits(f) ||
	       /* puts of RDMA leave no event at their target */
	       (rmx_meetings_wait(f) &&
		(!f->limits.tcp || rmx_meetings_retry(f)));
}

const struct rmx_hooks rmx_am_hooks = {
	.complete = rmx_am_complete,
	.before_read = rmx_reply_send_deferred,
	.after_read = hook_after_read,
	.restless = hook_restless,
	.send = rmx_message_step,
	.notify = rmx_note_join,
	.written = rmx_note_release,
	.add_peer = rmx_peer_add,
	.push = rmx_coalesced_push,
	.give_up = rmx_message_give_up,
	.forget = rmx_message_forget,
};
