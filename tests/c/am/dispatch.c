/* SPDX-License-Identifier: BSD-3-Clause */
/* What a target makes of messages: refused, early, malformed, too long. */
#include "pair.h"
#include "net/libfabric/libfabric.h"

#include <arpa/inet.h>
/* -- refusals by the target */

static void refused_there(void)
{
	static const uint8_t other[RMX_TOKEN] = "some other name";
	const int64_t far = SIZE / 8, zero = 0;
	uint64_t value = 1;
	rmaext_window *w;
	struct pair p;

	pair_open(&p, (struct rig_options){.shift = 4});
	w = here(&p, (struct lie){.size = 2 * SIZE});
	EQUAL(many(w, RMAEXT_PUT, 0, 8, 1, &far, &value, NULL), -ERANGE);
	EQUAL(many(w, RMAEXT_GET, 0, 8, 1, &far, NULL, &value), -ERANGE);
	EQUAL(add(w, 0, 1), -FI_EFAULT); /* the shift */
	drop_window(w);
	w = here(&p, (struct lie){.token = other, .timeout = 0.3});
	EQUAL(many(w, RMAEXT_PUT, 0, 8, 1, &zero, &value, NULL), -FI_ETIMEDOUT);
	drop_window(w);
	drop_window(p.there);
	p.there = window_of(p.r.target, peer_of(p.r.target, p.r.origin), &p.r,
			    (struct lie){.access = RMAEXT_READ});
	EQUAL(many(p.r.window, RMAEXT_PUT, 0, 8, 1, &zero, &value, NULL),
	      -FI_EACCES);
	OK(rmaext_window_close(p.there));
	EQUAL(many(p.r.window, RMAEXT_GET, 0, 8, 1, &zero, NULL, &value),
	      -FI_ESHUTDOWN);
	rmaext_window_free(p.there);
	p.there = NULL;
	for (size_t i = 0; i < p.r.size; i++)
		EQUAL(p.r.window_memory[i], 0);
	pair_close(&p);
}

/* A message by hand: headers, two offsets, two values. */
struct message {
	struct rmx_request_header q;
	struct rmx_item it;
	uint64_t offsets[2], values[2];
	char more[RMX_MESSAGE];
};

static void raw(struct pair *p, const void *message, size_t len)
{
	struct rmaext_fabric *f = p->r.origin;
	int ret;

	do {
		ret = (int)fi_send(f->endpoint->ep, message, len, NULL,
				   p->r.peer->addr, NULL);
		rmaext_fabric_progress(f, 20000);
	} while (ret == -FI_EAGAIN);
	OK(ret);
}

/* Requests come before their window does; they are carried out in order. */
static void early(void)
{
	static uint8_t token[RMX_TOKEN] = "the next one";
	static int64_t offsets[N];
	static uint64_t values[N];
	const int64_t rank = 0;
	struct many_state state;
	rmaext_window *next, *there;
	struct pair p;
	int ret;

	for (int k = 0; k < N; k++)
		values[k] = (uint64_t)k;
	pair_open(&p, (struct rig_options){0});
	OK(add(p.r.window, 1, 1));
	for (int i = 0; i < 3; i++) {
		token[15]++;
		next = here(&p, (struct lie){.token = token});
		offsets[0] = 2; /* the rest to 0 */
		values[0] = (uint64_t)i;
		ret = many_begin(next, RMAEXT_PUT, RMAEXT_SUM, 0, 8, N,
				 RMAEXT_ONE_RANK, &rank, offsets, values, NULL,
				 &state);
		EQUAL(ret, RMAEXT_PENDING);
		EQUAL(((uint64_t *)p.r.window_memory)[2], i ? i - 1 : 0);
		there = window_of(
			p.r.target, peer_of(p.r.target, p.r.origin), &p.r,
			(struct lie){.route = RMAEXT_DIRECT, .token = token});
		while (ret == RMAEXT_PENDING)
			ret = many_wait(&state);
		OK(ret);
		EQUAL(((uint64_t *)p.r.window_memory)[0], N - 1);
		EQUAL(((uint64_t *)p.r.window_memory)[2], i);
		drop_window(there);
		drop_window(next);
	}
	pair_close(&p);
}

/*
 * Many origins are early; the others go on. What waits is looked at now and
 * then, each with those of its own origin only: the time of the CPU tells
 * otherwise. They wait for 10 s, so on a slow machine the rounds are fewer.
 */
static void many_early(void)
{
	enum { ORIGINS = 450, EACH = 4, ROUNDS = 3000, FEWEST = 100 };
	struct message m = {
		.q = {.magic = RMX_REQUEST,
		      .token = "it never comes",
		      .count = 1},
		.it = {.form = RMX_ELEMENTS, .count = 1, .unit = 8},
	};
	rmaext_peer *peer;
	char address[256];
	size_t len = sizeof(address);
	int64_t start;
	struct pair p;
	clock_t spent;
	int n = 0;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	OK(add(p.r.window, 0, 1));
	OK(rmaext_fabric_address(p.r.origin, address, &len));
	start = now();
	for (int i = 0; i < ORIGINS; i++) {
		/* of a sockaddr_in */
		const uint32_t host = htonl(0x7f010000u + (uint32_t)i);

		memcpy(address + 4, &host, sizeof(host));
		OK(rmaext_peer_add(p.r.target, address, len, -1, &peer));
		m.q.name = rmx_name(address, len);
		for (int k = 0; k < EACH; k++)
			raw(&p, &m, offsetof(struct message, values));
	}
	OK(add(p.r.window, 0, 1)); /* all have come */
	spent = clock();
	for (; n < FEWEST || (n < ROUNDS && now() < start + 5 * SECOND); n++)
		OK(add(p.r.window, 0, 1));
	spent = clock() - spent;
	EQUAL(*(uint64_t *)p.r.window_memory, n + 2);
	serve_stop(&p);
	if (now() < start + 9 * SECOND)
		EQUAL(p.r.target->am->early_count, ORIGINS * EACH);
	CHECK(spent / n < CPU_LIMIT * CLOCKS_PER_SEC / ROUNDS);
	pair_close(&p);
}

static void malformed(void)
{
	static struct message m, good, loops;
	struct pair p;
	uint64_t *cells;
	uint32_t seed = 1;
	struct rmx_sum sum;

	pair_open(&p, (struct rig_options){0});
	cells = (uint64_t *)p.r.window_memory;
	OK(add(p.r.window, 0, 0));
	good = (struct message){
		.q = {.magic = RMX_REQUEST,
		      .id = 4000,
		      .name = p.r.origin->am->name,
		      .count = 1},
		.it = {.form = RMX_ELEMENTS,
		       .kind = RMAEXT_UPDATE,
		       .op = RMAEXT_SUM,
		       .type = RMAEXT_UINT64,
		       .count = 2,
		       .unit = 8},
		.offsets = {8, 16},
		.values = {5, 6},
	};
	memcpy(good.q.token, secret, sizeof(secret));
	const size_t len = offsetof(struct message, more);

	/* nothing but the window would limit a row that does nothing */
	m = good;
	m.it.form = RMX_ROW;
	m.it.op = RMAEXT_NO_OP;
	EQUAL(rmx_items_check(p.there, (char *)&m,
			      offsetof(struct message, offsets), &sum),
	      -FI_EINVAL);
	m.it.flags = RMX_WITH_FETCH;
	OK(rmx_items_check(p.there, (char *)&m,
			   offsetof(struct message, offsets), &sum));

#define BAD(length, ...)                       \
	do {                                   \
		m = good;                      \
		__VA_ARGS__;                   \
		raw(&p, &m, length);           \
		OK(add(p.r.window, 0, 1));     \
		EQUAL(cells[1], 0);            \
		EQUAL(cells[2], 0);            \
		EQUAL(cells[SIZE / 8 - 1], 0); \
	} while (0)

	for (size_t n = 1; n < len; n += n < 8 ? 1 : 7)
		BAD(n, );
	BAD(len + 1, );
	BAD(len + 16, );
	BAD(RMX_MESSAGE, );
	BAD(len, m.q.magic = 0);
	BAD(len, m.q.magic ^= 1);
	BAD(len, m.q.magic = RMX_REPLY);
	BAD(len, m.q.magic = RMX_REPLY; m.q.id = 0);
	BAD(len, m.q.magic = RMX_REPLY; m.q.id = UINT64_MAX);
	BAD(len, m.it.form = 0);
	BAD(len, m.it.form = RMX_ROW);
	BAD(len, m.it.form = 3);
	BAD(len, m.it.kind = 4);
	BAD(len, m.it.kind = 255);
	BAD(len, m.it.kind = RMAEXT_GET);
	BAD(len, m.it.type = RMAEXT_LONG_DOUBLE);
	BAD(len, m.it.type = 255);
	BAD(len, m.it.type = RMAEXT_INT32);
	BAD(len, m.it.form = RMX_LOOPS);
	BAD(len, m.it.form = 4);
	BAD(len, m.it.count = 0);
	BAD(len, m.it.count = 1);
	BAD(len, m.it.count = 3);
	BAD(len, m.it.count = UINT64_MAX);
	BAD(len, m.it.kind = RMAEXT_PUT; m.it.count = 0x10000000;
	    m.it.unit = 8);
	BAD(len, m.it.kind = RMAEXT_PUT; m.it.unit = 0);
	BAD(len, m.it.kind = RMAEXT_PUT; m.it.unit = 9);
	BAD(len, m.it.kind = RMAEXT_PUT; m.it.unit = UINT32_MAX - 7);
	BAD(len, m.it.kind = RMAEXT_PUT; m.it.unit = 1u << 31);
	BAD(len - 16, m.it.kind = RMAEXT_GET; m.it.unit = RMX_MESSAGE);
	BAD(len - 16, m.it.kind = RMAEXT_GET; m.it.unit = UINT32_MAX / 2);
	BAD(len, m.it.kind = RMAEXT_PUT; m.it.flags = RMX_WITH_FETCH);
	BAD(len, m.it.op = RMAEXT_CSWAP);
	BAD(len, m.it.op = RMAEXT_NO_OP);
	BAD(len, m.it.offset = 8);
	BAD(len, m.it.slot = 1);
	BAD(len, m.it.zero[0] = 1);
	BAD(len, m.it.flags = RMX_WITH_NOTIFY);
	BAD(len, m.it.flags = 4);
	BAD(len, m.q.count = 0);
	BAD(len, m.q.count = 2);
	BAD(len, m.q.count = UINT32_MAX);
	BAD(len, m.q.rank = 1);
	BAD(len, m.q.rank = UINT32_MAX);
	BAD(len, m.offsets[1] = SIZE);
	BAD(len, m.offsets[1] = SIZE - 7);
	BAD(len, m.offsets[1] = UINT64_MAX);
	BAD(len, m.offsets[1] = UINT64_MAX - 7);
	BAD(len, m.offsets[0] = (uint64_t)1 << 63);
	BAD(len, m.offsets[0] = 12);
	BAD(len, m.q.token[0] ^= 1);
	BAD(len, m.q.token[15] ^= 0x80; m.q.name++);
	BAD(len, memset(m.q.token, 0, sizeof(m.q.token)));
	/* one loop of two turns: first, start, count, step; and two values */
	loops = good;
	loops.it.form = RMX_LOOPS;
	memcpy(loops.offsets, (uint64_t[]){1, 8, 0, 2, 8, 5, 6}, 7 * 8);
	BAD(len + 24, m = loops; m.offsets[0] = 0);
	BAD(len + 24, m = loops; m.offsets[0] = 2);
	BAD(len + 24, m = loops; m.offsets[0] = UINT64_MAX);
	BAD(len + 24, m = loops; m.it.count = 3);
	BAD(len + 32, m = loops);
	BAD(len + 16, m = loops);
	BAD(len + 24, m = loops; m.offsets[1] = SIZE);
	BAD(len + 24, m = loops; m.offsets[1] = UINT64_MAX - 7);
	BAD(len + 24, m = loops; m.offsets[1] = 12);
	BAD(len + 24, m = loops; m.values[0] = SIZE / 8 - 2);
	BAD(len + 24, m = loops; m.values[0] = (uint64_t)1 << 60);
	BAD(len + 24, m = loops; m.values[1] = 0);
	BAD(len + 24, m = loops; *(uint64_t *)(void *)m.more = SIZE - 8);
	BAD(len + 24, m = loops; *(uint64_t *)(void *)m.more = (uint64_t)-16);
	for (int i = 0; i < 300; i++) /* any byte of both but the token */
		BAD(len, {
			const size_t at = (noise(&seed) >> 8) %
					  offsetof(struct message, offsets);

			memset(m.q.token, (int)(seed >> 24) | 1,
			       sizeof(m.q.token));
			((unsigned char *)&m)[at] = (unsigned char)(seed >> 16);
		});
	raw(&p, &good, len); /* what a good one does */
	OK(add(p.r.window, 0, 1));
	EQUAL(cells[1], 5);
	EQUAL(cells[2], 6);
	raw(&p, &loops, len + 24);
	OK(add(p.r.window, 0, 1));
	EQUAL(cells[1], 10);
	EQUAL(cells[2], 12);
	rig_guards(&p.r);
	pair_close(&p);
}

/*
 * Longer than any receive. 1.17 ends the connection, perhaps with what was sent
 * after it; then it is made anew.
 */
static void oversize(void)
{
	static const char zeros[3 * RMX_LONGEST];
	const size_t sizes[] = {RMX_LONGEST + 1, sizeof(zeros)};
	rmaext_window *patient;
	struct pair p;

	pair_open(&p, (struct rig_options){.timeout = 0.5});
	patient = here(&p, (struct lie){0});
	OK(add(patient, 0, 1));
	for (size_t i = 0; i < COUNT(sizes); i++) {
		int64_t end = now() + 10 * SECOND;

		raw(&p, zeros, sizes[i]);
		while (add(p.r.window, 1, 1))
			CHECK(now() < end);
		for (int k = 0; k < 20; k++)
			OK(add(patient, 0, 1));
	}
	drop_window(patient);
	EQUAL(*(uint64_t *)p.r.window_memory, 41);
	pair_close(&p);
}

/* Two rows by hand. */
struct two_rows {
	struct rmx_request_header q;
	struct rmx_item one;
	uint64_t first[2];
	struct rmx_item two;
	uint64_t second[2];
	char more[64];
};

static void malformed_rows(void)
{
	static struct two_rows m, good;
	struct rmx_control_block *block = block_new();
	struct pair p;
	uint64_t *cells;
	uint32_t seed = 5;

	pair_open(&p, (struct rig_options){0});
	block_give(p.there, block);
	cells = (uint64_t *)p.r.window_memory;
	OK(add(p.r.window, 0, 0));
	good = (struct two_rows){
		.q = {.magic = RMX_REQUEST,
		      .id = 4000,
		      .name = p.r.origin->am->name,
		      .count = 2},
		.one = {.offset = 8,
			.count = 2,
			.unit = 8,
			.form = RMX_ROW,
			.kind = RMAEXT_UPDATE,
			.op = RMAEXT_SUM,
			.type = RMAEXT_UINT64},
		.first = {5, 6},
		.two = {.offset = 24,
			.count = 16,
			.unit = 1,
			.form = RMX_ROW,
			.flags = RMX_WITH_NOTIFY,
			.slot = 7},
		.second = {7, 8},
	};
	memcpy(good.q.token, secret, sizeof(secret));
	const size_t len = offsetof(struct two_rows, more);

#undef BAD
#define BAD(length, ...)                              \
	do {                                          \
		m = good;                             \
		__VA_ARGS__;                          \
		raw(&p, &m, length);                  \
		OK(add(p.r.window, 0, 1));            \
		for (int k_ = 1; k_ < SIZE / 8; k_++) \
			EQUAL(cells[k_], 0);          \
		EQUAL(block->notify[7], 0);           \
	} while (0)

	for (size_t n = sizeof(m.q); n < len; n += 7)
		BAD(n, );
	BAD(len + 1, );
	BAD(len + 16, );
	BAD(len, m.q.count = 0);
	BAD(len, m.q.count = 1);
	BAD(len, m.q.count = 3);
	BAD(len, m.q.count = UINT32_MAX);
	BAD(len, m.one.form = 0);
	BAD(len, m.one.form = RMX_ELEMENTS);
	BAD(len, m.one.form = RMX_LOOPS);
	BAD(len, m.one.form = 4);
	BAD(len, m.one.kind = RMAEXT_PUT);
	BAD(len, m.one.kind = RMAEXT_GET);
	BAD(len, m.one.kind = 3);
	BAD(len, m.one.kind = 200);
	BAD(len, m.one.op = RMAEXT_MAXLOC);
	BAD(len, m.one.op = 255);
	BAD(len, m.one.op = RMAEXT_CSWAP);
	BAD(len, m.one.op = RMAEXT_NO_OP);
	BAD(len, m.one.op = RMAEXT_CSWAP; m.one.flags = RMX_WITH_FETCH);
	BAD(len, m.one.op = RMAEXT_NO_OP; m.one.flags = RMX_WITH_FETCH);
	BAD(len, m.one.type = RMAEXT_INT32);
	BAD(len, m.one.type = 255);
	BAD(len, m.one.flags = RMX_WITH_NOTIFY);
	BAD(len, m.one.flags = 4);
	BAD(len, m.one.slot = 1);
	BAD(len, m.one.zero[4] = 1);
	BAD(len, m.one.unit = 0);
	BAD(len, m.one.unit = 16; m.one.count = 1);
	BAD(len, m.one.count = 0);
	BAD(len, m.one.count = 3);
	BAD(len, m.one.count = UINT64_MAX / 8 + 2);
	BAD(len, m.one.count = (uint64_t)1 << 61);
	BAD(len, m.one.offset = SIZE - 8);
	BAD(len, m.one.offset = SIZE);
	BAD(len, m.one.offset = UINT64_MAX - 7);
	BAD(len, m.one.offset = 12);
	BAD(len, m.two.flags = RMX_WITH_FETCH);
	BAD(len, m.two.op = RMAEXT_SUM);
	BAD(len, m.two.type = RMAEXT_UINT64);
	BAD(len, m.two.unit = 8; m.two.count = 2);
	BAD(len, m.two.slot = RMAEXT_NOTIFY);
	BAD(len, m.two.slot = UINT16_MAX);
	BAD(len, m.two.offset = SIZE - 15);
	BAD(len, m.two.count = UINT64_MAX);
	BAD(len, m.two.count = 17);
	BAD(len - 16, m.one.op = RMAEXT_NO_OP; m.one.flags = RMX_WITH_FETCH;
	    m.one.type = RMAEXT_UINT8; m.one.unit = 1;
	    m.one.count = UINT64_MAX);
	for (int i = 0; i < 300; i++) /* of either row */
		BAD(len, {
			const size_t at = (noise(&seed) >> 8) % sizeof(m.two);
			char *it = (char *)(seed & 0x80 ? &m.one : &m.two);

			m.q.count = 3; /* bad in any case */
			it[at] = (char)(seed >> 16);
		});
	raw(&p, &good, len);
	OK(add(p.r.window, 0, 1));
	EQUAL(cells[1], 5);
	EQUAL(cells[2], 6);
	EQUAL(cells[3], 7);
	EQUAL(cells[4], 8);
	EQUAL(block->notify[7], 1);
	rig_guards(&p.r);
	pair_close(&p);
	free(block);
}

/* What the target refuses although the origin did not: left to the flush. */
static void refused_updates(void)
{
	const uint64_t one = 1;
	uint64_t old = 9;
	rmaext_window *w;
	struct pair p;

	pair_open(&p, (struct rig_options){.shift = 4});
	w = here(&p, (struct lie){.size = 2 * SIZE});
	OK(update(w, SIZE, RMAEXT_SUM, RMAEXT_UINT32, &one, NULL, 1));
	EQUAL(flush(w), -ERANGE);
	OK(flush(w));
	EQUAL(update(w, SIZE, RMAEXT_SUM, RMAEXT_UINT32, &one, &old, 1),
	      -ERANGE);
	EQUAL(update(w, 0, RMAEXT_SUM, RMAEXT_UINT64, &one, &old, 1),
	      -FI_EFAULT);
	OK(flush(w));
	EQUAL(old, 9);
	drop_window(w);
	OK(rmaext_window_close(p.there));
	OK(update(p.r.window, 0, RMAEXT_SUM, RMAEXT_UINT8, &one, NULL, 1));
	EQUAL(flush(p.r.window), -FI_ESHUTDOWN);
	rmaext_window_free(p.there);
	p.there = NULL;
	pair_close(&p);
}

/* Early ones wait for their window, in order, long or short. */
static void early_updates(void)
{
	static uint8_t token[RMX_TOKEN] = "the next one";
	enum { LONG = 30000 };
	static uint64_t sevens[LONG];
	rmaext_window *next, *there;
	uint64_t *cells, five = 5;
	rmaext_op *op, *last;
	struct pair p;
	int ret;

	for (int k = 0; k < LONG; k++)
		sevens[k] = 7;
	pair_open(&p, (struct rig_options){.size = LONG * 8});
	cells = (uint64_t *)p.r.window_memory;
	for (int i = 0; i < 3; i++) {
		token[15]++;
		next = here(&p, (struct lie){.token = token});
		OK(update_begin(next, 0, 0, RMAEXT_REPLACE, RMAEXT_UINT64,
				&five, NULL, NULL, 1, &op));
		ret = update_begin(next, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				   sevens, NULL, NULL, LONG, &last);
		EQUAL(ret, RMAEXT_PENDING);
		OK(update_begin(next, 0, 8, RMAEXT_REPLACE, RMAEXT_UINT64,
				&five, NULL, NULL, 1, &op));
		there = window_of(
			p.r.target, peer_of(p.r.target, p.r.origin), &p.r,
			(struct lie){.route = RMAEXT_DIRECT, .token = token});
		OK(finish(ret, &last));
		OK(flush(next));
		EQUAL(cells[0], 12);
		EQUAL(cells[1], 5);
		EQUAL(cells[2], 7 * (i + 1));
		drop_window(there);
		drop_window(next);
	}
	pair_close(&p);
}

const struct test tests[] = {
	{"refused_there", refused_there, NULL, NULL},
	{"early", early, NULL, NULL},
	{"many_early", many_early, NULL, NULL},
	{"malformed", malformed, NULL, NULL},
	{"oversize", oversize, NULL, NULL},
	{"malformed_rows", malformed_rows, NULL, NULL},
	{"refused_updates", refused_updates, NULL, NULL},
	{"early_updates", early_updates, NULL, NULL},
	{0},
};
