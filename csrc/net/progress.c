/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who reads the completion queue. Reading it is what moves data, for the own
 * operations and for those of peers on this rank's memory, so somebody must at
 * all times; two at once lose wake-ups. Hence one reader, who holds `reader`
 * through its sleep too:
 *
 * - an application thread that waits. Others that wait meanwhile are followers
 *   and sleep on `turn`, which the reader moves after each batch it
 *   dispatched and when it leaves.
 * - else the progress thread. An application thread that wants to read calls
 *   it out of its sleep through wake_fd. It then stays away ("parked") until
 *   no application thread has come for a while: handing the queue over twice
 *   for each get would cost two context switches. When one and the same wait
 *   lasts, the thread sleeps longer, until the waiter rings on leaving.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RMX_BATCH 16
#define RMX_READ_MOST 1024 /* completions in a row */
#define RMX_PARK ((int64_t)500 * 1000)
#define RMX_PARK_LONG ((int64_t)20 * 1000 * 1000)
#define RMX_SOON ((int64_t)200 * 1000) /* between tries after EAGAIN */
#define RMX_SERVE_SPINS 5
#define RMX_SETTLE ((int64_t)100 * 1000 * 1000)
#define RMX_THREAD_SPIN ((int64_t)10 * 1000) /* at most */

enum { RMX_LED_BY_ANOTHER = 2 }; /* of lead: the queue is another thread's */

static void read_error(struct rmaext_fabric *f)
{
	struct rmaext_error record = {.rank = -1};
	struct fi_cq_err_entry entry;
	char text[128];
	const char *words;

	memset(&entry, 0, sizeof(entry));
	if (fi_cq_readerr(f->cq, &entry, 0) < 0)
		return;
	/* some providers leave err 0 when a connection goes */
	record.code = entry.err ? -entry.err : -FI_EIO;
	record.prov_errno = entry.prov_errno;
	words = fi_cq_strerror(f->cq, entry.prov_errno, entry.err_data, text,
			       sizeof(text));
	memcpy(record.call, "fi_cq_readerr", sizeof("fi_cq_readerr"));
	strncpy(record.detail, f->lib->strerror(-record.code),
		sizeof(record.detail) - 1);
	if (words && *words) {
		size_t used = strlen(record.detail);

		strncat(record.detail,
			"; provider: ", sizeof(record.detail) - used - 1);
		used = strlen(record.detail);
		strncat(record.detail, words, sizeof(record.detail) - used - 1);
	}
	f->hooks->complete(f, entry.op_context, 0, &record);
}

/*
 * What was read may have changed this process's memory: tell those who wait for
 * that. Transfers that nobody here asked for leave no completion, so the reader
 * does this before it sleeps, too.
 */
static void tell(const struct rmaext_fabric *f)
{
	atomic_thread_fence(memory_order_seq_cst);
	rmx_wake_waiters(f->doorbell);
}

/*
 * Reads what there is; the caller is the CQ's reader. A batch that is not full
 * was the last: reading on until -FI_EAGAIN costs three system calls (1.17),
 * and fi_trywait asks again before anybody sleeps.
 */
static int drain(struct rmaext_fabric *f)
{
	struct fi_cq_msg_entry entries[RMX_BATCH];
	int total = 0;
	ssize_t n;

	f->hooks->before_read(f);
	do {
		n = fi_cq_read(f->cq, entries, RMX_BATCH);
		if (n == -FI_EAVAIL) {
			read_error(f);
			n = RMX_BATCH;
		} else {
			for (ssize_t i = 0; i < n; i++)
				f->hooks->complete(f, entries[i].op_context,
						   entries[i].len, NULL);
		}
		total += n > 0 ? (int)n : 0;
	} while (n == RMX_BATCH && total < RMX_READ_MOST);
	f->hooks->after_read(f);
	if (total) {
		tell(f); /* a fence, too: followers look at what was counted */
		if (atomic_load(&f->progress.followers))
			rmx_futex_wake(&f->progress.turn);
	}
	return total;
}

static bool take_queue(struct rmx_progress *p)
{
	return !atomic_exchange(&p->reader, true);
}

/* Gives the queue up, and wakes one who may take it. */
static void leave_queue(struct rmx_progress *p)
{
	atomic_store(&p->reader, false);
	if (atomic_load(&p->followers))
		rmx_futex_wake(&p->turn);
}

/* Reads the queue once, unless somebody does anyway. */
void rmx_look(struct rmaext_fabric *f)
{
	if (!take_queue(&f->progress))
		return;
	drain(f);
	leave_queue(&f->progress);
}

/* The progress thread has something to try again, and may be asleep. */
void rmx_progress_call(struct rmaext_fabric *f)
{
	const uint64_t one = 1;

	if (atomic_load(&f->progress.thread_reads) &&
	    write(f->progress.wake_fd, &one, sizeof(one)) < 0)
		rmx_relax(); /* counter full: it is awake already */
}

/*
 * The reader's loop of a waiting application thread. It spins from the start
 * and after each time that the network woke it: a peer's next request is often
 * close behind. `spins` says for how many times the usual time: an origin that
 * goes to sleep while a long answer comes in wakes up for each piece of it.
 *
 * One that has nothing of its own to wait for, in a fence, spins on for as long
 * as requests come: an origin whose target has gone to sleep between two
 * requests goes to sleep as well, and then both pay for waking up each time (70
 * us a get instead of 16).
 */
static int lead(struct rmaext_fabric *f, struct rmaext_peer *peer,
		enum rmx_step (*step)(void *), void *arg, int64_t until,
		unsigned int spins, struct rmx_pace *pace)
{
	const int64_t spin = f->progress.spin * spins;
	const bool serves = !arg || pace->request;
	int64_t now = rmx_now(), nap = 0;
	int64_t spin_end = now + (serves ? f->progress.spin : spin);
	int pidfd = peer ? peer->pidfd : -1;

	for (;;) {
		/* asked towards the end only: it delays the answer */
		bool active = serves && now < spin_end &&
			      now > spin_end - spin / 4 &&
			      rmx_busy(&f->progress);
		int n = drain(f), woken;
		enum rmx_step next = step(arg);

		if (next == RMX_DONE)
			return 0;
		now = rmx_now();
		if (now >= until || (peer && atomic_load(&peer->gone)))
			return RMAEXT_PENDING;
		if (n || active) {
			spin_end = now + spin;
			nap = 0;
		}
		if (rmx_pace_due(pace, now)) {
			/* MPI may take its time, and call the program */
			leave_queue(&f->progress);
			rmx_pace_turn(pace);
			if (!take_queue(&f->progress))
				return RMX_LED_BY_ANOTHER;
			now = rmx_now();
			continue;
		}
		if (now < spin_end) {
			rmx_relax();
			continue;
		}
		now = (until < pace->next ? until : pace->next) - now;
		if (next == RMX_RETRY && now > RMX_SOON)
			now = RMX_SOON;
		tell(f);
		woken = rmx_doze(f, pidfd, now, &nap);
		if (woken & RMX_INTERRUPTED)
			return RMAEXT_PENDING;
		/* what it answered before it went is read once more above */
		if (woken & RMX_BY_OTHER)
			atomic_store(&peer->gone, true);
		now = rmx_now();
		if (woken & RMX_BY_NETWORK)
			spin_end = now + spin;
	}
}

/* A waiter goes, and does not know when it will come again. */
static void ring(struct rmx_progress *p)
{
	if (atomic_load(&p->long_park) && atomic_exchange(&p->long_park, false))
		rmx_futex_wake(&p->unpark);
}

/* Sleeps until the reader of the queue has something to tell, and looks. */
static bool follow(struct rmaext_fabric *f, enum rmx_step (*step)(void *),
		   void *arg, int64_t until, struct rmx_pace *pace)
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
		int64_t end = now + RMX_NAP_MAX; /* a follower posts, too */

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

static int wait_at(struct rmaext_fabric *f, struct rmaext_peer *peer,
		   enum rmx_step (*step)(void *), void *arg, int64_t until,
		   unsigned int spins, struct rmx_pace *pace)
{
	struct rmx_progress *p = &f->progress;
	int ret = RMAEXT_PENDING;

	atomic_fetch_add(&p->waiters, 1);
	/* one that two threads count as the same does no harm */
	atomic_store_explicit(
		&p->visits,
		atomic_load_explicit(&p->visits, memory_order_relaxed) + 1,
		memory_order_relaxed);
	for (;;) {
		if (take_queue(p)) {
			ret = lead(f, peer, step, arg, until, spins, pace);
			if (ret != RMX_LED_BY_ANOTHER) {
				leave_queue(p);
				break;
			}
			ret = RMAEXT_PENDING;
		}
		if (follow(f, step, arg, until, pace))
			ret = 0;
		if (!ret || rmx_now() >= until)
			break;
	}
	atomic_fetch_sub(&p->waiters, 1);
	if (!ret)
		ring(p);
	return ret;
}

int rmx_wait(struct rmaext_fabric *f, struct rmaext_peer *peer,
	     enum rmx_step (*step)(void *), void *arg, int64_t until,
	     unsigned int spins)
{
	struct rmx_pace pace = {0};

	rmx_pace_begin(&pace, rmx_now());
	return wait_at(f, peer, step, arg, until, spins, &pace);
}

int rmx_wait_at(struct rmaext_fabric *f, enum rmx_step (*step)(void *),
		void *arg, int64_t until, struct rmx_pace *pace)
{
	return wait_at(f, NULL, step, arg, until, RMX_SERVE_SPINS, pace);
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
	ring(&f->progress);
	rmx_fabric_leave(f);
}

/* What RMAEXT_PENDING of rmx_wait means by now. */
int rmx_deadline(struct rmaext_peer *peer, int64_t rank, const char *call,
		 int64_t timeout, int64_t *deadline, bool moved)
{
	int64_t now = rmx_now();

	if (peer && peer->pidfd >= 0 && !atomic_load(&peer->gone)) {
		struct pollfd fd = {.fd = peer->pidfd, .events = POLLIN};

		if (poll(&fd, 1, 0) > 0 && fd.revents & POLLIN)
			atomic_store(&peer->gone, true);
	}
	if (peer && !moved &&
	    rmx_probe_ask(&peer->probe, now, *deadline - timeout))
		atomic_store(&peer->gone, true);
	if (peer && atomic_load(&peer->gone))
		return rmx_fail(-FI_ENOTCONN, rank, call,
				"the target process, or its endpoint, is gone");
	if (moved)
		*deadline = now + timeout;
	if (now < *deadline)
		return RMAEXT_PENDING;
	return rmx_fail(-FI_ETIMEDOUT, rank, call,
			"no progress for %.3g s: target stopped, or its "
			"network is down",
			(double)timeout / 1e9);
}

static enum rmx_step never(void *arg)
{
	(void)arg;
	return RMX_SLEEP;
}

void rmaext_fabric_progress(rmaext_fabric *f, int64_t slice)
{
	if (rmx_fabric_enter(f, "rmaext_fabric_progress"))
		return;
	rmx_wait(f, NULL, never, NULL,
		 rmx_now() + (slice < RMX_SLICE ? slice : RMX_SLICE),
		 RMX_SERVE_SPINS);
	rmx_fabric_leave(f);
}

/* One turn as the reader: serve, spin a little after activity, sleep. */
static void thread_turn(struct rmaext_fabric *f, int64_t *nap)
{
	struct rmx_progress *p = &f->progress;
	const int64_t spin =
		p->spin < RMX_THREAD_SPIN ? p->spin : RMX_THREAD_SPIN;
	int64_t spin_end = rmx_now() + spin;
	uint64_t count;

	do {
		if (drain(f)) {
			spin_end = rmx_now() + spin;
			*nap = 0;
		}
		if (atomic_load(&p->waiters) || atomic_load(&p->stop))
			return;
	} while (rmx_now() < spin_end);
	tell(f);
	if ((rmx_doze(f, p->wake_fd, 1000000000, nap) & RMX_BY_OTHER) &&
	    read(p->wake_fd, &count, sizeof(count)) > 0)
		atomic_fetch_add(&f->wakeups, 1);
}

static void park(struct rmx_progress *p, bool same_wait)
{
	unsigned int unpark = atomic_load(&p->unpark);

	atomic_store(&p->long_park, same_wait);
	/* the waiter that would ring may have left before that store */
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
	int64_t nap = 0;

	while (!atomic_load(&p->stop)) {
		unsigned int visits = atomic_load(&p->visits);

		if (atomic_load(&p->waiters) || visits != seen) {
			bool same = visits == seen;

			seen = visits;
			park(p, same);
			/* the one who waits is in MPI, and may be for long */
			if (!atomic_load(&p->stop) && take_queue(p)) {
				drain(f);
				leave_queue(p);
			}
			continue;
		}
		if (!take_queue(p)) {
			park(p, false); /* a waiter is just leaving */
			continue;
		}
		atomic_store(&p->thread_reads, true);
		while (!atomic_load(&p->waiters) && !atomic_load(&p->stop))
			thread_turn(f, &nap);
		atomic_store(&p->thread_reads, false);
		leave_queue(p);
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

/* Nobody else reads the CQ any more: what is on its way is given some time. */
void rmx_progress_settle(struct rmaext_fabric *f,
			 bool (*unsettled)(const struct rmaext_fabric *))
{
	const int64_t end = rmx_now() + RMX_SETTLE;

	while (unsettled(f) && rmx_now() < end)
		if (!drain(f))
			rmx_relax();
}

void rmx_progress_stop(struct rmaext_fabric *f)
{
	struct rmx_progress *p = &f->progress;
	const uint64_t one = 1;

	if (p->running) {
		atomic_store(&p->stop, true);
		rmx_futex_wake(&p->unpark);
		while (write(p->wake_fd, &one, sizeof(one)) < 0)
			if (errno != EAGAIN && errno != EINTR)
				break;
		pthread_join(p->thread, NULL);
		p->running = false;
	}
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	p->wake_fd = -1;
}
