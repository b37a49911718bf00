/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of a target whose control block is mapped here: a ticket lock for
 * readers and writers. Whoever comes draws a ticket. A reader enters when all
 * with earlier tickets have entered as readers or left as writers; a writer
 * enters when all of them have left. rmaext/_sync/ticket_lock.py does the same
 * by messages where the block is not mapped, and decides what to do about ranks
 * that died in the queue.
 *
 * Each rank's slot says which ticket it has, from before it draws the ticket
 * until after it has given it back. So a ticket that is in no slot of a living
 * rank is a dead rank's. All changes of a slot are additions, as the threads of
 * a rank that leave as readers share it with the thread that queues.
 */
#define _GNU_SOURCE
#include "base/await.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NEXT, READERS, WRITERS, SLEEPERS }; /* in rmaext_lock.words */

static int64_t word_add(int64_t *word, int64_t value)
{
	return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

static int64_t word_load(const int64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static bool word_swap(int64_t *word, int64_t old, int64_t new)
{
	return __atomic_compare_exchange_n(word, &old, new, false,
					   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* -- words that others wait for -------------------------------------------- */

/* The half of a word that changes, as a futex has 32 bits. */
static const uint32_t *word_futex(const int64_t *word)
{
	return (const uint32_t *)word +
	       (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 1 : 0);
}

/* A wake-up reaches those who wait for a value with the same bit only. */
static uint32_t value_bit(int64_t value)
{
	return UINT32_C(1) << (value & 31);
}

static void word_wake(const int64_t *sleepers, const int64_t *word,
		      int64_t value)
{
	if (word_load(sleepers))
		syscall(SYS_futex, word_futex(word), FUTEX_WAKE_BITSET, INT_MAX,
			NULL, NULL, value_bit(value));
}

void rmaext_word_raise(int64_t *sleepers, int64_t *word)
{
	const int64_t value = word_add(word, 1) + 1;

	word_wake(sleepers, word, value);
}

struct word {
	int64_t *sleepers;
	const int64_t *word;
	int64_t least;
};

static enum rmx_step word_has_grown(void *arg)
{
	const struct word *w = arg;

	return word_load(w->word) >= w->least ? RMX_DONE : RMX_SLEEP;
}

static bool word_sleep(void *arg, int64_t ns)
{
	const struct word *w = arg;
	const struct timespec end = rmx_timespec(rmx_now() + ns);
	bool slept = true;
	int64_t value;

	word_add(w->sleepers, 1);
	value = word_load(w->word);
	/* a rank killed here leaves a sleeper too many: idle system calls */
	if (value < w->least)
		slept = !syscall(SYS_futex, word_futex(w->word),
				 FUTEX_WAIT_BITSET, (uint32_t)value, &end, NULL,
				 value_bit(w->least)) ||
			errno != EINTR;
	word_add(w->sleepers, -1);
	return slept;
}

int rmaext_word_await(int64_t *sleepers, const int64_t *word, int64_t least,
		      int64_t spin, int64_t sleep)
{
	struct word w = {sleepers, word, least};
	const struct rmx_await wait = {
		.look = word_has_grown,
		.sleep = word_sleep,
		.arg = &w,
		.spin = spin,
		.nap = sleep,
	};

	if (word_has_grown(&w) == RMX_DONE)
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

/* What the own slot has of that kind, besides the number of readers. */
static int64_t slot_content(const struct rmaext_lock *l, int kind)
{
	if (kind == 0 || kind == RMAEXT_SLOT_ACTIVE)
		return kind;
	return l->ticket << RMAEXT_SLOT_TICKET | kind;
}

static void slot_change(struct rmaext_lock *l, int kind, int64_t more)
{
	const int64_t old = slot_content(l, l->kind);

	l->kind = kind;
	word_add(&l->slots[l->rank], slot_content(l, kind) + more - old);
}

static void turn_raise(struct rmaext_lock *l, int which)
{
	rmaext_word_raise(&l->words[SLEEPERS], &l->words[which]);
}

static void lock_enter(struct rmaext_lock *l, int exclusive)
{
	l->inside = 1;
	if (exclusive) {
		if (l->kind != RMAEXT_SLOT_ACTIVE)
			slot_change(l, RMAEXT_SLOT_ACTIVE, 0);
		return;
	}
	/* not added: whoever takes this rank for dead may do it instead */
	if (word_swap(&l->words[READERS], l->ticket, l->ticket + 1))
		word_wake(&l->words[SLEEPERS], &l->words[READERS],
			  l->ticket + 1);
	slot_change(l, 0, RMAEXT_SLOT_READER);
}

static const int64_t *lock_turn(const struct rmaext_lock *l, int exclusive)
{
	return &l->words[exclusive ? WRITERS : READERS];
}

static int lock_try_enter(struct rmaext_lock *l, int exclusive)
{
	if (word_load(lock_turn(l, exclusive)) != l->ticket)
		return 0;
	lock_enter(l, exclusive);
	return 1;
}

/* Takes an abandoned ticket up again, unless another rank has passed it on. */
static bool lock_resume(struct rmaext_lock *l)
{
	const int64_t from = slot_content(l, RMAEXT_SLOT_ABANDONED);
	int64_t *slot = &l->slots[l->rank], value;

	l->kind = 0;
	do {
		value = word_load(slot);
		if ((value & ~RMAEXT_SLOT_READERS) != from)
			return false;
	} while (
		!word_swap(slot, value,
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
	if (l->kind == RMAEXT_SLOT_ABANDONED && lock_resume(l))
		return lock_try_enter(l, exclusive);
	slot_change(l, RMAEXT_SLOT_ACTIVE, 0);
	l->ticket = word_add(&l->words[NEXT], 1);
	if (lock_try_enter(l, exclusive))
		return 1;
	slot_change(l, RMAEXT_SLOT_QUEUED, 0);
	return 0;
}

int rmaext_lock_wait(struct rmaext_lock *l, int exclusive, int64_t spin,
		     int64_t sleep)
{
	rmaext_word_await(&l->words[SLEEPERS], lock_turn(l, exclusive),
			  l->ticket, spin, sleep);
	return lock_try_enter(l, exclusive);
}

void rmaext_lock_leave(struct rmaext_lock *l, int exclusive)
{
	if (!exclusive) {
		turn_raise(l, WRITERS);
		word_add(&l->slots[l->rank], -(int64_t)RMAEXT_SLOT_READER);
		return;
	}
	turn_raise(l, READERS);
	turn_raise(l, WRITERS);
	slot_change(l, 0, 0);
	l->inside = 0;
	__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
}

void rmaext_lock_abandon(struct rmaext_lock *l)
{
	if (l->kind == RMAEXT_SLOT_QUEUED)
		slot_change(l, RMAEXT_SLOT_ABANDONED, 0);
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
		value = word_load(slot);
		if ((value ^ seen) & ~RMAEXT_SLOT_READERS)
			return 0;
	} while (!word_swap(slot, value, value & RMAEXT_SLOT_READERS));
	if (word_swap(&l->words[READERS], ticket, ticket + 1))
		word_wake(&l->words[SLEEPERS], &l->words[READERS], ticket + 1);
	turn_raise(l, WRITERS);
	return 1;
}
