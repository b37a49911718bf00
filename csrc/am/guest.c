/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for other jobs. Its owner opens the door of an endpoint, and has a
 * window for each grant, with a token of its own, whose origins are no ranks.
 * One of another job, a guest, sends its card first: the secret of the door,
 * and its own address, without which nobody could answer it.
 *
 * All that a guest does comes as a message, which is checked in full, and has
 * no other right than the grant's: so the owner ends a grant by itself, at any
 * time, and what comes later is refused. A write by key would land, be lost
 * with the next good one, or cost the connection (tcp;ofi_rxm), once the key is
 * gone.
 *
 * Each card may cost the owner a peer, which stays: there are RMX_GUESTS at
 * most, and none without the secret of the door.
 */
#include "am/am.h"

#define RMX_GUESTS 1024

int rmaext_door_open(rmaext_fabric *f, const uint8_t *secret)
{
	int ret = rmx_fabric_enter(f, "rmaext_door_open");

	if (ret)
		return ret;
	pthread_mutex_lock(&f->lock);
	memcpy(f->door, secret, sizeof(f->door));
	pthread_mutex_unlock(&f->lock);
	rmx_fabric_leave(f);
	return 0;
}

/* -- guest */

int rmaext_visit_open(rmaext_fabric *f, const struct rmaext_visit *visit,
		      rmaext_window **window_p)
{
	const uint8_t access = (uint8_t)visit->access;
	const uint8_t align = (uint8_t)visit->align, route = RMAEXT_FABRIC;
	void *map = NULL;
	struct rmaext_targets targets = {
		.token = visit->token,
		.same = RMAEXT_SAME,
		.size = &visit->size,
		.access = &access,
		.align = &align,
		.route = &route,
		.map = &map,
		.door = visit->door,
	};
	int ret = rmaext_members_new(1, 0, &visit->owner, NULL, NULL,
				     &targets.members);

	if (ret)
		return ret;
	ret = rmaext_window_create(f, &targets, visit->timeout, window_p);
	rmaext_members_release(targets.members);
	return ret;
}

/* A put of nothing; see send_short(). */
int rmaext_visit_announce(rmaext_window *w)
{
	struct rmaext_op *op;
	int ret = rmx_window_enter(w, "attach");

	if (ret)
		return ret;
	ret = rmx_message_put(w, 0, 0, NULL, 0, -1, &op);
	rmx_window_leave(w);
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op);
	if (op)
		rmaext_op_release(&op);
	return ret;
}

size_t rmx_card_write(const struct rmaext_window *w, char *at)
{
	struct rmx_card card = {.len = 0};
	size_t len = sizeof(card.address);

	memcpy(card.door, w->door, sizeof(card.door));
	if (!fi_getname(&w->fabric->ep->fid, card.address, &len))
		card.len = (uint16_t)len;
	memcpy(at, &card, sizeof(card));
	return sizeof(card);
}

/* -- owner */

static void admit(struct rmaext_fabric *f, const struct rmx_card *card)
{
	const uint64_t name = rmx_name(card->address, card->len);
	struct rmaext_peer *peer;
	bool welcome;

	pthread_mutex_lock(&f->lock);
	welcome = rmx_same_token(f->door, card->door) && f->guests < RMX_GUESTS;
	for (peer = f->peers; peer && peer->name != name;)
		peer = peer->next;
	pthread_mutex_unlock(&f->lock);
	if (welcome && !peer &&
	    !rmx_peer_add(f, card->address, card->len, -1, &peer))
		f->guests++;
}

/* The card at the end of a request, if there is one: any bytes at all. */
void rmx_card_take(struct rmaext_fabric *f, struct rmx_landing *landing)
{
	struct rmx_request q;
	struct rmx_card card;

	if (landing->len < sizeof(q) + sizeof(card))
		return;
	memcpy(&q, landing->data, sizeof(q));
	if (q.visits != RMX_WITH_CARD)
		return;
	landing->len -= sizeof(card);
	memcpy(&card, landing->data + landing->len, sizeof(card));
	if (card.len <= sizeof(card.address))
		admit(f, &card);
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
		rmx_window_link(w, f);
		*grant_p = w;
	}
	rmx_fabric_leave(f);
	return ret;
}
