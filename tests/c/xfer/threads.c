/* SPDX-License-Identifier: BSD-3-Clause */
/* Several threads on one window, and closing under them; also under TSan. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, PART = 70000, ROUNDS = 60, ADDS = 500 };

struct worker {
	pthread_t thread;
	struct rig *rig;
	rmaext_window *window;
	int number, ret;
	void (*work)(struct worker *);
};

static atomic_bool stop;

static void *start(void *arg)
{
	struct worker *me = arg;

	me->work(me);
	return NULL;
}

static void start_all(struct worker *all, int n, struct rig *r,
		      void (*work)(struct worker *))
{
	atomic_store(&stop, false);
	for (int i = 0; i < n; i++) {
		all[i] = (struct worker){
			.rig = r,
			.window = r->window,
			.number = i,
			.work = work,
		};
		OK(pthread_create(&all[i].thread, NULL, start, &all[i]));
	}
}

static void join_all(struct worker *all, int n)
{
	for (int i = 0; i < n; i++)
		pthread_join(all[i].thread, NULL);
}

/* -- operations
 * ---------------------------------------------------------------- */

static void mover(struct worker *me)
{
	const uint64_t at = (uint64_t)me->number * PART;
	char *out = malloc(PART), *in = malloc(PART);

	CHECK(out && in);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		/* buffered ones and long ones */
		const size_t n = i % 3 ? 8 + i * 97 : PART - i;

		fill(out, n, i * THREADS + (unsigned int)me->number);
		OK(put(me->window, at, out, n));
		OK(i % 2 ? flush(me->window) : flush_for(me->window, 0, 10));
		OK(get(me->window, at, in, n));
		CHECK(!memcmp(in, out, n));
	}
	free(out);
	free(in);
}

static void move_with(bool two)
{
	struct worker all[THREADS];
	struct rig r;

	rig_open(&r, (struct rig_options){.size = THREADS * PART, .two = two});
	start_all(all, THREADS, &r, mover);
	join_all(all, THREADS);
	rig_close(&r);
}

static void move(void)
{
	move_with(false);
}

static void move_to_another(void)
{
	move_with(true);
}

/* The last quarter goes by memory: both routes update one counter. */
static void adder(struct worker *me)
{
	const uint64_t one = 1;
	uint64_t old, last = 0;

	for (int i = 0; i < ADDS; i++) {
		OK(fetch_add(me->window, 0, RMAEXT_UINT64, &one, &old, 1));
		CHECK(!i || old > last);
		last = old;
		/* each value was given out once */
		OK(fetch_add(me->window, 8 + 8 * old, RMAEXT_UINT64, &one, &old,
			     1));
		EQUAL(old, 0);
	}
}

static void count(void)
{
	enum { TOTAL = THREADS * ADDS };
	struct rig_options o = {.size = 8 + 8 * TOTAL};
	struct worker all[THREADS];
	rmaext_window *direct;
	uint64_t value = 0;
	struct rig r;

	rig_open(&r, o);
	o.direct = true;
	rig_window(&r, &o, &direct);
	start_all(all, THREADS - 1, &r, adder);
	all[THREADS - 1] = (struct worker){.window = direct};
	adder(&all[THREADS - 1]);
	join_all(all, THREADS - 1);
	OK(get(r.window, 0, &value, 8));
	EQUAL(value, TOTAL);
	for (int i = 0; i < TOTAL; i++) {
		OK(get(direct, 8 + 8 * (uint64_t)i, &value, 8));
		EQUAL(value, 1);
	}
	OK(rmaext_window_close(direct));
	rmaext_window_free(direct);
	rig_close(&r);
}

/* Each thread reads its own last error. */
static void failer(struct worker *me)
{
	struct rmaext_error e;
	rmaext_op *op;
	char word[8];

	for (int i = 0; i < 3000; i++) {
		EQUAL(get_begin(me->window, 100 + me->number, 0, word, 8, &op),
		      -ERANGE);
		rmaext_error_last(&e);
		EQUAL(e.rank, 100 + me->number);
	}
}

static void errors(void)
{
	struct worker all[THREADS];
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 64});
	start_all(all, THREADS, &r, failer);
	join_all(all, THREADS);
	rig_close(&r);
}

/* Wrong keys: every thread's puts fail, under it or under another's flush. */
static void loser(struct worker *me)
{
	uint64_t word = 1;

	me->ret = 0;
	for (int i = 0; i < 20; i++) {
		int ret = put(me->window, 0, &word, 8);

		if (!ret)
			ret = flush(me->window);
		me->ret += ret != 0;
		ret = get(me->window, 0, &word, 8);
		CHECK(ret);
	}
}

static void failures(void)
{
	struct worker all[THREADS];
	struct rig r;
	int seen = 0;

	rig_open(&r, (struct rig_options){
			     .size = 64, .two = true, .wrong_key = true});
	start_all(all, THREADS, &r, loser);
	join_all(all, THREADS);
	for (int i = 0; i < THREADS; i++)
		seen += all[i].ret;
	CHECK(seen);
	flush(r.window);
	OK(flush(r.window));
	EQUAL(*r.window_memory, 0);
	rig_close(&r);
}

/* -- endings
 * ------------------------------------------------------------------- */

/* Until the window is closed under it. */
static void user(struct worker *me)
{
	static char bufs[THREADS][1024]; /* an endpoint that stays keeps them */
	const uint64_t at = (uint64_t)me->number * sizeof(*bufs);
	char *buf = bufs[me->number];
	int ret;

	do {
		if (me->number % 2)
			ret = get(me->window, at, buf, sizeof(*bufs));
		else if (!(ret = put(me->window, at, buf, 8)))
			ret = flush(me->window);
	} while (!ret);
	me->ret = ret;
}

static void close_window(void)
{
	struct worker all[THREADS];
	struct rig r;

	rig_open(&r, (struct rig_options){.size = THREADS * 1024});
	for (int i = 0; i < 8; i++) {
		int64_t end = now() + 5 * SECOND;

		start_all(all, THREADS, &r, user);
		nap(0.01);
		/* what was put and not flushed may be on its way */
		while (rmaext_window_close(r.window) == -FI_EBUSY)
			CHECK(now() < end);
		join_all(all, THREADS);
		for (int j = 0; j < THREADS; j++)
			EQUAL(all[j].ret, -FI_ESHUTDOWN);
		rmaext_window_free(r.window);
		rig_window(&r, &(struct rig_options){0}, &r.window);
	}
	rig_close(&r);
}

/* Nothing is on its way after flush, get or an atomic: no EBUSY. */
static void close_at_once(void)
{
	const uint64_t one = 1;
	uint64_t word = 0;
	rmaext_window *w;
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 64});
	for (int i = 0; i < 600; i++) {
		rig_window(&r, &(struct rig_options){0}, &w);
		if (i % 3 == 0) {
			OK(put(w, 0, &word, 8));
			OK(flush(w));
		} else if (i % 3 == 1) {
			OK(get(w, 0, &word, 8));
		} else {
			OK(fetch_add(w, 0, RMAEXT_UINT64, &one, &word, 1));
		}
		OK(rmaext_window_close(w));
		rmaext_window_free(w);
	}
	rig_close(&r);
}

static void server(struct worker *me)
{
	while (!atomic_load(&stop))
		rmaext_fabric_progress(me->rig->target, 300000);
}

/* The owner gives up while the answer comes: either way the end is clean. */
static void give_up(void)
{
	struct worker one;
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 40000,
					  .two = true,
					  .no_progress = true,
					  .timeout = 5});
	start_all(&one, 1, &r, server);
	for (int i = 0; i < 300; i++) {
		struct rig_options o = {.timeout = 1e-6 * (i % 40 + 1)};
		char *buf = malloc(40000);
		rmaext_window *w;
		rmaext_op *op;
		int ret;

		CHECK(buf);
		rig_window(&r, &o, &w);
		if (i % 2)
			ret = get_begin(w, 0, 0, buf, 40000, &op);
		else
			ret = put_begin(w, 0, 0, memset(buf, i, 40000), 40000,
					&op);
		CHECK(!ret || ret == RMAEXT_PENDING || ret == -FI_ETIMEDOUT);
		while (rmaext_op_release(&op) == RMAEXT_PENDING)
			nap(1e-6);
		free(buf);
		OK(rmaext_window_close(w));
		rmaext_window_free(w);
	}
	atomic_store(&stop, true);
	join_all(&one, 1);
	rig_close(&r);
}

static void asker(struct worker *me)
{
	char buf[8];
	rmaext_op *op;
	int ret = get_begin(me->window, 0, 0, buf, 8, &op);

	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, TENTH);
	me->ret = ret;
	/* the buffer is free once the fabric is closed */
	while (rmaext_op_release(&op) == RMAEXT_PENDING)
		nap(1e-3);
}

static void waiter(struct worker *me)
{
	rmaext_fabric_progress(me->rig->origin, SECOND);
}

/* The fabric closes with threads that wait for what never comes. */
static void close_fabric(void)
{
	struct worker all[THREADS], two[2];
	struct rig r, copy;
	int ret;

	for (int i = 0; i < 4; i++) {
		rig_open(&r, (struct rig_options){
				     .size = THREADS * 1024,
				     .two = true,
				     .no_progress = i % 2,
			     });
		copy = r;
		start_all(all, THREADS, &copy, i % 2 ? asker : user);
		start_all(two, 2, &copy, waiter);
		nap(0.03);
		ret = rmaext_fabric_close(&r.origin);
		/* amid a read, if the target's thread is late */
		CHECK(!ret || (ret == RMAEXT_PENDING && i % 2 == 0));
		join_all(all, THREADS);
		join_all(two, 2);
		for (int j = 0; j < THREADS; j++)
			EQUAL(all[j].ret, -FI_ESHUTDOWN);
		rmaext_window_free(r.window);
		OK(rmaext_fabric_close(&r.target));
		rig_guards(&r);
		free(r.block);
	}
}

/* Waits that come and go, with pauses around the thread's parking time. */
static void handover(void)
{
	struct worker one;
	struct rig r;
	int slow = 0;

	rig_open(&r, (struct rig_options){.size = 4 * PART, .two = true});
	start_all(&one, 1, &r, server);
	for (int i = 0; i < 150; i++) {
		int64_t begin = now();
		uint64_t word = 0;

		OK(get(r.window, 0, &word, 8));
		slow += now() - begin >= SECOND;
		nap(1e-5 * (i % 100));
	}
	CHECK(slow < 5); /* others use this machine, too */
	atomic_store(&stop, true);
	join_all(&one, 1);
	rig_close(&r);
}

const struct test tests[] = {
	{"move", move, NULL, NULL},
	{"move_to_another", move_to_another, NULL, NULL},
	{"count", count, NULL, NULL},
	{"errors", errors, NULL, NULL},
	{"failures", failures, NULL, NULL},
	{"close_window", close_window, NULL, NULL},
	{"close_at_once", close_at_once, NULL, NULL},
	{"give_up", give_up, NULL, NULL},
	{"close_fabric", close_fabric, NULL, NULL},
	{"handover", handover, NULL, NULL},
	{0},
};
