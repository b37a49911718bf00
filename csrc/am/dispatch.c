/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that came. A request is carried out and replied to, or waits: for
 * its window, or for the guard of updates. A reply to a request of ours goes to
 * whom asked. All this is the CQ reader's.
 */
#include "exec/guard.h"
#include "am/wire.h"

#define RMX_EARLY_MAX ((int64_t)10 * 1000 * 1000 * 1000)
#define RMX_TRIES 16u /* of queued landings at a time */

/* -- replies */

static void send_reply(struct rmaext_fabric *f, struct rmx_landing *landing)
{
	const bool brief = landing->reply_len <= f->info->tx_attr->inject_size;
	char *reply = landing->data + landing->reply;
	const struct iovec all = {reply, landing->reply_len};
	void *desc = rmx_region_desc(&landing->region);
	const fi_addr_t to = landing->peer->addr;
	int ret = -FI_ENOTCONN;

	if (!atomic_load(&landing->peer->gone)) {
		landing->state = RMX_REPLYING;
		ret = brief ? rmx_wire_inject(f, reply, landing->reply_len, to)
			    : rmx_wire_send(f, &all, &desc, 1, to,
					    &landing->context);
	}
	if (ret == -FI_EAGAIN)
		rmx_landing_enqueue(f->executor, landing, RMX_WAITING);
	else if (ret || brief) /* lost: the origin will notice by itself */
		rmx_landing_receive(f, landing);
}

/*
 * Who was notified often answers with a notification, and has waited for this
 * one: its reply goes with that message, or when the queue is read next. That
 * is before the reader sleeps, and soon where there is a progress thread.
 */
static bool owe(struct rmaext_fabric *f, const struct rmx_landing *landing)
{
	struct rmx_executor *ex = f->executor;

	if (!f->progress.running || landing->reply_len != sizeof(ex->owed) ||
	    f->info->tx_attr->inject_size < sizeof(ex->owed))
		return false;
	rmx_executor_pay(f);
	if (rmx_executor_owes(f)) /* the provider takes nothing */
		return false;
	pthread_mutex_lock(&ex->lock);
	memcpy(&ex->owed, landing->data + landing->reply, sizeof(ex->owed));
	atomic_store(&ex->owed_to, landing->peer);
	pthread_mutex_unlock(&ex->lock);
	return true;
}

/* The caller is the CQ's reader. */
void rmx_executor_pay(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	struct rmaext_peer *peer;

	if (!rmx_executor_owes(f))
		return;
	pthread_mutex_lock(&ex->lock);
	peer = atomic_load(&ex->owed_to);
	/* other errors: it is lost, and the origin will notice by itself */
	if (peer && (atomic_load(&peer->gone) ||
		     rmx_wire_inject(f, &ex->owed, sizeof(ex->owed),
				     peer->addr) != -FI_EAGAIN))
		atomic_store(&ex->owed_to, NULL);
	pthread_mutex_unlock(&ex->lock);
}

/* -- requests */

/* Nothing of it has been checked yet. */
static bool is_notice(const struct rmx_landing *landing)
{
	struct rmx_request q;
	struct rmx_range range;

	if (landing->len < sizeof(q) + sizeof(range))
		return false;
	memcpy(&q, landing->data, sizeof(q));
	memcpy(&range, landing->data + sizeof(q), sizeof(range));
	return q.form == RMX_RANGES && q.count == 1 &&
	       range.flags == RMX_WITH_NOTIFY;
}

/* A reply to one of ours, at the end of a request. */
static void take_reply(struct rmaext_fabric *f, struct rmx_landing *landing)
{
	struct rmx_request q;
	struct rmx_reply reply;

	if (landing->len < sizeof(q) + sizeof(reply))
		return;
	memcpy(&q, landing->data, sizeof(q));
	if (!q.replies)
		return;
	landing->len -= sizeof(reply);
	memcpy(&reply, landing->data + landing->len, sizeof(reply));
	if (reply.magic == RMX_REPLY)
		rmx_message_answered(f, (char *)&reply, sizeof(reply));
}

/* The one that sent it has this name; of a window's, its word is good. */
static bool same_origin(const struct rmx_landing *a,
			const struct rmx_landing *b)
{
	const size_t at = offsetof(struct rmx_request, name);

	return !memcmp(a->data + at, b->data + at, sizeof(uint64_t));
}

static bool same_window(const struct rmx_landing *a,
			const struct rmx_landing *b)
{
	const size_t at = offsetof(struct rmx_request, token);

	return !memcmp(a->data + at, b->data + at, RMX_TOKEN);
}

/* Where those of its origin are, and of some others. */
static struct rmx_landing **chain_of(struct rmx_executor *ex,
				     const struct rmx_landing *landing)
{
	uint64_t name;

	memcpy(&name, landing->data + offsetof(struct rmx_request, name),
	       sizeof(name));
	return &ex->chains[name % RMX_CHAINS];
}

static void wait_early(struct rmx_executor *ex, struct rmx_landing *landing,
		       enum rmx_state state)
{
	struct rmx_landing **chain = chain_of(ex, landing);

	landing->state = (uint8_t)state;
	landing->next = NULL;
	*ex->early_end = landing;
	ex->early_end = &landing->next;
	landing->chain = *chain;
	*chain = landing;
	ex->early_count += state == RMX_EARLY;
}

static bool may_be_early(const struct rmx_landing *landing)
{
	return rmx_now() - landing->since < RMX_EARLY_MAX;
}

/*
 * Those that wait for a window, or for its guard, in their order. One that is
 * behind another of its origin is not tried: the window may come between the
 * two, and updates of one origin stay in order. (More than an origin may have
 * on their way: it has given some up, and gets no more of them.)
 */
static void request_next(struct rmaext_fabric *f, struct rmx_landing *landing,
			 int64_t ns)
{
	struct rmx_executor *ex = f->executor;
	const bool may_wait = ex->early_count < RMX_CREDITS * f->peer_count &&
			      may_be_early(landing);
	const bool notice = is_notice(landing);
	enum rmx_served served = RMX_ANSWER;
	unsigned int blocked = 0;

	for (struct rmx_landing *it = *chain_of(ex, landing); it;
	     it = it->chain) {
		if (!same_origin(it, landing))
			continue;
		blocked += it->state == RMX_BLOCKED;
		if (!same_window(it, landing))
			continue;
		if (it->state == RMX_BLOCKED)
			served = RMX_NO_GUARD;
		else if (may_wait)
			served = RMX_NO_WINDOW;
	}
	if (served == RMX_ANSWER)
		served = rmx_serve(f, landing, may_wait, ns);
	if (served == RMX_NO_GUARD && blocked >= RMX_CREDITS)
		served = rmx_serve(f, landing, may_wait, -1);
	switch (served) {
	case RMX_NO_WINDOW:
		wait_early(ex, landing, RMX_EARLY);
		break;
	case RMX_NO_GUARD:
		wait_early(ex, landing, RMX_BLOCKED);
		break;
	case RMX_ANSWER:
		if (notice && owe(f, landing))
			rmx_landing_receive(f, landing);
		else
			send_reply(f, landing);
		break;
	case RMX_NOTHING:
		rmx_landing_receive(f, landing);
		break;
	}
}

/* What waits for a window is asked for again only after one has come. */
static void retry_early(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	const unsigned int links = atomic_load(&f->links);
	const bool come = links != ex->links;
	struct rmx_landing *landing = ex->early, *next;

	if (!landing)
		return;
	ex->links = links;
	ex->early = NULL;
	ex->early_end = &ex->early;
	ex->early_count = 0;
	memset(ex->chains, 0, sizeof(ex->chains));
	for (; landing; landing = next) {
		next = landing->next;
		if (landing->state == RMX_EARLY && !come &&
		    may_be_early(landing))
			wait_early(ex, landing, RMX_EARLY);
		else
			request_next(f, landing, 0);
	}
}

static bool waits(const struct rmx_executor *ex)
{
	return ex->queue || ex->early || atomic_load(&ex->stalled);
}

/* Each in turn, so that one peer that takes nothing holds nobody up. */
static void retry(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	unsigned int tries = ex->queued < RMX_TRIES ? ex->queued : RMX_TRIES;
	struct rmx_landing *landing;

	if (atomic_load(&ex->stalled))
		rmx_message_retry(f);
	retry_early(f);
	while (tries--) {
		landing = ex->queue;
		ex->queue = landing->next;
		if (!ex->queue)
			ex->queue_end = &ex->queue;
		ex->queued--;
		if (landing->state == RMX_WAITING) {
			send_reply(f, landing);
		} else {
			ex->receiving--;
			rmx_landing_receive(f, landing);
		}
	}
}

/* -- completions */

static bool within(const void *it, const void *first, size_t len)
{
	return first && (uintptr_t)it >= (uintptr_t)first &&
	       (uintptr_t)it - (uintptr_t)first < len;
}

static void landed(struct rmaext_fabric *f, struct rmx_landing *landing,
		   size_t len)
{
	uint32_t magic = 0;

	landing->len = len;
	if (len >= sizeof(magic) && len <= RMX_LONGEST)
		memcpy(&magic, landing->data, sizeof(magic));
	if (magic == RMX_REQUEST && len >= sizeof(struct rmx_request)) {
		take_reply(f, landing);
		rmx_card_take(f, landing);
		landing->since = rmx_now();
		landing->done = (struct rmx_done){0};
		request_next(f, landing, RMX_PATIENCE);
		return;
	}
	if (magic == RMX_REPLY)
		rmx_message_answered(f, landing->data, len);
	rmx_landing_receive(f, landing);
}

/* A completion: of a box, of a landing, else of an operation. */
void rmx_executor_complete(struct rmaext_fabric *f, void *context, size_t len,
			   const struct rmaext_error *failure)
{
	struct rmx_executor *ex = f->executor;
	struct rmx_landing *landing = context;
	struct rmx_box *box = context;
	size_t at;

	if (within(context, ex->boxes, RMX_BOXES_SIZE)) {
		at = (size_t)((char *)context - (char *)ex->boxes);
		if (at % sizeof(*box) == 0 && box->state == RMX_ASKING)
			rmx_message_sent(f, box, failure);
		return;
	}
	if (!within(context, ex->landings,
		    RMX_LANDINGS * sizeof(*ex->landings))) {
		rmx_op_complete(f, context, failure);
		return;
	}
	at = (size_t)((char *)context - (char *)ex->landings);
	if (at % sizeof(*landing))
		return; /* none of ours */
	switch (landing->state) {
	case RMX_REPLYING: /* or failed: the origin will notice by itself */
		rmx_landing_receive(f, landing);
		break;
	case RMX_RECEIVING:
		ex->receiving--;
		if (failure)
			rmx_landing_fail(ex, landing);
		else
			landed(f, landing, len);
		break;
	}
	rmx_receive_more(f);
}

/* -- for the rooms below */

static void after_read(struct rmaext_fabric *f)
{
	if (waits(f->executor))
		retry(f);
	if (rmx_backlog_waits(f))
		rmx_backlog_push(f);
}

static bool restless(const struct rmaext_fabric *f)
{
	return waits(f->executor) || rmx_executor_owes(f) ||
	       rmx_backlog_waits(f);
}

const struct rmx_hooks rmx_am_hooks = {
	.complete = rmx_executor_complete,
	.before_read = rmx_executor_pay,
	.after_read = after_read,
	.restless = restless,
	.send = rmx_message_step,
	.give_up = rmx_message_give_up,
	.forget = rmx_message_forget,
};
