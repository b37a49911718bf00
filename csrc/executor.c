/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many operations in one message. The target's CQ reader checks the message,
 * applies it with its own CPU and answers; the origin's side is request.c.
 *
 * Anybody who reaches the port may send, so a message is believed only if it
 * has the secret token of a window, and even then everything in it is checked
 * before memory is touched. Receives are never waiting for a peer: a reply that
 * the provider does not take is queued and tried again, and a peer can have no
 * more of them than it has requests on their way.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define RMX_RECEIVES 4u /* posted at all times */
#define RMX_CREDITS 4u	/* requests to a peer, without an answer */
#define RMX_TRIES 16u	/* of queued boxes at a time */

_Static_assert(sizeof(struct rmx_request) % 8 == 0 &&
		       sizeof(struct rmx_reply) <= sizeof(struct rmx_request),
	       "a reply's header fits before the values of a request");

/* FNV-1a: an endpoint's address in eight bytes; no secret */
uint64_t rmx_name(const void *address, size_t len)
{
	const unsigned char *p = address;
	uint64_t name = 0xcbf29ce484222325;

	while (len--)
		name = (name ^ *p++) * 0x100000001b3;
	return name;
}

/* -- boxes */

bool rmx_executor_owns(const struct rmaext_fabric *f, const void *context)
{
	uintptr_t first = (uintptr_t)f->executor.boxes;

	return first && (uintptr_t)context >= first &&
	       (uintptr_t)context < first + RMX_BOXES * sizeof(struct rmx_box);
}

/* lock held; NULL: all are in use */
struct rmx_box *rmx_box_take(struct rmx_executor *ex, enum rmx_box_state state)
{
	struct rmx_box *box = ex->free;

	if (box)
		ex->free = box->next;
	else if (ex->made < RMX_BOXES)
		box = &ex->boxes[ex->made++];
	else
		return NULL;
	box->state = (uint8_t)state;
	return box;
}

void rmx_box_free(struct rmx_executor *ex, struct rmx_box *box)
{
	box->state = RMX_FREE;
	box->generation++;
	box->batch = NULL;
	box->next = ex->free;
	ex->free = box;
}

static void enqueue(struct rmx_executor *ex, struct rmx_box *box,
		    enum rmx_box_state state)
{
	box->state = (uint8_t)state;
	box->next = NULL;
	*ex->queue_end = box;
	ex->queue_end = &box->next;
	ex->queued++;
}

static int box_receive(struct rmaext_fabric *f, struct rmx_box *box)
{
	struct rmx_executor *ex = &f->executor;
	int ret;

	box->state = RMX_RECEIVING;
	ret = (int)fi_recv(f->ep, box->data, RMX_MESSAGE, NULL, FI_ADDR_UNSPEC,
			   &box->context);
	if (!ret) {
		ex->receiving++;
		return 0;
	}
	if (ret == -FI_EAGAIN) {
		enqueue(ex, box, RMX_RECEIVING);
		return 0;
	}
	ex->incoming--;
	pthread_mutex_lock(&ex->lock);
	rmx_box_free(ex, box);
	pthread_mutex_unlock(&ex->lock);
	return ret;
}

/*
 * Some receives are posted from the start, more when the replies to a peer that
 * is slow take them up.
 */
static int receive_more(struct rmaext_fabric *f)
{
	const unsigned int most = 2 * RMX_CREDITS * (f->peer_count + 1);
	struct rmx_executor *ex = &f->executor;
	struct rmx_box *box;
	int ret = 0;

	while (!ret && !ex->queued && ex->receiving < RMX_RECEIVES &&
	       ex->incoming < most && ex->incoming < RMX_BOXES / 2) {
		pthread_mutex_lock(&ex->lock);
		box = rmx_box_take(ex, RMX_RECEIVING);
		pthread_mutex_unlock(&ex->lock);
		if (!box)
			break;
		ex->incoming++;
		ret = box_receive(f, box);
	}
	return ret;
}

int rmx_executor_start(struct rmaext_fabric *f)
{
	const uint64_t order =
		f->info->tx_attr->msg_order & f->info->rx_attr->msg_order;
	struct rmx_executor *ex = &f->executor;
	char own[256];
	size_t len = sizeof(own);
	void *boxes;
	int ret;

	pthread_mutex_init(&ex->lock, NULL);
	ex->queue_end = &ex->queue;
	/* puts to one place are to arrive in order */
	ex->credits = order & FI_ORDER_SAS ? RMX_CREDITS : 1;
	ret = fi_getname(&f->ep->fid, own, &len);
	if (ret)
		return ret;
	ex->name = rmx_name(own, len);
	boxes = mmap(NULL, RMX_BOXES * sizeof(struct rmx_box),
		     PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (boxes == MAP_FAILED)
		return -errno;
	madvise(boxes, RMX_BOXES * sizeof(struct rmx_box), MADV_NOHUGEPAGE);
	ex->boxes = boxes;
	return receive_more(f);
}

/* The endpoint is closed, and no call is inside. */
void rmx_executor_stop(struct rmaext_fabric *f)
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
	for (unsigned int i = 0; i < ex->made; i++)
		if (ex->boxes[i].batch)
			rmx_batch_fail(&ex->boxes[i], &record);
	munmap(ex->boxes, RMX_BOXES * sizeof(struct rmx_box));
	ex->boxes = NULL;
	ex->made = 0;
	pthread_mutex_unlock(&ex->lock);
}

/* -- target */

bool rmx_same_token(const uint8_t *a, const uint8_t *b)
{
	uint64_t x[2], y[2];

	memcpy(x, a, sizeof(x));
	memcpy(y, b, sizeof(y));
	/* in constant time; a window without a token is nobody's target */
	return !((x[0] ^ y[0]) | (x[1] ^ y[1])) && (x[0] | x[1]);
}

/* The open window of that name, entered; NULL if there is none. */
static struct rmaext_window *enter(struct rmaext_fabric *f,
				   const uint8_t *token)
{
	struct rmaext_window *w;

	pthread_mutex_lock(&f->lock);
	w = f->executor.recent;
	if (!w || !rmx_same_token(w->token, token)) {
		w = f->windows;
		while (w && !rmx_same_token(w->token, token))
			w = w->next;
		f->executor.recent = w;
	}
	if (w && !rmx_gate_try(&w->gate))
		w = NULL;
	pthread_mutex_unlock(&f->lock);
	return w;
}

/* The sender, by its own word: it gets nothing but an error. */
static struct rmaext_peer *sender(struct rmaext_fabric *f, uint64_t name)
{
	struct rmaext_peer *p;

	pthread_mutex_lock(&f->lock);
	for (p = f->peers; p && p->name != name;)
		p = p->next;
	pthread_mutex_unlock(&f->lock);
	return p;
}

/* Is it whole, and may it do that? `q` is a copy. */
static int check(const struct rmaext_window *w, const struct rmx_request *q,
		 size_t len, const uint64_t *offsets)
{
	const struct rmx_target *t = &w->targets[w->self];
	const bool update =
		q->kind == RMAEXT_FETCH_ADD || q->kind == RMAEXT_ADD;
	uint64_t low = 0, high = 0;
	size_t values;

	if (!rmx_cells_valid(q->kind, q->type, q->unit) || q->zero ||
	    !q->count || q->count > RMX_MESSAGE / sizeof(*offsets) ||
	    q->unit > RMX_MESSAGE)
		return -FI_EINVAL;
	values = q->count * (sizeof(*offsets) + q->unit) + sizeof(*q);
	if (values > RMX_MESSAGE ||
	    len != (q->kind == RMAEXT_GET ? values - q->count * q->unit
					  : values))
		return -FI_EINVAL;
	if (!t->map || (t->access & rmx_cells_access(q->kind)) !=
			       rmx_cells_access(q->kind))
		return -FI_EACCES;
	for (uint32_t i = 0; i < q->count; i++) {
		low |= offsets[i];
		high = offsets[i] > high ? offsets[i] : high;
	}
	if (q->unit > t->size || high > t->size - q->unit)
		return -ERANGE;
	if (update && !w->fabric->cpu_atomics)
		return -FI_EOPNOTSUPP;
	if (update && (((uintptr_t)t->map | low) & (q->unit - 1)))
		return -FI_EFAULT;
	return 0;
}

/* The results of a get or a fetch_add lie where its values lay. */
static void apply(const struct rmaext_window *w, const struct rmx_request *q,
		  const uint64_t *offsets, char *values)
{
	char *map = w->targets[w->self].map;
	void *cells[RMX_CELLS];

	for (uint32_t i = 0; i < q->count; i += RMX_CELLS) {
		const uint32_t left = q->count - i;
		const uint32_t n = left < RMX_CELLS ? left : RMX_CELLS;
		char *at = values + i * q->unit;

		for (uint32_t k = 0; k < n; k++) {
			cells[k] = map + offsets[i + k];
			__builtin_prefetch(cells[k], 1);
		}
		rmx_cells_apply(q->kind, q->type, q->unit, cells, n, at,
				q->unit, at);
	}
	atomic_thread_fence(memory_order_seq_cst);
}

/* Carry a request out and make its reply; false: it deserves none. */
static bool serve(struct rmaext_fabric *f, struct rmx_box *box, size_t len)
{
	const uint64_t *offsets =
		(uint64_t *)(box->data + sizeof(struct rmx_request));
	struct rmx_reply reply = {.magic = RMX_REPLY};
	struct rmaext_window *w;
	struct rmx_request q;
	char *values = box->data + sizeof(q);

	if (len < sizeof(q))
		return false;
	memcpy(&q, box->data, sizeof(q));
	reply.id = q.id;
	memcpy(reply.token, q.token, sizeof(reply.token));
	box->reply_len = sizeof(reply);
	w = enter(f, q.token);
	if (w) {
		box->peer = q.rank < w->count ? w->targets[q.rank].peer : NULL;
		reply.status = check(w, &q, len, offsets);
		if (!reply.status && box->peer) {
			values += q.count * sizeof(*offsets);
			apply(w, &q, offsets, values);
			if (rmx_cells_access(q.kind) & RMAEXT_READ)
				box->reply_len += (uint16_t)(q.count * q.unit);
		}
		rmx_window_leave(w);
	} else {
		/* closed meanwhile: let it not wait */
		box->peer = sender(f, q.name);
		reply.status = -FI_ESHUTDOWN;
	}
	values -= sizeof(reply);
	memcpy(values, &reply, sizeof(reply));
	box->reply = (uint16_t)(values - box->data);
	return box->peer != NULL;
}

static void send_reply(struct rmaext_fabric *f, struct rmx_box *box)
{
	const bool brief = box->reply_len <= f->info->tx_attr->inject_size;
	const char *reply = box->data + box->reply;
	int ret = -FI_ENOTCONN;

	if (!atomic_load(&box->peer->gone)) {
		box->state = RMX_REPLYING;
		ret = brief ? (int)fi_inject(f->ep, reply, box->reply_len,
					     box->peer->addr)
			    : (int)fi_send(f->ep, reply, box->reply_len, NULL,
					   box->peer->addr, &box->context);
	}
	if (ret == -FI_EAGAIN)
		enqueue(&f->executor, box, RMX_WAITING);
	else if (ret || brief) /* lost: the origin will notice by itself */
		box_receive(f, box);
}

/* Each in turn, so that one peer that takes nothing holds nobody up. */
void rmx_executor_retry(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = &f->executor;
	unsigned int tries = ex->queued < RMX_TRIES ? ex->queued : RMX_TRIES;

	while (tries--) {
		struct rmx_box *box = ex->queue;

		ex->queue = box->next;
		if (!ex->queue)
			ex->queue_end = &ex->queue;
		ex->queued--;
		if (box->state == RMX_WAITING)
			send_reply(f, box);
		else
			box_receive(f, box);
	}
}

/* -- completions */

void rmx_executor_complete(struct rmaext_fabric *f, void *context, size_t len,
			   const struct rmaext_error *failure)
{
	struct rmx_executor *ex = &f->executor;
	const size_t at = (size_t)((char *)context - (char *)ex->boxes);
	struct rmx_box *box = context;
	uint32_t magic = 0;

	if (at % sizeof(*box))
		return; /* none of ours */
	switch (box->state) {
	case RMX_ASKING:
		rmx_request_sent(f, box, failure);
		return;
	case RMX_REPLYING: /* or failed: the origin will notice by itself */
		box_receive(f, box);
		break;
	case RMX_RECEIVING:
		ex->receiving--;
		if (!failure && len >= sizeof(magic) && len <= RMX_MESSAGE)
			memcpy(&magic, box->data, sizeof(magic));
		if (magic == RMX_REQUEST && serve(f, box, len)) {
			send_reply(f, box);
			break;
		}
		if (magic == RMX_REPLY)
			rmx_request_answered(f, box->data, len);
		box_receive(f, box);
		break;
	}
	receive_more(f);
}
