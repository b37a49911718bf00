/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who reads the completion queue. Reading it is what moves data, for this
 * rank's operations and for those of peers on its memory, so a thread must read
 * it at all times. Two readers at once would lose wake-ups. Hence there is one
 * reader, which holds the flag `reader` while it sleeps, too:
 *
 * - The reader is an application thread that waits, if there is one. Others
 *   that wait meanwhile are followers. They sleep on `turn`, which the reader
 *   counts up after each batch that it has dispatched, and when it leaves.
 * - Else the progress thread reads. An application thread that waits takes the
 *   queue from it, at once if it sleeps: waking up takes it longer than most
 *   gets do. It finds that out when the network wakes it, or the waiter, which
 *   leaves. Then it stays away ("parked") until no application thread has come
 *   for a while, as handing the queue over twice for each get would cost two
 *   context switches. When one and the same wait lasts, the thread sleeps
 *   longer, and the waiter wakes it on leaving.
 * - The progress thread spins a little before it sleeps. It spins for as long
 *   as an origin does if requests come so soon one after another that it would
 *   sleep between any two of them, unless it is put off its core.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"
#include "record/record.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RMX_PARK ((int64_t)500 * 1000)		  /* ns */
#define RMX_PARK_LONG ((int64_t)20 * 1000 * 1000) /* ns, in a long wait */
#define RMX_SOON ((int64_t)200 * 1000) /* ns between tries after EAGAIN */
#define RMX_SERVE_SPINS 5
#define RMX_YIELDS ((int64_t)200 * 1000) /* ns, see wait_as_reader() */
#define RMX_SERVES UINT_MAX /* instead of the spins of an operation */
#define RMX_STOP_MOST ((int64_t)5 * 1000 * 1000 * 1000) /* ns */
#define RMX_SETTLE ((int64_t)100 * 1000 * 1000)		/* ns */
#define RMX_THREAD_SPIN ((int64_t)10 * 1000) /* ns, for a lone request */
#define RMX_THREAD_NAP ((int64_t)1000 * 1000 * 1000) /* ns at most */
#define RMX_HAND_OVER ((int64_t)20 * 1000) /* ns, by a thread that is awake */

/* One round of a loop takes so long only if the thread was put off its core. */
#define RMX_LOST ((int64_t)1000 * 1000)		/* ns */
#define RMX_CROWDED ((int64_t)50 * 1000 * 1000) /* ns */

/* Returned by wait_as_reader(): another thread has taken the queue. */
enum { RMX_READ_BY_ANOTHER = 2 };

static bool queue_take(struct rmx_progress *p)
{
	return !atomic_exchange(&p->reader, true);
}

static void thread_wake(const struct rmx_progress *p)
{
	const uint64_t one = 1;

	if (write(p->wake_fd, &one, sizeof(one)) < 0)
		rmx_relax(); /* its counter is full: it is awake already */
}

/*
 * Gives the queue up, and wakes the followers, of which one may take it. The
 * progress thread must not sleep on: the network does not wake it any more.
 */
static void queue_leave(struct rmx_progress *p)
{
	atomic_store(&p->reader, false);
	if (atomic_load(&p->sleep) == RMX_TAKEN_FROM)
		thread_wake(p);
	if (atomic_load(&p->followers))
		rmx_futex_wake(&p->turn);
}

void rmx_look(struct rmaext_fabric *f)
{
	if (!queue_take(&f->progress))
		return;
	rmx_cq_drain(f);
	queue_leave(&f->progress);
}

void rmx_progress_call(struct rmaext_fabric *f)
{
	if (atomic_load(&f->progress.thread_reads))
		thread_wake(&f->progress);
}

/*
 * Takes the queue from the progress thread, which does nothing to it while it
 * sleeps, and gives it up soon while it is awake. The caller has been counted
 * as a waiter.
 */
static bool queue_take_over(struct rmx_progress *p)
{
	const int64_t now = rmx_now();
	const int64_t end =
		now + (p->spin < RMX_HAND_OVER ? p->spin : RMX_HAND_OVER);

	while (atomic_load(&p->thread_reads)) {
		int asleep = RMX_ASLEEP;

		if (atomic_compare_exchange_strong(&p->sleep, &asleep,
						   RMX_TAKEN_FROM)) {
			atomic_store(&p->thread_reads, false);
			return true;
		}
		if (rmx_now() >= end)
			return false;
		rmx_relax();
	}
	return queue_take(p);
}

static void pace_stay_awake(struct rmx_pace *pace, int64_t now)
{
	if (pace->yields < now + pace->awake)
		pace->yields = now + pace->awake;
}

/*
 * The loop of an application thread that waits as the reader. The thread spins
 * at first, and each time after the network has woken it, as a peer's next
 * request is often close behind. It spins `spins` times as long as usual: an
 * origin that goes to sleep while a long answer comes in would wake up for each
 * piece of it.
 *
 * A thread that waits for no operation of its own, as in a fence, spins on for
 * as long as requests come. If a target goes to sleep between two requests the
 * origin goes to sleep as well, and then both pay for waking up each time (70
 * us a get instead of 16). After it has spun, a thread yields its core for some
 * time before it sleeps: where there are more ranks than cores, the one that it
 * waits for may need that core, and waking up takes far longer than a message
 * does. There the usual time of a spin is 0: one that spins takes the core from
 * those that it waits for.
 */
static int wait_as_reader(struct rmaext_fabric *f, struct rmaext_peer *peer,
			  enum rmx_step (*step)(void *), void *arg,
			  int64_t until, unsigned int spins,
			  struct rmx_pace *pace)
{
	const bool serves = spins == RMX_SERVES;
	const int64_t spin =
		f->progress.spin * (serves ? RMX_SERVE_SPINS : spins);
	int64_t now = rmx_now(), nap = 0;
	int64_t spin_end = now + (serves ? f->progress.spin : spin);
	int pidfd = peer ? peer->pidfd : -1;

	for (;;) {
		/* asking delays answers: it asks towards the end only */
		bool active = serves && spin && now > spin_end - spin / 4 &&
			      now > pace->yields - pace->awake / 2 &&
			      rmx_cq_is_ready(f);
		int n = rmx_cq_drain(f), woken;
		enum rmx_step next = step(arg);

		if (next == RMX_DONE)
			return 0;
		now = rmx_now();
		if (now >= until || (peer && atomic_load(&peer->gone)))
			return RMAEXT_PENDING;
		if (n || active) {
			spin_end = now + spin;
			nap = 0;
			pace_stay_awake(pace, now);
		}
		if (rmx_pace_due(pace, now)) {
			/* MPI may take long, and call the program */
			queue_leave(&f->progress);
			rmx_pace_turn(pace);
			if (!queue_take(&f->progress))
				return RMX_READ_BY_ANOTHER;
			now = rmx_now();
			continue;
		}
		if (now < spin_end) {
			rmx_relax();
			continue;
		}
		if (now < pace->yields && next == RMX_SLEEP) {
			if (!n) { /* else it may not be all that comes */
				rmx_cq_wake_waiters(f);
				sched_yield();
			}
			continue;
		}
		woken = RMX_BY_NETWORK;
		if (rmx_cq_arm(f)) {
			next = step(arg);
			if (next == RMX_DONE)
				return 0;
			now = (until < pace->next ? until : pace->next) - now;
			if (next == RMX_RETRY && now > RMX_SOON)
				now = RMX_SOON;
			now = rmx_cq_nap(f, now, &nap);
			woken = rmx_cq_sleep(f, pidfd, now);
		}
		if (woken & RMX_INTERRUPTED)
			return RMAEXT_PENDING;
		/* its last answers are read above, once more */
		if (woken & RMX_BY_OTHER)
			atomic_store(&peer->gone, true);
		now = rmx_now();
		if (woken & RMX_BY_NETWORK) {
			spin_end = now + spin;
			pace_stay_awake(pace, now);
		}
	}
}

/* Ends a long park: the waiter leaves, and may not come again soon. */
static void thread_unpark(struct rmx_progress *p)
{
	if (atomic_load(&p->long_park) && atomic_exchange(&p->long_park, false))
		rmx_futex_wake(&p->unpark);
}

/* Sleeps until the reader has dispatched something; true: the wait is over. */
static bool wait_as_follower(struct rmaext_fabric *f,
			     enum rmx_step (*step)(void *), void *arg,
			     int64_t until, struct rmx_pace *pace)
{
	struct rmx_progress *p = &f->progress;
	unsigned int turn;
	bool over;

	atomic_fetch_add(&p->followers, 1);
	turn = atomic_load(&p->turn);
	rmx_progress_call(f);
	over = step(arg) == RMX_DONE;
	/* the reader may have left before it could see a follower */
	if (!over && atomic_load(&p->reader)) {
		const int64_t now = rmx_now();
		int64_t end = now + RMX_NAP_MAX; /* it may post copies */

		if (rmx_pace_due(pace, now)) {
			rmx_pace_turn(pace);
		} else {
			end = end < until ? end : until;
			end = end < pace->next ? end : pace->next;
			if (end > now)
				rmx_futex_sleep(&p->turn, turn, end - now);
		}
	}
	atomic_fetch_sub(&p->followers, 1);
	return over;
}

static int wait_for_step(struct rmaext_fabric *f, struct rmaext_peer *peer,
			 enum rmx_step (*step)(void *), void *arg,
			 int64_t until, unsigned int spins,
			 struct rmx_pace *pace)
{
	struct rmx_progress *p = &f->progress;
	int ret = RMAEXT_PENDING;

	atomic_fetch_add(&p->waiters, 1);
	/* it does no harm if two threads count up to the same number */
	atomic_store_explicit(
		&p->visits,
		atomic_load_explicit(&p->visits, memory_order_relaxed) + 1,
		memory_order_relaxed);
	for (;;) {
		if (queue_take(p) || queue_take_over(p)) {
			ret = wait_as_reader(f, peer, step, arg, until, spins,
					     pace);
			if (ret != RMX_READ_BY_ANOTHER) {
				queue_leave(p);
				break;
			}
			ret = RMAEXT_PENDING;
		}
		if (wait_as_follower(f, step, arg, until, pace))
			ret = 0;
		if (!ret || rmx_now() >= until)
			break;
	}
	atomic_fetch_sub(&p->waiters, 1);
	if (!ret)
		thread_unpark(p);
	return ret;
}

int rmx_wait(struct rmaext_fabric *f, struct rmaext_peer *peer,
	     enum rmx_step (*step)(void *), void *arg, int64_t until,
	     unsigned int spins)
{
	struct rmx_pace pace = {0};
	const int64_t now = rmx_now();

	rmx_pace_begin(&pace, now);
	if (spins && spins != RMX_SERVES) /* for an operation, which is short */
		pace.yields = now + RMX_YIELDS;
	return wait_for_step(f, peer, step, arg, until, spins, &pace);
}

int rmx_wait_serving(struct rmaext_fabric *f, enum rmx_step (*step)(void *),
		     void *arg, int64_t until, struct rmx_pace *pace)
{
	return wait_for_step(f, NULL, step, arg, until, RMX_SERVES, pace);
}

void rmx_progress_hand_over(struct rmaext_fabric *f)
{
	atomic_store(&f->progress.long_park, false);
	rmx_futex_wake(&f->progress.unpark);
}

void rmaext_fabric_leave(rmaext_fabric *f)
{
	if (rmx_fabric_enter(f, "rmaext_fabric_leave"))
		return;
	thread_unpark(&f->progress);
	rmx_fabric_leave(f);
}

static enum rmx_step step_never(void *arg)
{
	(void)arg;
	return RMX_SLEEP;
}

void rmaext_fabric_progress(rmaext_fabric *f, int64_t slice)
{
	if (rmx_fabric_enter(f, "rmaext_fabric_progress"))
		return;
	rmx_wait(f, NULL, step_never, NULL,
		 rmx_now() + (slice < RMX_SLICE ? slice : RMX_SLICE),
		 RMX_SERVES);
	rmx_fabric_leave(f);
}

/* What the progress thread keeps from turn to turn. */
struct thread_turns {
	int64_t nap;	 /* see rmx_cq_nap() */
	int64_t slept;	 /* when it last went to sleep */
	int64_t crowded; /* until then others need its core */
	/* p->unpark when it went to sleep: who takes the queue may hand it
	 * over before the thread is awake */
	unsigned int unpark;
};

/* Sleeps; false: another has taken the queue meanwhile. */
static bool thread_sleep(struct rmaext_fabric *f, struct thread_turns *turns)
{
	struct rmx_progress *p = &f->progress;
	const int64_t ns = rmx_cq_nap(f, RMX_THREAD_NAP, &turns->nap);
	uint64_t count;
	int woken;

	turns->unpark = atomic_load(&p->unpark);
	atomic_store(&p->sleep, RMX_ASLEEP);
	woken = rmx_cq_sleep(f, p->wake_fd, ns);
	if ((woken & RMX_BY_OTHER) &&
	    read(p->wake_fd, &count, sizeof(count)) > 0)
		atomic_fetch_add(&f->wakeups, 1);
	return atomic_exchange(&p->sleep, RMX_AWAKE) == RMX_ASLEEP;
}

/*
 * One turn as the reader: it serves, spins after activity, and sleeps once. A
 * request that the provider serves gives no completion, so the thread asks for
 * those in the second half of its spin. Returns false if another has taken the
 * queue.
 *
 * A thread that spins uses up its share of a core that others want. Then it
 * waits for milliseconds at a time, where one that sleeps is woken at once.
 */
static bool thread_read(struct rmaext_fabric *f, struct thread_turns *turns)
{
	struct rmx_progress *p = &f->progress;
	const int64_t most = p->spin;
	const int64_t brief = most < RMX_THREAD_SPIN ? most : RMX_THREAD_SPIN;
	int64_t last, now = rmx_now();
	/* had it not slept it would have met what has woken it */
	int64_t spin = now >= turns->crowded && now - turns->slept < most
			       ? most
			       : brief;
	int64_t spin_end = now + spin;

	do {
		bool active = now > spin_end - spin / 2 && rmx_cq_is_ready(f);

		if (rmx_cq_drain(f) || active) {
			spin_end = rmx_now() + spin;
			turns->nap = 0;
		}
		if (atomic_load(&p->waiters) || atomic_load(&p->stop))
			return true;
		last = now;
		now = rmx_now();
		if (now - last > RMX_LOST) {
			turns->crowded = now + RMX_CROWDED;
			spin = brief;
			spin_end = now + spin;
		}
	} while (now < spin_end);
	turns->slept = now;
	return !rmx_cq_arm(f) || thread_sleep(f, turns);
}

static void thread_park(struct rmx_progress *p, bool same_wait,
			unsigned int unpark)
{
	atomic_store(&p->long_park, same_wait);
	/* the waiter that would end this may have left before that store */
	if (atomic_load(&p->stop) || (same_wait && !atomic_load(&p->waiters)))
		return;
	rmx_futex_sleep(&p->unpark, unpark,
			same_wait ? RMX_PARK_LONG : RMX_PARK);
	atomic_store(&p->long_park, false);
}

static void *thread_main(void *arg)
{
	struct rmaext_fabric *f = arg;
	struct rmx_progress *p = &f->progress;
	unsigned int seen = atomic_load(&p->visits);
	struct thread_turns turns = {0};
	bool taken = false;

	rmx_thread_named("rmaext-progress");
	while (!atomic_load(&p->stop)) {
		unsigned int unpark =
			taken ? turns.unpark : atomic_load(&p->unpark);
		unsigned int visits = atomic_load(&p->visits);

		taken = false;
		if (atomic_load(&p->waiters) || visits != seen) {
			bool same = visits == seen;

			seen = visits;
			thread_park(p, same, unpark);
			/* the waiter may be inside MPI, and for long */
			if (!atomic_load(&p->stop) && queue_take(p)) {
				rmx_cq_drain(f);
				queue_leave(p);
			}
			continue;
		}
		if (!queue_take(p)) {
			/* a waiter is about to leave */
			thread_park(p, false, unpark);
			continue;
		}
		atomic_store(&p->thread_reads, true);
		while (!taken && !atomic_load(&p->waiters) &&
		       !atomic_load(&p->stop))
			taken = !thread_read(f, &turns);
		if (taken)
			continue;
		atomic_store(&p->thread_reads, false);
		queue_leave(p);
	}
	return NULL;
}

int rmx_progress_start(struct rmaext_fabric *f, int thread, int64_t spin)
{
	struct rmx_progress *p = &f->progress;

	p->spin = spin;
	p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->wake_fd < 0)
		return -errno;
	if (!thread)
		return 0;
	p->running = !pthread_create(&p->thread, NULL, thread_main, f);
	return p->running ? 0 : -FI_EAGAIN;
}

void rmx_progress_settle(struct rmaext_fabric *f,
			 bool (*unsettled)(const struct rmaext_fabric *))
{
	const int64_t end = rmx_now() + RMX_SETTLE;

	while (unsettled(f) && rmx_now() < end)
		if (!rmx_cq_drain(f))
			rmx_relax();
}

bool rmx_progress_stop(struct rmaext_fabric *f)
{
	struct rmx_progress *p = &f->progress;
	const uint64_t one = 1;

	if (p->running) {
		atomic_store(&p->stop, true);
		rmx_futex_wake(&p->unpark);
		while (write(p->wake_fd, &one, sizeof(one)) < 0)
			if (errno != EAGAIN && errno != EINTR)
				break;
		if (!rmx_thread_join(p->thread, RMX_STOP_MOST))
			return false;
		p->running = false;
	}
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	p->wake_fd = -1;
	return true;
}
