/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages, reads and writes by UCP, and their completions. */
#include "net/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>

#define RMX_TURNS 16 /* calls of ucp_worker_progress() in one poll */

_Static_assert(sizeof(struct rmx_call) >= sizeof(struct rmx_ucx_call),
	       "a call's own room");

static struct rmx_ucx_peer *peer_of(uint64_t peer)
{
	return (struct rmx_ucx_peer *)(uintptr_t)peer;
}

/*
 * A thread that is not the reader leaves what it has found for the reader,
 * which may be asleep; so it does with a call that nobody waits for (`alone`)
 * and that may need more calls of UCP to go. Gives the lock back.
 */
static void endpoint_unlock(struct rmx_endpoint *e, bool alone)
{
	if (e->armed && (e->done.first || e->due || e->lost || alone)) {
		e->armed = false;
		e->ucp->worker_signal(e->worker);
	}
	pthread_mutex_unlock(&e->lock);
}

/* UCP is done with the buffer of a call. */
static void call_over(void *request, ucs_status_t status, void *data)
{
	struct rmx_ucx_call *call = data;

	call->endpoint->ucp->request_free(request);
	if (!call->status)
		call->status = status;
	call->free = true;
	rmx_ucx_call_ended(call);
}

static ucp_request_param_t param_of(struct rmx_ucx_call *call, void *desc)
{
	return (ucp_request_param_t){
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
				UCP_OP_ATTR_FIELD_USER_DATA |
				(desc ? UCP_OP_ATTR_FIELD_MEMH : 0),
		.cb.send = call_over,
		.user_data = call,
		.memh = desc,
	};
}

/*
 * Makes a copy of a call's bytes, behind the call, which frees both when it is
 * complete. NULL: memory is short, as it may not be the next time.
 */
static struct rmx_ucx_call *copy_new(const void *buf, size_t len)
{
	struct rmx_ucx_call *call = malloc(sizeof(*call) + len);

	if (call)
		memcpy(call + 1, buf, len);
	return call;
}

/* What UCP says of a call: it has begun, is over, or was not taken. */
static int call_begun(struct rmx_ucx_call *call, ucs_status_ptr_t request)
{
	if (UCS_PTR_IS_ERR(request)) {
		if (call->key)
			rmx_ucx_key_leave(call->endpoint, call->key);
		if (call->own)
			free(call);
		return rmx_ucx_code(UCS_PTR_STATUS(request));
	}
	if (!request)
		call->free = true;
	return 0;
}

/* -- messages */

static int message_post(struct rmaext_fabric *f, struct rmx_ucx_peer *peer,
			const void *buf, size_t len, void *desc,
			struct rmx_ucx_call *call, bool own)
{
	struct rmx_endpoint *e = f->endpoint;
	ucp_request_param_t param = param_of(call, desc);
	bool alone = false;
	int ret;

	*call = (struct rmx_ucx_call){
		.endpoint = e,
		.name = "ucp_am_send_nbx",
		.peer = peer,
		.own = own,
		.applied = true,
	};
	param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
	param.flags = UCP_AM_SEND_FLAG_EAGER;
	pthread_mutex_lock(&e->lock);
	ret = rmx_ucx_connect(f, peer);
	if (ret && own)
		free(call);
	if (!ret)
		call->epoch = peer->epoch;
	if (!ret)
		ret = call_begun(call, e->ucp->am_send_nbx(peer->ep, 0, NULL, 0,
							   buf, len, &param));
	if (!ret) {
		alone = own && !call->free;
		rmx_ucx_call_ended(call);
	}
	endpoint_unlock(e, alone);
	return ret;
}

int rmx_ucx_send(struct rmaext_fabric *f, uint64_t peer,
		 const struct iovec *iov, void **descs, size_t count,
		 struct rmx_call *call)
{
	(void)count; /* limits.pieces is 1 */
	return message_post(f, peer_of(peer), iov->iov_base, iov->iov_len,
			    descs ? *descs : NULL, (void *)call, false);
}

int rmx_ucx_inject(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		   size_t len)
{
	struct rmx_ucx_call *copy = copy_new(buf, len);

	if (!copy)
		return -FI_EAGAIN;
	return message_post(f, peer_of(peer), copy + 1, len, NULL, copy, true);
}

/* A message comes to a receive. One that is longer is nobody's: it is dropped.
 */
static void receive_end(struct rmx_ucx_call *call, const void *data, size_t len)
{
	memcpy(call->buf, data, len);
	call->len = len;
	rmx_ucx_append(&call->endpoint->done, call);
}

/* UCP calls it, in a call of ours. */
ucs_status_t rmx_ucx_arrived(void *arg, const void *header,
			     size_t header_length, void *data, size_t length,
			     const ucp_am_recv_param_t *param)
{
	struct rmx_endpoint *e = arg;
	struct rmx_ucx_arrival *arrival;

	(void)header, (void)header_length;
	/* none of ours is sent by rendezvous */
	if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
		return UCS_OK;
	if (!e->arrivals && e->receives.first) {
		if (length <= e->receives.first->len)
			receive_end(rmx_ucx_take(&e->receives), data, length);
		return UCS_OK;
	}
	arrival = malloc(sizeof(*arrival) + length);
	if (!arrival)
		return UCS_OK; /* it is lost, and its sender will notice */
	arrival->next = NULL;
	arrival->len = length;
	memcpy(arrival->data, data, length);
	*(e->arrivals ? e->arrivals_end : &e->arrivals) = arrival;
	e->arrivals_end = &arrival->next;
	return UCS_OK;
}

int rmx_ucx_receive(struct rmaext_fabric *f, void *buf, size_t len, void *desc,
		    struct rmx_call *call)
{
	struct rmx_endpoint *e = f->endpoint;
	struct rmx_ucx_call *it = (void *)call;
	struct rmx_ucx_arrival *arrival;
	bool taken = false;

	(void)desc;
	*it = (struct rmx_ucx_call){.endpoint = e, .buf = buf, .len = len};
	pthread_mutex_lock(&e->lock);
	while (!taken && (arrival = e->arrivals)) {
		e->arrivals = arrival->next;
		taken = arrival->len <= len;
		if (taken)
			receive_end(it, arrival->data, arrival->len);
		free(arrival);
	}
	if (!taken)
		rmx_ucx_append(&e->receives, it);
	endpoint_unlock(e, false);
	return 0;
}

/* -- reads and writes */

static int rma_post(struct rmaext_fabric *f, bool write,
		    const struct rmx_remote *at, void *buf, size_t len,
		    void *desc, struct rmx_ucx_call *call, bool own)
{
	struct rmx_endpoint *e = f->endpoint;
	struct rmx_ucx_peer *peer = peer_of(at->peer);
	const ucp_request_param_t param = param_of(call, desc);
	struct rmx_ucx_key *key = (void *)(uintptr_t)at->key;
	ucs_status_ptr_t request;
	int ret;

	*call = (struct rmx_ucx_call){
		.endpoint = e,
		.name = write ? "ucp_put_nbx" : "ucp_get_nbx",
		.peer = peer,
		.own = own,
		.applied = !write,
	};
	pthread_mutex_lock(&e->lock);
	ret = rmx_ucx_connect(f, peer);
	if (!ret)
		ret = rmx_ucx_key_use(peer, key);
	if (ret) {
		if (own)
			free(call);
		goto unlock;
	}
	call->key = key;
	call->epoch = peer->epoch;
	request = write ? e->ucp->put_nbx(peer->ep, buf, len, at->place,
					  key->rkey, &param)
			: e->ucp->get_nbx(peer->ep, buf, len, at->place,
					  key->rkey, &param);
	ret = call_begun(call, request);
	if (ret)
		goto unlock;
	if (write) {
		rmx_ucx_append(&peer->written, call);
		rmx_ucx_flush(peer);
	} else {
		rmx_ucx_call_ended(call);
	}
unlock:
	endpoint_unlock(e, own && peer->flushing);
	return ret;
}

int rmx_ucx_read(struct rmaext_fabric *f, const struct rmx_remote *from,
		 void *buf, size_t len, void *desc, struct rmx_call *call)
{
	return rma_post(f, false, from, buf, len, desc, (void *)call, false);
}

int rmx_ucx_write(struct rmaext_fabric *f, const struct rmx_remote *to,
		  void *buf, size_t len, void *desc, struct rmx_call *call)
{
	return rma_post(f, true, to, buf, len, desc, (void *)call, false);
}

/* It is flushed as other writes are: without that nothing says that it goes. */
int rmx_ucx_put_copy(struct rmaext_fabric *f, const struct rmx_remote *to,
		     const void *buf, size_t len)
{
	struct rmx_ucx_call *copy = copy_new(buf, len);

	if (!copy)
		return -FI_EAGAIN;
	return rma_post(f, true, to, copy + 1, len, NULL, copy, true);
}

/* -- completions */

static void failure_fill(const struct rmx_ucp *ucp, const char *name,
			 ucs_status_t status, struct rmaext_error *failure)
{
	failure->code = rmx_ucx_code(status);
	failure->prov_errno = status;
	snprintf(failure->call, sizeof(failure->call), "%s", name);
	snprintf(failure->detail, sizeof(failure->detail), "UCX: %s",
		 ucp->status_string(status));
}

bool rmx_ucx_message_lost(struct rmaext_fabric *f, const struct rmx_call *call,
			  struct rmaext_error *failure_p)
{
	const struct rmx_ucx_call *it = (const void *)call;
	struct rmx_endpoint *e = f->endpoint;
	bool lost;

	pthread_mutex_lock(&e->lock);
	lost = rmx_ucx_lost(it);
	pthread_mutex_unlock(&e->lock);
	if (lost)
		failure_fill(e->ucp, it->name, UCS_ERR_CONNECTION_RESET,
			     failure_p);
	return lost;
}

int rmx_ucx_poll(struct rmaext_fabric *f, struct rmx_completion *done,
		 struct rmaext_error *failure)
{
	struct rmx_endpoint *e = f->endpoint;
	struct rmx_ucx_call *call;
	unsigned int turns = 0, moved;
	int n = 0;

	pthread_mutex_lock(&e->lock);
	e->armed = false;
	do {
		moved = e->ucp->worker_progress(e->worker);
		rmx_ucx_settle(e);
	} while (moved && !e->done.first && ++turns < RMX_TURNS);
	while (n < RMX_POLL_MOST && (call = rmx_ucx_take(&e->done))) {
		done[n++] = (struct rmx_completion){call, call->len};
		if (call->status) {
			failure_fill(e->ucp, call->name, call->status, failure);
			/* so some devices end what a lost connection had */
			if (call->status == UCS_ERR_IO_ERROR &&
			    rmx_ucx_lost(call))
				failure->code = -FI_ECONNRESET;
			break;
		}
	}
	/* after the answers that had come by it */
	if (e->lost && n < RMX_POLL_MOST && !e->done.first && !failure->code) {
		e->lost = false;
		done[n++] = (struct rmx_completion){NULL, 0};
		failure->code = -FI_ECONNRESET;
	}
	pthread_mutex_unlock(&e->lock);
	return n;
}

/*
 * UCX wants a call of progress that moved nothing before the reader sleeps, and
 * a poll ends before that once it has something. A call after the arming finds
 * what would otherwise wait for the next event.
 */
bool rmx_ucx_arm(struct rmaext_fabric *f)
{
	struct rmx_endpoint *e = f->endpoint;
	bool quiet;

	pthread_mutex_lock(&e->lock);
	quiet = !e->done.first && !e->due && !e->lost &&
		!e->ucp->worker_arm(e->worker);
	if (quiet) {
		quiet = !e->ucp->worker_progress(e->worker) && !e->due;
		rmx_ucx_settle(e);
		quiet = quiet && !e->done.first && !e->due && !e->lost;
	}
	e->armed = quiet;
	pthread_mutex_unlock(&e->lock);
	return quiet;
}
