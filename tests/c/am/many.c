/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that carry operations: in order, of all lengths, from many threads.
 */
#include "pair.h"

static void *adder(void *arg)
{
	struct worker *me = arg;
	int64_t offsets[200];
	uint64_t values[200];

	for (int i = 0; i < 200; i++) {
		offsets[i] = i % 3;
		values[i] = 1;
	}
	for (int i = 0; i < 30 && !me->ret; i++)
		me->ret = many(me->window, RMAEXT_UPDATE, RMAEXT_UINT64, 8, 200,
			       offsets, values, i % 2 ? NULL : values);
	return NULL;
}

/* fetch_add leaves its results in values: count places, not sums. */
static void *counter(void *arg)
{
	struct worker *me = arg;
	const uint64_t one = 1;

	for (int i = 0; i < 6000 && !me->ret; i++)
		me->ret = add(me->window, 0, one);
	return NULL;
}

static void *until_closed(void *arg)
{
	struct worker *me = arg;

	do
		me->ret = add(me->window, 0, 1);
	while (!me->ret);
	return NULL;
}

/* By message from several threads, and by memory: none is lost. */
static void threads(void)
{
	struct worker all[THREADS], one;
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	start_all(all, THREADS, p.r.window, counter);
	start_all(&one, 1, p.there, counter);
	join_all(&one, 1, 0);
	join_all(all, THREADS, 0);
	EQUAL(*(uint64_t *)p.r.window_memory, (THREADS + 1) * 6000);
	start_all(all, THREADS, p.r.window, adder);
	join_all(all, THREADS, 0);
	pair_close(&p);
}

/* The target closes the window under requests. */
static void close_there(void)
{
	struct worker all[THREADS];
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	for (int i = 0; i < 10; i++) {
		start_all(all, THREADS, p.r.window, until_closed);
		nap(0.01);
		drop_window(p.there);
		join_all(all, THREADS, -FI_ESHUTDOWN);
		p.there = window_of(p.r.target, peer_of(p.r.target, p.r.origin),
				    &p.r, (struct lie){.route = RMAEXT_DIRECT});
	}
	pair_close(&p);
}

/* And the origin its own. */
static void close_here(void)
{
	struct worker all[THREADS];
	struct pair p;
	int ret;

	pair_open(&p, (struct rig_options){0});
	for (int i = 0; i < 10; i++) {
		start_all(all, THREADS, p.r.window, until_closed);
		nap(0.01);
		/* a thread may be between two slices of its wait */
		while ((ret = rmaext_window_close(p.r.window)) == -FI_EBUSY)
			nap(0.001);
		OK(ret);
		join_all(all, THREADS, -FI_ESHUTDOWN);
		rmaext_window_free(p.r.window);
		p.r.window = here(&p, (struct lie){0});
	}
	pair_close(&p);
}

/* One target answers nothing; the other's are not held up. */
static void others_go_on(void)
{
	enum { MANY = 20000 };
	static int64_t offsets[MANY];
	static uint64_t values[MANY];
	const int64_t rank = 0;
	struct many_state state;
	rmaext_window *silent;
	rmaext_fabric *mute;
	rmaext_peer *peer;
	struct pair p;
	int64_t begin;

	pair_open(&p, (struct rig_options){0});
	mute = fabric_open(false, false);
	peer = peer_of(p.r.origin, mute);
	silent = window_of(p.r.origin, peer, &p.r,
			   (struct lie){.route = RMAEXT_FABRIC});
	for (int i = 0; i < 3; i++) {
		EQUAL(many_begin(silent, RMAEXT_UPDATE, RMAEXT_SUM,
				 RMAEXT_UINT64, 8, MANY, RMAEXT_ONE_RANK, &rank,
				 offsets, values, NULL, &state),
		      RMAEXT_PENDING);
		begin = now();
		for (int k = 0; k < 100; k++)
			OK(add(p.r.window, 0, 1));
		CHECK(now() - begin < 5 * SECOND);
		if (i < 2)
			many_release(&state);
	}
	many_release(&state);
	drop_window(silent);
	OK(rmaext_fabric_close(&mute));
	pair_close(&p);
}

/* -- operations that go as messages -- */

/* Bits that only the order of the updates makes: c = c * 3 is not to be had,
 * so a replace and a sum by turns. */
static void in_order(void)
{
	enum { MOST = 40000 }; /* more than a box, less than a message */
	static const uint64_t counts[] = {1,	1,    3000, 2,	  5000, 1,
					  MOST, 2000, 1,    MOST, MOST, 7};
	static uint64_t ones[MOST], high[MOST], old[MOST];
	struct pair p;
	uint64_t *cells;

	for (int k = 0; k < MOST; k++)
		ones[k] = 1;
	pair_open(&p, (struct rig_options){.size = MOST * 8});
	cells = (uint64_t *)p.r.window_memory;
	for (int round = 0; round < 30; round++) {
		uint64_t want = 1000;

		for (size_t k = 0; k < COUNT(counts); k++) {
			const size_t n =
				counts[(k + (size_t)round * 5) % COUNT(counts)];

			if ((k + (size_t)round) % 3) {
				OK(update(p.r.window, 0, RMAEXT_SUM,
					  RMAEXT_UINT64, ones, NULL, n));
				want++;
				continue;
			}
			want = 1000 * (k + 1);
			for (size_t i = 0; i < n; i++)
				high[i] = want;
			OK(update(p.r.window, 0, RMAEXT_REPLACE, RMAEXT_UINT64,
				  high, NULL, n));
		}
		if (round % 2) {
			OK(update(p.r.window, 0, RMAEXT_NO_OP, RMAEXT_UINT64,
				  NULL, old, 1));
			EQUAL(old[0], want);
		} else if (round % 4) {
			const int64_t zero = 0;

			OK(many(p.r.window, RMAEXT_GET, 0, 8, 1, &zero, NULL,
				old));
			EQUAL(old[0], want);
		}
		OK(flush(p.r.window));
		EQUAL(cells[0], want);
	}
	pair_close(&p);
}

/* Of all lengths around those that change how it is sent. */
static void lengths(void)
{
	enum { MOST = 300000 };
	static const size_t counts[] = {1,     7,     2000,   2009, 2010,
					2011,  4096,  4097,   5000, 65535,
					65536, 65537, 131073, MOST};
	uint64_t *values = malloc(MOST * 8), *old = malloc(MOST * 8);
	uint64_t *want = calloc(MOST, 8), *cells;
	struct pair p;

	CHECK(values && old && want);
	pair_open(&p, (struct rig_options){.size = MOST * 8});
	cells = (uint64_t *)p.r.window_memory;
	for (size_t k = 0; k < COUNT(counts); k++) {
		const size_t n = counts[k], at = (MOST - n) / 2;

		fill(values, n * 8, (unsigned int)k);
		OK(update(p.r.window, at * 8, RMAEXT_SUM, RMAEXT_UINT64, values,
			  NULL, n));
		for (size_t i = 0; i < n; i++)
			want[at + i] += values[i];
		OK(flush(p.r.window));
		CHECK(!memcmp(cells, want, MOST * 8));
		memset(old, 0, n * 8);
		OK(update(p.r.window, at * 8, RMAEXT_SUM, RMAEXT_UINT64, values,
			  old, n));
		CHECK(!memcmp(old, want + at, n * 8));
		for (size_t i = 0; i < n; i++)
			want[at + i] += values[i];
		CHECK(!memcmp(cells, want, MOST * 8));
		OK(update(p.r.window, at * 8, RMAEXT_NO_OP, RMAEXT_UINT64, NULL,
			  old, n));
		CHECK(!memcmp(old, want + at, n * 8));
		/* every other one is swapped */
		for (size_t i = 0; i < n; i++)
			old[i] += i % 2;
		OK(swap(p.r.window, at * 8, RMAEXT_UINT64, old, values, old,
			n));
		CHECK(!memcmp(old, want + at, n * 8));
		for (size_t i = 0; i < n; i += 2)
			want[at + i] = values[i];
		CHECK(!memcmp(cells, want, MOST * 8));
	}
	free(values);
	free(old);
	free(want);
	pair_close(&p);
}

/* More of them than there are credits, slots or room in line. */
static void stream(void)
{
	enum { MANY = 30000 };
	const uint64_t one = 1;
	char block[3000];
	struct pair p;
	uint64_t *cells;

	memset(block, 0, sizeof(block));
	block[0] = 1;
	pair_open(&p, (struct rig_options){0});
	cells = (uint64_t *)p.r.window_memory;
	for (uint64_t i = 0; i < MANY; i++)
		OK(update(p.r.window, 8 * (i % 7), RMAEXT_SUM, RMAEXT_UINT64,
			  &one, NULL, 1));
	for (int i = 0; i < 3000; i++)
		OK(update(p.r.window, 64, RMAEXT_SUM, RMAEXT_UINT64, block,
			  NULL, sizeof(block) / 8));
	OK(flush(p.r.window));
	for (uint64_t i = 0; i < 7; i++)
		EQUAL(cells[i], MANY / 7 + (i < MANY % 7));
	EQUAL(cells[8], 3000);
	EQUAL(rmaext_window_pending(p.r.window), 0);
	pair_close(&p);
}

/* Puts in order with updates, counted where they arrive. */
static void notify(void)
{
	enum { LONG = 20000 }; /* words: several messages of a provider */
	static uint64_t words[LONG];
	struct rmx_control_block *block = block_new();
	struct pair p;
	rmaext_op *op;

	pair_open(&p, (struct rig_options){.size = LONG * 8});
	block_give(p.there, block);
	for (uint64_t i = 1; i <= 200; i++) {
		words[0] = i;
		OK(finish(message_put(p.r.window, 8, words, 8, 3, &op), &op));
		OK(finish(message_put(p.r.window, 0, NULL, 0, 255, &op), &op));
		OK(update(p.r.window, 8, RMAEXT_SUM, RMAEXT_UINT64, words, NULL,
			  1));
	}
	OK(flush(p.r.window));
	EQUAL(((uint64_t *)p.r.window_memory)[1], 400);
	EQUAL(atomic_load(&block->notify[3]), 200);
	EQUAL(atomic_load(&block->notify[255]), 200);
	fill(words, sizeof(words), 3);
	OK(finish(message_put(p.r.window, 0, words, sizeof(words), 4, &op),
		  &op));
	CHECK(!memcmp(p.r.window_memory, words, sizeof(words)));
	EQUAL(atomic_load(&block->notify[4]), 1);
	/* of a provider that sends from one piece of memory only: in parts */
	p.r.origin->limits.pieces = 1;
	OK(finish(message_put(p.r.window, 0, words, sizeof(words), 5, &op),
		  &op));
	EQUAL(atomic_load(&block->notify[5]), 1);
	OK(finish(message_put(p.r.window, 8, words, 8, -1, &op), &op));
	OK(flush(p.r.window));
	CHECK(!memcmp(p.r.window_memory + 8, words, 8));
	for (int k = 0; k < RMAEXT_NOTIFY; k++)
		EQUAL(atomic_load(&block->notify[k]),
		      k == 3 || k == 255 ? 200 : k == 4 || k == 5);
	block_give(p.there, NULL); /* then it refuses */
	OK(finish(message_put(p.r.window, 8, words, 8, 3, &op), &op));
	EQUAL(flush(p.r.window), -FI_EINVAL);
	pair_close(&p);
	free(block);
}

static void *updater(void *arg)
{
	enum { LONG = 6000 };
	struct worker *me = arg;
	static const size_t counts[] = {1, 1, 1, 3000, 2, LONG, 1, 500};
	uint64_t *ones = malloc(LONG * 8), *old = malloc(LONG * 8);

	CHECK(ones && old);
	for (int k = 0; k < LONG; k++)
		ones[k] = 1;
	for (int i = 0; i < 800 && !me->ret; i++) {
		me->ret = update(me->window, 0, RMAEXT_SUM, RMAEXT_UINT64, ones,
				 i % 5 ? NULL : old, counts[i % 8]);
		if (!me->ret && i % 50 == 0)
			me->ret = add(me->window, 0, 1);
		if (!me->ret && i % 100 == 0)
			me->ret = flush(me->window);
	}
	free(ones);
	free(old);
	return NULL;
}

/* Updates of all lengths, batches and flushes from several threads. */
static void many_threads(void)
{
	struct worker all[THREADS];
	struct pair p;

	pair_open(&p, (struct rig_options){.size = 48000});
	start_all(all, THREADS, p.r.window, updater);
	join_all(all, THREADS, 0);
	OK(flush(p.r.window));
	EQUAL(*(uint64_t *)p.r.window_memory, THREADS * 816);
	pair_close(&p);
}

const struct test tests[] = {
	{"threads", threads, NULL, NULL},
	{"close_there", close_there, NULL, NULL},
	{"close_here", close_here, NULL, NULL},
	{"others_go_on", others_go_on, NULL, NULL},
	{"in_order", in_order, NULL, NULL},
	{"lengths", lengths, NULL, NULL},
	{"stream", stream, NULL, NULL},
	{"notify", notify, NULL, NULL},
	{"many_threads", many_threads, NULL, NULL},
	{0},
};
