/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * MPI's progress while threads wait here (MPI-4.1, 3.5 and 12.7.3). MPI makes
 * progress only inside calls of MPI, so whoever waits calls it now and then:
 * MPI_Iprobe for a message that nobody sends, on a communicator of ours. Python
 * hands over the functions as addresses, and the communicator; this file knows
 * no header of MPI. A handle has 4 bytes in MPICH and its kin, and is a pointer
 * in Open MPI.
 *
 * A call that took long has moved something. MPI is then called again at once,
 * so that a long message comes in as fast as in a call of MPI. While there is
 * nothing to do, the pauses grow to a quarter of the time waited.
 */
#define _GNU_SOURCE
#include "base/await.h"

#include <sched.h>

#define RMX_WORKED 3000 /* ns; a call that finds nothing takes a tenth */
/* ns for which a request is tested without a pause */
#define RMX_EAGER ((int64_t)5000 * 1000)
/* ns between two tests of a request at most */
#define RMX_TEST_EVERY ((int64_t)10 * 1000 * 1000)
/* short waits, one after another, call MPI so many times less often */
#define RMX_SHORT 10
#define RMX_STATUS 128 /* bytes: more than any MPI_Status has */

typedef int iprobe_4_fn(int source, int tag, uint32_t comm, int *flag,
			void *status);
typedef int iprobe_8_fn(int source, int tag, void *comm, int *flag,
			void *status);
typedef int test_fn(void *request, int *flag, void *status);
typedef int is_main_fn(int *flag);

/* Whoever calls MPI_Iprobe holds `lock`, so that the communicator stays. */
static struct {
	pthread_mutex_t lock;
	atomic_bool on;
	struct rmaext_mpi mpi;
	uint64_t comm;
	atomic_int_fast64_t often; /* ns between calls, at least */
	/* ns between the calls of one who sleeps meanwhile: first, and most */
	atomic_int_fast64_t first, most;
	atomic_int_fast64_t last; /* time of the last call, by any thread */
	rmx_mpi_ask *ask;
	atomic_int aside; /* threads that never call MPI */
	pthread_t thread; /* of rmaext_mpi_thread() */
	atomic_bool runs; /* that thread is to run */
	atomic_uint stop; /* futex on which it sleeps */
} progress = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.often = 100 * 1000,
	.first = 100 * 1000,
	.most = 1000 * 1000,
};

/* 1 if this thread initialised MPI, else 0; -1 before MPI was asked. */
static _Thread_local int main_thread = -1;
/* Above 0 if this thread is inside MPI, or is one that never calls it. */
static _Thread_local int barred;

void rmx_mpi_asks(rmx_mpi_ask *ask)
{
	progress.ask = ask;
}

static bool mpi_may_call(void)
{
	const int level = progress.mpi.level;

	if (!atomic_load(&progress.on) || barred)
		return false;
	if (level != RMAEXT_MPI_MULTIPLE) {
		if (main_thread < 0) {
			int flag = 0;

			((is_main_fn *)(uintptr_t)progress.mpi.is_thread_main)(
				&flag);
			main_thread = flag;
		}
		if (!main_thread)
			return false;
	}
	return !progress.ask || progress.ask(level == RMAEXT_MPI_SERIALIZED);
}

static void mpi_probe(void)
{
	const uintptr_t function = (uintptr_t)progress.mpi.iprobe;
	const int source = progress.mpi.any_source, tag = progress.mpi.tag;
	_Alignas(16) char status[RMX_STATUS];
	int flag;

	if (progress.mpi.handle_bytes == 4)
		((iprobe_4_fn *)function)(source, tag, (uint32_t)progress.comm,
					  &flag, status);
	else
		((iprobe_8_fn *)function)(source, tag,
					  (void *)(uintptr_t)progress.comm,
					  &flag, status);
}

/* Returns true if MPI had something to do. */
static bool mpi_call(struct rmx_pace *pace)
{
	const int64_t start = rmx_now();

	if (pace && pace->request) {
		_Alignas(16) char status[RMX_STATUS];
		int flag = 0;

		if (!atomic_load(&progress.on))
			return false; /* MPI has ended before this thread */
		barred++;
		if (((test_fn *)(uintptr_t)progress.mpi.test)(pace->request,
							      &flag, status))
			flag = 1; /* Python tests again, and raises */
		barred--;
		if (flag)
			atomic_store(&pace->done, true);
	} else {
		if (pthread_mutex_trylock(&progress.lock))
			return false; /* another thread is calling it */
		barred++;
		if (atomic_load(&progress.on) && progress.comm)
			mpi_probe();
		barred--;
		pthread_mutex_unlock(&progress.lock);
	}
	atomic_store_explicit(&progress.last, rmx_now(), memory_order_relaxed);
	return atomic_load_explicit(&progress.last, memory_order_relaxed) -
		       start >
	       RMX_WORKED;
}

void rmx_pace_begin(struct rmx_pace *pace, int64_t now)
{
	const int64_t first = atomic_load(&progress.first);
	const int64_t last =
		atomic_load_explicit(&progress.last, memory_order_relaxed);

	pace->quiet = now;
	pace->next = now;
	if (pace->request)
		return;
	if (!atomic_load(&progress.on))
		pace->next = INT64_MAX;
	else if (now < last + RMX_SHORT * atomic_load(&progress.often))
		pace->next = now + first; /* maybe one of many short waits */
}

void rmx_pace_turn(struct rmx_pace *pace)
{
	const int64_t first = atomic_load(&progress.first);
	const int64_t most =
		pace->request ? RMX_TEST_EVERY : atomic_load(&progress.most);
	int64_t now, pause;

	/* the owner of a request has called MPI in this thread before */
	if (!pace->request && !mpi_may_call()) {
		/* it seldom asks again: another thread may end meanwhile */
		pace->next = rmx_now() + RMX_SLICE;
		return;
	}
	if (mpi_call(pace)) {
		pace->quiet = pace->next = rmx_now();
		return;
	}
	now = rmx_now();
	if (pace->request && now - pace->quiet < RMX_EAGER) {
		if (!atomic_load(&pace->done))
			sched_yield(); /* other ranks may need the core */
		pace->next = now;
		return;
	}
	pause = (now - pace->quiet) / 4;
	pause = pause > most ? most : pause;
	if (!pace->request && pause < first)
		pause = first;
	pace->next = now + pause;
}

int rmaext_mpi_glance(void)
{
	return atomic_load_explicit(&progress.on, memory_order_relaxed) &&
	       rmx_now() >= atomic_load_explicit(&progress.last,
						 memory_order_relaxed) +
				    atomic_load(&progress.often) &&
	       mpi_may_call() && mpi_call(NULL);
}

/* -- what Python says ----------------------------------------------------- */

void rmaext_mpi_begin(const struct rmaext_mpi *mpi)
{
	progress.mpi = *mpi;
	atomic_store(&progress.on, true);
}

void rmaext_mpi_use(uint64_t comm)
{
	pthread_mutex_lock(&progress.lock);
	progress.comm = comm;
	pthread_mutex_unlock(&progress.lock);
}

void rmaext_mpi_pace(int64_t often, int64_t first, int64_t most)
{
	atomic_store(&progress.often, often);
	atomic_store(&progress.first, first);
	atomic_store(&progress.most, most);
}

void rmaext_mpi_aside(int more)
{
	barred += more;
	atomic_fetch_add(&progress.aside, more);
}

int rmx_mpi_aside(void)
{
	return atomic_load(&progress.aside);
}

/* The thread that is to end MPI calls this before. */
void rmaext_mpi_end(int forked)
{
	atomic_store(&progress.on, false);
	if (forked) { /* whoever held the lock is not in this process */
		pthread_mutex_init(&progress.lock, NULL);
		atomic_store(&progress.runs, false);
		return;
	}
	if (atomic_exchange(&progress.runs, false)) {
		rmx_futex_wake(&progress.stop);
		pthread_join(progress.thread, NULL);
	}
	/* a thread that is inside MPI has the lock until it comes out */
	pthread_mutex_lock(&progress.lock);
	pthread_mutex_unlock(&progress.lock);
}

static void *thread_main(void *arg)
{
	struct rmx_pace pace = {0};

	(void)arg;
	rmx_pace_begin(&pace, rmx_now());
	while (atomic_load(&progress.runs)) {
		const unsigned int stop = atomic_load(&progress.stop);
		const int64_t now = rmx_now();

		if (rmx_pace_due(&pace, now))
			rmx_pace_turn(&pace);
		else
			rmx_futex_sleep(&progress.stop, stop, pace.next - now);
	}
	return NULL;
}

int rmaext_mpi_thread(void)
{
	if (atomic_exchange(&progress.runs, true))
		return 0;
	if (!pthread_create(&progress.thread, NULL, thread_main, NULL))
		return 0;
	atomic_store(&progress.runs, false);
	return rmx_fail(-FI_EAGAIN, RMX_NO_RANK, "pthread_create",
			"thread for MPI's progress");
}
