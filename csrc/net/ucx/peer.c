/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Connections to peers, and the flushes of what was put to them. The lock of
 * the endpoint is held throughout, also by those whom UCP calls back.
 */
#include "net/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>

#define RMX_LANES 16 /* transports of a connection that are looked at */

void rmx_ucx_append(struct rmx_ucx_calls *calls, struct rmx_ucx_call *call)
{
	call->next = NULL;
	*(calls->first ? calls->end : &calls->first) = call;
	calls->end = &call->next;
}

struct rmx_ucx_call *rmx_ucx_take(struct rmx_ucx_calls *calls)
{
	struct rmx_ucx_call *call = calls->first;

	if (call)
		calls->first = call->next;
	return call;
}

void rmx_ucx_call_ended(struct rmx_ucx_call *call)
{
	struct rmx_endpoint *e = call->endpoint;

	if (!call->free || !call->applied)
		return;
	if (call->key)
		rmx_ucx_key_leave(e, call->key);
	if (call->own)
		free(call);
	else
		rmx_ucx_append(&e->done, call);
}

/* A flush has covered a write, or never will. */
static void write_ends(struct rmx_ucx_call *call, ucs_status_t status)
{
	if (!call->status)
		call->status = status;
	call->applied = true;
	rmx_ucx_call_ended(call);
}

static void peer_due(struct rmx_ucx_peer *peer)
{
	if (peer->due)
		return;
	peer->due = true;
	peer->next_due = peer->endpoint->due;
	peer->endpoint->due = peer;
}

/* -- connections */

static void peer_broke(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	struct rmx_ucx_peer *peer = arg;

	(void)status; /* each call on its way has it */
	if (ep != peer->ep)
		return; /* it is being closed */
	peer->broken = true;
	peer_due(peer);
}

/* Does the NIC carry out what goes there? *names gets its transports. */
static bool peer_has_rdma(const struct rmx_ucx_peer *peer, char *names,
			  size_t size)
{
	ucp_transport_entry_t lanes[RMX_LANES];
	ucp_ep_attr_t attr = {
		.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
		.transports = {lanes, RMX_LANES, sizeof(*lanes)},
	};
	struct rmx_text text = {.buf = names, .size = size};
	bool found = false;

	if (peer->endpoint->ucp->ep_query(peer->ep, &attr))
		attr.transports.num_entries = 0;
	for (unsigned int i = 0; i < attr.transports.num_entries; i++) {
		const char *name = lanes[i].transport_name;

		found = found || !strncmp(name, "rc", 2) ||
			!strncmp(name, "dc", 2);
		rmx_text_add(&text, "%s%s/%s", i ? ", " : "", name,
			     lanes[i].device_name);
	}
	return found;
}

int rmx_ucx_connect(const struct rmaext_fabric *f, struct rmx_ucx_peer *peer)
{
	struct rmx_endpoint *e = peer->endpoint;
	const ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
			      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
			      UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = (const ucp_address_t *)(const void *)peer->address,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler = {peer_broke, peer},
	};
	char names[sizeof(e->devices)] = "";
	ucs_status_t status;

	if (peer->broken)
		rmx_ucx_disconnect(peer);
	if (peer->ep)
		return 0;
	status = e->ucp->ep_create(e->worker, &params, &peer->ep);
	if (status) {
		peer->ep = NULL;
		return rmx_fail(rmx_ucx_code(status), RMX_NO_RANK,
				"ucp_ep_create", "%s",
				e->ucp->status_string(status));
	}
	peer->epoch++;
	if (!peer_has_rdma(peer, names, sizeof(names)) && !f->lib->any) {
		rmx_ucx_disconnect(peer);
		return rmx_fail(-FI_ENODATA, RMX_NO_RANK, "ucp_ep_create",
				"UCX reaches peers by %s only, where it has "
				"no RDMA (rc, dc): unset RMAEXT_TRANSPORT, and "
				"libfabric does it",
				*names ? names : "nothing");
	}
	memcpy(e->devices, names, sizeof(names));
	return 0;
}

bool rmx_ucx_lost(const struct rmx_ucx_call *call)
{
	const struct rmx_ucx_peer *peer = call->endpoint->peers;

	while (peer && peer != call->peer)
		peer = peer->next;
	return !peer || !peer->ep || peer->broken || peer->epoch != call->epoch;
}

/* What the connection had may have completed, well even, until now. */
static void closing_over(void *request, ucs_status_t status, void *data)
{
	struct rmx_endpoint *e = data;

	(void)status;
	e->ucp->request_free(request);
	e->lost = true;
}

void rmx_ucx_disconnect(struct rmx_ucx_peer *peer)
{
	struct rmx_endpoint *e = peer->endpoint;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
				UCP_OP_ATTR_FIELD_USER_DATA |
				UCP_OP_ATTR_FIELD_FLAGS,
		.flags = UCP_EP_CLOSE_FLAG_FORCE,
		.cb.send = closing_over,
		.user_data = e,
	};
	struct rmx_ucx_call *call;
	ucp_ep_h ep = peer->ep;

	peer->ep = NULL;
	/* its flush may end after this, and then says nothing of the next ep */
	if (peer->flushing)
		peer->flushing->peer = NULL;
	peer->flushing = NULL;
	/* no flush is to say of these that they were applied */
	while ((call = rmx_ucx_take(&peer->written)))
		write_ends(call, UCS_ERR_CONNECTION_RESET);
	if (ep) {
		e->ucp->ep_close_nbx(ep, &param);
		e->lost = true;
	}
	peer->broken = false;
}

/* -- flushes */

/*
 * A flush is known by the first of the puts that it covers. That has no peer
 * any more if the connection was closed meanwhile: there may be a new one, and
 * even the peer may have gone.
 */
static void flush_ended(struct rmx_ucx_call *call, ucs_status_t status)
{
	struct rmx_ucx_peer *peer = call->peer;
	struct rmx_ucx_call *next;

	if (!status && (!peer || peer->broken))
		status = UCS_ERR_CONNECTION_RESET;
	if (peer) {
		peer->flushing = NULL;
		/* what it did not cover must not come after what is put next */
		if (status && peer->ep)
			peer->broken = true;
		if (peer->broken || peer->written.first)
			peer_due(peer);
	}
	for (; call; call = next) {
		next = call->next;
		write_ends(call, status);
	}
}

static void flush_over(void *request, ucs_status_t status, void *data)
{
	struct rmx_ucx_call *first = data;

	first->endpoint->ucp->request_free(request);
	flush_ended(first, status);
}

void rmx_ucx_flush(struct rmx_ucx_peer *peer)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
				UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = flush_over,
		.user_data = peer->written.first,
	};
	struct rmx_ucx_call *first = peer->written.first;
	ucs_status_ptr_t request;

	if (peer->flushing || !first)
		return;
	peer->written.first = NULL;
	peer->flushing = first;
	/* without a connection: that with the puts has gone, they failed */
	request = peer->ep ? peer->endpoint->ucp->ep_flush_nbx(peer->ep, &param)
			   : (void *)(intptr_t)UCS_ERR_CONNECTION_RESET;
	if (!request || UCS_PTR_IS_ERR(request))
		flush_ended(first, UCS_PTR_STATUS(request));
}

void rmx_ucx_settle(struct rmx_endpoint *e)
{
	struct rmx_ucx_peer *peer;

	while ((peer = e->due)) {
		e->due = peer->next_due;
		peer->due = false;
		if (peer->broken)
			rmx_ucx_disconnect(peer);
		rmx_ucx_flush(peer);
	}
}
