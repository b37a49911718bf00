/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * MPI's progress while threads wait here (MPI-4.1, 3.5 and 12.7.3). MPI moves
 * only inside calls of MPI, so whoever waits calls it now and then: MPI_Iprobe
 * for a message that nobody sends, on a communicator of ours. Python hands over
 * the functions as addresses, and the communicator; this file knows no header
 * of MPI. Handles are of 4 bytes in MPICH and its kin, pointers in Open MPI.
 *
 * A call that took long has moved something: then MPI is called again at once,
 * so that a long message comes in as fast as in a call of MPI. While there is
 * nothing to do, the pauses grow to a quarter of the time waited.
 */
#define _GNU_SOURCE
#include "base/await.h"

#include <sched.h>

#define RMX_WORKED 3000 /* ns: an empty call takes a tenth */
#define RMX_EAGER \
	((int64_t)5000 * 1000) /* a request is tested without a pause */
#define RMX_TEST_EVERY ((int64_t)10 * 1000 * 1000) /* ns, at most */
#define RMX_SHORT \
	10 /* short waits, one after another, call it so much less often */
#define RMX_STATUS 128 /* bytes: more than any MPI_Status has */

typedef int iprobe_4(int source, int tag, uint32_t comm, int *flag,
		     void *status);
typedef int iprobe_8(int source, int tag, void *comm, int *flag, void *status);
typedef int test_it(void *request, int *flag, void *status);
typedef int is_main(int *flag);

/* `lock` is held by the one who calls MPI_Iprobe: the communicator stays. */
static struct {
	pthread_mutex_t lock;
	atomic_bool on;
	struct rmaext_mpi mpi;
	uint64_t comm;
	atomic_int_fast64_t often;	 /* ns between calls, at least */
	atomic_int_fast64_t first, most; /* of one that sleeps between them */
	atomic_int_fast64_t last;	 /* when anybody called */
	rmx_mpi_ask *ask;
	atomic_int aside; /* threads that never call MPI */
	pthread_t thread;
	atomic_bool runs;
	atomic_uint stop;
} it = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.often = 100 * 1000,
	.first = 100 * 1000,
	.most = 1000 * 1000,
};

/* Is this the thread that initialised MPI? -1: not asked yet. */
static _Thread_local int main_thread = -1;
/* This thread is inside MPI, which has called the program; or is never to be.
 */
static _Thread_local int held;

void rmx_mpi_asks(rmx_mpi_ask *ask)
{
	it.ask = ask;
}

static bool may_call(void)
{
	const int level = it.mpi.level;

	if (!atomic_load(&it.on) || held)
		return false;
	if (level != RMAEXT_MPI_MULTIPLE) {
		if (main_thread < 0) {
			int flag = 0;

			((is_main *)(uintptr_t)it.mpi.is_thread_main)(&flag);
			main_thread = flag;
		}
		if (!main_thread)
			return false;
	}
	return !it.ask || it.ask(level == RMAEXT_MPI_SERIALIZED);
}

static void probe(void)
{
	const uintptr_t function = (uintptr_t)it.mpi.iprobe;
	const int source = it.mpi.any_source, tag = it.mpi.tag;
	_Alignas(16) char status[RMX_STATUS];
	int flag;

	if (it.mpi.handle_bytes == 4)
		((iprobe_4 *)function)(source, tag, (uint32_t)it.comm, &flag,
				       status);
	else
		((iprobe_8 *)function)(source, tag, (void *)(uintptr_t)it.comm,
				       &flag, status);
}

/* True: MPI had something to do. */
static bool call(struct rmx_pace *pace)
{
	const int64_t start = rmx_now();

	if (pace && pace->request) {
		_Alignas(16) char status[RMX_STATUS];
		int flag = 0;

		if (!atomic_load(&it.on))
			return false; /* a thread that outlives MPI */
		held++;
		if (((test_it *)(uintptr_t)it.mpi.test)(pace->request, &flag,
							status))
			flag = 1; /* MPI's error: Python tests once more */
		held--;
		if (flag)
			atomic_store(&pace->done, true);
	} else {
		if (pthread_mutex_trylock(&it.lock))
			return false; /* another thread does it */
		held++;
		if (atomic_load(&it.on) && it.comm)
			probe();
		held--;
		pthread_mutex_unlock(&it.lock);
	}
	atomic_store_explicit(&it.last, rmx_now(), memory_order_relaxed);
	return atomic_load_explicit(&it.last, memory_order_relaxed) - start >
	       RMX_WORKED;
}

void rmx_pace_begin(struct rmx_pace *pace, int64_t now)
{
	const int64_t first = atomic_load(&it.first);
	const int64_t last =
		atomic_load_explicit(&it.last, memory_order_relaxed);

	pace->quiet = now;
	pace->next = now;
	if (pace->request)
		return;
	if (!atomic_load(&it.on))
		pace->next = INT64_MAX;
	else if (now < last + RMX_SHORT * atomic_load(&it.often))
		pace->next =
			now + first; /* else the last of many short waits */
}

void rmx_pace_turn(struct rmx_pace *pace)
{
	const int64_t first = atomic_load(&it.first);
	const int64_t most =
		pace->request ? RMX_TEST_EVERY : atomic_load(&it.most);
	int64_t now, pause;

	/* who has a request has called MPI in this thread */
	if (!pace->request && !may_call()) {
		/* seldom asked again: another thread may have ended since */
		pace->next = rmx_now() + RMX_SLICE;
		return;
	}
	if (call(pace)) {
		pace->quiet = pace->next = rmx_now();
		return;
	}
	now = rmx_now();
	if (pace->request && now - pace->quiet < RMX_EAGER) {
		if (!atomic_load(&pace->done))
			sched_yield(); /* the others need the core */
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
	return atomic_load_explicit(&it.on, memory_order_relaxed) &&
	       rmx_now() >=
		       atomic_load_explicit(&it.last, memory_order_relaxed) +
			       atomic_load(&it.often) &&
	       may_call() && call(NULL);
}

/* -- what Python tells ------------------------------------------------------
 */

void rmaext_mpi_begin(const struct rmaext_mpi *mpi)
{
	it.mpi = *mpi;
	atomic_store(&it.on, true);
}

void rmaext_mpi_use(uint64_t comm)
{
	pthread_mutex_lock(&it.lock);
	it.comm = comm;
	pthread_mutex_unlock(&it.lock);
}

void rmaext_mpi_pace(int64_t often, int64_t first, int64_t most)
{
	atomic_store(&it.often, often);
	atomic_store(&it.first, first);
	atomic_store(&it.most, most);
}

void rmaext_mpi_aside(int more)
{
	held += more;
	atomic_fetch_add(&it.aside, more);
}

int rmx_mpi_aside(void)
{
	return atomic_load(&it.aside);
}

/* MPI was asked before it ends, while this thread is the one that ends it. */
void rmaext_mpi_end(int forked)
{
	atomic_store(&it.on, false);
	if (forked) { /* the one who held it is not in this process */
		pthread_mutex_init(&it.lock, NULL);
		atomic_store(&it.runs, false);
		return;
	}
	if (atomic_exchange(&it.runs, false)) {
		rmx_futex_wake(&it.stop);
		pthread_join(it.thread, NULL);
	}
	/* whoever is inside MPI comes out first */
	pthread_mutex_lock(&it.lock);
	pthread_mutex_unlock(&it.lock);
}

static void *thread_main(void *arg)
{
	struct rmx_pace pace = {0};

	(void)arg;
	rmx_pace_begin(&pace, rmx_now());
	while (atomic_load(&it.runs)) {
		const unsigned int stop = atomic_load(&it.stop);
		const int64_t now = rmx_now();

		if (rmx_pace_due(&pace, now))
			rmx_pace_turn(&pace);
		else
			rmx_futex_sleep(&it.stop, stop, pace.next - now);
	}
	return NULL;
}

int rmaext_mpi_thread(void)
{
	if (atomic_exchange(&it.runs, true))
		return 0;
	if (!pthread_create(&it.thread, NULL, thread_main, NULL))
		return 0;
	atomic_store(&it.runs, false);
	return rmx_fail(-FI_EAGAIN, RMX_NO_RANK, "pthread_create",
			"thread for MPI's progress");
}
