/* SPDX-License-Identifier: BSD-3-Clause */
/* Targets that do not answer: time limits, signals, late answers, closing. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/time.h>

#define LONG_PUT 72 /* bytes: more than RMX_SINGLE_MOST, so it is a write */

static atomic_bool connected;

static void *serve_until_connected(void *target)
{
	while (!atomic_load(&connected))
		rmaext_fabric_progress(target, 1000000);
	return NULL;
}

/* The rig's target is served by nobody; the connection is made before. */
static void rig_with(struct rig *r, size_t size, double timeout, bool served)
{
	struct rig_options o = {
		.size = size,
		.two = true,
		.served = served,
		.no_progress = true,
		.timeout = timeout,
	};
	rmaext_window *patient;
	pthread_t server;

	rig_open(r, o);
	o.timeout = 10;
	rig_window(r, &o, &patient);
	atomic_store(&connected, false);
	OK(pthread_create(&server, NULL, serve_until_connected, r->target));
	OK(put(patient, 0, "", 1));
	OK(flush(patient));
	atomic_store(&connected, true);
	pthread_join(server, NULL);
	OK(rmaext_window_close(patient));
	rmaext_window_free(patient);
}

static void rig_deaf(struct rig *r, size_t size, double timeout)
{
	rig_with(r, size, timeout, false);
}

static void serve_until_free(struct rig *r, rmaext_op **op)
{
	int64_t end = now() + 10 * SECOND;

	while (rmaext_op_release(op) == RMAEXT_PENDING && now() < end)
		rmaext_fabric_progress(r->target, 1000000);
	EQUAL(*op, NULL);
}

static void serve_until_closed(struct rig *r)
{
	int64_t end = now() + 10 * SECOND;
	int ret;

	while ((ret = rmaext_window_close(r->window)) == -FI_EBUSY) {
		CHECK(now() < end);
		rmaext_fabric_progress(r->target, 5000000);
	}
	OK(ret);
}

static int wait_out(int ret, rmaext_op **op)
{
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(*op, TENTH);
	return ret;
}

/*
 * A get times out, its buffer stays in use until the late answer; after that
 * nothing writes there.
 */
static void late_answer(void)
{
	char *buf = malloc(100000);
	struct rmaext_error e;
	rmaext_op *op;
	struct rig r;
	int64_t start;

	CHECK(buf);
	rig_deaf(&r, 100000, 0.2);
	memset(r.window_memory, 0x31, r.size);
	memset(buf, 0, r.size);
	start = now();
	EQUAL(wait_out(get_begin(r.window, 0, 0, buf, r.size, &op), &op),
	      -FI_ETIMEDOUT);
	CHECK(now() - start > SECOND * 18 / 100);
	CHECK(now() - start < 3 * SECOND);
	rmaext_error_last(&e);
	CHECK(e.code == -FI_ETIMEDOUT && e.rank == 0);
	for (int i = 0; i < 3; i++)
		EQUAL(rmaext_op_release(&op), RMAEXT_PENDING);
	OK(flush_for(r.window, 0, 0.1)); /* it waits for no such get */
	EQUAL(rmaext_window_close(r.window), -FI_EBUSY);
	serve_until_free(&r, &op);
	CHECK(buf[0] == 0x31 && buf[r.size - 1] == 0x31);
	memset(buf, 0x32, r.size);
	nap(0.05);
	rmaext_fabric_progress(r.target, 10000000);
	for (size_t i = 0; i < r.size; i++)
		EQUAL(buf[i], 0x32);
	free(buf);
	rig_close(&r);
}

/* The same for what sends: the target gets it late, whole, or not at all. */
static void late_put(void)
{
	const size_t size = 12 << 20; /* several chunks */
	char *buf = malloc(size);
	rmaext_op *op;
	struct rig r;

	CHECK(buf);
	rig_deaf(&r, size, 0.2);
	memset(buf, 0x33, size);
	EQUAL(wait_out(put_begin(r.window, 0, 0, buf, size, &op), &op),
	      -FI_ETIMEDOUT);
	EQUAL(rmaext_op_release(&op), RMAEXT_PENDING);
	EQUAL(flush_for(r.window, 0, 0.1), -FI_ETIMEDOUT);
	serve_until_free(&r, &op);
	memset(buf, 0, size);
	while (rmaext_window_pending(r.window)) /* its end went as a copy */
		rmaext_fabric_progress(r.target, 1000000);
	OK(flush(r.window));
	for (size_t i = 0; i < size; i++)
		CHECK(r.window_memory[i] == 0x33 || !r.window_memory[i]);
	free(buf);
	rig_close(&r);
}

/*
 * Updates that time out. They were messages, their buffers are free at once,
 * and late answers write nothing; what is late is carried out all the same.
 */
static void late_update(void)
{
	uint64_t one = 1, old = 9, two[2] = {5, 6};
	rmaext_op *op, *second;
	struct rig r;

	rig_with(&r, 64, 0.1, true);
	EQUAL(wait_out(update_begin(r.window, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				    &one, NULL, &old, 1, &op),
		       &op),
	      -FI_ETIMEDOUT);
	EQUAL(wait_out(update_begin(r.window, 0, 8, RMAEXT_CSWAP, RMAEXT_UINT64,
				    two, two, two + 1, 1, &second),
		       &second),
	      -FI_ETIMEDOUT);
	OK(update(r.window, 16, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL, 1));
	EQUAL(flush_for(r.window, 0, 0.1), -FI_ETIMEDOUT);
	CHECK(rmaext_window_pending(r.window) > 0); /* what has an owner */
	OK(rmaext_op_release(&op));
	OK(rmaext_op_release(&second));
	EQUAL(rmaext_window_pending(r.window), 0);
	while (!*r.window_memory)
		rmaext_fabric_progress(r.target, 1000000);
	for (int i = 0; i < 20; i++) {
		rmaext_fabric_progress(r.target, 1000000);
		rmaext_fabric_progress(r.origin, 1000000);
	}
	EQUAL(old, 9);
	EQUAL(two[1], 6);
	EQUAL(*r.window_memory, 1);
	OK(flush(r.window));
	rig_close(&r);
}

static void flush_limit(void)
{
	char values[LONG_PUT];
	rmaext_op *op;
	struct rig r;
	int64_t start;

	rig_deaf(&r, 100 * LONG_PUT, 0.2);
	for (unsigned int i = 0; i < 100; i++) {
		memset(values, (int)i, sizeof(values));
		OK(put_begin(r.window, 0, i * LONG_PUT, values, LONG_PUT, &op));
	}
	for (int round = 0; round < 2; round++) {
		start = now();
		EQUAL(flush_for(r.window, round - 1, 0.2), -FI_ETIMEDOUT);
		CHECK(now() - start > SECOND * 18 / 100);
		CHECK(now() - start < 3 * SECOND);
	}
	EQUAL(rmaext_window_close(r.window), -FI_EBUSY);
	serve_until_closed(&r);
	for (unsigned int i = 0; i < 100 * LONG_PUT; i++)
		EQUAL(r.window_memory[i], i / LONG_PUT);
	rig_close(&r);
}

/* An operation's owner may come back after all else is closed. */
static void release_last(void)
{
	static char buf[64]; /* kept for the endpoint, which stays */
	static const char x[LONG_PUT];
	rmaext_window *w;
	rmaext_op *op;
	struct rig r;

	/* after the window: the answer comes, and only then it is closed */
	rig_deaf(&r, LONG_PUT, 0.1);
	EQUAL(wait_out(get_begin(r.window, 0, 0, buf, 64, &op), &op),
	      -FI_ETIMEDOUT);
	EQUAL(rmaext_op_release(&op), RMAEXT_PENDING);
	serve_until_closed(&r);
	OK(rmaext_op_wait(op, TENTH)); /* it has ended, as a request has */
	rig_window(&r, &(struct rig_options){0}, &w);
	OK(put(w, 0, x, sizeof(x))); /* a neighbour in the fabric's list */
	OK(rmaext_op_release(&op));
	EQUAL(op, NULL);
	OK(put(w, 0, x, sizeof(x)));
	while (rmaext_window_pending(w))
		rmaext_fabric_progress(r.target, 5000000);
	OK(flush(w));
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	rig_close(&r);

	/* after the fabric, before the window is freed and after */
	for (int i = 0; i < 2; i++) {
		rig_deaf(&r, 64, 0.1);
		EQUAL(wait_out(get_begin(r.window, 0, 0, buf, 64, &op), &op),
		      -FI_ETIMEDOUT);
		if (i)
			EQUAL(rmaext_op_release(&op), RMAEXT_PENDING);
		/* amid the read: the endpoint stays */
		EQUAL(rmaext_fabric_close(&r.origin), RMAEXT_PENDING);
		EQUAL(r.origin, NULL);
		EQUAL(rmaext_op_wait(op, TENTH), -FI_ESHUTDOWN);
		OK(rmaext_op_release(&op));
		EQUAL(op, NULL);
		OK(rmaext_op_release(&op));
		rmaext_window_free(r.window);
		OK(rmaext_fabric_close(&r.target));
		free(r.block);
	}
}

/* Puts in flight and forgotten operations end with the fabric. */
static void close_in_flight(void)
{
	rmaext_op *ops[20], *op;
	static char *bufs[20]; /* kept for the endpoint, which stays */
	struct rig r;
	int ret;

	rig_deaf(&r, 1 << 20, 0.05);
	for (uint64_t i = 0; i < 300; i++)
		OK(put_begin(r.window, 0, i * 8, &i, 8, &op));
	for (size_t i = 0; i < COUNT(ops); i++) {
		bufs[i] = malloc(1 << 20);
		CHECK(bufs[i]);
		memset(bufs[i], 1, 1 << 20);
		if (i % 2)
			ret = get_begin(r.window, 0, 0, bufs[i], 1 << 20,
					&ops[i]);
		else
			ret = put_begin(r.window, 0, 0, bufs[i], 1 << 20,
					&ops[i]);
		EQUAL(ret, -FI_ETIMEDOUT);
		if (i < 5)
			EQUAL(rmaext_op_release(&ops[i]), RMAEXT_PENDING);
	}
	EQUAL(rmaext_fabric_close(&r.origin), RMAEXT_PENDING);
	for (size_t i = 0; i < COUNT(ops); i++)
		OK(rmaext_op_release(&ops[i]));
	EQUAL(put_begin(r.window, 0, 0, &op, 8, &op), -FI_ESHUTDOWN);
	rmaext_window_free(r.window);
	/* the target must not miss it */
	rmaext_fabric_progress(r.target, 50000000);
	OK(rmaext_memory_close(&r.memory));
	OK(rmaext_fabric_close(&r.target));
	rig_guards(&r);
	free(r.block);
}

/* An error after the owner has gone, or just before: the next flush has it. */
static void left_to_flush(void)
{
	const size_t size = 12 << 20;
	char *buf = calloc(1, size);
	struct rmaext_stats stats;
	rmaext_window *w;
	rmaext_op *op;
	struct rig r;

	CHECK(buf);
	for (int early = 0; early < 2; early++) {
		rig_deaf(&r, size, 5);
		rig_window(&r, &(struct rig_options){.wrong_key = true}, &w);
		EQUAL(put_begin(w, 0, 0, buf, size, &op), RMAEXT_PENDING);
		if (early)
			EQUAL(rmaext_op_release(&op), RMAEXT_PENDING);
		do {
			rmaext_fabric_progress(r.target, 1000000);
			rmaext_fabric_stats(r.origin, &stats);
		} while (stats.completed < stats.posted);
		CHECK(stats.failed);
		serve_until_free(&r, &op); /* it is counted before that */
		CHECK(flush(w) < 0);
		OK(flush(w));
		OK(rmaext_window_close(w));
		rmaext_window_free(w);
		rig_close(&r);
	}
	free(buf);
}

/* The target's end closes with our operations on the way. */
static void target_closes(void)
{
	uint64_t word = 1;
	rmaext_op *op;
	struct rig r;
	int64_t start;
	int ret;

	rig_deaf(&r, 4096, 5);
	OK(put_begin(r.window, 0, 0, &word, 8, &op));
	EQUAL(get_begin(r.window, 0, 0, &word, 8, &op), RMAEXT_PENDING);
	OK(rmaext_fabric_close(&r.target));
	r.memory = NULL;
	start = now();
	ret = finish(RMAEXT_PENDING, &op);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	ret = flush_for(r.window, 0, 5);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	CHECK(now() - start < 4 * SECOND);
	OK(flush_for(r.window, 0, 5));
	OK(rmaext_window_close(r.window));
	rmaext_window_free(r.window);
	OK(rmaext_fabric_close(&r.origin));
	free(r.block);
}

/* A peer that is stuck must not keep us from the others. */
static void others_work(void)
{
	char values[LONG_PUT] = {0};
	rmaext_op *op = NULL;
	uint64_t i = 0;
	struct rig r, other;
	int ret;

	rig_deaf(&r, 4096, 10);
	do
		ret = put_begin(r.window, 0, 0, values, LONG_PUT, &op);
	while (!ret && ++i < 20000);
	EQUAL(ret, RMAEXT_PENDING);
	CHECK(i >= 256);
	other = r;
	other.peer = peer_of(r.origin, r.origin);
	OK(memory_register(r.origin, r.window_memory, r.size, 3, 99,
			   &other.memory));
	OK(rmaext_memory_key(other.memory, other.key, &other.key_len));
	rig_window(&other, &(struct rig_options){.timeout = 3}, &other.window);
	OK(put(other.window, 0, &i, 8));
	OK(flush(other.window));
	OK(get(other.window, 0, &i, 8));
	OK(rmaext_fabric_close(&r.origin));
	rmaext_op_release(&op);
	rmaext_window_free(r.window);
	rmaext_window_free(other.window);
	OK(rmaext_fabric_close(&r.target));
	free(r.block);
}

static void on_signal(int n)
{
	(void)n;
}

#define TRIES 5 /* others use this machine, too */

static rmaext_op *gets[TRIES];
static uint64_t got;

static void slice_of_get(struct rig *r, int turn)
{
	EQUAL(get_begin(r->window, 0, 0, &got, 8, &gets[turn]), RMAEXT_PENDING);
}

static void slice_of_flush(struct rig *r, int turn)
{
	struct rmaext_wait wait = {.timeout = 5 * SECOND};

	(void)turn;
	EQUAL(rmaext_flush(r->window, 0, &wait), RMAEXT_PENDING);
}

static void slice_of_progress(struct rig *r, int turn)
{
	(void)turn;
	rmaext_fabric_progress(r->origin, SECOND / 10);
}

/* A signal comes 20 ms after the begin of a slice, which has 100. */
static void ends_early(struct rig *r, void (*slice)(struct rig *r, int turn))
{
	struct itimerval soon = {.it_value = {.tv_usec = 20000}};
	int64_t start, took, shortest = INT64_MAX;

	for (int i = 0; i < TRIES; i++) {
		start = now();
		setitimer(ITIMER_REAL, &soon, NULL);
		slice(r, i);
		took = now() - start;
		CHECK(took > SECOND / 100);
		shortest = took < shortest ? took : shortest;
	}
	CHECK(shortest < SECOND * 8 / 100);
}

/* A signal ends a slice: Python's handler must run, and may raise. */
static void interrupted(void)
{
	struct sigaction act = {.sa_handler = on_signal};
	struct rmaext_wait wait = {.timeout = 5 * SECOND};
	rmaext_op *late;
	struct rig r;
	int64_t start;

	rig_deaf(&r, 4096, 20);
	sigaction(SIGVTALRM, &act, NULL);
	sigaction(SIGPROF, &act, NULL);
	alarm(0);
	sigaction(SIGALRM, &act, NULL);
	ends_early(&r, slice_of_get);
	OK(put_begin(r.window, 0, 0, "late", 4, &late));
	ends_early(&r, slice_of_flush);
	ends_early(&r, slice_of_progress);
	/* without one: a slice */
	start = now();
	EQUAL(rmaext_op_wait(gets[0], TENTH), RMAEXT_PENDING);
	CHECK(now() - start > SECOND * 8 / 100);
	CHECK(now() - start < 3 * SECOND);
	for (int i = 0; i < TRIES; i++)
		serve_until_free(&r, &gets[i]);
	do
		rmaext_fabric_progress(r.target, 1000000);
	while (rmaext_flush(r.window, 0, &wait) == RMAEXT_PENDING);
	rig_close(&r);
}

static atomic_bool served;

static void *serve_late(void *arg)
{
	struct rig *r = arg;

	while (!atomic_load(&served)) {
		nap(0.0003);
		rmaext_fabric_progress(r->target, 50000);
	}
	return NULL;
}

/*
 * Signals end waits at any time, also when the answer has just come to another
 * reader of the queue: what is pending has an operation, and each ends well.
 */
static void ended_beside(void)
{
	const struct itimerval often = {{0, 60}, {0, 60}}, never = {{0}, {0}};
	struct sigaction act = {.sa_handler = on_signal};
	int64_t end;
	int pending = 0;
	pthread_t server;
	struct rig r;

	rig_open(&r, (struct rig_options){
			     .size = 4096, .two = true, .no_progress = true});
	memcpy(r.window_memory + 8, "as it is", 8);
	pthread_create(&server, NULL, serve_late, &r);
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (end = now() + SECOND; now() < end;) {
		rmaext_op *op = NULL;
		char it[8] = "";
		int ret = get_begin(r.window, 0, 8, it, 8, &op);

		if (ret == RMAEXT_PENDING) {
			CHECK(op);
			pending++;
			ret = wait_out(ret, &op);
		}
		OK(ret);
		CHECK(!memcmp(it, "as it is", 8));
		OK(rmaext_op_release(&op));
	}
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(pending);
	atomic_store(&served, true);
	pthread_join(server, NULL);
	rig_close(&r);
}

/* Its thread alone serves: nobody in this process calls the target. */
static void served_by_thread(void)
{
	struct rmaext_stats before, after;
	uint64_t one = 1, old = 0;
	struct rig r;
	int slow = 0;

	rig_open(&r, (struct rig_options){.size = 4 << 20,
					  .two = true,
					  .served = true,
					  .no_thread = true});
	rmaext_fabric_stats(r.target, &before);
	for (uint64_t i = 0; i < 200; i++) {
		int64_t start = now();

		OK(put(r.window, 8, &i, 8));
		OK(flush(r.window));
		CHECK(!memcmp(r.window_memory + 8, &i, 8));
		OK(get(r.window, 8, &old, 8));
		EQUAL(old, i);
		OK(fetch_add(r.window, 0, RMAEXT_UINT64, &one, &old, 1));
		EQUAL(old, i);
		slow += now() - start >= SECOND;
	}
	CHECK(slow < 5); /* others use this machine, too */
	rmaext_fabric_stats(r.target, &after);
	EQUAL(after.posted, before.posted);
	rig_close(&r);
}

const struct test tests[] = {
	{"late_answer", late_answer, NULL, NULL},
	{"late_put", late_put, NULL, NULL},
	{"late_update", late_update, NULL, NULL},
	{"flush_limit", flush_limit, NULL, NULL},
	{"release_last", release_last, NULL, NULL},
	{"close_in_flight", close_in_flight, NULL, NULL},
	{"left_to_flush", left_to_flush, NULL, NULL},
	{"target_closes", target_closes, NULL, NULL},
	{"others_work", others_work, NULL, NULL},
	{"interrupted", interrupted, NULL, NULL},
	{"ended_beside", ended_beside, NULL, NULL},
	{"served_by_thread", served_by_thread, NULL, NULL},
	{0},
};
