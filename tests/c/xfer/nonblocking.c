/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests: begun, tested, waited for in any order, dropped, cancelled. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>

struct request {
	rmaext_op *op;
	int ended;
};

static int begin(rmaext_window *w, int kind, uint64_t offset, void *buf,
		 uint64_t len, struct request *r)
{
	struct rmaext_call call = {
		.kind = kind,
		.offset = offset,
		.operand = buf,
		.result = buf,
		.count = len,
		.ended = &r->ended,
	};

	r->ended = 5;
	return rmaext_start(w, &call, &r->op);
}

static int begin_add(rmaext_window *w, uint64_t offset, uint64_t *operand,
		     uint64_t *old, struct request *r)
{
	struct rmaext_call call = {
		.kind = RMAEXT_UPDATE,
		.op = RMAEXT_SUM,
		.type = RMAEXT_UINT64,
		.offset = offset,
		.operand = operand,
		.result = old,
		.count = 1,
		.ended = &r->ended,
	};

	r->ended = 5;
	return rmaext_start(w, &call, &r->op);
}

static bool has_ended(const struct request *r)
{
	return __atomic_load_n(&r->ended, __ATOMIC_ACQUIRE);
}

static int end(struct request *r)
{
	int ret;

	do
		ret = rmaext_op_wait(r->op, TENTH);
	while (ret == RMAEXT_PENDING);
	CHECK(has_ended(r));
	OK(rmaext_op_release(&r->op));
	EQUAL(r->op, NULL);
	return ret;
}

/* A target that nobody serves, connected. */
static void rig_deaf(struct rig *r, size_t size, double timeout)
{
	struct request get;
	char byte;

	rig_open(r, (struct rig_options){
			    .size = size,
			    .two = true,
			    .no_progress = true,
			    .timeout = timeout,
		    });
	EQUAL(begin(r->window, RMAEXT_GET, 0, &byte, 1, &get), RMAEXT_PENDING);
	while (rmaext_op_wait(get.op,
			      0)) /* or it is late: the limit is short */
		rmaext_fabric_progress(r->target, 1000000);
	OK(end(&get));
}

static void moves(struct rig *r, size_t len, int begun)
{
	char *from = malloc(len), *to = malloc(len);
	struct request put, get;

	CHECK(from && to);
	fill(from, len, (unsigned int)len);
	EQUAL(begin(r->window, RMAEXT_PUT, 3, from, len, &put), begun);
	if (begun)
		OK(end(&put));
	/* more than that the origin may be used again */
	CHECK(!memcmp(r->window_memory + 3, from, len));
	EQUAL(begin(r->window, RMAEXT_GET, 3, to, len, &get), begun);
	if (begun) {
		while (rmaext_op_wait(get.op, 0) == RMAEXT_PENDING)
			continue;
		OK(rmaext_op_wait(get.op, 0)); /* again */
		OK(end(&get));
	}
	CHECK(!memcmp(to, from, len));
	free(from);
	free(to);
}

static void any_size(void)
{
	struct request put;
	struct rig r;

	for (int direct = 0; direct < 2; direct++) {
		rig_open(&r, (struct rig_options){.size = 40 << 20,
						  .two = true,
						  .direct = direct});
		moves(&r, 1, direct ? 0 : RMAEXT_PENDING);
		moves(&r, 4099, direct ? 0 : RMAEXT_PENDING);
		moves(&r, 39 << 20, direct ? 0 : RMAEXT_PENDING);
		OK(begin(r.window, RMAEXT_PUT, r.size, &put, 0, &put));
		EQUAL(begin(r.window, RMAEXT_PUT, r.size, &put, 1, &put),
		      -ERANGE);
		EQUAL(put.op, NULL);
		EQUAL(begin(r.window, 77, 0, &put, 1, &put), -FI_EINVAL);
		rig_close(&r);
	}
}

enum { MANY = 6000 };

/*
 * More than there are slots, kept to the end. how: 0: waited for from the last
 * to the first; 1: flush alone; 2: nobody waits.
 */
static void many(int how, bool no_thread)
{
	struct request *all = calloc(MANY, sizeof(*all));
	uint32_t *values = calloc(MANY, sizeof(*values));
	struct rig r;

	CHECK(all && values);
	rig_open(&r, (struct rig_options){
			     .size = MANY * 4,
			     .two = true,
			     .no_thread = no_thread,
		     });
	for (uint32_t i = 0; i < MANY; i++) {
		values[i] = i + 1;
		EQUAL(begin(r.window, RMAEXT_PUT, i * 4, &values[i], 4,
			    &all[i]),
		      RMAEXT_PENDING);
	}
	if (how == 1) {
		OK(flush(r.window));
		for (uint32_t i = 0; i < MANY; i++)
			CHECK(has_ended(&all[i]));
	}
	for (uint32_t i = MANY; i-- > 0;) {
		int64_t limit = now() + 10 * SECOND;

		if (how == 2)
			while (!has_ended(&all[i])) {
				CHECK(now() < limit);
				nap(1e-4);
			}
		OK(end(&all[i]));
		CHECK(!memcmp(r.window_memory + i * 4, &values[i], 4));
	}
	OK(flush(r.window));
	rig_close(&r);
	free(all);
	free(values);
}

static void many_backwards(void)
{
	many(0, false);
	many(0, true);
}

static void many_flushed(void)
{
	many(1, false);
	many(1, true);
}

static void many_left_alone(void)
{
	many(2, false);
}

/* Released at once: they go on, and say when their buffers are free. */
static void dropped(void)
{
	struct request *all = calloc(MANY, sizeof(*all));
	uint64_t *values = malloc(MANY * sizeof(*values));
	int64_t limit = now() + 10 * SECOND;
	struct rig r;
	int left = MANY;

	CHECK(all && values);
	rig_open(&r, (struct rig_options){.size = MANY * 8, .two = true});
	for (uint64_t i = 0; i < MANY; i++) {
		values[i] = i + 1;
		begin(r.window, RMAEXT_PUT, i * 8, &values[i], 8, &all[i]);
		CHECK(!rmaext_op_release(&all[i].op) || all[i].op);
	}
	while (left) {
		left = 0;
		for (uint64_t i = 0; i < MANY; i++)
			left += rmaext_op_release(&all[i].op) == RMAEXT_PENDING;
		CHECK(now() < limit);
	}
	for (uint64_t i = 0; i < MANY; i++)
		CHECK(!memcmp(r.window_memory + i * 8, &values[i], 8));
	rig_close(&r);
	free(all);
	free(values);
}

/* Waited for in vain, they are there when the target is. */
static void late(void)
{
	enum { SIZE = 20 << 20 };
	struct request put, get;
	char *buf = malloc(SIZE);
	rmaext_window *patient;
	struct rig r;
	int ret;

	CHECK(buf);
	fill(buf, SIZE, 1);
	rig_deaf(&r, SIZE, 0.1);
	EQUAL(begin(r.window, RMAEXT_PUT, 0, buf, SIZE, &put), RMAEXT_PENDING);
	for (int i = 0; i < 2; i++) {
		int64_t start = now();

		do
			ret = rmaext_op_wait(put.op, TENTH);
		while (ret == RMAEXT_PENDING);
		EQUAL(ret, -FI_ETIMEDOUT);
		CHECK(now() - start > SECOND / 11);
		CHECK(!has_ended(&put));
	}
	EQUAL(flush_for(r.window, 0, 0.1), -FI_ETIMEDOUT);
	/* a slice as short as that */
	rig_window(&r, &(struct rig_options){0}, &patient);
	EQUAL(begin(patient, RMAEXT_GET, 0, buf, 1, &get), RMAEXT_PENDING);
	EQUAL(rmaext_op_wait(get.op, 1000000), RMAEXT_PENDING);
	while (rmaext_op_wait(put.op, 0) || rmaext_op_wait(get.op, 0))
		rmaext_fabric_progress(r.target, 1000000);
	OK(end(&get));
	OK(end(&put));
	CHECK(!memcmp(r.window_memory + 1, buf + 1, SIZE - 1));
	OK(flush(r.window));
	OK(rmaext_window_close(patient));
	rmaext_window_free(patient);
	rig_close(&r);
	free(buf);
}

static void cancel(void)
{
	enum { N = 3000 };
	struct request *all = calloc(N, sizeof(*all));
	char *ones = malloc(N);
	struct rig r;

	CHECK(all && ones);
	memset(ones, 1, N);
	rig_deaf(&r, N, 5);
	for (uint64_t i = 0; i < N; i++)
		EQUAL(begin(r.window, RMAEXT_PUT, i, &ones[i], 1, &all[i]),
		      RMAEXT_PENDING);
	EQUAL(rmaext_op_cancel(all[0].op), 0);
	/* the last of the queue, one within, the new last */
	for (int i = 1; i < 8; i += 3) {
		EQUAL(rmaext_op_cancel(all[N - i].op), 1);
		EQUAL(rmaext_op_cancel(all[N - i].op), 0);
		EQUAL(end(&all[N - i]), -FI_ECANCELED);
	}
	EQUAL(rmaext_op_cancel(all[N - 2].op), 1);
	EQUAL(end(&all[N - 2]), -FI_ECANCELED);
	for (uint64_t i = 0; i < N; i++) {
		if (!all[i].op)
			continue; /* cancelled */
		while (rmaext_op_wait(all[i].op, 0))
			rmaext_fabric_progress(r.target, 1000000);
		OK(end(&all[i]));
	}
	OK(flush(r.window));
	for (int i = 1; i <= N; i++)
		EQUAL(r.window_memory[N - i],
		      i != 1 && i != 2 && i != 4 && i != 7);
	rig_close(&r);
	free(all);
	free(ones);
}

/* An error is the owner's; flush has what the owner has not looked at. */
static void errors(void)
{
	struct rig_options wrong = {.wrong_key = true, .timeout = 3};
	struct request a, b;
	uint64_t word = 5;
	rmaext_window *w;
	struct rig r;
	int ret;

	rig_open(&r, (struct rig_options){.size = 64, .two = true});
	OK(put(r.window, 0, &word, 8));
	OK(flush(r.window));
	rig_window(&r, &wrong, &w);

	/* seen */
	EQUAL(begin(w, RMAEXT_PUT, 0, &word, 8, &a), RMAEXT_PENDING);
	ret = end(&a);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	OK(flush(w));
	/* not seen: once by flush, then by the owner all the same */
	EQUAL(begin(w, RMAEXT_GET, 0, &word, 8, &a), RMAEXT_PENDING);
	CHECK(flush(w) < 0);
	OK(flush(w));
	CHECK(rmaext_op_wait(a.op, 0) < 0);
	CHECK(end(&a) < 0);
	OK(flush(w));
	/* one of two seen */
	EQUAL(begin(w, RMAEXT_PUT, 0, &word, 8, &a), RMAEXT_PENDING);
	EQUAL(begin(w, RMAEXT_PUT, 8, &word, 8, &b), RMAEXT_PENDING);
	CHECK(end(&a) < 0);
	CHECK(flush(w) < 0);
	OK(flush(w));
	CHECK(end(&b) < 0);
	/* one seen of those before a flush, one after */
	EQUAL(begin(w, RMAEXT_PUT, 0, &word, 8, &a), RMAEXT_PENDING);
	CHECK(flush(w) < 0);
	EQUAL(begin(w, RMAEXT_PUT, 8, &word, 8, &b), RMAEXT_PENDING);
	while (!has_ended(&b))
		nap(1e-4);
	CHECK(end(&a) < 0);
	CHECK(flush(w) < 0);
	CHECK(end(&b) < 0);
	OK(flush(w));
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	rig_close(&r);
}

/* Those in flight, and those not sent yet, end with the endpoint. */
static void closed(void)
{
	enum { N = 3000 };
	struct request *all = calloc(N, sizeof(*all));
	uint64_t word = 1, old;
	struct rig r;

	CHECK(all);
	rig_deaf(&r, 64, 5);
	for (int i = 0; i < N; i++)
		EQUAL(i % 3 ? begin(r.window, RMAEXT_PUT, 0, &word, 8, &all[i])
			    : begin_add(r.window, 0, &word, &old, &all[i]),
		      RMAEXT_PENDING);
	for (int i = 0; i < N; i += 2)
		EQUAL(rmaext_op_release(&all[i].op), RMAEXT_PENDING);
	OK(rmaext_fabric_close(&r.origin));
	for (int i = 0; i < N; i++) {
		CHECK(has_ended(&all[i]));
		if (i % 2)
			EQUAL(end(&all[i]), -FI_ESHUTDOWN);
		else
			OK(rmaext_op_release(&all[i].op));
	}
	EQUAL(begin(r.window, RMAEXT_PUT, 0, &word, 8, &all[0]), -FI_ESHUTDOWN);
	rmaext_window_free(r.window);
	rmaext_fabric_progress(r.target, 50000000);
	OK(rmaext_memory_close(&r.memory));
	OK(rmaext_fabric_close(&r.target));
	rig_guards(&r);
	free(r.block);
	free(all);
}

/* Updates take effect in the order in which they are begun. */
static void updates(void)
{
	enum { N = 2000 };
	struct request *all = calloc(N, sizeof(*all));
	uint64_t *olds = calloc(N, sizeof(*olds)), one = 1, old;
	struct rig r;

	CHECK(all && olds);
	rig_open(&r,
		 (struct rig_options){.size = 64, .two = true, .served = true});
	for (int i = 0; i < N; i++)
		EQUAL(begin_add(r.window, 8, &one, &olds[i], &all[i]),
		      RMAEXT_PENDING);
	OK(fetch_add(r.window, 8, RMAEXT_UINT64, &one, &old, 1));
	EQUAL(old, N);
	for (int i = 0; i < N; i++) {
		OK(end(&all[i]));
		EQUAL(olds[i], i);
	}
	/* accumulates that nobody waits for */
	for (int i = 0; i < N; i++) {
		begin_add(r.window, 8, &one, NULL, &all[i]);
		rmaext_op_release(&all[i].op);
	}
	OK(flush(r.window));
	for (int i = 0; i < N; i++)
		OK(rmaext_op_release(&all[i].op));
	memcpy(&old, r.window_memory + 8, 8);
	EQUAL(old, 2 * N + 1);
	rig_close(&r);
	free(all);
	free(olds);
}

/* -- threads */

enum { THREADS = 4, ROUNDS = 40, EACH = 300 };

struct worker {
	pthread_t thread;
	struct rig *rig;
	int number;
};

static void *work(void *arg)
{
	struct worker *me = arg;
	struct request *all = calloc(EACH, sizeof(*all));
	uint64_t *values = calloc(EACH, sizeof(*values));
	const uint64_t at = (uint64_t)me->number * EACH * 8;

	CHECK(all && values);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		const int kind = round % 2 ? RMAEXT_PUT : RMAEXT_GET;

		for (uint64_t i = 0; i < EACH; i++) {
			if (kind == RMAEXT_PUT)
				values[i] = round << 32 | i;
			begin(me->rig->window, kind, at + i * 8, &values[i], 8,
			      &all[i]);
		}
		if (me->number % 2)
			OK(flush(me->rig->window));
		for (uint64_t i = 0; i < EACH; i++) {
			if (i % 3)
				OK(end(&all[i]));
			else
				while (rmaext_op_release(&all[i].op))
					sched_yield();
			EQUAL(values[i],
			      (round - (kind == RMAEXT_GET)) << 32 | i);
		}
	}
	free(all);
	free(values);
	return NULL;
}

static void threads(void)
{
	struct worker all[THREADS];
	uint64_t seen = 0;
	struct rig r;

	rig_open(&r, (struct rig_options){
			     .size = THREADS * EACH * 8,
			     .two = true,
		     });
	for (int i = 0; i < THREADS; i++) {
		all[i] = (struct worker){.rig = &r, .number = i};
		OK(pthread_create(&all[i].thread, NULL, work, &all[i]));
	}
	while (seen < THREADS * ROUNDS * EACH)
		OK(rmaext_fabric_wait_ended(r.origin, &seen, SECOND));
	for (int i = 0; i < THREADS; i++)
		pthread_join(all[i].thread, NULL);
	OK(flush(r.window));
	EQUAL(rmaext_window_pending(r.window), 0);
	rig_close(&r);
}

const struct test tests[] = {
	{"any_size", any_size, NULL, NULL},
	{"many_backwards", many_backwards, NULL, NULL},
	{"many_flushed", many_flushed, NULL, NULL},
	{"many_left_alone", many_left_alone, NULL, NULL},
	{"dropped", dropped, NULL, NULL},
	{"late", late, NULL, NULL},
	{"cancel", cancel, NULL, NULL},
	{"errors", errors, NULL, NULL},
	{"closed", closed, NULL, NULL},
	{"updates", updates, NULL, NULL},
	{"threads", threads, NULL, NULL},
	{0},
};
