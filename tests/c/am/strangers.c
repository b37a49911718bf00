/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What processes can do that have had a ticket, and what they must not do to
 * the owner and its peers: introductions that name any address, as many as they
 * like.
 */
#include "rig.h"
#include "net/libfabric/libfabric.h"
#include "am/am.h"

#include <arpa/inet.h>
#include <netinet/in.h>

enum { SIZE = 4096, PART = 1024, PLACES = 1024, MANY = 1100 };

static const uint8_t secret[RMX_TOKEN] = "fifteen letters";
static const uint8_t token[RMX_TOKEN] = "another fifteen";

struct attack {
	struct rig r;
	rmaext_fabric *attacker;
	rmaext_peer *owner;
	rmaext_window *granted;
	/* what the introductions name: 0 is this host's loopback, and no
	 * padding */
	uint32_t host;
	uint8_t padding;
};

static void attack_open(struct attack *a)
{
	const struct rmaext_grant it = {token, 0, PART, RMAEXT_READ};

	rig_open(&a->r, (struct rig_options){
				.size = SIZE, .two = true, .served = true});
	OK(rmaext_grant_open(a->r.target, a->r.there, &it, &a->granted));
	OK(rmaext_clients_admit(a->r.target, secret));
	a->attacker = fabric_open(true, false);
	a->owner = peer_of(a->attacker, a->r.target);
}

static void attack_revoke(struct attack *a)
{
	OK(rmaext_window_close(a->granted));
	rmaext_window_free(a->granted);
	a->granted = NULL;
}

static void attack_close(struct attack *a)
{
	OK(rmaext_fabric_close(&a->attacker));
	if (a->granted)
		attack_revoke(a);
	rig_close(&a->r);
}

static struct sockaddr_in address_of(const struct attack *a, unsigned int port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(a->host ? a->host : INADDR_LOOPBACK),
		.sin_zero = {a->padding},
	};
}

/* An announcement whose answer is to go to a port where nobody listens. */
static void introduction_send(struct attack *a, unsigned int port)
{
	static char message[8192][sizeof(struct rmx_request_header) +
				  sizeof(struct rmx_item) +
				  sizeof(struct rmx_introduction)];
	static unsigned int count;
	const struct sockaddr_in address = address_of(a, port);
	struct rmx_request_header q = {
		.magic = RMX_REQUEST,
		.name = rmx_name(&address, sizeof(address)),
		.rank = UINT32_MAX,
		.count = 1,
		.sender = RMX_WITH_INTRODUCTION,
	};
	const struct rmx_item row = {.unit = 1, .form = RMX_ROW};
	struct rmx_introduction introduction = {.len = sizeof(address)};
	char *at = message[count++ % COUNT(message)];
	ssize_t ret;

	memcpy(q.token, token, sizeof(q.token));
	memcpy(introduction.secret, secret, sizeof(introduction.secret));
	memcpy(introduction.address, &address, sizeof(address));
	memcpy(at, &q, sizeof(q));
	memcpy(at + sizeof(q), &row, sizeof(row));
	memcpy(at + sizeof(q) + sizeof(row), &introduction,
	       sizeof(introduction));
	for (int64_t end = now() + 5 * SECOND;;) {
		ret = fi_send(a->attacker->endpoint->ep, at, sizeof(message[0]),
			      NULL, a->owner->addr, at);
		if (ret != -FI_EAGAIN || now() > end)
			break; /* the owner may be deaf by now */
		nap(1e-5);
	}
}

/* An honest client comes; what becomes of its announcement. */
static int become_client(const struct attack *a, rmaext_fabric *f,
			 double seconds)
{
	struct rmaext_client it = {
		.owner = peer_of(f, a->r.target),
		.token = token,
		.secret = secret,
		.size = PART,
		.access = RMAEXT_READ,
		.timeout = (int64_t)(seconds * 1e9),
	};
	rmaext_window *w;
	uint64_t got;
	int ret;

	OK(rmaext_client_open(f, &it, &w));
	OK(rmaext_client_announce(w));
	ret = flush_for(w, 0, seconds);
	if (!ret)
		ret = get(w, 0, &got, sizeof(got));
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	return ret;
}

static void peers_go_on(struct attack *a)
{
	const int64_t start = now();
	uint64_t word = 7, got = 0;

	for (int i = 0; i < 100; i++) {
		OK(put(a->r.window, 8, &word, sizeof(word)));
		OK(flush_for(a->r.window, 0, 5));
		OK(fetch_add(a->r.window, 16, RMAEXT_UINT64, &word, &got, 1));
	}
	CHECK(now() - start < 8 * SECOND);
}

/* Sends a introduction. Has it got a place, once a later one has? */
static bool gets_place(struct attack *a, uint32_t host, uint8_t padding)
{
	const int64_t end = now() + 20 * SECOND;
	static unsigned int port = 40000;
	struct sockaddr_in it, later;

	a->host = host;
	a->padding = padding;
	it = address_of(a, ++port);
	introduction_send(a, port);
	a->host = 0;
	a->padding = 0;
	later = address_of(a, ++port);
	introduction_send(a, port);
	while (!rmx_peer_find(a->r.target, rmx_name(&later, sizeof(later)),
			      true)) {
		CHECK(now() < end);
		nap(1e-3);
	}
	return rmx_peer_find(a->r.target, rmx_name(&it, sizeof(it)), true);
}

/*
 * A name is a hash of an address: bytes without a meaning could give it that of
 * another client. And an endpoint for this host answers nobody elsewhere.
 */
static void addresses(void)
{
	struct attack a = {.padding = 0};

	attack_open(&a);
	CHECK(gets_place(&a, 0, 0));
	CHECK(!gets_place(&a, 0, 1));
	CHECK(gets_place(&a, 0x0a090909, 0));
	a.r.target->admission.one_host = true;
	CHECK(!gets_place(&a, 0x0a090909, 0));
	CHECK(gets_place(&a, 0, 0));
	attack_close(&a);
}

/* Answers that cannot be sent keep no buffers from the owner's peers. */
static void refusing(bool revoked)
{
	struct attack a = {.padding = 0};

	attack_open(&a);
	peers_go_on(&a);
	if (revoked)
		attack_revoke(&a);
	for (int i = 0; i < 60; i++)
		introduction_send(&a, 1);
	nap(0.3);
	peers_go_on(&a);
	attack_close(&a);
}

static void refusing_revoked(void)
{
	refusing(true);
}

static void refusing_granted(void)
{
	refusing(false);
}

/* Introductions of a ticket that was revoked take nobody's place. */
static void places_revoked(void)
{
	const struct rmaext_grant it = {secret, 0, PART, RMAEXT_READ};
	rmaext_window *other;
	struct attack a = {.padding = 0};
	struct rmaext_client other_client;
	rmaext_fabric *f;
	rmaext_window *w;

	attack_open(&a);
	OK(rmaext_grant_open(a.r.target, a.r.there, &it, &other));
	attack_revoke(&a);
	f = fabric_open(true, false);
	/* one who comes too late is told so */
	EQUAL(become_client(&a, f, 5), -FI_ESHUTDOWN);
	for (unsigned int i = 0; i < MANY; i++)
		introduction_send(&a, 1 + i);
	nap(0.3);
	other_client = (struct rmaext_client){
		.owner = peer_of(f, a.r.target),
		.token = secret,
		.secret = secret,
		.size = PART,
		.access = RMAEXT_READ,
		.timeout = 5 * SECOND,
	};
	OK(rmaext_client_open(f, &other_client, &w));
	OK(rmaext_client_announce(w));
	OK(flush_for(w, 0, 5));
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	peers_go_on(&a);
	OK(rmaext_fabric_close(&f));
	OK(rmaext_window_close(other));
	rmaext_window_free(other);
	attack_close(&a);
}

/* Who finds no place is told so; places of those that are gone come back. */
static void places_granted(void)
{
	rmaext_fabric *f;
	struct attack a = {.padding = 0};
	int ret;

	attack_open(&a);
	for (unsigned int i = 0; i < PLACES; i++)
		introduction_send(&a, 1 + i);
	peers_go_on(&a);
	f = fabric_open(true, false);
	ret = become_client(&a, f, 5);
	CHECK(!ret || ret == -FI_EBUSY);
	for (int64_t end = now() + 20 * SECOND; ret && now() < end; nap(0.2))
		ret = become_client(&a, f, 5);
	OK(ret);
	EQUAL(a.r.target->am->clients, PLACES);
	OK(rmaext_fabric_close(&f));
	attack_close(&a);
}

/*
 * The place of a client that is silent is another's; its next introduction
 * brings one back.
 */
static void place_taken(void)
{
	struct rmaext_client it = {
		.token = token,
		.secret = secret,
		.size = PART,
		.access = RMAEXT_READ,
		.timeout = 5 * SECOND,
	};
	struct attack a = {.padding = 0};
	rmaext_fabric *f;
	rmaext_window *w;
	int64_t end;
	uint64_t got;
	int ret;

	attack_open(&a);
	f = fabric_open(true, false);
	it.owner = peer_of(f, a.r.target);
	OK(rmaext_client_open(f, &it, &w));
	OK(rmaext_client_announce(w));
	OK(flush_for(w, 0, 5));
	nap(4.5);
	for (unsigned int i = 0; i < PLACES; i++)
		introduction_send(&a, 1 + i);
	nap(10.5); /* until those who have the places now may lose them */
	ret = get(w, 0, &got, sizeof(got));
	for (end = now() + 20 * SECOND; ret && now() < end; nap(1.1)) {
		CHECK(ret == -FI_EBUSY); /* the owner has heard them later */
		ret = get(w, 0, &got, sizeof(got));
	}
	OK(ret);
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	OK(rmaext_fabric_close(&f));
	attack_close(&a);
}

/* Honest processes, one after another, and more of them than places. */
static void sequence(void)
{
	struct attack a = {.padding = 0};

	attack_open(&a);
	a.r.target->am->clients = PLACES - 8;
	for (int i = 0; i < 24; i++) {
		rmaext_fabric *f = fabric_open(true, false);
		int ret = become_client(&a, f, 5);

		for (int64_t end = now() + 8 * SECOND; ret && now() < end;
		     nap(0.2))
			ret = become_client(&a, f, 5);
		OK(ret);
		OK(rmaext_fabric_close(&f));
	}
	peers_go_on(&a);
	attack_close(&a);
}

const struct test tests[] = {
	{"addresses", addresses, NULL, NULL},
	{"refusing_revoked", refusing_revoked, NULL, NULL},
	{"refusing_granted", refusing_granted, NULL, NULL},
	{"places_revoked", places_revoked, NULL, NULL},
	{"places_granted", places_granted, NULL, NULL},
	{"place_taken", place_taken, NULL, NULL},
	{"sequence", sequence, NULL, NULL},
	{0},
};
