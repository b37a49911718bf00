/* SPDX-License-Identifier: BSD-3-Clause */
/* The lock of a target whose control block is mapped:
 * csrc/shm/ticket_lock.c. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define RANKS 4
#define TURNS 2000
#define ASLEEP (10 * SECOND) /* not woken, a test exceeds its limit */

enum { NEXT, TURN, INSIDE, SLEEPERS };
#define WRITER (INT64_C(1) << 32)

/* What all ranks, threads or processes, have in common. */
struct shared {
	int64_t words[4], slots[RANKS];
	int64_t value; /* the lock guards it */
	atomic_int readers, writers;
	atomic_uint_fast64_t turns;
};

static struct shared *shared_open(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(s != MAP_FAILED);
	return s;
}

static void shared_close(struct shared *s)
{
	munmap(s, sizeof(*s));
}

static struct rmaext_lock lock_of(struct shared *s, int64_t rank)
{
	return (struct rmaext_lock){
		.block = s->words, .slots = 4, .rank = rank};
}

static int64_t load(const int64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static int kind_of(const struct shared *s, int64_t rank)
{
	return (int)(load(&s->slots[rank]) & RMAEXT_SLOT_KINDS);
}

/* As Python does it. */
static void lock(struct rmaext_lock *l, uint64_t thread, int exclusive,
		 int64_t spin)
{
	int ret;

	while ((ret = rmaext_lock_take(l, NULL, thread, exclusive)) ==
	       -FI_EBUSY)
		nap(1e-5);
	while (!ret)
		ret = rmaext_lock_wait(l, NULL, exclusive, spin, ASLEEP);
	EQUAL(ret, 1);
	if (!exclusive)
		rmaext_lock_disown(l);
}

static void at_rest(const struct shared *s, int64_t tickets, int64_t value)
{
	EQUAL(s->value, value);
	EQUAL(s->words[NEXT], tickets);
	EQUAL(s->words[TURN], tickets);
	EQUAL(s->words[INSIDE], 0);
	EQUAL(s->words[SLEEPERS], 0);
	for (int r = 0; r < RANKS; r++)
		EQUAL(s->slots[r], 0);
}

/* -- nobody is beside a writer, and all are woken */

static void take_turns(struct shared *s, struct rmaext_lock *l, uint64_t thread)
{
	for (uint64_t i = 0; i < TURNS; i++) {
		const int exclusive = (i + thread) % 3 == 0;

		lock(l, thread, exclusive, i % 2 ? 0 : 20000);
		if (exclusive) {
			EQUAL(atomic_fetch_add(&s->writers, 1), 0);
			EQUAL(atomic_load(&s->readers), 0);
			s->value++;
			atomic_fetch_sub(&s->writers, 1);
		} else {
			atomic_fetch_add(&s->readers, 1);
			EQUAL(atomic_load(&s->writers), 0);
			CHECK(s->value >= 0);
			atomic_fetch_sub(&s->readers, 1);
		}
		rmaext_lock_leave(l, NULL, exclusive);
	}
}

/* thread is what take_turns() counts from */
static int64_t exclusives(uint64_t thread)
{
	int64_t n = 0;

	for (uint64_t i = 0; i < TURNS; i++)
		n += (i + thread) % 3 == 0;
	return n;
}

struct worker {
	pthread_t thread;
	struct shared *shared;
	struct rmaext_lock *lock;
	uint64_t number;
};

static void *work(void *arg)
{
	struct worker *w = arg;

	take_turns(w->shared, w->lock, w->number);
	return NULL;
}

/* The last two are threads of one rank. */
static void threads(void)
{
	struct shared *s = shared_open();
	struct rmaext_lock locks[RANKS];
	struct worker all[RANKS + 1];
	int64_t value = 0;

	for (int i = 0; i < RANKS; i++)
		locks[i] = lock_of(s, i);
	for (int i = 0; i <= RANKS; i++) {
		all[i] = (struct worker){
			.shared = s,
			.lock = &locks[i < RANKS ? i : RANKS - 1],
			.number = (uint64_t)i + 1,
		};
		value += exclusives(all[i].number);
		OK(pthread_create(&all[i].thread, NULL, work, &all[i]));
	}
	for (int i = 0; i <= RANKS; i++)
		OK(pthread_join(all[i].thread, NULL));
	at_rest(s, (RANKS + 1) * TURNS, value);
	shared_close(s);
}

static void processes(void)
{
	struct shared *s = shared_open();
	int64_t value = 0;
	pid_t pid[RANKS];
	int status;

	for (int i = 0; i < RANKS; i++) {
		value += exclusives((uint64_t)i + 1);
		pid[i] = fork_child();
		CHECK(pid[i] >= 0);
		if (!pid[i]) {
			struct rmaext_lock l = lock_of(s, i);

			take_turns(s, &l, (uint64_t)i + 1);
			_exit(0);
		}
	}
	for (int i = 0; i < RANKS; i++) {
		EQUAL(waitpid(pid[i], &status, 0), pid[i]);
		EQUAL(status, 0);
	}
	at_rest(s, RANKS * TURNS, value);
	shared_close(s);
}

/* -- one after another */

static void in_turn(void)
{
	struct shared *s = shared_open();
	struct rmaext_lock a = lock_of(s, 0), b = lock_of(s, 1),
			   c = lock_of(s, 2), d = lock_of(s, 3);

	EQUAL(rmaext_lock_take(&a, NULL, 1, 0), 1);
	/* still the owner */
	EQUAL(rmaext_lock_take(&a, NULL, 2, 0), -FI_EBUSY);
	a.owner = 0;
	EQUAL(rmaext_lock_take(&a, NULL, 2, 0), 1); /* twice a reader */
	a.owner = 0;
	EQUAL(s->slots[0], 2 * RMAEXT_SLOT_READER);
	/* waits for both to leave */
	EQUAL(rmaext_lock_take(&b, NULL, 1, 1), 0);
	EQUAL(rmaext_lock_take(&c, NULL, 1, 0), 0); /* waits for the writer */
	EQUAL(rmaext_lock_take(&d, NULL, 1, 1), 0);
	EQUAL(kind_of(s, 1), RMAEXT_SLOT_QUEUED);
	rmaext_lock_leave(&a, NULL, 0);
	EQUAL(rmaext_lock_wait(&b, NULL, 1, 0, 1000), 0);
	rmaext_lock_leave(&a, NULL, 0);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 1000), 0);
	EQUAL(rmaext_lock_wait(&d, NULL, 1, 0, 1000), 0);
	EQUAL(rmaext_lock_wait(&b, NULL, 1, 0, 0), 1);
	EQUAL(kind_of(s, 1), RMAEXT_SLOT_ACTIVE);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 1000), 0);
	rmaext_lock_leave(&b, NULL, 1);
	EQUAL(b.owner, 0);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 0), 1);
	c.owner = 0;
	EQUAL(rmaext_lock_wait(&d, NULL, 1, 0, 1000), 0);
	rmaext_lock_leave(&c, NULL, 0);
	EQUAL(rmaext_lock_wait(&d, NULL, 1, 0, 0), 1);
	rmaext_lock_leave(&d, NULL, 1);
	at_rest(s, 5, 0);
	shared_close(s);
}

/* Who holds another lock passes a writer that waits, but not one inside. */
static void joins(void)
{
	struct shared *s = shared_open();
	struct rmaext_lock a = lock_of(s, 0), b = lock_of(s, 1),
			   c = lock_of(s, 2), d = lock_of(s, 2);

	EQUAL(rmaext_lock_join(&c, NULL, 1), 1); /* nobody is there */
	EQUAL(c.ticket, -1);
	c.owner = c.inside = 0;
	rmaext_lock_leave(&c, NULL, 0);
	lock(&a, 1, 0, 0);
	EQUAL(rmaext_lock_take(&b, NULL, 1, 1), 0);
	EQUAL(rmaext_lock_join(&c, NULL, 1), 1);
	EQUAL(c.ticket, 1); /* of whom it has passed */
	c.owner = c.inside = 0;
	EQUAL(s->words[INSIDE], 2);
	EQUAL(s->slots[2], RMAEXT_SLOT_READER);
	rmaext_lock_leave(&a, NULL, 0);
	EQUAL(rmaext_lock_wait(&b, NULL, 1, 0, 1000), 0);
	rmaext_lock_leave(&c, NULL, 0);
	EQUAL(rmaext_lock_wait(&b, NULL, 1, 0, 0), 1);
	EQUAL(s->words[INSIDE], WRITER);
	EQUAL(rmaext_lock_take(&a, NULL, 1, 1), 0);
	EQUAL(rmaext_lock_join(&c, NULL, 1), 0);
	EQUAL(c.inside, RMAEXT_LOCK_JOINS);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 1000), 0);
	EQUAL(rmaext_lock_join(&d, NULL, 2), 0); /* another thread */
	rmaext_lock_undo(&d, NULL, 2, 0);	 /* which gives up */
	EQUAL(d.owner, 0);
	EQUAL(s->words[INSIDE], WRITER + 1);
	rmaext_lock_leave(&b, NULL, 1);
	EQUAL(rmaext_lock_wait(&a, NULL, 1, 0, 1000), 0);
	EQUAL(kind_of(s, 0), RMAEXT_SLOT_QUEUED);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 0), 1); /* before that writer */
	rmaext_lock_undo(&c, NULL, 1, 0);
	EQUAL(rmaext_lock_wait(&a, NULL, 1, 0, 0), 1);
	rmaext_lock_leave(&a, NULL, 1);
	at_rest(s, 3, 0);
	shared_close(s);
}

/* Two locks in both orders beside writers: nobody waits in a circle. */
struct nester {
	pthread_t thread;
	struct shared *of[2];
	int64_t rank;
};

static void *nest(void *arg)
{
	struct nester *n = arg;
	struct shared *first = n->of[n->rank % 2],
		      *then = n->of[!(n->rank % 2)];
	struct rmaext_lock outer = lock_of(first, n->rank),
			   writer = lock_of(then, n->rank);

	for (uint64_t i = 0; i < TURNS; i++) {
		struct rmaext_lock inner = lock_of(then, n->rank);
		int ret;

		lock(&outer, 1, 0, i % 2 ? 0 : 20000);
		ret = rmaext_lock_join(&inner, NULL, 1);
		while (!ret)
			ret = rmaext_lock_wait(&inner, NULL, 0, 0, ASLEEP);
		atomic_fetch_add(&then->readers, 1);
		EQUAL(atomic_load(&then->writers), 0);
		atomic_fetch_sub(&then->readers, 1);
		rmaext_lock_leave(&inner, NULL, 0);
		rmaext_lock_leave(&outer, NULL, 0);
		lock(&writer, 1, 1, 0);
		EQUAL(atomic_fetch_add(&then->writers, 1), 0);
		EQUAL(atomic_load(&then->readers), 0);
		then->value++;
		atomic_fetch_sub(&then->writers, 1);
		rmaext_lock_leave(&writer, NULL, 1);
	}
	return NULL;
}

static void nested(void)
{
	struct shared *s[2] = {shared_open(), shared_open()};
	struct nester all[RANKS];

	for (int i = 0; i < RANKS; i++) {
		all[i] = (struct nester){.of = {s[0], s[1]}, .rank = i};
		OK(pthread_create(&all[i].thread, NULL, nest, &all[i]));
	}
	for (int i = 0; i < RANKS; i++)
		OK(pthread_join(all[i].thread, NULL));
	for (int i = 0; i < 2; i++) {
		at_rest(s[i], RANKS * TURNS, RANKS / 2 * TURNS);
		shared_close(s[i]);
	}
}

/* Who gives up is passed by those behind, or takes its ticket up again. */
static void abandoned(void)
{
	struct shared *s = shared_open();
	struct rmaext_lock a = lock_of(s, 0), b = lock_of(s, 1),
			   c = lock_of(s, 2);
	int64_t seen;

	EQUAL(rmaext_lock_take(&a, NULL, 1, 1), 1);
	EQUAL(rmaext_lock_take(&b, NULL, 1, 1), 0);
	EQUAL(rmaext_lock_take(&c, NULL, 1, 0), 0);
	rmaext_lock_undo(&b, NULL, 1, 1);
	EQUAL(b.owner, 0);
	EQUAL(kind_of(s, 1), RMAEXT_SLOT_ABANDONED);
	seen = s->slots[1];
	EQUAL(rmaext_lock_take(&b, NULL, 2, 1), 0); /* the same ticket again */
	EQUAL(s->words[NEXT], 3);
	EQUAL(kind_of(s, 1), RMAEXT_SLOT_QUEUED);
	EQUAL(rmaext_lock_pass(&c, NULL, 1, seen), 0); /* not as seen */
	rmaext_lock_undo(&b, NULL, 2, 1);
	rmaext_lock_leave(&a, NULL, 1);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 1000), 0);
	EQUAL(rmaext_lock_pass(&c, NULL, 1, s->slots[1]), 1);
	EQUAL(s->slots[1], 0);
	EQUAL(rmaext_lock_pass(&c, NULL, 1, seen), 0);
	EQUAL(rmaext_lock_wait(&c, NULL, 0, 0, 0), 1);
	c.owner = 0;
	EQUAL(rmaext_lock_take(&b, NULL, 1, 0), 1); /* a new ticket */
	EQUAL(s->words[NEXT], 4);
	rmaext_lock_leave(&b, NULL, 0);
	rmaext_lock_leave(&c, NULL, 0);
	b.owner = 0;
	/* inside as a reader while the ticket is given up and passed */
	EQUAL(rmaext_lock_take(&b, NULL, 1, 0), 1);
	b.inside = 0;
	b.owner = 0;
	EQUAL(rmaext_lock_take(&b, NULL, 2, 1), 0);
	rmaext_lock_undo(&b, NULL, 2, 1);
	EQUAL(rmaext_lock_pass(&c, NULL, 1, s->slots[1]), 1);
	EQUAL(s->slots[1], RMAEXT_SLOT_READER);
	rmaext_lock_leave(&b, NULL, 0);
	at_rest(s, 6, 0);
	shared_close(s);
}

/* -- the dead */

static pid_t bear(struct shared *s, void (*act)(struct shared *, int64_t))
{
	pid_t pid = fork_child();

	CHECK(pid >= 0);
	if (!pid) {
		OK(prctl(PR_SET_PDEATHSIG, SIGKILL)); /* should we fail */
		act(s, 1);
		for (;;)
			pause();
	}
	return pid;
}

static void bury(pid_t pid)
{
	kill(pid, SIGKILL);
	EQUAL(waitpid(pid, NULL, 0), pid);
}

static void hold(struct shared *s, int64_t rank)
{
	struct rmaext_lock l = lock_of(s, rank);

	lock(&l, 1, 1, 0);
	atomic_fetch_add(&s->turns, 1);
}

static void loop(struct shared *s, int64_t rank)
{
	struct rmaext_lock l = lock_of(s, rank);

	for (;;) {
		const int exclusive = atomic_fetch_add(&s->turns, 1) % 2;

		lock(&l, 1, exclusive, 0);
		rmaext_lock_leave(&l, NULL, exclusive);
	}
}

static bool wait_until(struct rmaext_lock *l, int64_t end)
{
	do /* once in any case */
		if (rmaext_lock_wait(l, NULL, 1, 0, SECOND / 1000))
			return true;
	while (now() < end);
	return false;
}

/* What it leaves behind says that it had the lock, and keeps others out. */
static void killed_holder(void)
{
	struct shared *s = shared_open();
	struct rmaext_lock l = lock_of(s, 0);
	pid_t pid = bear(s, hold);

	while (!atomic_load(&s->turns))
		nap(1e-4);
	bury(pid);
	EQUAL(s->slots[1], RMAEXT_SLOT_ACTIVE);
	EQUAL(rmaext_lock_take(&l, NULL, 1, 1), 0);
	CHECK(!wait_until(&l, now() + SECOND / 20));
	shared_close(s);
}

/* In its sleep; the next one wakes on time, though a sleeper is counted. */
static void killed_in_queue(void)
{
	struct shared *s = shared_open();
	struct rmaext_lock a = lock_of(s, 0), b = lock_of(s, 2);
	pid_t pid;

	EQUAL(rmaext_lock_take(&a, NULL, 1, 1), 1);
	pid = bear(s, hold);
	while (!load(&s->words[SLEEPERS]))
		nap(1e-4);
	EQUAL(rmaext_lock_take(&b, NULL, 1, 1), 0);
	bury(pid);
	rmaext_lock_leave(&a, NULL, 1);
	CHECK(!wait_until(&b, now() + SECOND / 20));
	EQUAL(kind_of(s, 1), RMAEXT_SLOT_QUEUED);
	EQUAL(s->slots[1] >> RMAEXT_SLOT_TICKET, s->words[TURN]);
	EQUAL(rmaext_lock_pass(&b, NULL, 1, s->slots[1]), 1);
	EQUAL(rmaext_lock_wait(&b, NULL, 1, 0, 0), 1);
	rmaext_lock_leave(&b, NULL, 1);
	EQUAL(atomic_load(&s->turns), 0);
	s->words[SLEEPERS]--;
	at_rest(s, 3, 0);
	shared_close(s);
}

/*
 * At any moment. Who waits behind it gets in, or its slot says why not: it has
 * drawn a ticket and not given it back, or not yet noted that it has.
 */
static void killed_anywhere(void)
{
	for (int round = 0; round < 30; round++) {
		struct shared *s = shared_open();
		struct rmaext_lock l = lock_of(s, 0);
		pid_t pid = bear(s, loop);
		int64_t until;
		bool inside;

		while (!atomic_load(&s->turns))
			nap(1e-4);
		until = now() + 200 * 1000 + round * 35 * 1000;
		while (now() < until) { /* it has to queue now and then */
			lock(&l, 1, 1, 0);
			rmaext_lock_leave(&l, NULL, 1);
		}
		bury(pid);
		inside = rmaext_lock_take(&l, NULL, 1, 1) ||
			 wait_until(&l, now() + SECOND / 50);
		if (!inside && kind_of(s, 1) == RMAEXT_SLOT_QUEUED) {
			EQUAL(rmaext_lock_pass(&l, NULL, 1, s->slots[1]), 1);
			inside = wait_until(&l, now() + SECOND);
			CHECK(inside);
		}
		if (inside)
			rmaext_lock_leave(&l, NULL, 1);
		else
			CHECK(s->slots[1]);
		shared_close(s);
	}
}

/* -- words */

struct waiter {
	pthread_t thread;
	int64_t *sleepers, *word;
	int64_t least;
};

static void *await(void *arg)
{
	struct waiter *w = arg;

	while (!rmaext_word_await(w->sleepers, w->word, w->least, 0, ASLEEP))
		continue;
	CHECK(load(w->word) >= w->least);
	return NULL;
}

/* Each is woken by its own value, past the low half of the word too. */
static void words(void)
{
	enum { WAITERS = 40 };
	int64_t sleepers = 0, word = ((int64_t)3 << 32) - 10, start = word;
	struct waiter all[WAITERS];

	CHECK(!rmaext_word_await(&sleepers, &word, word + 1, 0, 0));
	CHECK(!rmaext_word_await(&sleepers, &word, word + 1, 1000, 1000));
	CHECK(rmaext_word_await(&sleepers, &word, word, 0, ASLEEP));
	for (int i = 0; i < WAITERS; i++) {
		all[i] = (struct waiter){
			.sleepers = &sleepers,
			.word = &word,
			.least = start + 1 + i,
		};
		OK(pthread_create(&all[i].thread, NULL, await, &all[i]));
	}
	while (load(&sleepers) < WAITERS)
		nap(1e-4);
	for (int i = 0; i < WAITERS; i++) {
		rmaext_word_raise(&sleepers, &word);
		OK(pthread_join(all[i].thread, NULL));
	}
	EQUAL(word, start + WAITERS);
	EQUAL(sleepers, 0);
}

const struct test tests[] = {
	{"threads", threads, NULL, NULL},
	{"processes", processes, NULL, NULL},
	{"in_turn", in_turn, NULL, NULL},
	{"joins", joins, NULL, NULL},
	{"nested", nested, NULL, NULL},
	{"abandoned", abandoned, NULL, NULL},
	{"killed_holder", killed_holder, NULL, NULL},
	{"killed_in_queue", killed_in_queue, NULL, NULL},
	{"killed_anywhere", killed_anywhere, NULL, NULL},
	{"words", words, NULL, NULL},
	{0},
};
