/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations on many places as one request. */
#include "pair.h"

#include <sched.h>

enum {
	PLACES = 300,
	LONG_PLACE = 8192,
	LONG = 20000,
	BYTES = PLACES * 200 + 8 * LONG
};

static const int64_t rank_0;

/* A request, and what it uses. */
struct asked {
	struct rmaext_places_call call;
	rmaext_op *op;
	int64_t bad;
	int ended, notify;
	int64_t offsets[PLACES], counts[PLACES];
};

static int ask(struct asked *a, rmaext_window *w, int kind, uint64_t unit,
	       uint64_t count, uint64_t elements, const void *values,
	       void *results)
{
	a->call = (struct rmaext_places_call){
		.kind = kind,
		.op = RMAEXT_SUM,
		.type = RMAEXT_UINT64,
		.ones = RMAEXT_ONE_RANK,
		.unit = unit,
		.count = count,
		.ranks = &rank_0,
		.offsets = a->offsets,
		.counts = kind == RMAEXT_UPDATE ? NULL : a->counts,
		.values = values,
		.results = results,
		.elements = elements,
		.ended = &a->ended,
		.notify = kind == RMAEXT_PUT ? a->notify : 0,
	};
	a->bad = -2;
	return rmaext_start_many(w, &a->call, &a->op, &a->bad);
}

static int end(struct asked *a)
{
	int ret;

	do
		ret = rmaext_op_wait(a->op, SECOND / 10);
	while (ret == RMAEXT_PENDING);
	EQUAL(__atomic_load_n(&a->ended, __ATOMIC_ACQUIRE), 1);
	EQUAL(rmaext_op_rank(a->op), ret ? 0 : -1);
	while (rmaext_op_release(&a->op))
		sched_yield();
	EQUAL(a->op, NULL);
	return ret;
}

/* Random ranges that do not overlap, every 40th of them the longest, each at
 * most LONG bytes. Returns the bytes of all. */
static uint64_t ranges_make(struct asked *a, int longest, uint32_t *seed)
{
	uint64_t at = 0, bytes = 0;

	for (int i = 0; i < PLACES; i++) {
		a->offsets[i] = (int64_t)at + noise(seed) % 9;
		a->counts[i] =
			i % 40 == 39 ? longest : (int)(noise(seed) % 150);
		at = (uint64_t)(a->offsets[i] + a->counts[i]);
		bytes += (uint64_t)a->counts[i];
	}
	CHECK(at <= BYTES);
	return bytes;
}

static void ranges_with(int longest, bool waits)
{
	struct asked *a = calloc(1, sizeof(*a));
	char *values = malloc(BYTES), *results = malloc(BYTES), *memory;
	rmaext_window *w;
	uint32_t seed = 7;
	struct pair p;

	CHECK(a && values && results);
	pair_open(&p, (struct rig_options){.size = BYTES, .no_progress = true});
	memory = p.r.window_memory;
	w = here(&p, (struct lie){.reads = true});
	serve_start(&p);
	for (int round = 0; round < 20; round++) {
		const uint64_t bytes = ranges_make(a, longest, &seed);
		uint64_t at = 0;

		for (uint64_t i = 0; i < bytes; i++)
			values[i] = (char)noise(&seed);
		EQUAL(ask(a, w, RMAEXT_PUT, 1, PLACES, bytes, values, NULL),
		      RMAEXT_PENDING);
		if (waits)
			OK(end(a));
		else
			while (rmaext_op_release(&a->op))
				sched_yield();
		for (int i = 0; i < PLACES; i++) {
			CHECK(!memcmp(memory + a->offsets[i], values + at,
				      (size_t)a->counts[i]));
			at += (uint64_t)a->counts[i];
		}
		memset(results, 0, bytes);
		EQUAL(ask(a, w, RMAEXT_GET, 1, PLACES, bytes, NULL, results),
		      RMAEXT_PENDING);
		OK(end(a));
		CHECK(!memcmp(results, values, bytes));
	}
	serve_stop(&p);
	drop_window(w);
	pair_close(&p);
	free(results);
	free(values);
	free(a);
}

static void ranges_by_messages(void)
{
	ranges_with(LONG_PLACE, true);
}

static void ranges_by_reads(void)
{
	ranges_with(LONG, true);
}

static void ranges_dropped(void)
{
	ranges_with(LONG, false);
}

/*
 * Ranges that notify go as messages, in order, however long they are: the
 * longest take two, and one of no bytes is the last of all.
 */
static void ranges_notified(void)
{
	struct rmx_control_block *block = block_new();
	struct asked *a = calloc(1, sizeof(*a));
	char *values = malloc(BYTES), *memory;
	uint32_t seed = 7;
	struct pair p;

	CHECK(a && values);
	pair_open(&p, (struct rig_options){.size = BYTES, .no_progress = true});
	block_give(p.there, block);
	memory = p.r.window_memory;
	serve_start(&p);
	a->notify = 4;
	for (int round = 0; round < 20; round++) {
		uint64_t bytes = ranges_make(a, LONG, &seed), at = 0;

		bytes -= (uint64_t)a->counts[PLACES - 1];
		a->counts[PLACES - 1] = 0;
		for (uint64_t i = 0; i < bytes; i++)
			values[i] = (char)noise(&seed);
		EQUAL(ask(a, p.r.window, RMAEXT_PUT, 1, PLACES, bytes, values,
			  NULL),
		      RMAEXT_PENDING);
		OK(end(a));
		EQUAL(block->notify[3], round + 1);
		for (int i = 0; i < PLACES; i++) {
			CHECK(!memcmp(memory + a->offsets[i], values + at,
				      (size_t)a->counts[i]));
			at += (uint64_t)a->counts[i];
		}
	}
	serve_stop(&p);
	pair_close(&p);
	free(values);
	free(block);
	free(a);
}

/*
 * A long range alone is a write, and a message once that is there. Several are
 * on their way, and notify in the order in which they were begun; of some the
 * owner lets go at once.
 */
static void writes_notified(void)
{
	enum { FLIGHT = 4, PART = BYTES / FLIGHT };
	_Static_assert(PART > RMX_COPY_MAX, "a shorter one goes as a message");
	struct rmx_control_block *block = block_new();
	struct asked *a = calloc(FLIGHT, sizeof(*a));
	char *values = malloc(BYTES), *memory;
	rmaext_window *w;
	struct pair p;

	CHECK(a && values);
	pair_open(&p, (struct rig_options){.size = BYTES, .no_progress = true});
	block_give(p.there, block);
	memory = p.r.window_memory;
	w = here(&p, (struct lie){.reads = true});
	serve_start(&p);
	for (int round = 0; round < 20; round++) {
		fill(values, BYTES, (unsigned int)round + 1);
		for (int k = 0; k < FLIGHT; k++) {
			a[k].notify = 4;
			a[k].offsets[0] = k * PART;
			a[k].counts[0] = PART;
			EQUAL(ask(&a[k], w, RMAEXT_PUT, 1, 1, PART,
				  values + k * PART, NULL),
			      RMAEXT_PENDING);
			if ((round + k) % 3 == 0)
				rmaext_op_release(&a[k].op);
		}
		for (int k = FLIGHT; k--;) {
			if ((round + k) % 3)
				OK(end(&a[k]));
			while (rmaext_op_release(&a[k].op))
				sched_yield();
			EQUAL(block->notify[3], FLIGHT * round + FLIGHT);
			CHECK(!memcmp(memory, values, BYTES));
		}
	}
	serve_stop(&p);
	drop_window(w);
	pair_close(&p);
	free(values);
	free(block);
	free(a);
}

/*
 * What stands in line behind a write that notifies holds no context: the write
 * may need them all, for its chunks.
 */
static void copies_behind_a_write(void)
{
	enum { COPIES = 50 };
	struct rmx_control_block *block = block_new();
	const uint64_t one = 1;
	const struct rmaext_call copy = {
		.kind = RMAEXT_PUT,
		.notify = 6,
		.operand = &one,
		.count = sizeof(one),
	};
	struct asked a = {.notify = 4, .counts = {LONG * 2}};
	char *values = malloc(LONG * 2);
	rmaext_op *op = NULL;
	rmaext_window *w;
	struct pair p;

	CHECK(values);
	fill(values, LONG * 2, 5);
	pair_open(&p, (struct rig_options){.size = BYTES, .no_progress = true});
	block_give(p.there, block);
	w = here(&p, (struct lie){.reads = true});
	EQUAL(ask(&a, w, RMAEXT_PUT, 1, 1, LONG * 2, values, NULL),
	      RMAEXT_PENDING);
	for (int i = 0; i < COPIES; i++) {
		OK(rmaext_start(w, &copy, &op));
		CHECK(atomic_load(&p.r.peer->contexts) <= 1);
	}
	serve_start(&p);
	OK(end(&a));
	OK(flush(w));
	EQUAL(block->notify[3], 1);
	EQUAL(block->notify[5], COPIES);
	serve_stop(&p);
	drop_window(w);
	pair_close(&p);
	free(values);
	free(block);
}

/* One value for all places: of short elements, and of those that go alone. */
static void one_value(void)
{
	static const uint64_t units[] = {8, LONG_PLACE + 8};
	struct asked a = {.op = NULL};
	char *value = malloc(LONG_PLACE + 8), *memory;
	rmaext_window *w;
	struct pair p;

	CHECK(value);
	fill(value, LONG_PLACE + 8, 3); /* no more than one is there */
	pair_open(&p, (struct rig_options){.size = BYTES, .no_progress = true});
	memory = p.r.window_memory;
	w = here(&p, (struct lie){.reads = true});
	serve_start(&p);
	for (size_t k = 0; k < COUNT(units); k++) {
		const uint64_t unit = units[k];

		for (int i = 0; i < 3; i++)
			a.offsets[i] = 2 * i;
		a.call = (struct rmaext_places_call){
			.kind = RMAEXT_PUT,
			.ones = RMAEXT_ONE_RANK | RMAEXT_ONE_VALUE,
			.unit = unit,
			.count = 3,
			.ranks = &rank_0,
			.offsets = a.offsets,
			.values = value,
			.elements = 3,
			.ended = &a.ended,
		};
		memset(memory, 0, BYTES);
		EQUAL(rmaext_start_many(w, &a.call, &a.op, &a.bad),
		      RMAEXT_PENDING);
		a.offsets[1] = 0; /* it has been copied */
		OK(end(&a));
		for (uint64_t i = 0; i < 3; i++)
			CHECK(!memcmp(memory + 2 * i * unit, value, unit));
		EQUAL(memory[unit], 0);
	}
	serve_stop(&p);
	drop_window(w);
	pair_close(&p);
	free(value);
}

static void updates(void)
{
	struct asked a = {.op = NULL};
	uint64_t values[PLACES], results[PLACES], pairs[PLACES][2], *memory;
	struct pair p;

	pair_open(&p, (struct rig_options){.size = PLACES * 8});
	memory = (uint64_t *)p.r.window_memory;
	memset(memory, 0, PLACES * 8);
	serve_start(&p);
	for (uint64_t i = 0; i < PLACES; i++) {
		a.offsets[i] = (int64_t)(i / 2);
		values[i] = i;
	}
	EQUAL(ask(&a, p.r.window, RMAEXT_UPDATE, 8, PLACES, PLACES, values,
		  results),
	      RMAEXT_PENDING);
	OK(end(&a));
	for (uint64_t i = 0; i < PLACES; i++)
		EQUAL(results[i], i % 2 ? i - 1 : 0);
	for (uint64_t i = 0; i < PLACES; i++) {
		pairs[i][0] = i % 2 ? 1000 + i - 1 : 2 * i + 1;
		pairs[i][1] = 1000 + i;
	}
	ask(&a, p.r.window, RMAEXT_UPDATE, 8, PLACES, PLACES, pairs, results);
	while (rmaext_op_release(&a.op))
		sched_yield();
	a.call.op = RMAEXT_CSWAP;
	memset(memory, 0, PLACES * 8);
	for (uint64_t i = 0; i < PLACES; i += 2)
		memory[i / 2] = 2 * i + 1;
	EQUAL(rmaext_start_many(p.r.window, &a.call, &a.op, &a.bad),
	      RMAEXT_PENDING);
	OK(end(&a));
	for (uint64_t i = 0; i < PLACES; i++)
		EQUAL(results[i], pairs[i][0]); /* all were replaced */
	for (uint64_t i = 1; i < PLACES; i += 2)
		EQUAL(memory[i / 2], 1000 + i);
	serve_stop(&p);
	pair_close(&p);
}

static void refused(void)
{
	struct asked a = {.op = NULL};
	char buf[64] = {0};
	struct pair p;
	rmaext_window *reads, *odd, *lonely;

	pair_open(&p, (struct rig_options){.size = SIZE});
	lonely = window_of(p.r.origin, NULL, &p.r,
			   (struct lie){.route = RMAEXT_FABRIC});
	a.counts[0] = a.counts[1] = 8;
	a.offsets[1] = SIZE - 7;
	EQUAL(ask(&a, p.r.window, RMAEXT_GET, 1, 2, 16, NULL, buf), -ERANGE);
	EQUAL(a.bad, 1);
	EQUAL(a.op, NULL);
	a.offsets[1] = -1;
	EQUAL(ask(&a, p.r.window, RMAEXT_GET, 1, 2, 16, NULL, buf), -ERANGE);
	a.offsets[1] = INT64_MAX;
	EQUAL(ask(&a, p.r.window, RMAEXT_GET, 8, 2, 16, NULL, buf), -ERANGE);
	a.offsets[1] = 0;
	a.counts[1] = -1;
	EQUAL(ask(&a, p.r.window, RMAEXT_PUT, 1, 2, 16, buf, NULL), -ERANGE);
	a.counts[1] = 9; /* more than buf has */
	EQUAL(ask(&a, p.r.window, RMAEXT_PUT, 1, 2, 16, buf, NULL), -ERANGE);
	a.counts[1] = 7; /* fewer: it has changed */
	EQUAL(ask(&a, p.r.window, RMAEXT_PUT, 1, 2, 16, buf, NULL), -FI_EINVAL);
	EQUAL(ask(&a, p.r.window, 3, 1, 2, 16, buf, NULL), -FI_EINVAL);
	EQUAL(ask(&a, p.r.window, RMAEXT_PUT, 0, 2, 16, buf, NULL), -FI_EINVAL);
	EQUAL(ask(&a, p.r.window, RMAEXT_UPDATE, 4, 2, 2, buf, buf),
	      -FI_EOPNOTSUPP);
	a.offsets[1] = SIZE / 8;
	EQUAL(ask(&a, p.r.window, RMAEXT_UPDATE, 8, 2, 2, buf, buf), -ERANGE);
	EQUAL(a.bad, 1);
	reads = here(&p, (struct lie){.access = RMAEXT_READ});
	a.offsets[1] = 0;
	a.counts[1] = 8;
	EQUAL(ask(&a, reads, RMAEXT_PUT, 1, 2, 16, buf, NULL), -FI_EACCES);
	EQUAL(ask(&a, reads, RMAEXT_UPDATE, 8, 2, 2, buf, buf), -FI_EACCES);
	drop_window(reads);
	odd = here(&p, (struct lie){.align = 4});
	EQUAL(ask(&a, odd, RMAEXT_UPDATE, 8, 2, 2, buf, buf), -FI_EFAULT);
	EQUAL(a.bad, 0);
	drop_window(odd);
	for (int kind = RMAEXT_PUT; kind <= RMAEXT_UPDATE; kind++) {
		EQUAL(ask(&a, lonely, kind, 8, 2,
			  kind == RMAEXT_UPDATE ? 2 : 16, buf, buf),
		      -FI_EOPNOTSUPP);
		EQUAL(a.bad, 0);
	}
	drop_window(lonely);
	OK(ask(&a, p.r.window, RMAEXT_GET, 1, 0, 0, NULL, buf));
	EQUAL(rmaext_window_pending(p.r.window), 0);
	pair_close(&p);
}

/* The target refuses a place that this rank takes for its own. */
static void refused_there(void)
{
	struct asked a = {.op = NULL};
	char buf[64] = {0};
	struct pair p;
	rmaext_window *w;

	pair_open(&p, (struct rig_options){.size = SIZE});
	w = here(&p, (struct lie){.size = 2 * SIZE});
	serve_start(&p);
	a.counts[0] = a.counts[1] = 8;
	a.offsets[1] = SIZE;
	for (int kind = RMAEXT_PUT; kind <= RMAEXT_GET; kind++) {
		EQUAL(ask(&a, w, kind, 1, 2, 16, kind ? NULL : buf,
			  kind ? buf : NULL),
		      RMAEXT_PENDING);
		EQUAL(end(&a), -ERANGE);
	}
	serve_stop(&p);
	drop_window(w);
	pair_close(&p);
}

/* Nobody serves: it times out, may be asked again, and goes on afterwards. */
static void late(void)
{
	struct asked a = {.op = NULL};
	char buf[64];
	struct pair p;

	pair_open(&p, (struct rig_options){.size = SIZE,
					   .timeout = 0.3,
					   .no_progress = true});
	memset(p.r.window_memory, 5, SIZE);
	a.counts[0] = a.counts[1] = 8;
	a.offsets[1] = 100;
	EQUAL(ask(&a, p.r.window, RMAEXT_GET, 1, 2, 16, NULL, buf),
	      RMAEXT_PENDING);
	for (int i = 0, ret = 0; i < 2; i++) {
		do
			ret = rmaext_op_wait(a.op, SECOND / 10);
		while (ret == RMAEXT_PENDING);
		EQUAL(ret, -FI_ETIMEDOUT);
		EQUAL(a.ended, 0);
	}
	EQUAL(rmaext_op_wait(a.op, 0), RMAEXT_PENDING);
	serve_start(&p);
	while (rmaext_op_wait(a.op, SECOND / 10))
		; /* late again, perhaps, where this machine is busy */
	OK(end(&a));
	EQUAL(buf[15], 5);
	serve_stop(&p);
	pair_close(&p);
}

/* The endpoint closes with a request on its way. */
static void closed(void)
{
	struct asked a = {.op = NULL};
	char buf[64];
	struct pair p;

	pair_open(&p, (struct rig_options){.size = SIZE, .no_progress = true});
	a.counts[0] = a.counts[1] = 8;
	EQUAL(ask(&a, p.r.window, RMAEXT_GET, 1, 2, 16, NULL, buf),
	      RMAEXT_PENDING);
	EQUAL(a.ended, 0);
	OK(rmaext_fabric_close(&p.r.origin));
	EQUAL(a.ended, 1);
	EQUAL(end(&a), -FI_ESHUTDOWN);
	EQUAL(ask(&a, p.r.window, RMAEXT_GET, 1, 2, 16, NULL, buf),
	      -FI_ESHUTDOWN);
	rmaext_window_free(p.r.window);
	p.r.window = NULL;
	pair_close(&p);
}

const struct test tests[] = {
	{"ranges_by_messages", ranges_by_messages, NULL, NULL},
	{"ranges_by_reads", ranges_by_reads, NULL, NULL},
	{"ranges_dropped", ranges_dropped, NULL, NULL},
	{"ranges_notified", ranges_notified, NULL, NULL},
	{"writes_notified", writes_notified, NULL, NULL},
	{"copies_behind_a_write", copies_behind_a_write, NULL, NULL},
	{"one_value", one_value, NULL, NULL},
	{"updates", updates, NULL, NULL},
	{"refused", refused, NULL, NULL},
	{"refused_there", refused_there, NULL, NULL},
	{"late", late, NULL, NULL},
	{"closed", closed, NULL, NULL},
	{0},
};
