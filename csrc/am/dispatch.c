/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that came. A request is carried out and replied to, or waits: for
 * its window, or for the guard of updates. A reply to a request of ours goes to
 * whom asked. All this is the CQ reader's.
 */
#include "exec/guard.h"
#include "am/wire.h"

#define RMX_EARLY_MAX ((int64_t)10 * 1000 * 1000 * 1000)
#define RMX_TRIES 16u /* of queued receive_buffers at a time */

/* -- replies */

static void send_reply(struct rmaext_fabric *f,
		       struct rmx_receive_buffer *message)
{
	const bool brief = message->reply_len <= f->info->tx_attr->inject_size;
	char *reply = message->data + message->reply;
	const struct iovec all = {reply, message->reply_len};
	void *desc = rmx_region_desc(&message->region);
	const fi_addr_t to = message->peer->addr;
	int ret = -FI_ENOTCONN;

	if (!atomic_load(&message->peer->gone)) {
		message->state = RMX_REPLYING;
		ret = brief ? rmx_wire_inject(f, reply, message->reply_len, to)
			    : rmx_wire_send(f, &all, &desc, 1, to,
					    &message->context);
	}
	if (ret == -FI_EAGAIN)
		rmx_receive_enqueue(f->am, message, RMX_WAITING);
	else if (ret || brief) /* lost: the origin will notice by itself */
		rmx_receive_post(f, message);
}

/*
 * Who was notified often answers with a notification, and has waited for this
 * one: its reply goes with that message, or when the queue is read next. That
 * is before the reader sleeps, and soon where there is a progress thread.
 */
static bool defer(struct rmaext_fabric *f,
		  const struct rmx_receive_buffer *message)
{
	struct rmx_am *am = f->am;

	if (!f->progress.running ||
	    message->reply_len != sizeof(am->deferred) ||
	    f->info->tx_attr->inject_size < sizeof(am->deferred))
		return false;
	rmx_reply_send_deferred(f);
	if (rmx_reply_is_deferred(f)) /* the provider takes nothing */
		return false;
	pthread_mutex_lock(&am->lock);
	memcpy(&am->deferred, message->data + message->reply,
	       sizeof(am->deferred));
	atomic_store(&am->deferred_to, message->peer);
	pthread_mutex_unlock(&am->lock);
	return true;
}

/* The caller is the CQ's reader. */
void rmx_reply_send_deferred(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmaext_peer *peer;

	if (!rmx_reply_is_deferred(f))
		return;
	pthread_mutex_lock(&am->lock);
	peer = atomic_load(&am->deferred_to);
	/* other errors: it is lost, and the origin will notice by itself */
	if (peer && (atomic_load(&peer->gone) ||
		     rmx_wire_inject(f, &am->deferred, sizeof(am->deferred),
				     peer->addr) != -FI_EAGAIN))
		atomic_store(&am->deferred_to, NULL);
	pthread_mutex_unlock(&am->lock);
}

/* -- requests */

/* Nothing of it has been checked yet. */
static bool is_notice(const struct rmx_receive_buffer *message)
{
	struct rmx_request_header q;
	struct rmx_range range;

	if (message->len < sizeof(q) + sizeof(range))
		return false;
	memcpy(&q, message->data, sizeof(q));
	memcpy(&range, message->data + sizeof(q), sizeof(range));
	return q.form == RMX_RANGES && q.count == 1 &&
	       range.flags == RMX_WITH_NOTIFY;
}

/* A reply to one of ours, at the end of a request. */
static void take_reply(struct rmaext_fabric *f,
		       struct rmx_receive_buffer *message)
{
	struct rmx_request_header q;
	struct rmx_reply_header reply;

	if (message->len < sizeof(q) + sizeof(reply))
		return;
	memcpy(&q, message->data, sizeof(q));
	if (!q.replies)
		return;
	message->len -= sizeof(reply);
	memcpy(&reply, message->data + message->len, sizeof(reply));
	if (reply.magic == RMX_REPLY)
		rmx_message_answered(f, (char *)&reply, sizeof(reply));
}

/* The one that sent it has this name; of a window's, its word is good. */
static bool same_origin(const struct rmx_receive_buffer *a,
			const struct rmx_receive_buffer *b)
{
	const size_t at = offsetof(struct rmx_request_header, name);

	return !memcmp(a->data + at, b->data + at, sizeof(uint64_t));
}

static bool same_window(const struct rmx_receive_buffer *a,
			const struct rmx_receive_buffer *b)
{
	const size_t at = offsetof(struct rmx_request_header, token);

	return !memcmp(a->data + at, b->data + at, RMX_TOKEN);
}

/* Where those of its origin are, and of some others. */
static struct rmx_receive_buffer **
chain_of(struct rmx_am *am, const struct rmx_receive_buffer *message)
{
	uint64_t name;

	memcpy(&name, message->data + offsetof(struct rmx_request_header, name),
	       sizeof(name));
	return &am->chains[name % RMX_CHAINS];
}

static void wait_early(struct rmx_am *am, struct rmx_receive_buffer *message,
		       enum rmx_state state)
{
	struct rmx_receive_buffer **chain = chain_of(am, message);

	message->state = (uint8_t)state;
	message->next = NULL;
	*am->early_end = message;
	am->early_end = &message->next;
	message->chain = *chain;
	*chain = message;
	am->early_count += state == RMX_EARLY;
}

static bool may_be_early(const struct rmx_receive_buffer *message)
{
	return rmx_now() - message->since < RMX_EARLY_MAX;
}

/*
 * Those that wait for a window, or for its guard, in their order. One that is
 * behind another of its origin is not tried: the window may come between the
 * two, and updates of one origin stay in order. (More than an origin may have
 * on their way: it has given some up, and gets no more of them.)
 */
static void request_next(struct rmaext_fabric *f,
			 struct rmx_receive_buffer *message, int64_t ns)
{
	struct rmx_am *am = f->am;
	const bool may_wait = am->early_count < RMX_CREDITS * f->peer_count &&
			      may_be_early(message);
	const bool notice = is_notice(message);
	enum rmx_served served = RMX_ANSWER;
	unsigned int blocked = 0;

	for (struct rmx_receive_buffer *it = *chain_of(am, message); it;
	     it = it->chain) {
		if (!same_origin(it, message))
			continue;
		blocked += it->state == RMX_BLOCKED;
		if (!same_window(it, message))
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
		wait_early(am, message, RMX_EARLY);
		break;
	case RMX_NO_GUARD:
		wait_early(am, message, RMX_BLOCKED);
		break;
	case RMX_ANSWER:
		if (notice && defer(f, message))
			rmx_receive_post(f, message);
		else
			send_reply(f, message);
		break;
	case RMX_NOTHING:
		rmx_receive_post(f, message);
		break;
	}
}

/* What waits for a window is asked for again only after one has come. */
static void retry_early(struct rmaext_fabric *f)
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
		    may_be_early(message))
			wait_early(am, message, RMX_EARLY);
		else
			request_next(f, message, 0);
	}
}

static bool waits(const struct rmx_am *am)
{
	return am->queue || am->early || atomic_load(&am->stalled);
}

/* Each in turn, so that one peer that takes nothing holds nobody up. */
static void retry(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	unsigned int tries = am->queued < RMX_TRIES ? am->queued : RMX_TRIES;
	struct rmx_receive_buffer *message;

	if (atomic_load(&am->stalled))
		rmx_message_retry(f);
	retry_early(f);
	while (tries--) {
		message = am->queue;
		am->queue = message->next;
		if (!am->queue)
			am->queue_end = &am->queue;
		am->queued--;
		if (message->state == RMX_WAITING) {
			send_reply(f, message);
		} else {
			am->receiving--;
			rmx_receive_post(f, message);
		}
	}
}

/* -- completions */

static bool within(const void *it, const void *first, size_t len)
{
	return first && (uintptr_t)it >= (uintptr_t)first &&
	       (uintptr_t)it - (uintptr_t)first < len;
}

static void message_came(struct rmaext_fabric *f,
			 struct rmx_receive_buffer *message, size_t len)
{
	uint32_t magic = 0;

	message->len = len;
	if (len >= sizeof(magic) && len <= RMX_LONGEST)
		memcpy(&magic, message->data, sizeof(magic));
	if (magic == RMX_REQUEST && len >= sizeof(struct rmx_request_header)) {
		take_reply(f, message);
		rmx_card_take(f, message);
		message->since = rmx_now();
		message->done = (struct rmx_done){0};
		request_next(f, message, RMX_PATIENCE);
		return;
	}
	if (magic == RMX_REPLY)
		rmx_message_answered(f, message->data, len);
	rmx_receive_post(f, message);
}

/* A completion: of a buffer, of a message, else of an operation. */
void rmx_am_complete(struct rmaext_fabric *f, void *context, size_t len,
		     const struct rmaext_error *failure)
{
	struct rmx_am *am = f->am;
	struct rmx_receive_buffer *message = context;
	struct rmx_send_buffer *buffer = context;
	size_t at;

	if (within(context, am->send_buffers, RMX_SEND_BYTES)) {
		at = (size_t)((char *)context - (char *)am->send_buffers);
		if (at % sizeof(*buffer) == 0 && buffer->state == RMX_ASKING)
			rmx_message_sent(f, buffer, failure);
		return;
	}
	if (!within(context, am->receive_buffers,
		    RMX_RECEIVE_BUFFERS * sizeof(*am->receive_buffers))) {
		rmx_op_complete(f, context, failure);
		return;
	}
	at = (size_t)((char *)context - (char *)am->receive_buffers);
	if (at % sizeof(*message))
		return; /* none of ours */
	switch (message->state) {
	case RMX_REPLYING: /* or failed: the origin will notice by itself */
		rmx_receive_post(f, message);
		break;
	case RMX_RECEIVING:
		am->receiving--;
		if (failure)
			rmx_receive_failed(am, message);
		else
			message_came(f, message, len);
		break;
	}
	rmx_receive_more(f);
}

/* -- for the rooms below */

static void after_read(struct rmaext_fabric *f)
{
	if (waits(f->am))
		retry(f);
	if (rmx_backlog_waits(f))
		rmx_backlog_push(f);
}

static bool restless(const struct rmaext_fabric *f)
{
	return waits(f->am) || rmx_reply_is_deferred(f) || rmx_backlog_waits(f);
}

const struct rmx_hooks rmx_am_hooks = {
	.complete = rmx_am_complete,
	.before_read = rmx_reply_send_deferred,
	.after_read = after_read,
	.restless = restless,
	.send = rmx_message_step,
	.give_up = rmx_message_give_up,
	.forget = rmx_message_forget,
};
