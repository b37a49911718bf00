/* SPDX-License-Identifier: BSD-3-Clause */
/* Waiting for words of memory: comparisons, wake-ups, none of them lost. */
#include "rig.h"
#include "shm/control_block.h"

#include <math.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "am/am.h"

enum { ROUNDS = 20000, WORDS = 4, ADDS = 3000, MEMORY = 64 };

/* Sleeping out a slice, for which nobody rang, takes longer. */
#define LATE (SECOND * 8 / 100)
#define TRIES 5 /* others use this machine, too */

/* A window of one rank, by memory, whose words lie in its control block. */
struct bed {
	rmaext_window *window;
	void *block;
	struct rmaext_places places;
};

static void arena_make(void)
{
	static const uint8_t nonce[16] = "doorbell";

	leaky(true);
	OK(rmaext_arena_open(nonce, &arena));
	leaky(false);
}

/*
 * The words of its memory are the block's notification counters, so that an
 * update goes there, and a wait may rely on rings alone.
 */
static void bed_make(struct bed *b, int64_t spin)
{
	uint64_t size = MEMORY;
	uint8_t access = RMAEXT_READ | RMAEXT_WRITE, align = 0;
	uint8_t route = RMAEXT_DIRECT;
	struct ranks targets = {
		.count = 1,
		.size = &size,
		.access = &access,
		.align = &align,
		.route = &route,
		.arena = arena,
		.spin_ns = spin,
	};
	void *map;

	rmaext_block_places(1, &b->places);
	OK(arena ? rmaext_arena_allocate(arena, rmaext_block_bytes(1),
					 &b->block)
		 : posix_memalign(&b->block, 64, rmaext_block_bytes(1)));
	memset(b->block, 0, rmaext_block_bytes(1));
	map = (uint64_t *)b->block + b->places.notify;
	targets.map = &map;
	targets.control = &b->block;
	OK(window_new(NULL, &targets, 10 * SECOND, &b->window));
}

static void bed_end(struct bed *b)
{
	OK(rmaext_window_close(b->window));
	rmaext_window_free(b->window);
	if (!arena)
		free(b->block);
}

static struct rmaext_condition word(const struct bed *b, int i, int comparison,
				    uint64_t value)
{
	return (struct rmaext_condition){
		.offset = 8 * (b->places.notify + (uint64_t)i),
		.value = value,
		.block = 1,
		.type = RMAEXT_INT64,
		.comparison = (uint8_t)comparison,
	};
}

static void add(const struct bed *b, int i)
{
	uint64_t one = 1, old;
	rmaext_op *op;

	OK(update_begin(b->window, 0, 8 * (uint64_t)i, RMAEXT_SUM,
			RMAEXT_UINT64, &one, NULL, &old, 1, &op));
}

/* -- comparisons */

struct number {
	double value;
	uint64_t bits; /* little-endian or not: filled in by pack() */
};

static void pack(struct number *n, int type)
{
	const double v = n->value;
	const float f = (float)v;
	/* of -2, -1, 0, 1, 2, NaN, infinity */
	const uint16_t half = v != v	? 0x7e00
			      : v == -2 ? 0xc000
			      : v == -1 ? 0xbc00
			      : v == 0	? 0
			      : v == 1	? 0x3c00
			      : v == 2	? 0x4000
					: 0x7c00;
	const int64_t i = v == v && v < 1e9 ? (int64_t)v : 3;

	n->bits = 0;
	switch (type) {
	case RMAEXT_FLOAT:
		memcpy(&n->bits, &f, sizeof(f));
		break;
	case RMAEXT_DOUBLE:
		memcpy(&n->bits, &v, sizeof(v));
		break;
	case RMAEXT_HALF:
		memcpy(&n->bits, &half, sizeof(half));
		break;
	case RMAEXT_INT8:
	case RMAEXT_UINT8:
	case RMAEXT_BOOL:
		memcpy(&n->bits, &(int8_t){(int8_t)i}, 1);
		break;
	case RMAEXT_INT16:
	case RMAEXT_UINT16:
		memcpy(&n->bits, &(int16_t){(int16_t)i}, 2);
		break;
	case RMAEXT_INT32:
	case RMAEXT_UINT32:
		memcpy(&n->bits, &(int32_t){(int32_t)i}, 4);
		break;
	default:
		n->bits = (uint64_t)i;
	}
}

static bool expected(double is, int comparison, double wanted)
{
	switch (comparison) {
	case RMAEXT_EQ:
		return is == wanted;
	case RMAEXT_NE:
		return is != wanted;
	case RMAEXT_LT:
		return is < wanted;
	case RMAEXT_LE:
		return is <= wanted;
	case RMAEXT_GT:
		return is > wanted;
	}
	return is >= wanted;
}

static void one_type(struct bed *b, int type, const double *values, size_t n)
{
	char *memory = (char *)((uint64_t *)b->block + b->places.notify);

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++)
			for (int how = RMAEXT_EQ; how <= RMAEXT_GE; how++) {
				struct number is = {.value = values[i]};
				struct number wanted = {.value = values[k]};
				struct rmaext_condition c = {
					.type = (uint8_t)type,
					.comparison = (uint8_t)how,
					.seen = 0,
				};
				int ret;

				pack(&is, type);
				pack(&wanted, type);
				memset(memory, 0xee, 16);
				memcpy(memory, &is.bits,
				       type == RMAEXT_DOUBLE ? 8 : 4);
				if (type == RMAEXT_INT64 ||
				    type == RMAEXT_UINT64)
					memcpy(memory, &is.bits, 8);
				c.value = wanted.bits;
				ret = rmaext_wait_until(b->window, 0, &c, 1, 1,
							0);
				EQUAL(!ret,
				      expected(is.value, how, wanted.value));
				EQUAL(c.holds, !ret);
				EQUAL(c.seen, is.bits);
			}
}

static void compares(void)
{
	static const double reals[] = {-2, -1, 0, 1, 2, NAN, INFINITY};
	static const int floats[] = {RMAEXT_HALF, RMAEXT_FLOAT, RMAEXT_DOUBLE};
	static const int with_sign[] = {RMAEXT_INT8, RMAEXT_INT16, RMAEXT_INT32,
					RMAEXT_INT64};
	static const int without[] = {RMAEXT_UINT8, RMAEXT_UINT16,
				      RMAEXT_UINT32, RMAEXT_UINT64};
	struct bed b;

	arena_make();
	bed_make(&b, 0);
	for (size_t i = 0; i < COUNT(floats); i++)
		one_type(&b, floats[i], reals, COUNT(reals));
	for (size_t i = 0; i < COUNT(with_sign); i++)
		one_type(&b, with_sign[i], reals, 5);
	for (size_t i = 0; i < COUNT(without); i++)
		one_type(&b, without[i], reals + 2, 3);
	one_type(&b, RMAEXT_BOOL, reals + 2, 2);
	bed_end(&b);
}

/*
 * The smallest halves, whatever this thread's CPU does to the smallest floats.
 */
static void tiny_halves(void)
{
	const uint16_t halves[] = {0, 1, 2, 0x3ff, 0x400, 0x401, 0x3c00};
	struct bed b;
	char *memory;

	arena_make();
	bed_make(&b, 0);
	memory = (char *)((uint64_t *)b.block + b.places.notify);
#if defined(__x86_64__)
	__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
	for (size_t i = 0; i < COUNT(halves); i++)
		for (size_t k = 0; k < COUNT(halves); k++)
			for (int how = RMAEXT_EQ; how <= RMAEXT_GE; how++) {
				struct rmaext_condition c = {
					.type = RMAEXT_HALF,
					.comparison = (uint8_t)how,
					.value = halves[k],
				};

				memcpy(memory, &halves[i], 2);
				CHECK(rmaext_wait_until(b.window, 0, &c, 1, 1,
							0) <= 0);
				EQUAL(c.holds,
				      expected((double)i, how, (double)k));
			}
	bed_end(&b);
}

static void refuses(void)
{
	struct rmaext_condition c, good;
	struct bed b;

	arena_make();
	bed_make(&b, 0);
	good = word(&b, 0, RMAEXT_EQ, 0);
	OK(rmaext_wait_until(b.window, 0, &good, 1, 1, SECOND));
	c = good;
	c.type = RMAEXT_FLOAT_COMPLEX;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -FI_EINVAL);
	c.type = 77;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -FI_EINVAL);
	c = good;
	c.comparison = RMAEXT_GE + 1;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -FI_EINVAL);
	c = good;
	c.offset += 4;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -FI_EFAULT);
	c.offset = rmaext_block_bytes(1) - 7;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -ERANGE);
	c.offset = UINT64_MAX - 7;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -ERANGE);
	c = good;
	c.block = 0;
	c.offset = MEMORY;
	EQUAL(rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND), -ERANGE);
	EQUAL(rmaext_wait_until(b.window, 1, &good, 1, 1, SECOND), -ERANGE);
	EQUAL(rmaext_wait_until(b.window, -1, &good, 1, 1, SECOND), -ERANGE);
	bed_end(&b);
}

/* -- wake-ups */

struct side {
	pthread_t thread;
	struct bed *bed;
	int number;
	int64_t rung;  /* when, the last time */
	int64_t least; /* of all slices */
	int late;
	atomic_int slices;
	int ret;
};

/* Two take turns; each sleeps until the other has counted. */
static void *turns(void *arg)
{
	struct side *me = arg, *other = me + (me->number ? -1 : 1);

	for (uint64_t i = 1; i <= ROUNDS; i++) {
		struct rmaext_condition c =
			word(me->bed, 1 - me->number, RMAEXT_GE,
			     me->number ? i : i - 1);
		const int64_t start = now();

		while (rmaext_wait_until(me->bed->window, 0, &c, 1, 1, SECOND))
			atomic_fetch_add(&me->slices, 1);
		/* its change was there all the time? */
		if (now() - start > LATE &&
		    now() - __atomic_load_n(&other->rung, __ATOMIC_ACQUIRE) >
			    LATE)
			me->late++;
		__atomic_store_n(&me->rung, now(), __ATOMIC_RELEASE);
		add(me->bed, me->number);
	}
	return NULL;
}

static int try_turns(int64_t spin)
{
	struct side sides[2] = {{0}};
	struct bed b;

	bed_make(&b, spin);
	for (int i = 0; i < 2; i++) {
		sides[i].bed = &b;
		sides[i].number = i;
		OK(pthread_create(&sides[i].thread, NULL, turns, &sides[i]));
	}
	for (int i = 0; i < 2; i++)
		pthread_join(sides[i].thread, NULL);
	bed_end(&b);
	return sides[0].late + sides[1].late;
}

static void take_turns(int64_t spin)
{
	int late = 2;

	arena_make();
	/* a machine may stand still for that long once */
	for (int i = 0; late > 1 && i < TRIES; i++)
		late = try_turns(spin);
	CHECK(late <= 1);
}

static void no_wake_up_is_lost(void)
{
	take_turns(0);
}

static void nor_after_spinning(void)
{
	take_turns(2000);
}

/* Each adds to its own word; those who wait want them all, or the next. */
static void *adder(void *arg)
{
	struct side *me = arg;

	for (int i = 0; i < ADDS; i++)
		add(me->bed, me->number);
	__atomic_store_n(&me->rung, now(), __ATOMIC_RELEASE);
	return NULL;
}

static void *waiter(void *arg)
{
	struct side *me = arg;
	struct rmaext_condition c[WORDS];
	uint64_t seen[WORDS] = {0}, sum = 0;

	if (me->number) { /* all of them at once */
		for (int i = 0; i < WORDS; i++)
			c[i] = word(me->bed, i, RMAEXT_EQ, ADDS);
		while (rmaext_wait_until(me->bed->window, 0, c, WORDS, 1,
					 SECOND))
			me->slices++;
		return NULL;
	}
	while (sum < (uint64_t)WORDS * ADDS) { /* any of them moves */
		for (int i = 0; i < WORDS; i++)
			c[i] = word(me->bed, i, RMAEXT_GT, seen[i]);
		while (rmaext_wait_until(me->bed->window, 0, c, WORDS, 0,
					 SECOND))
			me->slices++;
		for (int i = 0; i < WORDS; i++)
			if (c[i].holds) {
				sum += c[i].seen - seen[i];
				seen[i] = c[i].seen;
			}
	}
	EQUAL(sum, WORDS * ADDS);
	return NULL;
}

/* Returns how long after the last change all are awake. */
static int64_t try_many(void)
{
	struct side adders[WORDS] = {{0}}, waiters[2] = {{0}};
	int64_t last = 0;
	struct bed b;

	bed_make(&b, 0);
	for (int i = 0; i < 2; i++) {
		waiters[i].bed = &b;
		waiters[i].number = i;
		OK(pthread_create(&waiters[i].thread, NULL, waiter,
				  &waiters[i]));
	}
	for (int i = 0; i < WORDS; i++) {
		adders[i].bed = &b;
		adders[i].number = i;
		OK(pthread_create(&adders[i].thread, NULL, adder, &adders[i]));
	}
	for (int i = 0; i < WORDS; i++) {
		pthread_join(adders[i].thread, NULL);
		last = adders[i].rung > last ? adders[i].rung : last;
	}
	for (int i = 0; i < 2; i++)
		pthread_join(waiters[i].thread, NULL);
	bed_end(&b);
	return now() - last;
}

static void many_at_once(void)
{
	int64_t took = SECOND;

	arena_make();
	for (int i = 0; took >= SECOND && i < TRIES; i++)
		took = try_many();
	CHECK(took < SECOND); /* and not by luck, slices later */
}

/* The arena is shared with the child. Returns how often a turn was late. */
static int try_processes(void)
{
	struct rmaext_condition c;
	struct bed b;
	pid_t child;
	int late = 0;

	bed_make(&b, 0);
	child = fork_child();
	if (!child) {
		for (uint64_t i = 1; i <= 300; i++) {
			c = word(&b, 0, RMAEXT_GE, i);
			while (rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND))
				;
			add(&b, 1);
		}
		_exit(0);
	}
	for (uint64_t i = 1; i <= 300; i++) {
		const int64_t start = now();

		add(&b, 0);
		c = word(&b, 1, RMAEXT_GE, i);
		while (rmaext_wait_until(b.window, 0, &c, 1, 1, SECOND))
			;
		late += now() - start > LATE;
	}
	EQUAL(waitpid(child, NULL, 0), child);
	bed_end(&b);
	return late;
}

static void between_processes(void)
{
	int late = 3;

	arena_make();
	for (int i = 0; late > 2 && i < TRIES; i++)
		late = try_processes();
	CHECK(late <= 2);
}

static void *sleeper(void *arg)
{
	struct side *me = arg;
	struct rmaext_condition c = word(me->bed, 0, RMAEXT_EQ, 1);

	do {
		const int64_t start = now();
		int64_t took;

		me->ret =
			rmaext_wait_until(me->bed->window, 0, &c, 1, 1, SECOND);
		took = now() - start;
		if (took < me->least)
			__atomic_store_n(&me->least, took, __ATOMIC_RELEASE);
		atomic_fetch_add(&me->slices, 1);
	} while (me->ret == RMAEXT_PENDING);
	__atomic_store_n(&me->rung, now(), __ATOMIC_RELEASE);
	return NULL;
}

static void sleep_begins(struct side *me, struct bed *b)
{
	me->bed = b;
	me->least = SECOND;
	OK(pthread_create(&me->thread, NULL, sleeper, me));
	while (!atomic_load(&me->slices)) /* it has been asleep */
		nap(0.001);
}

static int64_t cpu_time(pthread_t thread)
{
	struct timespec used = {0};
	clockid_t clock;

	OK(pthread_getcpuclockid(thread, &clock));
	OK(clock_gettime(clock, &used));
	return (int64_t)used.tv_sec * SECOND + used.tv_nsec;
}

/* It comes up in slices; a signal ends one; closing ends the wait. */
static void slices(void)
{
	int64_t used, least = SECOND;
	struct side me = {0};
	struct bed b;

	arena_make();
	bed_make(&b, 1000);
	sleep_begins(&me, &b);
	for (int i = 0; i < TRIES; i++) {
		const int before = atomic_load(&me.slices);

		used = cpu_time(me.thread);
		while (atomic_load(&me.slices) == before)
			nap(0.001);
		used = cpu_time(me.thread) - used;
		least = used < least ? used : least;
	}
	CHECK(least < SECOND / 50);
	least = __atomic_load_n(&me.least, __ATOMIC_ACQUIRE);
	CHECK(least > LATE && least < SECOND * 15 / 100);
	OK(rmaext_window_shut(b.window));
	pthread_join(me.thread, NULL);
	EQUAL(me.ret, -FI_ESHUTDOWN);
	bed_end(&b);
}

static void handler(int n)
{
	(void)n;
}

static void signals(void)
{
	struct sigaction act = {.sa_handler = handler};
	struct side me = {0};
	struct bed b;
	int soon = 0;

	arena_make();
	bed_make(&b, 0);
	sigaction(SIGUSR1, &act, NULL);
	sleep_begins(&me, &b);
	for (int i = 0; i < 50; i++) {
		const int before = atomic_load(&me.slices);
		int64_t start;

		nap(0.002); /* asleep again */
		start = now();
		pthread_kill(me.thread, SIGUSR1);
		while (atomic_load(&me.slices) == before)
			nap(1e-4);
		soon += now() - start < SECOND / 20;
	}
	CHECK(soon >= 25);
	add(&b, 0);
	pthread_join(me.thread, NULL);
	OK(me.ret);
	bed_end(&b);
}

/* Without a doorbell, and where a word is just stored to: it is seen all the
 * same.
 */
static void no_bell(void)
{
	int64_t start, shortest = LATE;
	uint64_t *word;
	struct bed b;

	bed_make(&b, 0);
	word = (uint64_t *)b.block + b.places.notify;
	for (int i = 0; shortest >= LATE && i < TRIES; i++) {
		struct side me = {0};

		__atomic_store_n(word, 0, __ATOMIC_RELEASE);
		sleep_begins(&me, &b);
		start = now();
		__atomic_store_n(word, 1, __ATOMIC_RELEASE);
		pthread_join(me.thread, NULL);
		OK(me.ret);
		if (me.rung - start < shortest)
			shortest = me.rung - start;
	}
	CHECK(shortest < LATE);
	bed_end(&b);
}

/* -- by the network */

enum { PUTS = 20 };

static void *putter(void *arg)
{
	struct rig *r = arg;

	for (uint64_t i = 0; i < PUTS; i++) {
		uint64_t value = i + 1;

		nap(0.01);
		OK(put(r->window, 8 * i, &value, 8));
		OK(flush(r->window));
	}
	return NULL;
}

/* Waits where the target's endpoint is, which has a thread or not. */
static void network(bool thread)
{
	struct rig_options o = {.size = 8 * PUTS, .two = true};
	struct rmaext_condition c = {
		.type = RMAEXT_INT64,
		.comparison = RMAEXT_GE,
	};
	int64_t start = now();
	rmaext_fabric *origin;
	rmaext_window *own;
	pthread_t other;
	struct rig r;

	arena_make();
	o.no_progress = !thread;
	rig_open(&r, o);
	origin = r.origin;
	r.origin = r.target;
	o.direct = true;
	rig_window(&r, &o, &own);
	r.origin = origin;
	OK(pthread_create(&other, NULL, putter, &r));
	for (uint64_t i = 0; i < PUTS; i++) {
		c.offset = 8 * i;
		c.value = i + 1;
		while (rmaext_wait_until(own, 0, &c, 1, 1, SECOND))
			CHECK(now() - start < 10 * SECOND);
		EQUAL(c.seen, i + 1);
	}
	/* the last flush is answered by who reads the queue */
	c.value++;
	while (pthread_tryjoin_np(other, NULL))
		EQUAL(rmaext_wait_until(own, 0, &c, 1, 1, SECOND / 100),
		      RMAEXT_PENDING);
	CHECK(now() - start < 5 * SECOND);
	OK(rmaext_window_close(own));
	rmaext_window_free(own);
	rig_close(&r);
}

static void by_thread(void)
{
	network(true);
}

static void by_itself(void)
{
	network(false);
}

const struct test tests[] = {
	{"compares", compares, NULL, NULL},
	{"tiny_halves", tiny_halves, NULL, NULL},
	{"refuses", refuses, NULL, NULL},
	{"no_wake_up_is_lost", no_wake_up_is_lost, NULL, NULL},
	{"nor_after_spinning", nor_after_spinning, NULL, NULL},
	{"many_at_once", many_at_once, NULL, NULL},
	{"between_processes", between_processes, NULL, NULL},
	{"slices", slices, NULL, NULL},
	{"signals", signals, NULL, NULL},
	{"no_bell", no_bell, NULL, NULL},
	{"by_thread", by_thread, NULL, NULL},
	{"by_itself", by_itself, NULL, NULL},
	{0},
};
