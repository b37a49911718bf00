/* SPDX-License-Identifier: BSD-3-Clause */
/* The guard of updates: singles and bulk updates together, and the dead. */
#include "rig.h"
#include "dtype/atomic_ops.h"
#include "exec/guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define RANKS 4
#define LONG ((size_t)80 << 10) /* elements: more than one hold */

/* What all ranks, threads or processes, have in common. */
struct shared {
	struct rmx_control_block *block;
	uint64_t *cells; /* LONG */
	_Atomic uint64_t *done;
};

static void *map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static struct shared shared_open(void)
{
	return (struct shared){
		.block = map(rmaext_block_bytes(RANKS)),
		.cells = map(LONG * sizeof(uint64_t)),
		.done = map(4096),
	};
}

static void shared_close(struct shared *s)
{
	munmap(s->block, rmaext_block_bytes(RANKS));
	munmap(s->cells, LONG * sizeof(uint64_t));
	munmap((void *)s->done, 4096);
}

static int pidfd_of(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	CHECK(fd >= 0);
	return fd;
}

/* One whose life only a pidfd tells; it stays until the process ends. */
static rmaext_neighbour *neighbour_of(pid_t pid)
{
	static struct rmaext_neighbour neighbours[128];
	static int n;
	struct rmaext_neighbour *neighbour = &neighbours[n++];

	EQUAL(n <= 128, 1);
	neighbour->pid = pid;
	neighbour->pidfd = pidfd_of(pid);
	neighbour->reach = RMAEXT_CAN_MAP;
	return neighbour;
}

/* A rank's window; all memory is that of rank 0. others: all other ranks. */
static rmaext_window *window_of(const struct shared *s, int64_t self,
				rmaext_neighbour *others, double timeout)
{
	rmaext_neighbour *neighbour[RANKS];
	void *maps[RANKS], *control[RANKS];
	uint64_t size[RANKS];
	uint8_t access[RANKS], align[RANKS], route[RANKS];
	const struct ranks targets = {
		.count = RANKS,
		.self = self,
		.neighbour = neighbour,
		.map = maps,
		.control = control,
		.size = size,
		.access = access,
		.align = align,
		.route = route,
	};
	rmaext_window *w = NULL;

	for (int i = 0; i < RANKS; i++) {
		neighbour[i] = i == self ? NULL : others;
		maps[i] = s->cells;
		control[i] = s->block;
		size[i] = LONG * sizeof(uint64_t);
		access[i] = RMAEXT_READ | RMAEXT_WRITE;
		align[i] = 0;
		route[i] = RMAEXT_DIRECT;
	}
	OK(window_new(NULL, &targets, (int64_t)(timeout * 1e9), &w));
	return w;
}

static void window_drop(rmaext_window *w)
{
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
}

static int sum(rmaext_window *w, uint64_t first, const uint64_t *values,
	       uint64_t *old, uint64_t n)
{
	rmaext_op *op = NULL;

	return finish(update_begin(w, 0, first * 8, RMAEXT_SUM, RMAEXT_UINT64,
				   values, NULL, old, n, &op),
		      &op);
}

/* -- nothing is lost -- */

enum { SINGLES = 20000, LONGS = 30, SHORTS = SINGLES / 4, PLACES = 128 };

/*
 * Singles at the last places, in turn; the shortest bulk updates of just these,
 * and some of everything.
 */
static void mix(rmaext_window *w, unsigned int seed)
{
	static const uint64_t one = 1;
	uint64_t *ones = malloc(LONG * 8), *old = malloc(LONG * 8);

	CHECK(ones && old);
	for (size_t i = 0; i < LONG; i++)
		ones[i] = 1;
	for (unsigned int i = 0; i < SINGLES; i++) {
		OK(sum(w, LONG - 1 - (seed + i) % PLACES, &one,
		       i % 2 ? old : NULL, 1));
		if (i % (SINGLES / SHORTS) == 0)
			OK(sum(w, LONG - PLACES, ones, i % 3 ? old : NULL,
			       PLACES));
		if (i % (SINGLES / LONGS) == 0 && i / (SINGLES / LONGS) < LONGS)
			OK(sum(w, 0, ones, i % 3 ? NULL : old, LONG));
	}
	free(ones);
	free(old);
}

static void check_mixed(const struct shared *s, uint64_t workers)
{
	uint64_t total = 0;

	for (size_t i = 0; i < LONG - PLACES; i++)
		EQUAL(s->cells[i], LONGS * workers);
	for (size_t i = LONG - PLACES; i < LONG; i++)
		total += s->cells[i];
	EQUAL(total, workers * (PLACES * (LONGS + SHORTS) + SINGLES));
	EQUAL(atomic_load(&s->block->bulk), 0);
	EQUAL(atomic_load(&s->block->waiters), 0);
	for (int r = 0; r < RANKS; r++)
		EQUAL(atomic_load(&s->block->guard[r].singles), 0);
}

static void *mixer(void *window)
{
	mix(window, (unsigned int)(uintptr_t)window / 64);
	return NULL;
}

/* The last two threads are one rank's. */
static void threads(void)
{
	struct shared s = shared_open();
	rmaext_neighbour *alive = neighbour_of(getpid());
	rmaext_window *w[RANKS];
	pthread_t thread[RANKS + 1];

	for (int i = 0; i < RANKS; i++)
		w[i] = window_of(&s, i, alive, 20);
	for (int i = 0; i <= RANKS; i++)
		OK(pthread_create(&thread[i], NULL, mixer,
				  w[i < RANKS ? i : RANKS - 1]));
	for (int i = 0; i <= RANKS; i++)
		OK(pthread_join(thread[i], NULL));
	check_mixed(&s, RANKS + 1);
	for (int i = 0; i < RANKS; i++)
		window_drop(w[i]);
	shared_close(&s);
}

static void processes(void)
{
	struct shared s = shared_open();
	rmaext_neighbour *alive = neighbour_of(getpid());
	pid_t pid[RANKS];
	int status;

	for (int i = 0; i < RANKS; i++) {
		pid[i] = fork_child();
		CHECK(pid[i] >= 0);
		if (pid[i])
			continue;
		mix(window_of(&s, i, alive, 20), (unsigned int)i);
		_exit(0);
	}
	for (int i = 0; i < RANKS; i++) {
		EQUAL(waitpid(pid[i], &status, 0), pid[i]);
		EQUAL(status, 0);
	}
	check_mixed(&s, RANKS);
	shared_close(&s);
}

/* -- all operations on all types, of any bits -- */

static void noise(char *bytes, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		bytes[i] = (char)(seed >> 24);
	}
}

/*
 * What was there comes back, nothing else is touched, and an update in bulk
 * does what single ones do, where bits are all there is to it: there are
 * several NaN, and padding is anything.
 */
static void operate(rmaext_window *w, const struct shared *s, int op, int type)
{
	enum { MOST = 700 };
	static char operand[MOST * RMX_MOST_UNIT + 1];
	static char old[MOST * RMX_MOST_UNIT + 1];
	static char before[MOST * RMX_MOST_UNIT], after[MOST * RMX_MOST_UNIT];
	const size_t unit = rmx_unit_of(type), counts[] = {1, 7, MOST};
	const size_t size = sizeof(before);
	char *cells = (char *)s->cells;
	rmaext_op *handle = NULL;

	for (size_t k = 0; k < 2 * COUNT(counts); k++) {
		const size_t count = counts[k / 2];
		char *result = k % 2 ? old + 1 : NULL;

		noise(before, size, (uint32_t)(op * 100 + type));
		noise(operand, sizeof(operand), 7);
		memcpy(cells, before, size);
		OK(update_begin(w, 0, 16, op, type, operand + 1,
				op == RMAEXT_CSWAP ? before + 16 : NULL,
				op == RMAEXT_CSWAP ? old + 1 : result,
				count - 1, &handle));
		EQUAL(handle, NULL);
		if (op == RMAEXT_CSWAP || result)
			CHECK(!memcmp(old + 1, before + 16,
				      (count - 1) * unit));
		CHECK(!memcmp(cells, before, 16));
		CHECK(!memcmp(cells + 16 + (count - 1) * unit,
			      before + 16 + (count - 1) * unit,
			      size - 16 - (count - 1) * unit));
		if (unit > 8 || type == RMAEXT_INT16_INT32 ||
		    type == RMAEXT_FLOAT || type == RMAEXT_DOUBLE ||
		    type == RMAEXT_HALF || type == RMAEXT_FLOAT_COMPLEX)
			continue;
		memcpy(after, cells, size);
		memcpy(cells, before, size);
		for (size_t i = 0; i < count - 1; i++)
			OK(update_begin(w, 0, 16 + i * unit, op, type,
					operand + 1 + i * unit,
					before + 16 + i * unit, old, 1,
					&handle));
		CHECK(!memcmp(after, cells, size));
	}
}

static void operations(void)
{
	struct shared s = shared_open();
	rmaext_window *w = window_of(&s, 0, neighbour_of(getpid()), 20);
	int valid = 0;

	for (int op = -2; op < RMX_OPS + 2; op++)
		for (int type = -2; type < RMX_TYPES + 2; type++) {
			if (!rmaext_update_valid(op, type))
				continue;
			operate(w, &s, op, type);
			valid++;
		}
	/* sum .. lxor of 16 and 13 types, bits of 9, pairs, and any three */
	EQUAL(valid, 5 * 16 + 2 * 13 + 3 * 9 + 2 * 11 + 3 * 27);
	window_drop(w);
	shared_close(&s);
}

/* -- the dead -- */

/* A rank 1 that does something and then stays, until it is killed. */
static pid_t bear(const struct shared *s,
		  void (*act)(rmaext_window *w, const struct shared *s))
{
	rmaext_neighbour *parent = neighbour_of(getpid());
	pid_t pid;
	char ready;
	int end[2];

	OK(pipe(end));
	pid = fork_child();
	CHECK(pid >= 0);
	if (!pid) {
		rmaext_window *w = window_of(s, 1, parent, 20);

		OK(prctl(PR_SET_PDEATHSIG, SIGKILL)); /* should we fail */
		EQUAL(write(end[1], "", 1), 1);
		act(w, s);
		for (;;)
			pause();
	}
	close(end[1]);
	EQUAL(read(end[0], &ready, 1), 1);
	close(end[0]);
	return pid;
}

static void bury(pid_t pid)
{
	kill(pid, SIGKILL);
	EQUAL(waitpid(pid, NULL, 0), pid);
}

static void hold(rmaext_window *w, const struct shared *s)
{
	OK(rmx_bulk_enter(w, 0, SECOND));
	atomic_fetch_add(s->done, 1);
}

static void announce(rmaext_window *w, const struct shared *s)
{
	CHECK(rmx_singles_try(w, 0));
	atomic_fetch_add(s->done, 1);
}

static void await(const struct shared *s, uint64_t done)
{
	while (atomic_load(s->done) < done)
		nap(1e-4);
}

/* Alive it keeps the others out, up to their time limit; dead it does not. */
static void killed_holder(void)
{
	struct shared s = shared_open();
	uint64_t *ones = calloc(LONG, 8), one = 1;
	rmaext_window *w;
	rmaext_neighbour *neighbour;
	int64_t start;
	pid_t pid;

	CHECK(ones);
	pid = bear(&s, hold);
	neighbour = neighbour_of(pid);
	await(&s, 1);
	w = window_of(&s, 0, neighbour, 0.2);
	for (int i = 0; i < 2; i++) {
		start = now();
		EQUAL(sum(w, 0, i ? ones : &one, NULL, i ? LONG : 1),
		      -FI_ETIMEDOUT);
		CHECK(now() - start > SECOND / 10);
	}
	CHECK(!rmx_singles_try(w, 0));
	CHECK(!rmx_bulk_try(w, 0));
	EQUAL(s.cells[0], 0);
	bury(pid);
	window_drop(w);
	w = window_of(&s, 0, neighbour, LIMIT); /* which the alarm tells */
	OK(sum(w, 0, &one, NULL, 1));
	EQUAL(s.cells[0], 1);
	EQUAL(atomic_load(&s.block->bulk), 0);
	OK(sum(w, 0, ones, NULL, LONG));
	EQUAL(atomic_load(&s.block->waiters), 0);
	window_drop(w);
	free(ones);
	shared_close(&s);
}

static void killed_announcer(void)
{
	struct shared s = shared_open();
	uint64_t *ones = calloc(LONG, 8), one = 1;
	rmaext_window *w;
	rmaext_neighbour *neighbour;
	pid_t pid;

	CHECK(ones);
	pid = bear(&s, announce);
	neighbour = neighbour_of(pid);
	await(&s, 1);
	w = window_of(&s, 0, neighbour, 0.2);
	OK(sum(w, 0, &one, NULL, 1));
	EQUAL(sum(w, 0, ones, NULL, LONG), -FI_ETIMEDOUT);
	CHECK(!rmx_bulk_try(w, 0));
	EQUAL(atomic_load(&s.block->bulk), 0); /* it has given it back */
	bury(pid);
	window_drop(w);
	w = window_of(&s, 0, neighbour, LIMIT);
	for (int i = 0; i < 100; i++) {
		OK(sum(w, 0, ones, NULL, LONG));
		OK(sum(w, 0, &one, NULL, 1));
	}
	EQUAL(s.cells[0], 101);
	window_drop(w);
	free(ones);
	shared_close(&s);
}

/* What was taken from a holder, and given to another, is not its to free. */
static void not_its_own(void)
{
	struct shared s = shared_open();
	rmaext_window *w = window_of(&s, 0, neighbour_of(getpid()), 20);

	OK(rmx_bulk_enter(w, 0, SECOND));
	atomic_store(&s.block->bulk, 3);
	rmx_bulk_leave(w, 0);
	EQUAL(atomic_load(&s.block->bulk), 3);
	window_drop(w);
	shared_close(&s);
}

static void loop(rmaext_window *w, const struct shared *s)
{
	uint64_t *ones = malloc(LONG * 8);

	CHECK(ones);
	for (size_t i = 0; i < LONG; i++)
		ones[i] = 1;
	for (;;) {
		OK(sum(w, 0, ones, NULL, LONG));
		atomic_fetch_add(s->done, 1);
	}
}

/* -- those that do not run -- */

struct adding {
	rmaext_window *window;
	uint64_t n; /* elements at a time */
	atomic_uint rounds;
	atomic_bool stop;
	pthread_t thread;
};

static void *adder(void *arg)
{
	struct adding *a = arg;
	uint64_t *ones = malloc(a->n * 8);

	CHECK(ones);
	for (size_t i = 0; i < a->n; i++)
		ones[i] = 1;
	while (!atomic_load(&a->stop)) {
		OK(sum(a->window, 0, ones, NULL, a->n));
		atomic_fetch_add(&a->rounds, 1);
	}
	free(ones);
	return NULL;
}

static void adding_start(struct adding *a, const struct shared *s, int64_t rank,
			 rmaext_neighbour *others, uint64_t n)
{
	*a = (struct adding){
		.window = window_of(s, rank, others, 20),
		.n = n,
	};
	OK(pthread_create(&a->thread, NULL, adder, a));
}

static uint64_t adding_stop(struct adding *a)
{
	atomic_store(&a->stop, true);
	pthread_join(a->thread, NULL);
	window_drop(a->window);
	return atomic_load(&a->rounds);
}

/* Two wait in bulk for a process that was stopped in a single update. */
static void stopped_announcer(void)
{
	struct shared s = shared_open();
	pid_t pid = bear(&s, announce);
	struct adding bulk[2], single;
	rmaext_neighbour *neighbour;
	uint64_t total = 0;

	await(&s, 1);
	kill(pid, SIGSTOP);
	EQUAL(waitpid(pid, NULL, WUNTRACED), pid);
	neighbour = neighbour_of(pid);
	adding_start(&bulk[0], &s, 0, neighbour, LONG);
	adding_start(&bulk[1], &s, 2, neighbour, LONG);
	nap(0.01);
	adding_start(&single, &s, 3, neighbour, 1);
	while (atomic_load(&single.rounds) < 20000)
		nap(1e-3);
	for (int i = 0; i < 2; i++)
		EQUAL(atomic_load(&bulk[i].rounds), 0);
	total += adding_stop(&single);
	atomic_fetch_sub(&s.block->guard[1].singles, 1); /* it goes on */
	for (int i = 0; i < 2; i++)
		while (!atomic_load(&bulk[i].rounds))
			nap(1e-3);
	for (int i = 0; i < 2; i++)
		total += adding_stop(&bulk[i]);
	EQUAL(s.cells[0], total);
	EQUAL(atomic_load(&s.block->bulk), 0);
	bury(pid);
	shared_close(&s);
}

/* What waits for the guard can be looked at, given up, and gone on with. */
static void slices(void)
{
	struct shared s = shared_open();
	rmaext_window *w = window_of(&s, 0, neighbour_of(getpid()), 20);
	const int64_t rank = 0, zero = 0;
	uint64_t *ones = calloc(LONG, 8), one = 1;
	struct many_state many;
	struct rmaext_call call = {
		.kind = RMAEXT_UPDATE,
		.op = RMAEXT_SUM,
		.type = RMAEXT_UINT64,
		.operand = &one,
		.count = 1,
	};
	int64_t start = now();
	rmaext_op *op[2];
	int ended;

	CHECK(ones);
	call.ended = &ended;
	ones[0] = 1;
	atomic_store(&s.block->bulk, 2);
	EQUAL(update_begin(w, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL, NULL,
			   1, &op[0]),
	      RMAEXT_PENDING);
	EQUAL(update_begin(w, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, ones, NULL, NULL,
			   LONG, &op[1]),
	      RMAEXT_PENDING);
	EQUAL(rmaext_op_wait(op[0], TENTH), RMAEXT_PENDING);
	OK(rmaext_op_release(&op[0]));
	EQUAL(op[0], NULL);
	EQUAL(rmaext_start(w, &call, &op[0]), -FI_EAGAIN);
	EQUAL(many_begin(w, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_UINT64, 8, 1,
			 RMAEXT_ONE_RANK, &rank, &zero, &one, NULL, &many),
	      RMAEXT_PENDING);
	EQUAL(many_wait(&many), RMAEXT_PENDING);
	CHECK(now() - start < 10 * SECOND);
	EQUAL(s.cells[0], 0);
	atomic_store(&s.block->bulk, 0);
	for (int i = 0; i < 2; i++)
		OK(finish(RMAEXT_PENDING, &op[i]));
	OK(many_wait(&many));
	EQUAL(s.cells[0], 3);
	window_drop(w);
	free(ones);
	shared_close(&s);
}

/*
 * Somebody is in bulk whenever a single looks, and nobody when it waits: its
 * stores fault, on a page that `bulk` is not on and on the one that it is on.
 */
static struct {
	struct rmx_control_block *block;
	char *pages; /* two; the guards begin with the second */
	size_t page;
	volatile unsigned int laps;
} unlucky;

static void take_turns(int number, siginfo_t *info, void *context)
{
	const bool single =
		(char *)info->si_addr >= unlucky.pages + unlucky.page;
	char *const here = unlucky.pages + (single ? unlucky.page : 0);
	char *const there = unlucky.pages + (single ? 0 : unlucky.page);

	(void)number;
	(void)context;
	OK(mprotect(here, unlucky.page, PROT_READ | PROT_WRITE));
	atomic_store(&unlucky.block->bulk, single ? 2 : 0);
	OK(mprotect(there, unlucky.page, PROT_READ));
	if (++unlucky.laps > 300000)
		CHECK(!"the time of a single is ever up");
}

static void starved_single(void)
{
	const struct sigaction action = {
		.sa_sigaction = take_turns,
		.sa_flags = SA_SIGINFO | SA_NODEFER,
	};
	struct shared s = shared_open(), odd = s;
	rmaext_window *w;

	unlucky.page = (size_t)sysconf(_SC_PAGESIZE);
	unlucky.pages = map(2 * unlucky.page);
	odd.block =
		(struct rmx_control_block
			 *)(void *)(unlucky.pages + unlucky.page -
				    offsetof(struct rmx_control_block, guard));
	unlucky.block = odd.block;
	w = window_of(&odd, 0, neighbour_of(getpid()), 20);
	OK(sigaction(SIGSEGV, &action, NULL));
	OK(mprotect(unlucky.pages + unlucky.page, unlucky.page, PROT_READ));
	for (int i = 0; i < 3; i++) {
		const int64_t ns = i * 1000 * 1000;
		const int64_t start = now();

		EQUAL(rmx_singles_enter(w, 0, ns), RMAEXT_PENDING);
		CHECK(now() - start >= ns);
	}
	CHECK(unlucky.laps > 6);
	OK(mprotect(unlucky.pages, 2 * unlucky.page, PROT_READ | PROT_WRITE));
	signal(SIGSEGV, SIG_DFL);
	EQUAL(atomic_load(&odd.block->waiters), 0);
	EQUAL(atomic_load(&odd.block->guard[0].singles), 0);
	window_drop(w);
	munmap(unlucky.pages, 2 * unlucky.page);
	shared_close(&s);
}

/* At any moment: what the survivor adds is there, the victim's last or not. */
static void killed_anywhere(void)
{
	static const uint64_t one = 1;

	for (int round = 0; round < 12; round++) {
		struct shared s = shared_open();
		pid_t pid = bear(&s, loop);
		rmaext_neighbour *neighbour = neighbour_of(pid);
		rmaext_window *w = window_of(&s, 0, neighbour, LIMIT);
		uint64_t mine = 0, done;
		int64_t end;

		alarm(LIMIT); /* for each */
		await(&s, 1);
		end = now() + 1000 * 1000 + round * 170 * 1000;
		for (; now() < end; mine++)
			OK(sum(w, 5, &one, NULL, 1));
		kill(pid, SIGKILL);
		for (int i = 0; i < 1000; i++, mine++)
			OK(sum(w, 5, &one, NULL, 1));
		EQUAL(waitpid(pid, NULL, 0), pid);
		OK(sum(w, 5, &one, NULL, 1));
		mine++;
		done = atomic_load(s.done);
		for (size_t i = 0; i < LONG; i++) {
			const uint64_t his = s.cells[i] - (i == 5 ? mine : 0);

			CHECK(his == done || his == done + 1);
		}
		close(neighbour->pidfd);
		window_drop(w);
		shared_close(&s);
	}
}

const struct test tests[] = {
	{"threads", threads, NULL, NULL},
	{"processes", processes, NULL, NULL},
	{"operations", operations, NULL, NULL},
	{"killed_holder", killed_holder, NULL, NULL},
	{"killed_announcer", killed_announcer, NULL, NULL},
	{"not_its_own", not_its_own, NULL, NULL},
	{"starved_single", starved_single, NULL, NULL},
	{"stopped_announcer", stopped_announcer, NULL, NULL},
	{"slices", slices, NULL, NULL},
	{"killed_anywhere", killed_anywhere, NULL, NULL},
	{0},
};
