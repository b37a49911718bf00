/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of a target: a fair queue for readers and writers in its control
 * block, and behind it a count of those who are inside. Whoever comes draws a
 * ticket and waits for its turn. A reader adds itself to the count then, and
 * lets the next one have its turn. A writer waits until nobody is inside, and
 * gives its turn back as it leaves.
 *
 * A thread that holds another lock already does not queue: it joins. It adds
 * itself to the count of readers at once, and waits for nobody but a writer
 * that is inside. So nobody who waits in the queue is ever waited for by one
 * that holds something, but for the locks that it holds itself: a circle of
 * waiters has a writer that is inside, or that waits while it holds another
 * lock, as in any lock without a queue. rmaext/_sync/sync.py decides who joins
 * and how often.
 *
 * lock_judge.c says what to do about ranks that died in the queue.
 * rmaext/_sync/ticket_lock.py sends the messages where the block is not mapped
 * here.
 *
 * Each rank's slot says which ticket it has, from before it draws the ticket
 * until after it has given it back, and how many of its threads are inside as
 * readers: who joins says so before it is counted, and takes it back after. So
 * a ticket that is in no slot of a living rank is a dead rank's, and so is a
 * reader. All changes of a slot are additions, as several threads of a rank
 * share it.
 */
#define _GNU_SOURCE
#include "shm/ticket_lock.h"

#include "base/await.h"
#include "record/record.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NEXT, TURN, INSIDE, SLEEPERS }; /* in rmaext_lock.words */

_Static_assert(SLEEPERS + 1 == RMX_LOCK_WORDS, "as others count them");

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

/* A futex has 32 bits: the low half of a word, or the high one. */
static const uint32_t *word_futex(const int64_t *word, bool high)
{
	return (const uint32_t *)word +
	       (high == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__));
}

/* A wake-up reaches those who wait for a value with the same bit only. */
static uint32_t value_bit(int64_t value)
{
	return UINT32_C(1) << (value & 31);
}

static void word_wake(const int64_t *sleepers, const int64_t *word, bool high,
		      uint32_t bits)
{
	if (word_load(sleepers))
		syscall(SYS_futex, word_futex(word, high), FUTEX_WAKE_BITSET,
			INT_MAX, NULL, NULL, bits);
}

void rmaext_word_raise(int64_t *sleepers, int64_t *word)
{
	const int64_t value = word_add(word, 1) + 1;

	word_wake(sleepers, word, false, value_bit(value));
}

/* Waits until word & mask is at least `least`, or at most `most`. */
struct word {
	int64_t *sleepers;
	const int64_t *word;
	int64_t mask, least, most;
};

static bool word_is_there(const struct word *w, int64_t value)
{
	value &= w->mask;
	return value >= w->least && value <= w->most;
}

static enum rmx_step word_look(void *arg)
{
	const struct word *w = arg;

	return word_is_there(w, word_load(w->word)) ? RMX_DONE : RMX_SLEEP;
}

static bool word_sleep(void *arg, int64_t ns)
{
	const struct word *w = arg;
	const struct timespec end = rmx_timespec(rmx_now() + ns);
	const bool grows = w->most == INT64_MAX;
	bool slept = true, high;
	int64_t value;

	word_add(w->sleepers, 1);
	value = word_load(w->word);
	/* of a count of readers and writers, the half that keeps us out */
	high = !grows && (!(uint32_t)value || !(w->mask & UINT32_MAX));
	/* a rank killed here leaves a sleeper too many: idle system calls */
	if (!word_is_there(w, value))
		slept = !syscall(SYS_futex, word_futex(w->word, high),
				 FUTEX_WAIT_BITSET,
				 (uint32_t)(high ? value >> 32 : value), &end,
				 NULL,
				 grows ? value_bit(w->least)
				       : FUTEX_BITSET_MATCH_ANY) ||
			errno != EINTR;
	word_add(w->sleepers, -1);
	return slept;
}

static bool word_await(struct word *w, int64_t spin, int64_t sleep)
{
	const struct rmx_await wait = {
		.look = word_look,
		.sleep = word_sleep,
		.arg = w,
		.spin = spin,
		.nap = sleep,
	};

	if (word_look(w) == RMX_DONE)
		return true;
	if (spin + sleep <= 0) {
		rmaext_mpi_glance();
		return false;
	}
	return !rmx_await(&wait, rmx_now() + spin + sleep, NULL);
}

int rmaext_word_await(int64_t *sleepers, const int64_t *word, int64_t least,
		      int64_t spin, int64_t sleep)
{
	struct word w = {sleepers, word, -1, least, INT64_MAX};

	return word_await(&w, spin, sleep);
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

unsigned int rmx_lock_changed(int64_t *words, uint64_t word, int64_t more,
			      int64_t value)
{
	if (word == TURN && more) {
		word_wake(&words[SLEEPERS], &words[TURN], false,
			  value_bit(value));
		return RMX_LOCK_TURN;
	}
	if (word != INSIDE || more >= 0)
		return 0;
	if (more > -RMX_LOCK_WRITER ? !(uint32_t)value
				    : value < RMX_LOCK_WRITER)
		word_wake(&words[SLEEPERS], &words[INSIDE],
			  more <= -RMX_LOCK_WRITER, FUTEX_BITSET_MATCH_ANY);
	return RMX_LOCK_LEFT;
}

bool rmx_lock_calls(const int64_t *words, int64_t slot, unsigned int changes)
{
	const int64_t inside = word_load(&words[INSIDE]);
	const unsigned int left = RMX_LOCK_TURN | RMX_LOCK_LEFT;

	/*
	 * After a writer all readers are ones that join, and wait. One that
	 * only tries to enter, and takes that back, tells none of them.
	 */
	if (slot & RMAEXT_SLOT_READERS && (changes & left) == left &&
	    inside < RMX_LOCK_WRITER)
		return true;
	return slot & RMAEXT_SLOT_FAR &&
	       (slot & RMAEXT_SLOT_KINDS) == RMAEXT_SLOT_QUEUED &&
	       slot >> RMAEXT_SLOT_TICKET == word_load(&words[TURN]) &&
	       (changes & RMX_LOCK_TURN || !inside);
}

static void lock_changed(const struct rmaext_lock *l, int64_t place,
			 int64_t more, int64_t value)
{
	const uint64_t word = (uint64_t)(place - l->words);

	if (word < RMX_LOCK_WORDS)
		rmx_lock_changed(l->block + l->words, word, more, value);
}

static int64_t block_add(const struct rmaext_lock *l, struct rmaext_exchange *e,
			 int64_t place, int64_t more)
{
	int64_t old = 0;

	if (e) {
		exchange_ask(e, place, more, &old);
	} else {
		old = word_add(&l->block[place], more);
		lock_changed(l, place, more, old + more);
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
		lock_changed(l, place, to - from, to);
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
	return l->ticket << RMAEXT_SLOT_TICKET | l->far | kind;
}

static void slot_change(struct rmaext_lock *l, struct rmaext_exchange *e,
			int kind, int64_t more)
{
	const int64_t old = slot_content(l, l->kind);

	l->kind = kind;
	block_add(l, e, l->slots + l->rank, slot_content(l, kind) + more - old);
}

/* A reader that has the turn: no writer is inside, nor can be before it. */
static int reader_enter(struct rmaext_lock *l, struct rmaext_exchange *e)
{
	block_add(l, e, l->words + INSIDE, 1);
	block_add(l, e, l->words + TURN, 1);
	slot_change(l, e, 0, RMAEXT_SLOT_READER);
	l->inside = 1;
	return 1;
}

/* `old` is what the count was before the writer was added to it. */
static int writer_entered(struct rmaext_lock *l, struct rmaext_exchange *e,
			  int64_t turn, int64_t old)
{
	if (turn == l->ticket && !old) {
		l->inside = 1;
		return 1;
	}
	block_add(l, e, l->words + INSIDE, -RMX_LOCK_WRITER);
	slot_change(l, e, RMAEXT_SLOT_QUEUED, 0);
	return 0;
}

static int lock_try_enter(struct rmaext_lock *l, struct rmaext_exchange *e,
			  int exclusive)
{
	const int64_t turn = block_load(l, e, l->words + TURN);
	int64_t inside = block_load(l, e, l->words + INSIDE);

	if (!exchange_is_answered(e) || turn != l->ticket ||
	    (exclusive && inside))
		return 0;
	/* from here on a death is told from one in the queue */
	slot_change(l, e, RMAEXT_SLOT_ACTIVE, 0);
	if (!exclusive)
		return reader_enter(l, e);
	inside = block_add(l, e, l->words + INSIDE, RMX_LOCK_WRITER);
	return exchange_is_answered(e) ? writer_entered(l, e, turn, inside) : 0;
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
	int64_t turn, inside = 0;
	bool tries;

	slot_change(l, e, RMAEXT_SLOT_ACTIVE, 0);
	l->ticket = block_add(l, e, l->words + NEXT, 1);
	turn = block_load(l, e, l->words + TURN);
	/* in the same message, before the answer: most locks are free */
	tries = exclusive && (e || turn == l->ticket);
	if (tries)
		inside = block_add(l, e, l->words + INSIDE, RMX_LOCK_WRITER);
	if (!exchange_is_answered(e))
		return 0;
	if (tries)
		return writer_entered(l, e, turn, inside);
	if (!exclusive && turn == l->ticket)
		return reader_enter(l, e);
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

void rmaext_lock_disown(struct rmaext_lock *l)
{
	l->inside = 0;
	__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
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

/* Waits until it is worth a try. The block is mapped. */
static void lock_await(const struct rmaext_lock *l, bool joins, int exclusive,
		       int64_t spin, int64_t sleep)
{
	int64_t *words = l->block + l->words;
	struct word turn = {&words[SLEEPERS], &words[TURN], -1, l->ticket,
			    INT64_MAX};
	struct word left = {&words[SLEEPERS], &words[INSIDE], -1, 0, 0};

	if (joins)
		left.mask = -RMX_LOCK_WRITER;
	if (!joins && word_look(&turn) != RMX_DONE)
		word_await(&turn, spin, sleep);
	else if (joins || exclusive)
		word_await(&left, spin, sleep);
}

int rmaext_lock_join(struct rmaext_lock *l, struct rmaext_exchange *e,
		     uint64_t thread)
{
	int64_t inside, turn, next;

	exchange_begin(e);
	__atomic_store_n(&l->owner, thread, __ATOMIC_SEQ_CST);
	owner_begin(l, e);
	block_add(l, e, l->slots + l->rank, RMAEXT_SLOT_READER);
	inside = block_add(l, e, l->words + INSIDE, 1);
	turn = block_load(l, e, l->words + TURN);
	next = block_load(l, e, l->words + NEXT);
	if (exchange_is_answered(e)) {
		l->inside = inside < RMX_LOCK_WRITER ? 1 : RMAEXT_LOCK_JOINS;
		l->ticket = inside < RMX_LOCK_WRITER && turn < next ? turn : -1;
	}
	return lock_record(l, 0, false, owner_end(l, e, l->inside == 1));
}

int rmaext_lock_wait(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int exclusive, int64_t spin, int64_t sleep)
{
	const bool joins = l->inside == RMAEXT_LOCK_JOINS;
	int ret = 0;

	exchange_begin(e);
	owner_begin(l, e);
	if (!e)
		lock_await(l, joins, exclusive, spin, sleep);
	if (joins) {
		if (block_load(l, e, l->words + INSIDE) < RMX_LOCK_WRITER)
			l->inside = ret = 1;
	} else {
		ret = lock_try_enter(l, e, exclusive);
	}
	return lock_record(l, exclusive, false, owner_end(l, e, ret));
}

/* The slot last, so that each ticket and each reader is accounted for. */
static void lock_leave(struct rmaext_lock *l, struct rmaext_exchange *e,
		       int exclusive)
{
	block_add(l, e, l->words + INSIDE, exclusive ? -RMX_LOCK_WRITER : -1);
	if (!exclusive) {
		block_add(l, e, l->slots + l->rank,
			  -(int64_t)RMAEXT_SLOT_READER);
		return;
	}
	block_add(l, e, l->words + TURN, 1);
	slot_change(l, e, 0, 0);
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
	int inside, ret;

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
	return inside == 1 ? lock_record(l, exclusive, true, ret) : ret;
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
	block_swap(l, e, l->words + TURN, ticket, ticket + 1);
	return exchange_end(e, 1);
}
