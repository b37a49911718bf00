/* SPDX-License-Identifier: BSD-3-Clause */
/* The stub's worker: connections, and what is on its way. */
#include "stub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>

#define KEEPALIVE 100000000 /* ns */

static _Thread_local unsigned int inside, called_back;
static atomic_uint breaks; /* how often all was to break */
static atomic_uint flushes;

unsigned int stub_flushes(void)
{
	return atomic_load(&flushes);
}

/* -- who is in it */

void stub_enter(ucp_worker_h w)
{
	if (called_back)
		stub_wrong("what is called back calls UCP");
	if (inside++)
		return;
	if (atomic_flag_test_and_set(&w->busy))
		stub_wrong("two threads are in a worker");
}

void stub_leave(ucp_worker_h w)
{
	if (!--inside)
		atomic_flag_clear(&w->busy);
}

void stub_break_all(void)
{
	atomic_fetch_add(&breaks, 1);
}

/* -- ends */

static void op_drop(struct op *op)
{
	if (op->copied)
		free(op->buf);
	free(op);
}

/* UCP lets go of what a call used, and says so. */
static void op_end(struct op *op, ucs_status_t status)
{
	if (op->rkey)
		op->rkey->users--;
	if (op->memh)
		atomic_fetch_sub(&op->memh->users, 1);
	if (!op->asked) {
		op_drop(op);
		return;
	}
	op->over = true;
	called_back++;
	op->cb(op, status, op->data);
	called_back--;
}

void ucp_request_free(void *request)
{
	struct op *op = request;

	if (!op->over)
		stub_wrong("a request is freed before its end");
	op->ep->worker->requests--;
	op_drop(op);
}

/* A message may have gone before the loss, and its end be seen after it. */
static void ep_end_all(ucp_ep_h ep, ucs_status_t status)
{
	struct op *op;

	while ((op = ep->ops)) {
		const bool well =
			op->kind == CLOSE || (op->kind == SEND && !op->later &&
					      !op->done && !stub_draw(4));

		ep->ops = op->next;
		op_end(op, well ? UCS_OK : status);
	}
}

/* Nothing goes any more. Requests that somebody has end in later progress. */
static void ep_break(ucp_ep_h ep, ucs_status_t status)
{
	struct op **link = &ep->ops, *op;

	if (ep->broken)
		return;
	ep->broken = status;
	while ((op = *link)) {
		if (op->asked) {
			link = &op->next;
			continue;
		}
		*link = op->next;
		op_end(op, status);
	}
}

/* -- the worker */

static void name_of(const struct address *a, struct sockaddr_un *name)
{
	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1,
		 "ucx stub %d %llx", a->pid, (unsigned long long)a->nonce);
}

ucs_status_t ucp_worker_create(ucp_context_h c,
			       const ucp_worker_params_t *params,
			       ucp_worker_h *worker_p)
{
	const int room = 1 << 20;
	ucs_status_t status = stub_fails("worker_create");
	struct sockaddr_un name;
	ucp_worker_h w;

	if (status)
		return status;
	if (params->thread_mode != UCS_THREAD_MODE_SERIALIZED)
		stub_wrong("the worker is not for several threads");
	w = calloc(1, sizeof(*w));
	if (!w || getrandom(&w->own.nonce, 8, 0) != 8)
		stub_wrong("getrandom");
	w->context = c;
	w->own.pid = getpid();
	w->own.fd = c->fd;
	w->socket =
		socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	setsockopt(w->socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	name_of(&w->own, &name);
	w->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	w->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (bind(w->socket, (struct sockaddr *)&name, sizeof(name)) ||
	    w->event < 0 || w->timer < 0 || w->epoll < 0)
		stub_wrong("bind");
	for (int i = 0; i < 3; i++) {
		struct epoll_event event = {.events = EPOLLIN};

		epoll_ctl(w->epoll, EPOLL_CTL_ADD,
			  i == 0   ? w->socket
			  : i == 1 ? w->event
				   : w->timer,
			  &event);
	}
	atomic_flag_clear(&w->busy);
	*worker_p = w;
	return UCS_OK;
}

void ucp_worker_destroy(ucp_worker_h w)
{
	struct inbound *in;
	ucp_ep_h ep;

	stub_enter(w);
	for (ep = w->eps; ep; ep = ep->next)
		ep_end_all(ep, UCS_ERR_CANCELED);
	if (w->requests)
		stub_wrong("requests are left as the worker ends");
	while ((ep = w->eps)) {
		w->eps = ep->next;
		munmap(ep->shared, sizeof(*ep->shared));
		free(ep);
	}
	while ((in = w->inbox)) {
		w->inbox = in->next;
		free(in->data);
		free(in);
	}
	close(w->socket);
	close(w->event);
	close(w->timer);
	close(w->epoll);
	stub_leave(w);
	free(w);
}

ucs_status_t ucp_worker_get_address(ucp_worker_h w, ucp_address_t **address_p,
				    size_t *len_p)
{
	const char *len = getenv("STUB_ADDRESS");
	ucs_status_t status = stub_fails("worker_get_address");
	char *at;

	if (status)
		return status;
	/* longer with more devices */
	*len_p = len ? strtoul(len, NULL, 0)
		     : sizeof(w->own) + (size_t)getpid() % 5;
	at = calloc(1, *len_p);
	if (!at)
		return UCS_ERR_NO_MEMORY;
	memcpy(at, &w->own, sizeof(w->own));
	*address_p = (ucp_address_t *)(void *)at;
	return UCS_OK;
}

void ucp_worker_release_address(ucp_worker_h w, ucp_address_t *address)
{
	(void)w;
	free(address);
}

ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h w,
					    const ucp_am_handler_param_t *param)
{
	ucs_status_t status = stub_fails("worker_set_am_recv_handler");

	if (status)
		return status;
	if (param->id || !(param->flags & UCP_AM_FLAG_WHOLE_MSG))
		stub_wrong("messages would come in parts");
	w->handler = *param;
	return UCS_OK;
}

ucs_status_t ucp_worker_get_efd(ucp_worker_h w, int *fd)
{
	*fd = w->epoll;
	return stub_fails("worker_get_efd");
}

ucs_status_t ucp_worker_signal(ucp_worker_h w)
{
	const uint64_t one = 1;

	return write(w->event, &one, 8) == 8 ? UCS_OK : UCS_ERR_IO_ERROR;
}

/* Is there something that is to go on by itself? */
static bool worker_has_work(const struct ucp_worker *w)
{
	for (ucp_ep_h ep = w->eps; ep; ep = ep->next)
		if (ep->ops || (ep->broken && !ep->told && !ep->closed))
			return true;
	return w->inbox;
}

/* What is held back goes on 0.1 ms later, while nobody looks. */
ucs_status_t ucp_worker_arm(ucp_worker_h w)
{
	const struct itimerspec soon = {.it_value.tv_nsec = 100000},
				later = {.it_value.tv_nsec = KEEPALIVE};
	ucs_status_t status = stub_fails("worker_arm");
	struct datagram head;
	uint64_t count;

	if (status)
		return status;
	stub_enter(w);
	if (read(w->event, &count, 8) == 8 ||
	    recv(w->socket, &head, sizeof(head), MSG_PEEK) >= 0)
		status = UCS_ERR_BUSY;
	timerfd_settime(w->timer, 0, worker_has_work(w) ? &soon : &later, NULL);
	stub_leave(w);
	return status;
}

/* -- connections */

ucs_status_t ucp_ep_create(ucp_worker_h w, const ucp_ep_params_t *params,
			   ucp_ep_h *ep_p)
{
	ucs_status_t status = stub_fails("ep_create");
	char path[64];
	ucp_ep_h ep;
	int fd;

	if (status)
		return status;
	if (params->err_mode != UCP_ERR_HANDLING_MODE_PEER)
		stub_wrong("the death of a peer would be no error");
	stub_enter(w);
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		stub_wrong("calloc");
	memcpy(&ep->peer, params->address, sizeof(ep->peer));
	name_of(&ep->peer, &ep->to);
	ep->worker = w;
	ep->failed = params->err_handler.cb;
	ep->arg = params->err_handler.arg;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ep->peer.pid,
		 ep->peer.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ep->shared =
		mmap(NULL, sizeof(*ep->shared), PROT_READ | PROT_WRITE,
		     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	if (ep->shared == MAP_FAILED)
		stub_wrong("mmap of a peer's regions");
	if (fd < 0) /* it has gone: calls will say so */
		ep->broken = UCS_ERR_UNREACHABLE;
	else
		close(fd);
	ep->next = w->eps;
	w->eps = ep;
	stub_leave(w);
	*ep_p = ep;
	return UCS_OK;
}

ucs_status_t ucp_ep_query(ucp_ep_h ep, ucp_ep_attr_t *attr)
{
	const char *name = getenv("STUB_TRANSPORT");

	(void)ep;
	if (!attr->transports.num_entries)
		return UCS_ERR_INVALID_PARAM;
	attr->transports.entries[0] =
		(ucp_transport_entry_t){name ? name : "rc_stub", "stub:1"};
	attr->transports.num_entries = 1;
	return stub_fails("ep_query");
}

/* -- calls */

static bool prompt(void)
{
	static int known; /* 1: no, 2: yes */

	if (!known)
		known = getenv("STUB_PROMPT") ? 2 : 1;
	return known == 2;
}

static void op_now(struct op *op);

static struct op *op_new(ucp_ep_h ep, enum kind kind, void *buf, size_t len,
			 const ucp_request_param_t *param)
{
	struct op *op = calloc(1, sizeof(*op)), **end = &ep->ops;

	if (!op)
		stub_wrong("calloc");
	op->kind = kind;
	op->ep = ep;
	op->buf = buf;
	op->len = len;
	op->cb = param->cb.send;
	op->data = param->user_data;
	op->serial = ++ep->worker->serial;
	if (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH) {
		const uint64_t at = (uint64_t)(uintptr_t)buf;

		op->memh = param->memh;
		if (at < op->memh->base ||
		    at + len > op->memh->base + op->memh->len)
			stub_wrong("a buffer is not of its registration");
		atomic_fetch_add(&op->memh->users, 1);
	}
	while (*end)
		end = &(*end)->next;
	*end = op;
	return op;
}

/*
 * Its bytes are read now, or when they go. Returns the request, or NULL: the
 * buffer is free at once.
 */
static ucs_status_ptr_t op_begin(struct op *op, bool may_copy)
{
	char *copy;

	if (may_copy && !op->later && (prompt() || stub_draw(2))) {
		copy = malloc(op->len ? op->len : 1);
		if (!copy)
			stub_wrong("malloc");
		memcpy(copy, op->buf, op->len);
		op->buf = copy;
		op->copied = true;
		if (op->memh)
			atomic_fetch_sub(&op->memh->users, 1);
		op->memh = NULL;
		return NULL;
	}
	op->asked = true;
	op->ep->worker->requests++;
	return op;
}

static void *as_ptr(ucs_status_t status)
{
	return (void *)(intptr_t)status;
}

static ucs_status_ptr_t call(ucp_ep_h ep, enum kind kind, const char *name,
			     void *buf, size_t len, uint64_t place,
			     ucp_rkey_h rkey, const ucp_request_param_t *param)
{
	char later[40];
	ucs_status_t status = stub_fails(name);
	ucs_status_ptr_t request;
	struct op *op;

	if (!status)
		status = ep->broken;
	if (status)
		return as_ptr(status);
	if (ep->closed)
		stub_wrong("a connection is used that was closed");
	stub_enter(ep->worker);
	op = op_new(ep, kind, buf, len, param);
	op->place = place;
	op->rkey = rkey;
	if (rkey) {
		if (rkey->ep != ep)
			stub_wrong("a key is of another connection");
		rkey->users++;
	}
	snprintf(later, sizeof(later), "%s+", name);
	op->later = stub_fails(later);
	request = op_begin(op, kind == PUT || kind == SEND);
	if (!request && prompt())
		op_now(op);
	stub_leave(ep->worker);
	return request;
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buf, size_t len,
			     uint64_t place, ucp_rkey_h rkey,
			     const ucp_request_param_t *param)
{
	return call(ep, PUT, "put_nbx", (void *)(uintptr_t)buf, len, place,
		    rkey, param);
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buf, size_t len, uint64_t place,
			     ucp_rkey_h rkey, const ucp_request_param_t *param)
{
	return call(ep, GET, "get_nbx", buf, len, place, rkey, param);
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned int id,
				 const void *header, size_t header_len,
				 const void *buf, size_t len,
				 const ucp_request_param_t *param)
{
	(void)header;
	if (id || header_len ||
	    !(param->op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS) ||
	    param->flags != UCP_AM_SEND_FLAG_EAGER)
		stub_wrong("a message is not as it should be");
	return call(ep, SEND, "am_send_nbx", (void *)(uintptr_t)buf, len, 0,
		    NULL, param);
}

/* Nothing is on its way: often it says so at once. */
ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
	atomic_fetch_add(&flushes, 1);
	if (!ep->ops && !ep->broken && stub_draw(2)) {
		const ucs_status_t status = stub_fails("ep_flush_nbx");

		return as_ptr(status);
	}
	return call(ep, FLUSH, "ep_flush_nbx", NULL, 0, 0, NULL, param);
}

ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
	const bool force = param->op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS &&
			   param->flags & UCP_EP_CLOSE_FLAG_FORCE;
	ucs_status_ptr_t request;

	if (ep->closed)
		stub_wrong("a connection is closed twice");
	stub_enter(ep->worker);
	ep->closed = true;
	if (force)
		ep_break(ep, UCS_ERR_CANCELED);
	request = op_begin(op_new(ep, CLOSE, NULL, 0, param), false);
	stub_leave(ep->worker);
	return request;
}

/* -- progress */

/* As the NIC of the target would: what is not allowed there is not done. */
static ucs_status_t rma_do(const struct op *op)
{
	const struct packed_key *key = &op->rkey->it;
	const uint32_t need = op->kind == PUT ? UCP_MEM_MAP_PROT_REMOTE_WRITE
					      : UCP_MEM_MAP_PROT_REMOTE_READ;
	const struct iovec here = {op->buf, op->len};
	const struct iovec there = {(void *)(uintptr_t)op->place, op->len};
	struct shared *s = op->ep->shared;
	ssize_t n = -1;

	if (pthread_mutex_lock(&s->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&s->lock);
	if (key->index < REGIONS && s->regions[key->index].id == key->id &&
	    s->regions[key->index].prot & need && op->place >= key->base &&
	    op->place - key->base <= key->len &&
	    op->len <= key->len - (op->place - key->base))
		n = op->kind == PUT ? process_vm_writev(op->ep->peer.pid, &here,
							1, &there, 1, 0)
				    : process_vm_readv(op->ep->peer.pid, &here,
						       1, &there, 1, 0);
	pthread_mutex_unlock(&s->lock);
	return n == (ssize_t)op->len ? UCS_OK : UCS_ERR_CONNECTION_RESET;
}

/* UCS_INPROGRESS: the peer takes no more now. */
static ucs_status_t message_send(struct op *op)
{
	struct datagram head = {op->ep->worker->own.nonce, op->serial, 0,
				op->len};

	do {
		const size_t left = op->len - op->done;
		const size_t some = left < FRAGMENT ? left : FRAGMENT;
		struct iovec iov[2] = {{&head, sizeof(head)},
				       {op->buf + op->done, some}};
		const struct msghdr message = {
			.msg_name = &op->ep->to,
			.msg_namelen = sizeof(op->ep->to),
			.msg_iov = iov,
			.msg_iovlen = 2,
		};

		head.offset = op->done;
		if (sendmsg(op->ep->worker->socket, &message, MSG_NOSIGNAL) < 0)
			return errno == EAGAIN || errno == ENOBUFS
				       ? UCS_INPROGRESS
				       : UCS_ERR_CONNECTION_RESET;
		op->done += some;
	} while (op->done < op->len);
	return UCS_OK;
}

/*
 * Has all ended that a flush waits for, or the end of the connection? A flush
 * waits for no message, which a target that sleeps may not take.
 */
static bool all_before_ended(const struct op *op)
{
	const struct op *it = op->ep->ops;

	while (it != op && op->kind == FLUSH && it->kind != PUT &&
	       it->kind != GET)
		it = it->next;
	return it == op;
}

static bool ep_is_pressed(ucp_ep_h ep)
{
	for (const struct op *op = ep->ops; op; op = op->next)
		if (op->kind == FLUSH || op->kind == CLOSE)
			return true;
	return false;
}

/* UCS_INPROGRESS: not now. */
static ucs_status_t op_try(struct op *op, bool pressed)
{
	switch (op->kind) {
	case PUT:
		if (!prompt() && !(pressed ? stub_draw(2) : !stub_draw(4096)))
			return UCS_INPROGRESS;
		return op->later ? op->later : rma_do(op);
	case GET:
		if (!prompt() && !stub_draw(2))
			return UCS_INPROGRESS;
		return op->later ? op->later : rma_do(op);
	case SEND:
		if (!prompt() && !op->done && !stub_draw(2))
			return UCS_INPROGRESS;
		return op->later ? op->later : message_send(op);
	case FLUSH:
	case CLOSE:
		break;
	}
	return all_before_ended(op) ? op->later : UCS_INPROGRESS;
}

static void op_unlink(struct op *op)
{
	struct op **link = &op->ep->ops;

	while (*link != op)
		link = &(*link)->next;
	*link = op->next;
}

/*
 * The NIC has it at once. Not past messages before it, of which one may be amid
 * its datagrams.
 */
static void op_now(struct op *op)
{
	ucs_status_t status = UCS_INPROGRESS;

	if (op == op->ep->ops)
		status = op_try(op, true);
	if (status == UCS_INPROGRESS)
		return;
	op_unlink(op);
	if (status)
		op->ep->broken = status; /* the rest ends as that is told */
	op_end(op, status);
}

/* What is on its way ends before or after the loss is told, or a close. */
static unsigned int ep_end_late(ucp_ep_h ep)
{
	unsigned int moved = 0;

	if (ep->ops && (prompt() || !stub_draw(16))) {
		moved++;
		ep_end_all(ep, ep->broken);
	}
	if (!ep->told && !ep->closed) {
		ep->told = true;
		moved++;
		called_back++;
		ep->failed(ep->arg, ep, ep->broken);
		called_back--;
	}
	return moved;
}

/* Carries out what chance says. The loss of a connection ends all on its way.
 */
static unsigned int ep_progress(ucp_ep_h ep)
{
	const bool pressed = ep_is_pressed(ep);
	unsigned int moved = 0;
	struct op *op = ep->ops, *next;
	bool sending = false; /* a message is amid its datagrams */

	if (ep->broken)
		return ep_end_late(ep);
	for (; op; op = next) {
		ucs_status_t status;

		next = op->next;
		if (op->kind == SEND && sending)
			continue;
		status = op_try(op, pressed);
		sending = sending || (op->kind == SEND && op->done &&
				      status == UCS_INPROGRESS);
		if (status == UCS_INPROGRESS)
			continue;
		moved++;
		op_unlink(op);
		if (op->kind != CLOSE && status == UCS_ERR_CONNECTION_RESET)
			ep_break(ep, status);
		op_end(op, status);
		if (ep->broken)
			break;
	}
	if (ep->broken)
		moved += ep_end_late(ep);
	return moved;
}

static void datagram_take(ucp_worker_h w, const char *data, size_t len)
{
	struct datagram head;
	struct inbound *in, **link = &w->inbox;

	memcpy(&head, data, sizeof(head));
	len -= sizeof(head);
	while ((in = *link) &&
	       (in->head.from != head.from || in->head.message != head.message))
		link = &in->next;
	if (!in) {
		in = calloc(1, sizeof(*in));
		if (!in || !(in->data = malloc(head.total ? head.total : 1)))
			stub_wrong("malloc");
		in->head = head;
		*link = in;
	}
	if (head.offset + len > in->head.total)
		stub_wrong("a datagram is longer than its message");
	memcpy(in->data + head.offset, data + sizeof(head), len);
	in->have += len;
}

/* Messages that are whole come in any order. */
static unsigned int inbox_progress(ucp_worker_h w)
{
	static const ucp_am_recv_param_t param;
	struct inbound **link = &w->inbox, *in;
	unsigned int moved = 0;

	while ((in = *link)) {
		if (in->have < in->head.total || !stub_draw(2)) {
			link = &in->next;
			continue;
		}
		*link = in->next;
		called_back++;
		w->handler.cb(w->handler.arg, NULL, 0, in->data, in->have,
			      &param);
		called_back--;
		free(in->data);
		free(in);
		moved++;
	}
	return moved;
}

/* A name that nobody has refuses a connection, which carries nothing. */
static void peers_ask(ucp_worker_h w)
{
	struct timespec t;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC, &t);
	now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
	if (now < w->asked + KEEPALIVE)
		return;
	w->asked = now;
	for (ucp_ep_h ep = w->eps; ep; ep = ep->next) {
		int fd;

		if (ep->closed || ep->broken)
			continue;
		fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 &&
		    connect(fd, (struct sockaddr *)&ep->to, sizeof(ep->to)) &&
		    errno == ECONNREFUSED)
			ep_break(ep, UCS_ERR_CONNECTION_RESET);
		if (fd >= 0)
			close(fd);
	}
}

unsigned int ucp_worker_progress(ucp_worker_h w)
{
	static atomic_uint broken;
	static _Thread_local char data[FRAGMENT + sizeof(struct datagram)];
	unsigned int moved = 0;
	ssize_t n;

	stub_enter(w);
	if (atomic_load(&breaks) != atomic_load(&broken)) {
		atomic_store(&broken, atomic_load(&breaks));
		for (ucp_ep_h ep = w->eps; ep; ep = ep->next)
			if (!ep->closed)
				ep_break(ep, UCS_ERR_CONNECTION_RESET);
	}
	for (int i = 0; i < 16; i++) {
		n = recv(w->socket, data, sizeof(data), 0);
		if (n < (ssize_t)sizeof(struct datagram))
			break;
		datagram_take(w, data, (size_t)n);
	}
	moved += inbox_progress(w);
	peers_ask(w);
	for (ucp_ep_h ep = w->eps; ep; ep = ep->next)
		moved += ep_progress(ep);
	stub_leave(w);
	return moved;
}
