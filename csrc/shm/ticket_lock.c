/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of a target whose control block is mapped here: a ticket lock for
 * readers and writers. Who comes draws a ticket. A reader enters when all who
 * came before have entered as readers or left as writers, a writer when all
 * have left. rmaext/_sync/ticket_lock.py does the same by messages, where the
 * block is not mapped, and decides what to do about those who died in the
 * queue.
 *
 * Each rank's word in `slots` says what it has, from before it draws a ticket
 * until after it has given it back, so that a ticket which nobody alive
 * accounts for is a dead rank's. All its changes are additions: the threads of
 * a rank that leave as readers share it with the one that queues.
 */
#define _GNU_SOURCE
#include "base/await.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NEXT, READERS, WRITERS, SLEEPERS }; /* of words */

static int64_t add(int64_t *word, int64_t value)
{
	return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

static int64_t load(const int64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static bool swap(int64_t *word, int64_t old, int64_t new)
{
	return __atomic_compare_exchange_n(word, &old, new, false,
					   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* -- words that others wait for -------------------------------------------- */

/* The half of a word that changes: a futex is of 32 bits. */
static const uint32_t *low_half(const int64_t *word)
{
	return (const uint32_t *)word +
	       (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 1 : 0);
}

/* Only who waits for this value is woken, or shares its bit. */
static uint32_t bit_of(int64_t value)
{
	return UINT32_C(1) << (value & 31);
}

static void wake(const int64_t *sleepers, const int64_t *word, int64_t value)
{
	if (load(sleepers))
		syscall(SYS_futex, low_half(word), FUTEX_WAKE_BITSET, INT_MAX,
			NULL, NULL, bit_of(value));
}

void rmaext_word_raise(int64_t *sleepers, int64_t *word)
{
	const int64_t value = add(word, 1) + 1;

	wake(sleepers, word, value);
}

struct word {
	int64_t *sleepers;
	const int64_t *word;
	int64_t least;
};

static enum rmx_step grown(void *arg)
{
	const struct word *w = arg;

	return load(w->word) >= w->least ? RMX_DONE : RMX_SLEEP;
}

static bool sleep_on(void *arg, int64_t ns)
{
	const struct word *w = arg;
	const int64_t until = rmx_now() + ns;
	const struct timespec end = {
		.tv_sec = (time_t)(until / 1000000000),
		.tv_nsec = (long)(until % 1000000000),
	};
	bool slept = true;
	int64_t value;

	add(w->sleepers, 1);
	value = load(w->word);
	/* a rank that is killed here leaves a sleeper too many: idle wakes */
	if (value < w->least)
		slept = !syscall(SYS_futex, low_half(w->word),
				 FUTEX_WAIT_BITSET, (uint32_t)value, &end, NULL,
				 bit_of(w->least)) ||
			errno != EINTR;
	add(w->sleepers, -1);
	return slept;
}

int rmaext_word_await(int64_t *sleepers, const int64_t *word, int64_t least,
		      int64_t spin, int64_t sleep)
{
	struct word w = {sleepers, word, least};
	const struct rmx_await wait = {
		.look = grown,
		.sleep = sleep_on,
		.arg = &w,
		.spin = spin,
		.nap = sleep,
	};

	if (grown(&w) == RMX_DONE)
		return 1;
	if (spin + sleep <= 0) {
		rmaext_mpi_glance();
		return 0;
	}
	return !rmx_await(&wait, rmx_now() + spin + sleep, NULL);
}

void rmaext_barrier(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/* -- the lock -------------------------------------------------------------- */

/* What the own slot holds besides the number of readers. */
static int64_t content(const struct rmaext_lock *l, int kind)
{
	if (kind == 0 || kind == RMAEXT_SLOT_ACTIVE)
		return kind;
	return l->ticket << RMAEXT_SLOT_TICKET | kind;
}

static void change(struct rmaext_lock *l, int kind, int64_t more)
{
	const int64_t old = content(l, l->kind);

	l->kind = kind;
	add(&l->slots[l->rank], content(l, kind) + more - old);
}

static void raise_turn(struct rmaext_lock *l, int which)
{
	rmaext_word_raise(&l->words[SLEEPERS], &l->words[which]);
}

static void enter(struct rmaext_lock *l, int exclusive)
{
	l->inside = 1;
	if (exclusive) {
		if (l->kind != RMAEXT_SLOT_ACTIVE)
			change(l, RMAEXT_SLOT_ACTIVE, 0);
		return;
	}
	/* no addition: who finds a queued rank dead may do it for that one */
	if (swap(&l->words[READERS], l->ticket, l->ticket + 1))
		wake(&l->words[SLEEPERS], &l->words[READERS], l->ticket + 1);
	change(l, 0, RMAEXT_SLOT_READER);
}

static const int64_t *turn(const struct rmaext_lock *l, int exclusive)
{
	return &l->words[exclusive ? WRITERS : READERS];
}

static int try_enter(struct rmaext_lock *l, int exclusive)
{
	if (load(turn(l, exclusive)) != l->ticket)
		return 0;
	enter(l, exclusive);
	return 1;
}

/* Takes up an own ticket that was abandoned, unless another has passed it on.
 */
static bool resume(struct rmaext_lock *l)
{
	const int64_t from = content(l, RMAEXT_SLOT_ABANDONED);
	int64_t *slot = &l->slots[l->rank], value;

	l->kind = 0;
	do {
		value = load(slot);
		if ((value & ~RMAEXT_SLOT_READERS) != from)
			return false;
	} while (!swap(slot, value,
		       value - RMAEXT_SLOT_ABANDONED + RMAEXT_SLOT_QUEUED));
	l->kind = RMAEXT_SLOT_QUEUED;
	return true;
}

int rmaext_lock_take(struct rmaext_lock *l, uint64_t thread, int exclusive)
{
	uint64_t nobody = 0;

	if (!__atomic_compare_exchange_n(&l->owner, &nobody, thread, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return -FI_EBUSY;
	if (l->kind == RMAEXT_SLOT_ABANDONED && resume(l))
		return try_enter(l, exclusive);
	change(l, RMAEXT_SLOT_ACTIVE, 0);
	l->ticket = add(&l->words[NEXT], 1);
	if (try_enter(l, exclusive))
		return 1;
	change(l, RMAEXT_SLOT_QUEUED, 0);
	return 0;
}

int rmaext_lock_wait(struct rmaext_lock *l, int exclusive, int64_t spin,
		     int64_t sleep)
{
	rmaext_word_await(&l->words[SLEEPERS], turn(l, exclusive), l->ticket,
			  spin, sleep);
	return try_enter(l, exclusive);
}

void rmaext_lock_leave(struct rmaext_lock *l, int exclusive)
{
	if (!exclusive) {
		raise_turn(l, WRITERS);
		add(&l->slots[l->rank], -(int64_t)RMAEXT_SLOT_READER);
		return;
	}
	raise_turn(l, READERS);
	raise_turn(l, WRITERS);
	change(l, 0, 0);
	l->inside = 0;
	__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
}

void rmaext_lock_abandon(struct rmaext_lock *l)
{
	if (l->kind == RMAEXT_SLOT_QUEUED)
		change(l, RMAEXT_SLOT_ABANDONED, 0);
	__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
}

void rmaext_lock_undo(struct rmaext_lock *l, uint64_t thread, int exclusive)
{
	if (__atomic_load_n(&l->owner, __ATOMIC_SEQ_CST) != thread)
		return;
	if (!l->inside) {
		rmaext_lock_abandon(l);
		return;
	}
	rmaext_lock_leave(l, exclusive);
	if (exclusive)
		return;
	l->inside = 0;
	__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
}

int rmaext_lock_pass(struct rmaext_lock *l, int64_t rank, int64_t seen)
{
	const int64_t ticket = seen >> RMAEXT_SLOT_TICKET;
	int64_t *slot = &l->slots[rank], value;

	do {
		value = load(slot);
		if ((value ^ seen) & ~RMAEXT_SLOT_READERS)
			return 0;
	} while (!swap(slot, value, value & RMAEXT_SLOT_READERS));
	if (swap(&l->words[READERS], ticket, ticket + 1))
		wake(&l->words[SLEEPERS], &l->words[READERS], ticket + 1);
	raise_turn(l, WRITERS);
	return 1;
}
