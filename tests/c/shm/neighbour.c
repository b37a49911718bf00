/* SPDX-License-Identifier: BSD-3-Clause */
/* Neighbours: who is what it claims to be, how its memory is reached, how it
 * ends. */
#include "arena.h"
#include "am/am.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#define SIZE (64 * KIB) /* of a child's window */

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

static rmaext_neighbour *neighbour_open(const struct child *c,
					const struct rmaext_process *process)
{
	rmaext_neighbour *neighbour = NULL;

	leaky(true);
	OK(rmaext_neighbour_open(process, c->pidfd, &neighbour));
	leaky(false);
	CHECK(neighbour);
	return neighbour;
}

static int reach_of(const struct child *c, struct rmaext_process process)
{
	return rmaext_neighbour_reach(neighbour_open(c, &process));
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
	rmaext_neighbour *neighbour;
	struct rmaext_block b;
	uint64_t usable;
	void *addr = NULL;

	bear(&c, false);
	neighbour = neighbour_open(&c, &c.process);
	usable = c.window.size - TAIL;
	OK(rmaext_neighbour_map(neighbour, &c.window, SIZE, &addr));
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
			OK(rmaext_neighbour_map(neighbour, &b, cases[i].len,
						&addr));
			CHECK(addr);
			continue;
		}
		CHECK(rmaext_neighbour_map(neighbour, &b, cases[i].len, &addr) <
		      0);
		EQUAL(addr, NULL);
	}
	/* of a segment that is mapped: a size that it does not have */
	b = c.window;
	b.size *= 2;
	b.offset = c.window.size;
	CHECK(rmaext_neighbour_map(neighbour, &b, SIZE, &addr) < 0);
	EQUAL(addr, NULL);
	tell(&c, UNSEALED);
	CHECK(rmaext_neighbour_map(neighbour, &c.window, 64, &addr) < 0);
	tell(&c, GROW);
	CHECK(c.window.inode != c.process.first.inode);
	OK(rmaext_neighbour_map(neighbour, &c.window, SIZE, &addr));
	CHECK(filled(addr, SIZE, 2));
	bury(&c);
	CHECK(filled(addr, SIZE, 2)); /* stays mapped */
}

/* A window of two ranks: this process, and the child. */
static rmaext_window *window_over(const struct child *c,
				  rmaext_neighbour *neighbour, uint8_t route)
{
	static char own[SIZE];
	rmaext_neighbour *neighbours[] = {NULL, neighbour};
	void *maps[] = {own, NULL};
	uint64_t address[] = {(uintptr_t)own, c->address};
	uint64_t bytes[] = {SIZE, SIZE}, base[] = {0, 0};
	uint8_t access[] = {3, 3}, align[] = {0, 0};
	uint8_t routes[] = {RMAEXT_DIRECT, route};
	uint8_t keys[16] = {0};
	struct ranks targets = {
		.count = 2,
		.neighbour = neighbours,
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
		OK(rmaext_neighbour_map(neighbour, &c->window, SIZE, &maps[1]));
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
		ret = get_begin(w, 1, 0, &result, 8, &op);
		break;
	case PUT:
		ret = put_begin(w, 1, 8, &one, 8, &op);
		break;
	case FLUSH:
		ret = rmaext_flush(w, 1, &wait);
		break;
	case FETCH_ADD:
		if (direct)
			ret = update_begin(w, 1, 16, RMAEXT_SUM, RMAEXT_UINT64,
					   &one, NULL, &result, 1, &op);
		break;
	default:
		if (direct)
			ret = update_begin(w, 1, 24, RMAEXT_CSWAP,
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
	rmaext_neighbour *neighbour;
	rmaext_window *w;
	uint64_t word;
	rmaext_op *op;

	if (direct ? end != LEAVES && !has_robust_lists() : !has_copies())
		return;
	bear(&c, end == THREAD || end == RENEWED);
	process = c.process;
	if (end == UNMAPPED)
		process.first.inode++;
	neighbour = neighbour_open(&c, &process);
	w = window_over(&c, neighbour, direct ? RMAEXT_DIRECT : RMAEXT_CMA);
	all_work(w, direct);
#ifdef __GLIBC__ /* elsewhere nobody is in doubt */
	EQUAL(rmx_neighbour_doubtful(neighbour),
	      end == THREAD || end == RENEWED || end == UNMAPPED);
#endif
	if (end == RENEWED) {
		tell(&c, RENEW);
		EQUAL(rmx_neighbour_doubtful(neighbour), false);
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
	OK(get_begin(w, 0, 0, &word, 8, &op));
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
	rmaext_neighbour *neighbour = NULL;
	pid_t pid;

	rmaext_arena_describe(a, &process);
	leaky(true);
	OK(rmaext_neighbour_open(&process, -1, &neighbour));
	leaky(false);
	pid = fork_child();
	CHECK(pid >= 0);
	if (!pid) {
		rmaext_arena_leave(a);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	EQUAL(rmx_neighbour_doubtful(neighbour), false);
	rmaext_arena_leave(a);
	EQUAL(rmx_neighbour_doubtful(neighbour), true);
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
		w = window_over(&c, neighbour_open(&c, &process), RMAEXT_CMA);
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
	rmaext_neighbour *neighbour;
	struct child c;

	if (!has_copies())
		return;
	bear(&c, true); /* the thread that held its life has ended */
	neighbour = neighbour_open(&c, &c.process);
	EQUAL(rmaext_neighbour_reach(neighbour),
	      RMAEXT_CAN_MAP | RMAEXT_CAN_COPY);
	CHECK(!rmx_neighbour_gone(neighbour));
	refuse_copies();
	CHECK(!rmx_neighbour_gone(neighbour));
	bury(&c);
	CHECK(rmx_neighbour_gone(neighbour));
}

/* A descriptor that the program has closed says nothing of the process. */
static void no_pidfd(void)
{
	rmaext_neighbour *neighbour;
	struct child c;

	bear(&c, false);
	neighbour = neighbour_open(&c, &c.process);
	close(c.pidfd);
	CHECK(!rmx_neighbour_gone(neighbour));
	bury(&c);
}

const struct test tests[] = {
	{"claims", claims, NULL, NULL},
	{"map_bounds", map_bounds, NULL, NULL},
	{"killed", killed, NULL, NULL},
	{"leaves", leaves, NULL, NULL},
	{"child_of_the_owner_leaves", child_of_the_owner_leaves, NULL, NULL},
	{"owner_thread_ended", owner_thread_ended, NULL, NULL},
	{"number_is_reused", number_is_reused, NULL, NULL},
	{"untraceable", untraceable, NULL, NULL},
	{"no_pidfd", no_pidfd, NULL, NULL},
	{0},
};
