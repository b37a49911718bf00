/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for other jobs. Its owner opens the door of an endpoint, which is a
 * secret, and has a window for each grant, with a token of its own; the origins
 * of that window are no ranks. A process of another job, a guest, sends its
 * card first. The card has the secret of the door, and the guest's address,
 * without which nobody could answer it.
 *
 * All that a guest does comes as a message, which is checked in full and has no
 * other rights than the grant's. So the owner ends a grant by itself, at any
 * time, and refuses what comes later. A write by key, once the key is gone,
 * would land, be lost together with the next good one, or cost the connection
 * (tcp;ofi_rxm).
 *
 * Each card may cost the owner a peer, which stays. So there are RMX_GUESTS at
 * most, and none that does not know the secret of the door.
 */
#include "am/am.h"

#define RMX_GUESTS 1024

/* -- guest */

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

static void guest_admit(struct rmaext_fabric *f, const struct rmx_card *card)
{
	const uint64_t name = rmx_name(card->address, card->len);
	struct rmaext_peer *peer;
	bool welcome;

	pthread_mutex_lock(&f->lock);
	welcome = rmx_same_token(f->am->door, card->door) &&
		  f->am->guests < RMX_GUESTS;
	for (peer = f->peers; peer && peer->name != name;)
		peer = peer->next;
	pthread_mutex_unlock(&f->lock);
	if (welcome && !peer &&
	    !rmx_peer_add(f, card->address, card->len, -1, &peer))
		f->am->guests++;
}

/* The end of the request may be any bytes. */
void rmx_card_take(struct rmaext_fabric *f, struct rmx_receive_buffer *message)
{
	struct rmx_request_header q;
	struct rmx_card card;

	if (message->len < sizeof(q) + sizeof(card))
		return;
	memcpy(&q, message->data, sizeof(q));
	if (q.visits != RMX_WITH_CARD)
		return;
	message->len -= sizeof(card);
	memcpy(&card, message->data + message->len, sizeof(card));
	if (card.len <= sizeof(card.address))
		guest_admit(f, &card);
}
