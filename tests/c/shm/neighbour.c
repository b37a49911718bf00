/* SPDX-License-Identifier: BSD-3-Clause */
/* Same node: the arena, neighbours that are what they claim or not, teams. */
#include "check.h"
#include "am/am.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define TAIL ((uint64_t)4096) /* bytes of a segment that are no block's */
#define NONCE 16
#define SIZE (64 * KIB) /* of a child's window */

/* Arenas and neighbours stay until the process ends. */
static rmaext_arena *arena_open(void)
{
	uint8_t nonce[NONCE];
	rmaext_arena *arena = NULL;

	EQUAL(getrandom(nonce, NONCE, 0), NONCE);
	leaky(true);
	OK(rmaext_arena_open(nonce, &arena));
	leaky(false);
	return arena;
}

static char *allocate(rmaext_arena *arena, uint64_t len)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	void *addr = NULL;

	OK(rmaext_arena_allocate(arena, len, &addr));
	EQUAL((uintptr_t)addr % (len >= 2 * MIB ? 2 * MIB
				 : len >= page	? page
						: 64),
	      0);
	return addr;
}

static bool zeros(const char *addr, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (addr[i])
			return false;
	return true;
}

static bool filled(const char *addr, size_t len, unsigned int seed)
{
	char *wanted = malloc(len);
	bool same;

	CHECK(wanted);
	fill(wanted, len, seed);
	same = !memcmp(addr, wanted, len);
	free(wanted);
	return same;
}

static uint64_t inode_of(rmaext_arena *arena, const char *addr)
{
	struct rmaext_block block;

	EQUAL(rmaext_arena_find(arena, addr, 1, &block), 1);
	return block.inode;
}

/* -- the arena */

static const uint64_t sizes[] = {
	1,	  63,	       64,	 65,	   4095, TAIL,
	TAIL + 1, 64 * KIB,    64 * KIB, 100001,   MIB,	 2 * MIB - 1,
	2 * MIB,  2 * MIB + 1, 8,	 20 * MIB, 3,	 64 * KIB - 1};

static void blocks(void)
{
	rmaext_arena *a = arena_open();
	char *block[COUNT(sizes)];
	size_t n = COUNT(sizes);
	int open = 0;

	for (unsigned int round = 0; round < 5; round++) {
		for (size_t i = 0; i < n; i++) {
			block[i] = allocate(a, sizes[i]);
			CHECK(zeros(block[i], sizes[i]));
			fill(block[i], sizes[i], (unsigned int)i + round);
		}
		for (size_t i = 0; i < n; i++)
			CHECK(filled(block[i], sizes[i],
				     (unsigned int)i + round));
		if (round < 2) /* the order of the frees differs */
			open = entries_of("/proc/self/fd");
		EQUAL(entries_of("/proc/self/fd"), open);
		for (size_t i = 0; i < n; i++) /* 7 and n: no factor */
			rmaext_arena_free(a, block[(7 * i + round) % n]);
	}
	block[0] = allocate(a, 64);
	rmaext_arena_free(a, block[0]);
	rmaext_arena_free(a, block[0]); /* twice, or another's: ignored */
	rmaext_arena_free(a, block);
	rmaext_arena_free(a, block[0] + 64);
}

static void absurd_sizes(void)
{
	static const uint64_t absurd[] = {0,
					  UINT64_MAX,
					  UINT64_MAX - 63,
					  (uint64_t)1 << 63,
					  (uint64_t)1 << 62,
					  (uint64_t)1 << 50};
	rmaext_arena *a = arena_open();
	int before = entries_of("/proc/self/fd");
	void *addr = NULL;

	for (size_t i = 0; i < COUNT(absurd); i++) {
		EQUAL(rmaext_arena_allocate(a, absurd[i], &addr), -ENOMEM);
		EQUAL(addr, NULL);
	}
	EQUAL(entries_of("/proc/self/fd"), before);
	rmaext_arena_free(a, allocate(a, 8));
}

static void find(void)
{
	rmaext_arena *a = arena_open();
	struct rmaext_process process;
	struct rmaext_block block;
	char *first = allocate(a, 100), *base, on_stack;
	uint64_t usable;

	rmaext_arena_describe(a, &process);
	EQUAL(process.pid, getpid());
	EQUAL(rmaext_arena_find(a, first, 100, &block), 1);
	EQUAL(block.fd, process.first.fd);
	EQUAL(block.inode, process.first.inode);
	EQUAL(block.size, process.first.size);
	base = first - block.offset;
	usable = block.size - TAIL;
	EQUAL(rmaext_arena_find(a, base + 77, usable - 77, &block), 1);
	EQUAL(block.offset, 77);
	EQUAL(rmaext_arena_find(a, base + usable - 1, 1, &block), 1);
	EQUAL(rmaext_arena_find(a, base, usable + 1, &block), 0);
	EQUAL(rmaext_arena_find(a, base + usable, 1, &block), 0);
	EQUAL(rmaext_arena_find(a, base - 1, 1, &block), 0);
	EQUAL(rmaext_arena_find(a, base + 1, UINT64_MAX, &block), 0);
	EQUAL(rmaext_arena_find(a, &on_stack, 1, &block), 0);
	/* in the second segment */
	base = allocate(a, 50 * MIB);
	EQUAL(rmaext_arena_find(a, base, 50 * MIB, &block), 1);
	CHECK(block.inode != process.first.inode);
	/* what the peers are told stays the first */
	rmaext_arena_describe(a, &process);
	CHECK(block.inode != process.first.inode);
}

static void gives_back(void)
{
	rmaext_arena *a = arena_open();
	struct rmaext_block block;
	struct stat status;
	char *odd, *large;

	for (int i = 0; i < 5; i++) {
		odd = allocate(a, 70001);
		large = allocate(a, 64 * MIB);
		memset(large, 1, 64 * MIB);
		memset(odd, 1, 70001);
		EQUAL(rmaext_arena_find(a, large, 1, &block), 1);
		OK(fstat((int)block.fd, &status));
		CHECK(status.st_blocks * 512 >= (int64_t)(64 * MIB));
		rmaext_arena_free(a, large);
		OK(fstat((int)block.fd, &status));
		CHECK(status.st_blocks * 512 < (int64_t)(4 * MIB));
		rmaext_arena_free(a, odd);
	}
	EQUAL(entries_of("/proc/self/fd") < 20, 1);
	/* what is never touched takes nothing */
	large = allocate(a, 5 * 1024 * MIB);
	large[4 * 1024 * MIB] = 1;
	EQUAL(rmaext_arena_find(a, large, 1, &block), 1);
	OK(fstat((int)block.fd, &status));
	CHECK(status.st_blocks * 512 < (int64_t)(4 * MIB));
}

static void many_blocks(void)
{
	enum { MANY = 10000 };
	static char *block[MANY];
	rmaext_arena *a = arena_open();
	struct rmaext_process process;
	char *whole;

	rmaext_arena_describe(a, &process);

	for (int i = 0; i < MANY; i++) {
		block[i] = allocate(a, 100);
		fill(block[i], 100, (unsigned int)i);
	}
	for (int i = 0; i < MANY; i += 2)
		rmaext_arena_free(a, block[i]);
	for (int i = 1; i < MANY; i += 2) {
		CHECK(filled(block[i], 100, (unsigned int)i));
		rmaext_arena_free(a, block[i]);
	}
	/* joined again: the whole first segment, but for its tail */
	whole = allocate(a, 16 * MIB - TAIL);
	EQUAL(inode_of(a, whole), process.first.inode);
	CHECK(zeros(whole, 16 * MIB - TAIL));
}

static void *churn(void *arg)
{
	enum { KEPT = 16 };
	char *block[KEPT] = {NULL};
	uint64_t len[KEPT] = {0};
	unsigned int seed = (unsigned int)(uintptr_t)&block;
	struct rmaext_process process;

	for (unsigned int i = 0; i < 3000; i++) {
		size_t at = (size_t)rand_r(&seed) % KEPT;

		if (block[at]) {
			CHECK(filled(block[at], len[at], (unsigned int)at));
			rmaext_arena_free(arg, block[at]);
		}
		len[at] = 1 + (uint64_t)rand_r(&seed) %
				      (i % 50 ? 3 * KIB : 300 * KIB);
		block[at] = allocate(arg, len[at]);
		CHECK(zeros(block[at], len[at]));
		fill(block[at], len[at], (unsigned int)at);
		rmaext_arena_describe(arg, &process);
	}
	return NULL;
}

static void arena_threads(void)
{
	rmaext_arena *a = arena_open();
	pthread_t threads[2];

	for (size_t i = 0; i < COUNT(threads); i++)
		OK(pthread_create(&threads[i], NULL, churn, a));
	for (size_t i = 0; i < COUNT(threads); i++)
		OK(pthread_join(threads[i], NULL));
}

/* -- a neighbour: a child with an arena, in it a window */

struct child {
	struct rmaext_process process;
	struct rmaext_block window;
	uint64_t address; /* of the window, there */
	pid_t pid;
	int pidfd, orders, answers;
};

struct opened {
	rmaext_arena *arena;
	struct rmaext_process process;
};

/* The thread that describes it holds its life. */
static void *open_and_describe(void *arg)
{
	struct opened *o = arg;

	o->arena = arena_open();
	rmaext_arena_describe(o->arena, &o->process);
	return NULL;
}

enum order { LEAVE = 'l', GROW = 'g', UNSEALED = 'u', PIPE = 'p', RENEW = 'r' };

static void unsealed(struct child *c, bool sealed)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stat status;
	char *base;

	CHECK(fd >= 0);
	OK(ftruncate(fd, (off_t)SIZE));
	if (sealed)
		OK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	base = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(base != MAP_FAILED);
	memcpy(base + SIZE - TAIL, c->process.nonce, NONCE);
	OK(fstat(fd, &status));
	c->window = (struct rmaext_block){fd, status.st_ino, SIZE, 0};
}

static void serve(int orders, int answers, bool by_thread)
{
	struct child c = {.pid = getpid()};
	struct opened opened;
	rmaext_arena *a;
	pthread_t thread;
	char *window, order;

	alarm(LIMIT);
	if (by_thread) {
		OK(pthread_create(&thread, NULL, open_and_describe, &opened));
		OK(pthread_join(thread, NULL));
	} else {
		open_and_describe(&opened);
	}
	a = opened.arena;
	c.process = opened.process;
	window = allocate(a, SIZE);
	fill(window, SIZE, 1);
	c.address = (uintptr_t)window;
	EQUAL(rmaext_arena_find(a, window, SIZE, &c.window), 1);
	do {
		EQUAL(write(answers, &c, sizeof(c)), sizeof(c));
		if (read(orders, &order, 1) != 1)
			_exit(0);
		if (order == LEAVE) {
			rmaext_arena_leave(a);
		} else if (order == RENEW) {
			rmaext_arena_describe(a, &c.process);
		} else if (order == GROW) {
			window = allocate(a, 100 * MIB);
			fill(window, SIZE, 2);
			EQUAL(rmaext_arena_find(a, window, SIZE, &c.window), 1);
		} else if (order == UNSEALED || order == PIPE) {
			unsealed(&c, order == PIPE);
		}
		if (order == PIPE) {
			struct stat status;

			c.window.fd = answers;
			OK(fstat(answers, &status));
			c.window.inode = status.st_ino;
		}
	} while (true);
}

static void hear(struct child *c)
{
	struct child told;

	EQUAL(read(c->answers, &told, sizeof(told)), sizeof(told));
	told.pidfd = c->pidfd;
	told.orders = c->orders;
	told.answers = c->answers;
	*c = told;
}

static void tell(struct child *c, char order)
{
	EQUAL(write(c->orders, &order, 1), 1);
	hear(c);
}

static void bear(struct child *c, bool by_thread)
{
	int orders[2], answers[2];

	OK(pipe(orders));
	OK(pipe(answers));
	memset(c, 0, sizeof(*c));
	c->pid = fork_child();
	CHECK(c->pid >= 0);
	if (!c->pid) {
		close(orders[1]);
		close(answers[0]);
		serve(orders[0], answers[1], by_thread);
	}
	close(orders[0]);
	close(answers[1]);
	c->orders = orders[1];
	c->answers = answers[0];
	c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	CHECK(c->pidfd >= 0);
	hear(c);
}

static void bury(struct child *c)
{
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	close(c->orders);
	close(c->answers);
}

static rmaext_near *near_open(const struct child *c,
			      const struct rmaext_process *process)
{
	rmaext_near *near = NULL;

	leaky(true);
	OK(rmaext_near_open(process, c->pidfd, &near));
	leaky(false);
	CHECK(near);
	return near;
}

static int reach_of(const struct child *c, struct rmaext_process process)
{
	return rmaext_near_reach(near_open(c, &process));
}

static int reach_by_block(const struct child *c, struct rmaext_block block)
{
	struct rmaext_process process = c->process;

	process.first = block;
	return reach_of(c, process);
}

static int reach_of_pid(const struct child *c, int64_t pid)
{
	struct rmaext_process process = c->process;

	process.pid = pid;
	return reach_of(c, process);
}

/* Emulators do not tell the kernel of robust mutexes. */
static bool has_robust_lists(void)
{
	void *head;
	size_t len;

	if (!syscall(SYS_get_robust_list, 0, &head, &len))
		return true;
	CHECK(errno == ENOSYS && getenv("RMAEXT_EMULATED"));
	printf("no robust mutexes here: not tested\n");
	return false;
}

static void claims(void)
{
	const int map = RMAEXT_CAN_MAP;
	const int copy = has_copies() ? RMAEXT_CAN_COPY : 0;
	struct rmaext_process p;
	struct rmaext_block b;
	struct child c, other;
	int before = entries_of("/proc/self/fd");

	bear(&c, false);
	bear(&other, false);
	EQUAL(reach_of(&c, c.process), map | copy);

	for (int i = 0; i < NONCE; i++) {
		p = c.process;
		p.nonce[i] ^= 1;
		EQUAL(reach_of(&c, p), 0);
	}
	p = c.process;
	memcpy(p.nonce, other.process.nonce, NONCE);
	EQUAL(reach_of(&c, p), 0);

	for (int i = 0; i < 5; i++) {
		static const uint64_t wrong[] = {0, 1, 8, 1 << 20, UINT64_MAX};

		p = c.process;
		p.address = i ? wrong[i] : p.address + 1;
		EQUAL(reach_of(&c, p), map);
	}

	b = c.process.first;
	b.inode++;
	EQUAL(reach_by_block(&c, b), copy);
	for (int64_t fd = -1; fd < 70; fd++) {
		b = c.process.first;
		if (fd == b.fd)
			continue;
		b.fd = fd;
		EQUAL(reach_by_block(&c, b), copy);
	}
	for (int i = 0; i < 8; i++) {
		const uint64_t size = c.process.first.size;
		const uint64_t wrong[] = {0,	       1,
					  TAIL,	       size - TAIL,
					  size + TAIL, size + 1,
					  UINT64_MAX,  UINT64_MAX - TAIL + 1};

		b = c.process.first;
		b.size = wrong[i];
		EQUAL(reach_by_block(&c, b), copy);
	}

	/* the child's own number, but other processes */
	EQUAL(reach_of_pid(&c, getpid()), 0);
	EQUAL(reach_of_pid(&c, other.pid), 0);
	EQUAL(reach_of_pid(&c, 0), 0);
	EQUAL(reach_of_pid(&c, -1), 0);
	EQUAL(reach_of_pid(&c, -c.pid), 0);
	EQUAL(reach_of_pid(&c, 1), 0);

	tell(&c, UNSEALED);
	EQUAL(reach_by_block(&c, c.window), copy);
	tell(&c, PIPE);
	EQUAL(reach_by_block(&c, c.window), copy);

	bury(&c);
	EQUAL(reach_of(&c, c.process), 0);
	bury(&other);
	close(c.pidfd);
	close(other.pidfd);
	EQUAL(entries_of("/proc/self/fd"), before);
}

static void map_bounds(void)
{
	struct child c;
	rmaext_near *near;
	struct rmaext_block b;
	uint64_t usable;
	void *addr = NULL;

	bear(&c, false);
	near = near_open(&c, &c.process);
	usable = c.window.size - TAIL;
	OK(rmaext_near_map(near, &c.window, SIZE, &addr));
	CHECK(filled(addr, SIZE, 1));
	b = c.window;
	for (int i = 0; i < 7; i++) {
		const struct {
			uint64_t offset, len;
			bool good;
		} cases[] = {
			{0, usable, true},	{usable, 0, true},
			{0, usable + 1, false}, {usable, 1, false},
			{1, UINT64_MAX, false}, {UINT64_MAX, 1, false},
			{usable + 1, 0, false},
		};

		b.offset = cases[i].offset;
		addr = NULL;
		if (cases[i].good) {
			OK(rmaext_near_map(near, &b, cases[i].len, &addr));
			CHECK(addr);
			continue;
		}
		CHECK(rmaext_near_map(near, &b, cases[i].len, &addr) < 0);
		EQUAL(addr, NULL);
	}
	/* of a segment that is mapped: a size that it does not have */
	b = c.window;
	b.size *= 2;
	b.offset = c.window.size;
	CHECK(rmaext_near_map(near, &b, SIZE, &addr) < 0);
	EQUAL(addr, NULL);
	tell(&c, UNSEALED);
	CHECK(rmaext_near_map(near, &c.window, 64, &addr) < 0);
	tell(&c, GROW);
	CHECK(c.window.inode != c.process.first.inode);
	OK(rmaext_near_map(near, &c.window, SIZE, &addr));
	CHECK(filled(addr, SIZE, 2));
	bury(&c);
	CHECK(filled(addr, SIZE, 2)); /* stays mapped */
}

/* A window of two ranks: this process, and the child. */
static rmaext_window *window_over(const struct child *c, rmaext_near *near,
				  uint8_t route)
{
	static char own[SIZE];
	rmaext_near *nears[] = {NULL, near};
	void *maps[] = {own, NULL};
	uint64_t address[] = {(uintptr_t)own, c->address};
	uint64_t bytes[] = {SIZE, SIZE}, base[] = {0, 0};
	uint8_t access[] = {3, 3}, align[] = {0, 0};
	uint8_t routes[] = {RMAEXT_DIRECT, route};
	uint8_t keys[16] = {0};
	struct ranks targets = {
		.count = 2,
		.near = nears,
		.map = maps,
		.address = address,
		.size = bytes,
		.base = base,
		.access = access,
		.align = align,
		.route = routes,
		.keys = keys,
		.key_len = 8,
	};
	rmaext_window *w = NULL;

	if (route == RMAEXT_DIRECT)
		OK(rmaext_near_map(near, &c->window, SIZE, &maps[1]));
	OK(window_new(NULL, &targets, SECOND, &w));
	return w;
}

enum call { GET, PUT, FLUSH, FETCH_ADD, CSWAP, CALLS };

static int operate(rmaext_window *w, enum call call, bool direct)
{
	struct rmaext_wait wait = {.timeout = SECOND};
	uint64_t one = 1, result;
	rmaext_op *op = NULL;
	int ret = 0;

	switch (call) {
	case GET:
		ret = rmaext_get(w, 1, 0, &result, 8, &op);
		break;
	case PUT:
		ret = rmaext_put(w, 1, 8, &one, 8, &op);
		break;
	case FLUSH:
		ret = rmaext_flush(w, 1, &wait);
		break;
	case FETCH_ADD:
		if (direct)
			ret = rmaext_update(w, 1, 16, RMAEXT_SUM, RMAEXT_UINT64,
					    &one, NULL, &result, 1, &op);
		break;
	default:
		if (direct)
			ret = rmaext_update(w, 1, 24, RMAEXT_CSWAP,
					    RMAEXT_UINT64, &one, &one, &result,
					    1, &op);
	}
	EQUAL(op, NULL);
	return ret;
}

static void all_work(rmaext_window *w, bool direct)
{
	for (int i = 0; i < 20; i++)
		for (enum call call = 0; call < CALLS; call++)
			OK(operate(w, call, direct));
}

/* On cma without a network, atomics are there only when nobody is. */
static void all_fail(rmaext_window *w)
{
	struct rmaext_error e;

	for (int i = 0; i < 20; i++)
		for (enum call call = 0; call < CALLS; call++) {
			EQUAL(operate(w, call, true), -FI_ENOTCONN);
			rmaext_error_last(&e);
			EQUAL(e.rank, 1);
		}
}

enum end { KILLED, LEAVES, THREAD, RENEWED, UNMAPPED };

static void one_end(enum end end, bool direct)
{
	struct rmaext_wait wait = {.timeout = SECOND};
	struct rmaext_process process;
	struct child c;
	struct pollfd gone;
	rmaext_near *near;
	rmaext_window *w;
	uint64_t word;
	rmaext_op *op;

	if (direct ? end != LEAVES && !has_robust_lists() : !has_copies())
		return;
	bear(&c, end == THREAD || end == RENEWED);
	process = c.process;
	if (end == UNMAPPED)
		process.first.inode++;
	near = near_open(&c, &process);
	w = window_over(&c, near, direct ? RMAEXT_DIRECT : RMAEXT_CMA);
	all_work(w, direct);
#ifdef __GLIBC__ /* elsewhere nobody is in doubt */
	EQUAL(rmx_near_doubtful(near),
	      end == THREAD || end == RENEWED || end == UNMAPPED);
#endif
	if (end == RENEWED) {
		tell(&c, RENEW);
		EQUAL(rmx_near_doubtful(near), false);
		all_work(w, direct);
	}
	if (end == LEAVES) {
		tell(&c, LEAVE);
	} else {
		kill(c.pid, SIGKILL);
		gone = (struct pollfd){.fd = c.pidfd, .events = POLLIN};
		EQUAL(poll(&gone, 1, 10000), 1);
	}
	all_fail(w);
	/* the own part, and a flush of all, do not suffer */
	OK(rmaext_get(w, 0, 0, &word, 8, &op));
	OK(rmaext_flush(w, -1, &wait));
	bury(&c);
	all_fail(w);
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
}

static void killed(void)
{
	one_end(KILLED, true);
	one_end(KILLED, false);
	one_end(UNMAPPED, false);
}

static void leaves(void)
{
	one_end(LEAVES, true);
	one_end(LEAVES, false);
}

/* A child of the owner's that leaves is not the owner. */
static void child_of_the_owner_leaves(void)
{
	rmaext_arena *a = arena_open();
	struct rmaext_process process;
	rmaext_near *near = NULL;
	pid_t pid;

	rmaext_arena_describe(a, &process);
	leaky(true);
	OK(rmaext_near_open(&process, -1, &near));
	leaky(false);
	pid = fork_child();
	CHECK(pid >= 0);
	if (!pid) {
		rmaext_arena_leave(a);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	EQUAL(rmx_near_doubtful(near), false);
	rmaext_arena_leave(a);
	EQUAL(rmx_near_doubtful(near), true);
}

static void owner_thread_ended(void)
{
	one_end(THREAD, true);
	one_end(THREAD, false);
	one_end(RENEWED, true);
	one_end(RENEWED, false);
}

/* Another process, which is a copy of this one, gets the number of the dead. */
static void number_is_reused(void)
{
	static const bool mapped[] = {true, false};

	for (size_t i = 0; has_copies() && i < COUNT(mapped); i++) {
		struct rmaext_process process;
		struct child c;
		struct clone_args args = {.exit_signal = SIGCHLD,
					  .set_tid = (uintptr_t)&c.pid,
					  .set_tid_size = 1};
		static uint64_t word = 7;
		rmaext_window *w;
		pid_t pid;

		bear(&c, false);
		process = c.process;
		process.first.inode += !mapped[i];
		c.address = (uintptr_t)&word;
		w = window_over(&c, near_open(&c, &process), RMAEXT_CMA);
		bury(&c);
		pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
		if (!pid)
			for (;;)
				pause();
		if (pid > 0) /* else: no right to choose it */
			EQUAL(pid, c.pid);
		all_fail(w);
		EQUAL(word, 7);
		if (pid > 0) {
			kill(pid, SIGKILL);
			waitpid(pid, NULL, 0);
		}
		OK(rmaext_window_close(w));
		rmaext_window_free(w);
	}
}

/* -- teams */

struct member {
	void *board;
	int64_t rank, size, spin;
	unsigned int rounds;
};

static unsigned int value_of(unsigned int round, int64_t rank)
{
	return (round * 7 + (unsigned int)rank * 5) % 11;
}

static void *meets(void *arg)
{
	const struct member *m = arg;
	rmaext_team *team = NULL;
	uint8_t *data = calloc((size_t)m->size, RMAEXT_TEAM_SLOT);
	int32_t *lengths = malloc((size_t)m->size * sizeof(*lengths));
	unsigned int sent[2];

	CHECK(data && lengths);
	OK(rmaext_team_open(m->board, m->rank, m->size, m->spin, &team));
	EQUAL(rmaext_team_write(team, data, RMAEXT_TEAM_SLOT - 1),
	      -FI_EMSGSIZE);
	OK(rmaext_team_write(team, data, RMAEXT_TEAM_SLOT - 2));
	for (unsigned int round = 0; round < m->rounds; round++) {
		struct rmaext_met met = {.worst = 99, .differ = 99};
		/* in some rounds one rank takes it for another step */
		const bool odd = round % 5 == 3;
		unsigned int wanted = 0;
		const uint8_t *at = data;
		int ret;

		/* of two lengths, by turns */
		sent[0] = sent[1] = round;
		OK(rmaext_team_write(team, (uint8_t *)sent,
				     (round + (unsigned int)m->rank) % 2 ? 4
									 : 8));
		do
			ret = rmaext_team_meet(team, round + (odd && !m->rank),
					       value_of(round, m->rank),
					       RMX_SLICE, &met);
		while (ret == RMAEXT_PENDING);
		OK(ret);
		rmaext_team_read(team, data, lengths);
		for (int64_t rank = 0; rank < m->size; rank++) {
			unsigned int theirs;

			EQUAL(lengths[rank],
			      (round + (unsigned int)rank) % 2 ? 4 : 8);
			memcpy(&theirs, at, sizeof(theirs));
			EQUAL(theirs, round);
			at += lengths[rank];
			if (value_of(round, rank) > wanted)
				wanted = value_of(round, rank);
		}
		EQUAL(met.worst, wanted);
		EQUAL(!!met.differ, odd && m->size > 1);
	}
	CHECK(!rmaext_team_deserted(m->board, m->size));
	rmaext_team_close(team);
	free(data);
	free(lengths);
	return NULL;
}

static void *board_new(int64_t size)
{
	void *board =
		mmap(NULL, rmaext_team_bytes(size), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(board != MAP_FAILED);
	return board;
}

static void team_threads(void)
{
	enum { MEMBERS = 3 };
	static struct member members[MEMBERS];
	pthread_t threads[MEMBERS];
	void *board = board_new(MEMBERS);

	for (int i = 0; i < MEMBERS; i++) {
		members[i] =
			(struct member){board, i, MEMBERS, i * 5000, 10000};
		OK(pthread_create(&threads[i], NULL, meets, &members[i]));
	}
	for (int i = 0; i < MEMBERS; i++)
		OK(pthread_join(threads[i], NULL));
	CHECK(rmaext_team_deserted(board, MEMBERS));
}

static void team_processes(void)
{
	enum { MEMBERS = 4 };
	void *board = board_new(MEMBERS);
	pid_t pids[MEMBERS];
	int status;

	for (int i = 0; i < MEMBERS; i++) {
		pids[i] = fork_child();
		if (!pids[i]) {
			struct member m = {board, i, MEMBERS, 0, 2000};

			alarm(LIMIT);
			meets(&m);
			_exit(0);
		}
	}
	for (int i = 0; i < MEMBERS; i++) {
		EQUAL(waitpid(pids[i], &status, 0), pids[i]);
		EQUAL(status, 0);
	}
	CHECK(rmaext_team_deserted(board, MEMBERS));
}

static void team_of_one(void)
{
	struct member m = {board_new(1), 0, 1, 50000, 1000};

	meets(&m);
	CHECK(rmaext_team_deserted(m.board, 1));
}

/* Killed in a meeting, and before it comes. */
static void team_killed(void)
{
	enum { MEMBERS = 3 };

	for (int inside = 0; inside < 2; inside++) {
		void *board = board_new(MEMBERS);
		rmaext_team *team = NULL;
		struct rmaext_met met = {.worst = 99};
		int64_t start;
		pid_t pid = fork_child();

		if (!pid) {
			OK(rmaext_team_open(board, 1, MEMBERS, 0, &team));
			while (inside)
				rmaext_team_meet(team, 1, 1, RMX_SLICE, &met);
			for (;;)
				pause();
		}
		nap(0.05);
		kill(pid, SIGKILL);
		EQUAL(waitpid(pid, NULL, 0), pid);
		OK(rmaext_team_open(board, 0, MEMBERS, 1000, &team));
		start = now();
		for (int i = 0; i < 5; i++)
			EQUAL(rmaext_team_meet(team, 1, 0, RMX_SLICE, &met),
			      RMAEXT_PENDING);
		CHECK(now() - start > SECOND / 4);
		EQUAL(met.worst, 99);
		EQUAL(rmaext_team_awaits(team, 1), !inside);
		EQUAL(rmaext_team_awaits(team, 2), 1);
		rmaext_team_close(team);
		CHECK(!rmaext_team_deserted(board, MEMBERS));
	}
}

/* -- one gives up, at any moment: each meeting takes place for all or for none
 */

struct quitter {
	void *board;
	int64_t rank, size;
	int64_t after; /* ns until it gives up; or 0 */
	int met;       /* meetings that took place */
};

static void *meets_or_quits(void *arg)
{
	struct quitter *q = arg;
	struct rmaext_met met;
	rmaext_team *team = NULL;
	int64_t end = rmx_now() + q->after;
	uint8_t why[RMAEXT_TEAM_SLOT];
	int ret;

	OK(rmaext_team_open(q->board, q->rank, q->size, 1000, &team));
	for (;;) {
		do {
			ret = rmaext_team_meet(team, 7, 0, 100000, &met);
			if (q->after && rmx_now() > end) {
				if (!ret)
					q->met++;
				rmaext_team_explain(team, (uint8_t *)"why", 3);
				rmaext_team_give_up(team);
				rmaext_team_close(team);
				return NULL;
			}
		} while (ret == RMAEXT_PENDING);
		if (ret)
			break;
		q->met++;
	}
	EQUAL(ret, -FI_ECANCELED);
	EQUAL(rmaext_team_given_up(team), q->size - 1);
	EQUAL(rmaext_team_reason(team, q->size - 1, why), 3);
	CHECK(!memcmp(why, "why", 3));
	/* for ever */
	EQUAL(rmaext_team_meet(team, 7, 0, 100000, &met), -FI_ECANCELED);
	rmaext_team_close(team);
	return NULL;
}

static void team_given_up(void)
{
	enum { MEMBERS = 4, TRIES = 300 };

	for (int i = 0; i < TRIES; i++) {
		static struct quitter q[MEMBERS];
		pthread_t threads[MEMBERS];
		void *board = board_new(MEMBERS);

		for (int k = 0; k < MEMBERS; k++) {
			const bool quits = k == MEMBERS - 1;

			q[k] = (struct quitter){board, k, MEMBERS,
						quits ? 1000 + i * 1000 : 0, 0};
			OK(pthread_create(&threads[k], NULL, meets_or_quits,
					  &q[k]));
		}
		for (int k = 0; k < MEMBERS; k++)
			OK(pthread_join(threads[k], NULL));
		for (int k = 1; k < MEMBERS - 1; k++)
			EQUAL(q[k].met, q[0].met);
		/* it may have come to one that took place, and not looked */
		CHECK(q[MEMBERS - 1].met == q[0].met ||
		      q[MEMBERS - 1].met == q[0].met - 1);
		munmap(board, rmaext_team_bytes(MEMBERS));
	}
}

static volatile sig_atomic_t alarms;

static void count_alarm(int number)
{
	(void)number;
	alarms++;
}

static void team_signals(void)
{
	struct sigaction action = {.sa_handler = count_alarm,
				   .sa_flags = SA_RESTART};
	struct itimerspec often = {.it_interval.tv_nsec = 5 * 1000 * 1000,
				   .it_value.tv_nsec = 5 * 1000 * 1000};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL,
				 .sigev_signo = SIGUSR1};
	struct member m = {board_new(2), 0, 2, 0, 0};
	int64_t start, shortest = SECOND;
	rmaext_team *team = NULL;
	struct rmaext_met met;
	timer_t timer;

	OK(sigaction(SIGUSR1, &action, NULL));
	OK(timer_create(CLOCK_MONOTONIC, &event, &timer));
	OK(rmaext_team_open(m.board, m.rank, m.size, 0, &team));
	OK(timer_settime(timer, 0, &often, NULL));
	for (int i = 0; i < 20; i++) {
		start = now();
		EQUAL(rmaext_team_meet(team, 1, 0, RMX_SLICE, &met),
		      RMAEXT_PENDING);
		if (now() - start < shortest)
			shortest = now() - start;
	}
	CHECK(shortest < SECOND / 20); /* it would sleep twice as long */
	CHECK(alarms);
	OK(timer_delete(timer));
	rmaext_team_close(team);
}

/* From now on nobody in this process may copy from others. */
static void refuse_copies(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {COUNT(filter), filter};

	OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* As one is that has asked not to be traced any more: it lives all the same. */
static void untraceable(void)
{
	rmaext_near *near;
	struct child c;

	if (!has_copies())
		return;
	bear(&c, true); /* the thread that held its life has ended */
	near = near_open(&c, &c.process);
	EQUAL(rmaext_near_reach(near), RMAEXT_CAN_MAP | RMAEXT_CAN_COPY);
	CHECK(!rmx_near_gone(near));
	refuse_copies();
	CHECK(!rmx_near_gone(near));
	bury(&c);
	CHECK(rmx_near_gone(near));
}

/* A descriptor that the program has closed says nothing of the process. */
static void no_pidfd(void)
{
	rmaext_near *near;
	struct child c;

	bear(&c, false);
	near = near_open(&c, &c.process);
	close(c.pidfd);
	CHECK(!rmx_near_gone(near));
	bury(&c);
}

const struct test tests[] = {
	{"blocks", blocks, NULL, NULL},
	{"absurd_sizes", absurd_sizes, NULL, NULL},
	{"find", find, NULL, NULL},
	{"gives_back", gives_back, NULL, NULL},
	{"many_blocks", many_blocks, NULL, NULL},
	{"arena_threads", arena_threads, NULL, NULL},
	{"claims", claims, NULL, NULL},
	{"map_bounds", map_bounds, NULL, NULL},
	{"killed", killed, NULL, NULL},
	{"leaves", leaves, NULL, NULL},
	{"child_of_the_owner_leaves", child_of_the_owner_leaves, NULL, NULL},
	{"owner_thread_ended", owner_thread_ended, NULL, NULL},
	{"number_is_reused", number_is_reused, NULL, NULL},
	{"team_threads", team_threads, NULL, NULL},
	{"team_processes", team_processes, NULL, NULL},
	{"team_of_one", team_of_one, NULL, NULL},
	{"team_killed", team_killed, NULL, NULL},
	{"team_given_up", team_given_up, NULL, NULL},
	{"team_signals", team_signals, NULL, NULL},
	{"untraceable", untraceable, NULL, NULL},
	{"no_pidfd", no_pidfd, NULL, NULL},
	{0},
};
