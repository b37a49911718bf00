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
 * The owner answers a guest from a place, of which there are RMX_GUESTS. One
 * who comes with the token of a grant that lives gets a place. Nobody says when
 * a guest has ended, so a guest repeats its card every now and then while it
 * sends requests, and the place of one that was silent for longer is another's
 * if none is free.
 *
 * One who comes too late, or finds no place, is told so, as it knows the door
 * still: RMX_TURNED such answers are on their way at a time. The address in a
 * card may be anybody's, and nobody may answer there. So replies to guests that
 * the provider does not take are few, and are dropped after a while; and after
 * one to somebody without a place, that connection attempt counts for longer.
 */
#include "am/am.h"

#include <netinet/in.h>

#define RMX_SECOND ((int64_t)1000 * 1000 * 1000)
#define RMX_GUESTS 1024
#define RMX_TURNED 4
#define RMX_CARD_EVERY RMX_SECOND     /* ns between two cards of a guest */
#define RMX_SILENT (4 * RMX_SECOND)   /* ns after which a place may be taken */
#define RMX_UNSENT (10 * RMX_SECOND)  /* ns that a reply to a guest waits */
#define RMX_UNHEARD (30 * RMX_SECOND) /* ns that one in vain counts as sent */

/* -- guest */

size_t rmx_card_write(const struct rmaext_window *w, struct rmaext_peer *peer,
		      char *at)
{
	struct rmx_card card = {.len = 0};
	const size_t len = w->fabric->address_len;

	memcpy(card.door, w->door, sizeof(card.door));
	if (len <= sizeof(card.address)) {
		memcpy(card.address, w->fabric->address, len);
		card.len = (uint16_t)len;
	}
	memcpy(at, &card, sizeof(card));
	peer->line->card = rmx_now();
	return sizeof(card);
}

bool rmx_card_due(const struct rmaext_window *w, const struct rmaext_peer *peer)
{
	const int64_t last = peer->line->card;

	return w->visits && last && rmx_now() - last > RMX_CARD_EVERY;
}

/* -- owner */

/*
 * A guest of this host cannot send the owner to other hosts. Nor has an address
 * bytes of no meaning, by which it could get the name of another guest's.
 */
static bool card_is_good(struct rmaext_fabric *f, const struct rmx_card *card)
{
	static const struct sockaddr_in zeros;
	struct sockaddr_storage it = {0};
	const struct sockaddr_in *in = (const void *)&it;
	const struct sockaddr_in6 *in6 = (const void *)&it;

	memcpy(&it, card->address,
	       card->len < sizeof(it) ? card->len : sizeof(it));
	if ((it.ss_family == AF_INET &&
	     memcmp(in->sin_zero, zeros.sin_zero, sizeof(zeros.sin_zero))) ||
	    (it.ss_family == AF_INET6 &&
	     (in6->sin6_flowinfo ||
	      (in6->sin6_scope_id && !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)))))
		return false;
	return !f->admission.one_host ||
	       rmx_admission_is_here(&f->admission, (struct sockaddr *)&it);
}

/* Does nothing wait for the guest, and may its place be another's? */
static bool place_is_idle(const struct rmaext_peer *peer, int64_t now)
{
	const int64_t silent = now - peer->line->heard;
	const bool gone = atomic_load(&peer->gone);

	if (!peer->guest || peer->line->replies)
		return false;
	return peer->line->turned ? !gone || silent > RMX_UNHEARD
				  : gone || silent > RMX_SILENT;
}

/* Removes the guest that has been silent for the longest time, if it may be. */
static void place_clear(struct rmaext_fabric *f, bool turned, int64_t now)
{
	struct rmaext_peer *found = NULL;

	pthread_mutex_lock(&f->lock);
	for (struct rmaext_peer *p = f->peers; p; p = p->next)
		if (place_is_idle(p, now) && p->line->turned == turned &&
		    (!found || p->line->heard < found->line->heard))
			found = p;
	pthread_mutex_unlock(&f->lock);
	if (!found)
		return;
	*(turned ? &f->am->turned : &f->am->guests) -= 1;
	rmx_guest_remove(f, found);
}

static bool place_is_free(struct rmaext_fabric *f, bool turned, int64_t now)
{
	const struct rmx_am *am = f->am;

	if (turned ? am->turned < RMX_TURNED : am->guests < RMX_GUESTS)
		return true;
	place_clear(f, turned, now);
	return turned ? am->turned < RMX_TURNED : am->guests < RMX_GUESTS;
}

static bool place_give(struct rmaext_fabric *f, const struct rmx_card *card,
		       bool turned, int64_t now)
{
	struct rmaext_peer *peer;

	if (!card_is_good(f, card) || !place_is_free(f, turned, now) ||
	    rmx_guest_add(f, card->address, card->len, &peer))
		return false;
	peer->line->turned = turned;
	peer->line->heard = now;
	*(turned ? &f->am->turned : &f->am->guests) += 1;
	return true;
}

/* Returns 0, or what to answer one that finds no place. */
static int guest_admit(struct rmaext_fabric *f, const struct rmx_card *card,
		       const uint8_t *token, int64_t now)
{
	const uint64_t name = rmx_name(card->address, card->len);
	struct rmaext_peer *peer = rmx_peer_find(f, name, true);
	const bool lives = rmx_grant_lives(f, token);
	struct rmx_am *am = f->am;

	if (peer && !peer->guest) /* a rank may be a guest, too */
		return 0;
	if (peer) {
		atomic_store(&peer->gone, false);
		peer->line->heard = now;
		if (!lives || !peer->line->turned)
			return 0;
		if (!place_is_free(f, false, now))
			return -FI_EBUSY;
		peer->line->turned = false;
		am->turned--;
		am->guests++;
		return 0;
	}
	if (lives && place_give(f, card, false, now))
		return 0;
	place_give(f, card, true, now);
	return lives ? -FI_EBUSY : 0;
}

/* The end of the request may be any bytes. */
bool rmx_card_take(struct rmaext_fabric *f, struct rmx_receive_buffer *message)
{
	struct rmx_request_header q;
	struct rmx_card card;
	bool knows;

	message->refusal = 0;
	if (message->len < sizeof(q) + sizeof(card))
		return false;
	memcpy(&q, message->data, sizeof(q));
	if (q.visits != RMX_WITH_CARD && q.visits != RMX_CARD_ALONE)
		return false;
	message->len -= sizeof(card);
	memcpy(&card, message->data + message->len, sizeof(card));
	pthread_mutex_lock(&f->lock);
	knows = rmx_same_token(f->am->door, card.door);
	pthread_mutex_unlock(&f->lock);
	if (knows && card.len <= sizeof(card.address))
		message->refusal =
			guest_admit(f, &card, q.token, message->since);
	return q.visits == RMX_CARD_ALONE;
}

bool rmx_reply_is_overdue(const struct rmx_receive_buffer *message)
{
	struct rmaext_peer *peer = message->peer;
	const int64_t waited = rmx_now() - message->since;

	if (!peer->guest)
		return waited > message->patience;
	if (waited > (peer->line->turned ? RMX_SECOND : RMX_UNSENT))
		atomic_store(&peer->gone, true);
	return atomic_load(&peer->gone) || peer->line->replies > RMX_CREDITS;
}
