/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for other jobs. Its owner gives an endpoint a secret that admits
 * clients, and has a window for each grant, with a token of its own; the
 * origins of that window are no ranks. A process of another job, a client,
 * sends its introduction first. That has the endpoint's secret, and the
 * client's address, without which nobody could answer it.
 *
 * All that a client does comes as a message, which is checked in full and has
 * no other rights than the grant's. So the owner ends a grant by itself, at any
 * time, and refuses what comes later. A write by key, once the key is gone,
 * would land, be lost together with the next good one, or cost the connection
 * (tcp;ofi_rxm).
 *
 * The owner answers a client from a place, of which there are RMX_CLIENTS. One
 * who comes with the token of a grant that lives gets a place. Nobody says when
 * a client has ended, so a client repeats its introduction every now and then
 * while it sends requests, and the place of one that was silent for longer is
 * another's if none is free.
 *
 * One who comes too late, or finds no place, is told so, as it knows the secret
 * still: RMX_TURNED such answers are on their way at a time. The address in an
 * introduction may be anybody's, and nobody may answer there. So replies to
 * clients that the provider does not take are few, and are dropped after a
 * while; and after one to somebody without a place, that connection attempt
 * counts for longer.
 */
#include "am/am.h"

#include <netinet/in.h>

#define RMX_SECOND ((int64_t)1000 * 1000 * 1000)
#define RMX_CLIENTS 1024
#define RMX_TURNED 4
/* ns between two introductions of a client */
#define RMX_INTRODUCTION_EVERY RMX_SECOND
#define RMX_SILENT (4 * RMX_SECOND)   /* ns after which a place may be taken */
#define RMX_UNSENT (10 * RMX_SECOND)  /* ns that a reply to a client waits */
#define RMX_UNHEARD (30 * RMX_SECOND) /* ns that one in vain counts as sent */

/* -- client */

size_t rmx_introduction_write(const struct rmaext_window *w,
			      struct rmaext_peer *peer, char *at)
{
	struct rmx_introduction introduction = {.len = 0};
	const size_t len = w->fabric->address_len;

	memcpy(introduction.secret, w->secret, sizeof(introduction.secret));
	if (len <= sizeof(introduction.address)) {
		memcpy(introduction.address, w->fabric->address, len);
		introduction.len = (uint16_t)len;
	}
	memcpy(at, &introduction, sizeof(introduction));
	peer->line->introduction = rmx_now();
	return sizeof(introduction);
}

bool rmx_introduction_due(const struct rmaext_window *w,
			  const struct rmaext_peer *peer)
{
	const int64_t last = peer->line->introduction;

	return w->is_client && last &&
	       rmx_now() - last > RMX_INTRODUCTION_EVERY;
}

/* -- owner */

/*
 * A client of this host cannot send the owner to other hosts. Nor has an
 * address bytes of no meaning, by which it could get the name of another
 * client's.
 */
static bool introduction_is_good(struct rmaext_fabric *f,
				 const struct rmx_introduction *introduction)
{
	static const struct sockaddr_in zeros;
	struct sockaddr_storage it = {0};
	const struct sockaddr_in *in = (const void *)&it;
	const struct sockaddr_in6 *in6 = (const void *)&it;

	memcpy(&it, introduction->address,
	       introduction->len < sizeof(it) ? introduction->len : sizeof(it));
	if ((it.ss_family == AF_INET &&
	     memcmp(in->sin_zero, zeros.sin_zero, sizeof(zeros.sin_zero))) ||
	    (it.ss_family == AF_INET6 &&
	     (in6->sin6_flowinfo ||
	      (in6->sin6_scope_id && !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)))))
		return false;
	return !f->admission.one_host ||
	       rmx_admission_is_here(&f->admission, (struct sockaddr *)&it);
}

/* Does nothing wait for the client, and may its place be another's? */
static bool place_is_idle(const struct rmaext_peer *peer, int64_t now)
{
	const int64_t silent = now - peer->line->heard;
	const bool gone = atomic_load(&peer->gone);

	if (!peer->client || peer->line->replies)
		return false;
	return peer->line->turned ? !gone || silent > RMX_UNHEARD
				  : gone || silent > RMX_SILENT;
}

/* Removes the client that has been silent for longest, if it may be. */
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
	*(turned ? &f->am->turned : &f->am->clients) -= 1;
	rmx_client_remove(f, found);
}

static bool place_is_free(struct rmaext_fabric *f, bool turned, int64_t now)
{
	const struct rmx_am *am = f->am;

	if (turned ? am->turned < RMX_TURNED : am->clients < RMX_CLIENTS)
		return true;
	place_clear(f, turned, now);
	return turned ? am->turned < RMX_TURNED : am->clients < RMX_CLIENTS;
}

static bool place_give(struct rmaext_fabric *f,
		       const struct rmx_introduction *introduction, bool turned,
		       int64_t now)
{
	struct rmaext_peer *peer;

	if (!introduction_is_good(f, introduction) ||
	    !place_is_free(f, turned, now) ||
	    rmx_peer_add(f, introduction->address, introduction->len, -1, true,
			 &peer))
		return false;
	peer->line->turned = turned;
	peer->line->heard = now;
	*(turned ? &f->am->turned : &f->am->clients) += 1;
	return true;
}

/* Returns 0, or what to answer one that finds no place. */
static int client_admit(struct rmaext_fabric *f,
			const struct rmx_introduction *introduction,
			const uint8_t *token, int64_t now)
{
	const uint64_t name =
		rmx_name(introduction->address, introduction->len);
	struct rmaext_peer *peer = rmx_peer_find(f, name, true);
	const bool lives = rmx_grant_lives(f, token);
	struct rmx_am *am = f->am;

	if (peer && !peer->client) /* a rank may be a client, too */
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
		am->clients++;
		return 0;
	}
	if (lives && place_give(f, introduction, false, now))
		return 0;
	place_give(f, introduction, true, now);
	return lives ? -FI_EBUSY : 0;
}

/* The end of the request may be any bytes. */
bool rmx_introduction_take(struct rmaext_fabric *f,
			   struct rmx_receive_buffer *message)
{
	const struct rmx_request_header *q = message->request;
	struct rmx_introduction introduction;
	bool knows;

	message->refusal = 0;
	if (message->len < sizeof(*q) + sizeof(introduction) ||
	    (q->sender != RMX_WITH_INTRODUCTION &&
	     q->sender != RMX_INTRODUCTION_ALONE))
		return false;
	message->len -= sizeof(introduction);
	memcpy(&introduction, message->data + message->len,
	       sizeof(introduction));
	pthread_mutex_lock(&f->lock);
	knows = rmx_same_token(f->am->secret, introduction.secret);
	pthread_mutex_unlock(&f->lock);
	if (knows && introduction.len <= sizeof(introduction.address))
		message->refusal = client_admit(f, &introduction, q->token,
						message->since);
	return q->sender == RMX_INTRODUCTION_ALONE;
}

bool rmx_reply_is_overdue(const struct rmx_receive_buffer *message)
{
	struct rmaext_peer *peer = message->peer;
	const int64_t waited = rmx_now() - message->since;

	if (!peer->client)
		return waited > message->patience;
	if (waited > (peer->line->turned ? RMX_SECOND : RMX_UNSENT))
		atomic_store(&peer->gone, true);
	return atomic_load(&peer->gone) || peer->line->replies > RMX_CREDITS;
}
