/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for other jobs: the grants of an owner, and the windows of clients.
 * See am/client.c.
 */
#include "api/api.h"

/* Does the endpoint's address fit in a ticket, and an introduction? */
static int address_fits(const struct rmaext_fabric *f, const char *call)
{
	const size_t room = sizeof(((struct rmx_introduction *)0)->address);

	if (f->address_len <= room)
		return 0;
	return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, call,
			"the endpoint's address has %zu bytes, and between "
			"jobs there is room for %zu: let UCX_NET_DEVICES name "
			"fewer devices",
			f->address_len, room);
}

/* -- owner */

int rmaext_clients_admit(rmaext_fabric *f, const uint8_t *secret)
{
	int ret = rmx_fabric_enter(f, "rmaext_clients_admit");

	if (ret)
		return ret;
	ret = address_fits(f, "rmaext_clients_admit");
	if (ret)
		goto leave;
	pthread_mutex_lock(&f->lock);
	memcpy(f->am->secret, secret, sizeof(f->am->secret));
	pthread_mutex_unlock(&f->lock);
leave:
	rmx_fabric_leave(f);
	return ret;
}

int rmaext_grant_open(rmaext_fabric *f, rmaext_window *of,
		      const struct rmaext_grant *grant, rmaext_window **grant_p)
{
	struct rmaext_window *w;
	int ret = rmx_fabric_enter(f, "grant");

	if (ret)
		return ret;
	ret = rmx_window_part(of, grant, &w);
	if (!ret) {
		w->invites = true;
		rmx_admission_clients(&f->admission, 1);
		rmx_serve_window(f, w);
		*grant_p = w;
	}
	rmx_fabric_leave(f);
	return ret;
}

/* -- client */

int rmaext_client_open(rmaext_fabric *f, const struct rmaext_client *client,
		       rmaext_window **window_p)
{
	const uint8_t access = (uint8_t)client->access;
	const uint8_t align = (uint8_t)client->align, route = RMAEXT_FABRIC;
	void *map = NULL;
	struct rmaext_targets targets = {
		.token = client->token,
		.same = RMAEXT_SAME,
		.size = &client->size,
		.access = &access,
		.align = &align,
		.route = &route,
		.map = &map,
		.secret = client->secret,
	};
	int ret = address_fits(f, "rmaext_client_open");

	if (!ret)
		ret = rmaext_members_new(1, 0, &client->owner, NULL, NULL,
					 &targets.members);
	if (ret)
		return ret;
	ret = rmaext_window_create(f, &targets, client->timeout, window_p);
	rmaext_members_release(targets.members);
	return ret;
}

/* A put of nothing: its message has the introduction, see send_queue.c. */
int rmaext_client_announce(rmaext_window *w)
{
	struct rmaext_op *op;
	int ret = rmx_window_enter(w, "attach");

	if (ret)
		return ret;
	ret = rmx_message_put(w, &(struct rmaext_call){.kind = RMAEXT_PUT},
			      &op);
	rmx_window_leave(w);
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, RMX_SLICE);
	rmaext_op_release(&op);
	return ret;
}
