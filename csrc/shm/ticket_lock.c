/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of a target: a ticket lock for readers and writers in its control
 * block. Whoever comes draws a ticket. A reader enters when all
 * with earlier tickets have entered as readers or left as writers; a writer
 * enters when all of them have left. rmaext/_sync/ticket_lock.py
 * decides what to do about ranks that died in the queue, and sends the messages
 * where the block is not mapped here.
 *
 * Each rank's slot says which ticket it has, from before it draws the ticket
 * until after it has given it back. So a ticket that is in no slot of a living
 * rank is a dead rank's. All changes of a slot are additions, as the threads of
 * a rank that leave as readers share it with the thread that queues.
 */
#define _GNU_SOURCE
#include "base/await.h"
#include "record/record.h"

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

/* -- changes of the block, by atomics or by messages ------------------------
 */

/* True if the call was begun before, and goes on with more answers. */
static bool exchange_begin(struct rmaext_exchange *e)
{
	const bool again = e && e->count;

	if (e)
		e->count = e->used = e->complete = e->swap = 0;
	return again;
}

/*
 * The previous value, if there is an answer. If not, the change becomes a part
 * of the message to be sent; or nothing, if the message is complete.
 */
static void exchange_ask(struct rmaext_exchange *e, int64_t place,
			 int64_t value, int64_t *old_p)
{
	if (e->complete)
		return;
	if (e->used < e->answered)
		*old_p = e->answers[e->used++];
	else
		e->changes[e->count++] = (struct rmaext_change){place, value};
}

/* Are there answers to all so far? If not, the message is complete. */
static bool exchange_is_answered(struct rmaext_exchange *e)
{
	if (e && e->count)
		e->complete = 1;
	return !e || !e->complete;
}

static int exchange_end(struct rmaext_exchange *e, int ret)
{
	if (!e)
		return ret;
	e->result = e->count ? RMAEXT_PENDING : ret;
	return e->result;
}

static int64_t block_load(const struct rmaext_lock *l,
			  struct rmaext_exchange *e, int64_t place)
{
	int64_t value = 0;

	if (!e)
		return word_load(&l->block[place]);
	exchange_ask(e, place, 0, &value);
	return value;
}

static void turn_wake(const struct rmaext_lock *l, int64_t place, int64_t value)
{
	const int64_t *words = l->block + l->words;

	if (place == l->words + READERS || place == l->words + WRITERS)
		word_wake(&words[SLEEPERS], &l->block[place], value);
}

static int64_t block_add(const struct rmaext_lock *l, struct rmaext_exchange *e,
			 int64_t place, int64_t more)
{
	int64_t old = 0;

	if (e) {
		exchange_ask(e, place, more, &old);
	} else {
		old = word_add(&l->block[place], more);
		turn_wake(l, place, old + more);
	}
	return old;
}

/* Changes a word if it is `from`: true, also where that has no answer yet. */
static bool block_swap(const struct rmaext_lock *l, struct rmaext_exchange *e,
		       int64_t place, int64_t from, int64_t to)
{
	int64_t old = from;

	if (!e) {
		if (!word_swap(&l->block[place], from, to))
			return false;
		turn_wake(l, place, to);
		return true;
	}
	if (!exchange_is_answered(e))
		return true;
	exchange_ask(e, place, from, &old);
	e->swap = !exchange_is_answered(e);
	e->to = to;
	return old == from;
}

/* -- the lock -------------------------------------------------------------- */

/* What the own slot holds besides the number of readers. */
static int64_t slot_content(const struct rmaext_lock *l, int kind)
{
	if (kind == 0 || kind == RMAEXT_SLOT_ACTIVE)
		return kind;
	return l->ticket << RMAEXT_SLOT_TICKET | kind;
}

static void slot_change(struct rmaext_lock *l, struct rmaext_exchange *e,
			int kind, int64_t more)
{
	const int64_t old = slot_content(l, l->kind);

	l->kind = kind;
	block_add(l, e, l->slots + l->rank, slot_content(l, kind) + more - old);
}

static int64_t lock_turn(const struct rmaext_lock *l, int exclusive)
{
	return l->words + (exclusive ? WRITERS : READERS);
}

static void lock_enter(struct rmaext_lock *l, struct rmaext_exchange *e,
		       int exclusive)
{
	l->inside = 1;
	if (exclusive) {
		if (l->kind != RMAEXT_SLOT_ACTIVE)
			slot_change(l, e, RMAEXT_SLOT_ACTIVE, 0);
		return;
	}
	if (l->kind == RMAEXT_SLOT_ACTIVE)
		block_add(l, e, lock_turn(l, 0), 1);
	else /* no addition: who finds a queued rank dead may do it for it */
		block_swap(l, e, lock_turn(l, 0), l->ticket, l->ticket + 1);
	slot_change(l, e, 0, RMAEXT_SLOT_READER);
}

static int lock_try_enter(struct rmaext_lock *l, struct rmaext_exchange *e,
			  int exclusive)
{
	const int64_t now = block_load(l, e, lock_turn(l, exclusive));

	if (!exchange_is_answered(e) || now != l->ticket)
		return 0;
	lock_enter(l, e, exclusive);
	return 1;
}

/* Takes up an abandoned ticket of its own, unless another has passed it on. */
static bool lock_resume(struct rmaext_lock *l, struct rmaext_exchange *e)
{
	const int64_t from = slot_content(l, RMAEXT_SLOT_ABANDONED);
	const int64_t slot = l->slots + l->rank;
	int64_t value;

	l->kind = 0;
	do {
		value = block_load(l, e, slot);
		if (!exchange_is_answered(e) ||
		    (value & ~RMAEXT_SLOT_READERS) != from)
			return false;
	} while (!block_swap(l, e, slot, value,
			     value - RMAEXT_SLOT_ABANDONED +
				     RMAEXT_SLOT_QUEUED));
	l->kind = RMAEXT_SLOT_QUEUED;
	return true;
}

static int lock_draw(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int exclusive)
{
	int64_t now;

	slot_change(l, e, RMAEXT_SLOT_ACTIVE, 0);
	l->ticket = block_add(l, e, l->words + NEXT, 1);
	now = block_load(l, e, lock_turn(l, exclusive));
	if (exchange_is_answered(e) && now == l->ticket) {
		lock_enter(l, e, exclusive);
		return 1;
	}
	slot_change(l, e, RMAEXT_SLOT_QUEUED, 0);
	return 0;
}

/* What the owner has may change when there are all answers: not before. */
static void owner_begin(const struct rmaext_lock *l, struct rmaext_exchange *e)
{
	if (!e)
		return;
	e->ticket = l->ticket;
	e->kind = l->kind;
	e->inside = l->inside;
}

static int owner_end(struct rmaext_lock *l, struct rmaext_exchange *e, int ret)
{
	ret = exchange_end(e, ret);
	if (ret == RMAEXT_PENDING) {
		l->ticket = e->ticket;
		l->kind = e->kind;
		l->inside = e->inside;
	}
	return ret;
}

/* After it another thread may be the owner. */
static int owner_leave(struct rmaext_lock *l, struct rmaext_exchange *e)
{
	int ret;

	l->inside = 0;
	ret = owner_end(l, e, 0);
	if (!ret)
		__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
	return ret;
}

/*
 * For the record: a step of taking the lock has returned `ret`, or a step of
 * giving it back (`given`). Nothing is said before all answers have come.
 */
static int lock_record(const struct rmaext_lock *l, int exclusive, bool given,
		       int ret)
{
	if (!l->window || ret == RMAEXT_PENDING)
		return ret;
	if (given) {
		rmx_record_holds(l->window, l->target, exclusive, false);
	} else if (ret == 0) {
		rmx_now_enter(RMAEXT_IN_LOCK, l->window, l->target,
			      (uint64_t)exclusive);
	} else if (ret == 1) {
		rmx_now_leave(RMAEXT_IN_LOCK, 0);
		rmx_record_holds(l->window, l->target, exclusive, true);
	}
	return ret;
}

int rmaext_lock_take(struct rmaext_lock *l, struct rmaext_exchange *e,
		     uint64_t thread, int exclusive)
{
	const bool again = exchange_begin(e);
	uint64_t owner = 0;
	int ret;

	if (!__atomic_compare_exchange_n(&l->owner, &owner, thread, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
	    !(again && owner == thread))
		return exchange_end(e, -FI_EBUSY);
	owner_begin(l, e);
	if (l->kind == RMAEXT_SLOT_ABANDONED && lock_resume(l, e))
		ret = lock_try_enter(l, e, exclusive);
	else
		ret = lock_draw(l, e, exclusive);
	return lock_record(l, exclusive, false, owner_end(l, e, ret));
}

int rmaext_lock_wait(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int exclusive, int64_t spin, int64_t sleep)
{
	exchange_begin(e);
	owner_begin(l, e);
	if (!e)
		rmaext_word_await(&l->block[l->words + SLEEPERS],
				  &l->block[lock_turn(l, exclusive)], l->ticket,
				  spin, sleep);
	return lock_record(l, exclusive, false,
			   owner_end(l, e, lock_try_enter(l, e, exclusive)));
}

/* The slot last, so that each ticket is always accounted for. */
static void lock_leave(struct rmaext_lock *l, struct rmaext_exchange *e,
		       int exclusive)
{
	if (exclusive)
		block_add(l, e, lock_turn(l, 0), 1);
	block_add(l, e, lock_turn(l, 1), 1);
	if (exclusive)
		slot_change(l, e, 0, 0);
	else
		block_add(l, e, l->slots + l->rank,
			  -(int64_t)RMAEXT_SLOT_READER);
}

int rmaext_lock_leave(struct rmaext_lock *l, struct rmaext_exchange *e,
		      int exclusive)
{
	exchange_begin(e);
	if (exclusive)
		owner_begin(l, e);
	lock_leave(l, e, exclusive);
	/* when a reader leaves, another thread may be the owner */
	return lock_record(l, exclusive, true,
			   exclusive ? owner_leave(l, e) : exchange_end(e, 0));
}

int rmaext_lock_undo(struct rmaext_lock *l, struct rmaext_exchange *e,
		     uint64_t thread, int exclusive)
{
	bool inside;
	int ret;

	exchange_begin(e);
	if (__atomic_load_n(&l->owner, __ATOMIC_SEQ_CST) != thread)
		return exchange_end(e, 0);
	owner_begin(l, e);
	inside = l->inside;
	if (inside)
		lock_leave(l, e, exclusive);
	else if (l->kind == RMAEXT_SLOT_QUEUED)
		slot_change(l, e, RMAEXT_SLOT_ABANDONED, 0);
	ret = owner_leave(l, e);
	if (ret != RMAEXT_PENDING)
		rmx_now_leave(RMAEXT_IN_LOCK, -FI_EINTR);
	return inside ? lock_record(l, exclusive, true, ret) : ret;
}

int rmaext_lock_pass(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int64_t rank, int64_t seen)
{
	const int64_t ticket = seen >> RMAEXT_SLOT_TICKET;
	const int64_t slot = l->slots + rank;
	int64_t value;

	exchange_begin(e);
	do {
		value = block_load(l, e, slot);
		if (!exchange_is_answered(e) ||
		    (value ^ seen) & ~RMAEXT_SLOT_READERS)
			return exchange_end(e, 0);
	} while (!block_swap(l, e, slot, value, value & RMAEXT_SLOT_READERS));
	block_swap(l, e, lock_turn(l, 0), ticket, ticket + 1);
	block_add(l, e, lock_turn(l, 1), 1);
	return exchange_end(e, 1);
}
