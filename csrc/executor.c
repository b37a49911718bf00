/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many operations in one message. The target's CQ reader carries it out and
 * answers. Here are the landings that messages come in, and what comes;
 * message.c sends what goes, outgoing.c and request.c say what is in it,
 * serve.c is the target's side.
 *
 * Every receive has room for the longest message, in pages that come as they
 * are used: what is received next is not known before. A few keep them.
 *
 * No receive ever waits for a peer: a reply that the provider does not take is
 * queued and tried again, and a peer can have no more of them than it has
 * requests on their way.
 */
#define _GNU_SOURCE
#include "wire.h"
#include "compat.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define RMX_RECEIVES 4u /* posted at all times */
#define RMX_EARLY_MAX ((int64_t)10 * 1000 * 1000 * 1000)
#define RMX_PATIENCE ((int64_t)50 * 1000) /* with a guard, at first */
#define RMX_TRIES 16u			  /* of queued landings at a time */
#define RMX_THIN ((size_t)64 << 10)	  /* bytes of a landing that stay */
#define RMX_FAT 8u			  /* landings that keep more */

/* FNV-1a: an endpoint's address in eight bytes; no secret */
uint64_t rmx_name(const void *address, size_t len)
{
	const unsigned char *p = address;
	uint64_t name = 0xcbf29ce484222325;

	while (len--)
		name = (name ^ *p++) * 0x100000001b3;
	return name;
}

static bool within(const void *it, const void *first, size_t len)
{
	return first && (uintptr_t)it >= (uintptr_t)first &&
	       (uintptr_t)it - (uintptr_t)first < len;
}

bool rmx_executor_owns(const struct rmaext_fabric *f, const void *context)
{
	const struct rmx_executor *ex = &f->executor;

	return within(context, ex->boxes, RMX_BOXES_SIZE) ||
	       within(context, ex->landings,
		      RMX_LANDINGS * sizeof(*ex->landings));
}

/* -- landings */

/* One that was never used. NULL: no more, or no memory for it */
static struct rmx_landing *landing_new(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = &f->executor;
	struct rmx_landing *landing;
	void *data;

	if (ex->landed == RMX_LANDINGS)
		return NULL;
	data = mmap(NULL, RMX_LANDING, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (data == MAP_FAILED)
		return NULL;
	madvise(data, RMX_LANDING, MADV_NOHUGEPAGE);
	landing = &ex->landings[ex->landed];
	if (f->origins.demanded &&
	    rmx_region_local(f, data, RMX_LANDING, FI_RECV | FI_SEND,
			     &landing->region)) {
		munmap(data, RMX_LANDING);
		return NULL;
	}
	ex->landed++;
	landing->data = data;
	return landing;
}

static struct rmx_landing *landing_take(struct rmaext_fabric *f)
{
	struct rmx_landing *landing = landing_new(f);
	struct rmx_executor *ex = &f->executor;

	if (landing || !ex->failed)
		return landing;
	landing = ex->failed;
	ex->failed = landing->next;
	if (!ex->failed)
		ex->failed_end = &ex->failed;
	return landing;
}

/* Nothing in it is needed any more. The pages of a region are not ours to give.
 */
static void landing_clear(struct rmx_executor *ex, struct rmx_landing *landing)
{
	const size_t end = landing->reply + landing->reply_len;

	if (!landing->region.mr && !landing->fat &&
	    (landing->len > RMX_THIN || end > RMX_THIN)) {
		landing->fat = true;
		ex->fat++;
	}
	if (landing->fat && ex->fat > RMX_FAT) {
		madvise(landing->data + RMX_THIN, RMX_LANDING - RMX_THIN,
			MADV_DONTNEED);
		landing->fat = false;
		ex->fat--;
	}
	landing->len = landing->reply = landing->reply_len = 0;
}

/*
 * A receive that failed may fail again: ofi_rxm fetches a long message by as
 * many reads as it was sent from pieces of memory, and when its sender dies
 * each of them is an error of the receive. Were the landing received into by
 * then, it would be once more, for two messages at a time. So it is the last
 * to be taken.
 */
static void landing_fail(struct rmx_executor *ex, struct rmx_landing *landing)
{
	if (!landing->region.mr)
		madvise(landing->data, RMX_LANDING, MADV_DONTNEED);
	ex->fat -= landing->fat;
	landing->fat = false;
	landing->state = RMX_FREE;
	landing->next = NULL;
	*ex->failed_end = landing;
	ex->failed_end = &landing->next;
	ex->incoming--;
}

static void enqueue(struct rmx_executor *ex, struct rmx_landing *landing,
		    enum rmx_state state)
{
	landing->state = (uint8_t)state;
	landing->next = NULL;
	*ex->queue_end = landing;
	ex->queue_end = &landing->next;
	ex->queued++;
}

static int landing_receive(struct rmaext_fabric *f, struct rmx_landing *landing)
{
	struct rmx_executor *ex = &f->executor;
	int ret;

	if (ex->mute) { /* no more will come */
		landing->state = RMX_FREE;
		return 0;
	}
	landing_clear(ex, landing);
	landing->state = RMX_RECEIVING;
	ex->receiving++;
	ret = rmx_wire_receive(f, landing->data, RMX_LONGEST,
			       rmx_region_desc(&landing->region),
			       &landing->context);
	if (!ret)
		return 0;
	if (ret == -FI_EAGAIN) { /* as good as posted */
		enqueue(ex, landing, RMX_RECEIVING);
		return 0;
	}
	ex->receiving--;
	landing_fail(ex, landing);
	return ret;
}

/*
 * Some receives are posted from the start, more when the replies to a peer that
 * is slow take them up. One that fails may have met a message of a peer that is
 * gone: of these there are not many.
 */
static int receive_more(struct rmaext_fabric *f)
{
	const unsigned int most = 2 * RMX_CREDITS * (f->peer_count + 1);
	struct rmx_executor *ex = &f->executor;
	struct rmx_landing *landing;
	unsigned int tries = most;
	int ret = 0;

	while (!ex->mute && tries-- && ex->receiving < RMX_RECEIVES &&
	       ex->incoming < most) {
		landing = landing_take(f);
		if (!landing)
			break;
		ex->incoming++;
		ret = landing_receive(f, landing);
	}
	return ex->receiving ? 0 : ret;
}

static void *map(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, len, MADV_NOHUGEPAGE);
	return at;
}

int rmx_executor_start(struct rmaext_fabric *f)
{
	const uint64_t order =
		f->info->tx_attr->msg_order & f->info->rx_attr->msg_order;
	const size_t longest = f->info->ep_attr->max_msg_size;
	struct rmx_executor *ex = &f->executor;
	char own[RMX_NAME];
	size_t len = sizeof(own);
	int ret;

	pthread_mutex_init(&ex->lock, NULL);
	ex->queue_end = &ex->queue;
	ex->failed_end = &ex->failed;
	/* updates of one place are to arrive in order */
	ex->credits = order & FI_ORDER_SAS ? RMX_CREDITS : 1;
	ex->bulk = longest < RMX_LONGEST ? longest - RMX_HEADERS : RMX_MOST;
	ex->iov = f->info->tx_attr->iov_limit;
	ret = fi_getname(&f->ep->fid, own, &len);
	if (ret)
		return ret;
	ex->name = rmx_name(own, len);
	ex->tagged = rmx_has_rails(f->info->fabric_attr->prov_name);
	if (ex->tagged) {
		ex->credits = 1;
		ex->bulk = RMX_MESSAGE - RMX_HEADERS;
	}
	ex->boxes = map(RMX_BOXES_SIZE);
	ex->landings = map(RMX_LANDINGS * sizeof(*ex->landings));
	if (!ex->boxes || !ex->landings)
		return -errno;
	return receive_more(f);
}

/* Has the provider messages to send? 1.17 does not close while it does. */
bool rmx_executor_sends(const struct rmaext_fabric *f)
{
	const struct rmx_executor *ex = &f->executor;

	if (rmx_executor_owes(f))
		return true;
	for (unsigned int i = 0; i < ex->landed; i++)
		if (ex->landings[i].state == RMX_REPLYING)
			return true;
	for (unsigned int i = 0; i < ex->made; i++)
		if (ex->boxes[i].state == RMX_ASKING && !ex->boxes[i].sent)
			return true;
	return false;
}

bool rmx_executor_receives(const struct rmaext_fabric *f)
{
	return f->executor.receiving;
}

void rmx_executor_mute(struct rmaext_fabric *f)
{
	if (!f->executor.boxes)
		return;
	pthread_mutex_lock(&f->executor.lock);
	f->executor.mute = true;
	pthread_mutex_unlock(&f->executor.lock);
}

/*
 * Regions that are bound to the endpoint close before it, and are in use while
 * they may be received into.
 */
void rmx_executor_cancel(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = &f->executor;

	if (!f->origins.demanded || !(f->mr_mode & FI_MR_ENDPOINT))
		return;
	for (unsigned int i = 0; i < ex->landed; i++)
		if (ex->landings[i].state == RMX_RECEIVING)
			fi_cancel(&f->ep->fid, &ex->landings[i].context);
	rmx_progress_settle(f, rmx_executor_receives);
}

int rmx_executor_deregister(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = &f->executor;
	int ret, first = 0;

	for (size_t i = 0; i < RMX_BOXES / RMX_BOX_CHUNK; i++) {
		ret = rmx_region_close(f, &ex->box_regions[i]);
		first = first ? first : ret;
	}
	for (unsigned int i = 0; i < ex->landed; i++) {
		ret = rmx_region_close(f, &ex->landings[i].region);
		first = first ? first : ret;
	}
	return first;
}

/*
 * No call is inside, and the endpoint is closed, or stays with what it may
 * still write to.
 */
void rmx_executor_stop(struct rmaext_fabric *f, bool stays)
{
	const struct rmaext_error record = {
		.code = -FI_ESHUTDOWN,
		.rank = RMX_NO_RANK,
		.call = "rmaext_fabric_close",
		.detail = "the fabric is closed",
	};
	struct rmx_executor *ex = &f->executor;

	if (!ex->boxes)
		return;
	pthread_mutex_lock(&ex->lock);
	rmx_message_fail_all(f, &record);
	if (stays) {
		pthread_mutex_unlock(&ex->lock);
		return;
	}
	munmap(ex->boxes, RMX_BOXES_SIZE);
	ex->boxes = NULL;
	ex->made = 0;
	pthread_mutex_unlock(&ex->lock);
	while (ex->landed)
		munmap(ex->landings[--ex->landed].data, RMX_LANDING);
	if (ex->landings)
		munmap(ex->landings, RMX_LANDINGS * sizeof(*ex->landings));
	ex->landings = NULL;
}

/* -- target */

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
		enqueue(&f->executor, landing, RMX_WAITING);
	else if (ret || brief) /* lost: the origin will notice by itself */
		landing_receive(f, landing);
}

/*
 * Who was notified often answers with a notification, and has waited for this
 * one: its reply goes with that message, or when the queue is read next. That
 * is before the reader sleeps, and soon where there is a progress thread.
 */
static bool owe(struct rmaext_fabric *f, const struct rmx_landing *landing)
{
	struct rmx_executor *ex = &f->executor;

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
	struct rmx_executor *ex = &f->executor;
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

static void wait_early(struct rmx_executor *ex, struct rmx_landing *landing,
		       enum rmx_state state)
{
	struct rmx_landing **end = &ex->early;

	while (*end)
		end = &(*end)->next;
	landing->state = (uint8_t)state;
	landing->next = NULL;
	*end = landing;
	ex->early_count += state == RMX_EARLY;
}

/*
 * Those that wait for a window, or for its guard, in their order. One that is
 * behind another of its kind is not tried: the window may come between the two,
 * and updates of one origin stay in order. (More than an origin may have on
 * their way: it has given some up, and gets no more of them.)
 */
static void request_next(struct rmaext_fabric *f, struct rmx_landing *landing,
			 int64_t ns)
{
	struct rmx_executor *ex = &f->executor;
	const bool may_wait = ex->early_count < RMX_CREDITS * f->peer_count &&
			      rmx_now() - landing->since < RMX_EARLY_MAX;
	const bool notice = is_notice(landing);
	enum rmx_served served = RMX_ANSWER;
	unsigned int blocked = 0;

	for (struct rmx_landing *it = ex->early; it; it = it->next) {
		const bool like = same_origin(it, landing);

		if (it->state == RMX_BLOCKED && like)
			blocked++;
		if (!same_window(it, landing))
			continue;
		if (it->state == RMX_BLOCKED && like)
			served = RMX_NO_GUARD;
		else if (it->state == RMX_EARLY && may_wait)
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
			landing_receive(f, landing);
		else
			send_reply(f, landing);
		break;
	case RMX_NOTHING:
		landing_receive(f, landing);
		break;
	}
}

/* Each in turn, so that one peer that takes nothing holds nobody up. */
void rmx_executor_retry(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = &f->executor;
	unsigned int tries = ex->queued < RMX_TRIES ? ex->queued : RMX_TRIES;
	struct rmx_landing *landing = ex->early, *next;

	if (atomic_load(&ex->stalled))
		rmx_message_retry(f);
	ex->early = NULL;
	ex->early_count = 0;
	for (; landing; landing = next) {
		next = landing->next;
		request_next(f, landing, 0);
	}
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
			landing_receive(f, landing);
		}
	}
}

/* -- completions */

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
	landing_receive(f, landing);
}

void rmx_executor_complete(struct rmaext_fabric *f, void *context, size_t len,
			   const struct rmaext_error *failure)
{
	struct rmx_executor *ex = &f->executor;
	struct rmx_landing *landing = context;
	struct rmx_box *box = context;
	size_t at;

	if (within(context, ex->boxes, RMX_BOXES_SIZE)) {
		at = (size_t)((char *)context - (char *)ex->boxes);
		if (at % sizeof(*box) == 0 && box->state == RMX_ASKING)
			rmx_message_sent(f, box, failure);
		return;
	}
	at = (size_t)((char *)context - (char *)ex->landings);
	if (at % sizeof(*landing))
		return; /* none of ours */
	switch (landing->state) {
	case RMX_REPLYING: /* or failed: the origin will notice by itself */
		landing_receive(f, landing);
		break;
	case RMX_RECEIVING:
		ex->receiving--;
		if (failure)
			landing_fail(ex, landing);
		else
			landed(f, landing, len);
		break;
	}
	receive_more(f);
}
