/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the C tests share. A program has a table of tests; without arguments it
 * runs each in a process of its own, for each libfabric there is, because
 * libfabric reads its environment once in a process. For one of them:
 *
 *	[RMAEXT_PROVIDER=...] program /path/to/libfabric.so.1 [test]
 *
 * RMAEXT_LIBFABRIC names the only libfabric to run without arguments.
 */
#ifndef RMAEXT_CHECK_H
#define RMAEXT_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fi_errno.h>

#include "rmaext.h"

#define LIMIT 120 /* seconds a test may take, where others run beside it */
#ifdef __SANITIZE_THREAD__
#define CPU_LIMIT 120 /* seconds of the CPU, see cpu_limit(); TSan is slow */
#else
#define CPU_LIMIT 30
#endif
#define GUARD 256
#define SECOND ((int64_t)1000 * 1000 * 1000)
#define TENTH (SECOND / 10)
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

struct test {
	const char *name;
	void (*run)(void);
	const char *environment; /* "NAME=value NAME=value" */
	const char *provider;	 /* instead of tcp;ofi_rxm */
};

extern const struct test tests[]; /* ends with an empty one */

static rmaext_library *library;
static const char *library_path;
static const char *provider = "tcp;ofi_rxm";
static uint64_t cache_count; /* of fabrics */
static rmaext_arena *arena;  /* of fabrics and windows; most need none */

static inline void check_failed(const char *file, int line, const char *what,
				long long is, long long wanted)
{
	struct rmaext_error e;

	rmaext_error_last(&e);
	fprintf(stderr,
		"%s:%d: %s: is %lld, not %lld\n"
		"\tthis thread's last error: %d, rank %lld, %s: %s\n",
		file, line, what, is, wanted, e.code, (long long)e.rank, e.call,
		e.detail);
	_exit(1);
}

/* `is` equals `wanted`; both integers */
#define EQUAL(is, wanted)                                                    \
	do {                                                                 \
		long long is_ = (long long)(is);                             \
		long long wanted_ = (long long)(wanted);                     \
                                                                             \
		if (is_ != wanted_)                                          \
			check_failed(__FILE__, __LINE__, #is " == " #wanted, \
				     is_, wanted_);                          \
	} while (0)
#define CHECK(condition) EQUAL(!!(condition), 1)
#define OK(call) EQUAL(call, 0)

/*
 * LeakSanitizer sees one frame of the stripped libfabric, so what a provider
 * never frees cannot be named; it is allocated between these two.
 */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

static inline void leaky(bool begins)
{
	if (begins && __lsan_disable)
		__lsan_disable();
	else if (!begins && __lsan_enable)
		__lsan_enable();
}

static inline int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static inline void nap(double seconds)
{
	struct timespec t = {
		.tv_sec = (time_t)seconds,
		.tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9),
	};

	nanosleep(&t, NULL);
}

/* For a test of how much there is to do: what others take does not count. */
static inline void cpu_limit(void)
{
	const struct rlimit most = {CPU_LIMIT, CPU_LIMIT};

	OK(setrlimit(RLIMIT_CPU, &most));
}

/* A test that fails, or takes too long, leaves nobody behind. */
static inline pid_t fork_child(void)
{
	pid_t pid = fork();

	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static inline int entries_of(const char *folder)
{
	DIR *dir = opendir(folder);
	int n = 0;

	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* -- what some sandboxes and emulators lack */

static inline bool has_copies(void)
{
	char from = 1, to = 0;
	struct iovec local = {&to, 1}, remote = {&from, 1};

	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1)
		return true;
	CHECK(errno == ENOSYS && getenv("RMAEXT_EMULATED"));
	printf("process_vm_readv: %s: not tested\n", strerror(errno));
	return false;
}

/*
 * qemu-user takes MADV_POPULATE_WRITE and does nothing, and with larger pages
 * than the machine's its mincore writes more bytes than one a page.
 */
static inline bool can_populate(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char there[64] = {0};
	char *at = mmap(NULL, page, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool can;

	CHECK(at != MAP_FAILED);
	there[1] = 2;
	if (madvise(at, page, 23)) /* before Linux 5.14: they are touched */
		*at = 1;
	OK(mincore(at, page, there));
	munmap(at, page);
	can = (there[0] & 1) && there[1] == 2;
	CHECK(can || getenv("RMAEXT_EMULATED"));
	if (!can)
		printf("MADV_POPULATE_WRITE or mincore lies: not tested\n");
	return can;
}

/* -- running them */

static inline void set_environment(const struct test *t)
{
	char *text = t->environment ? strdup(t->environment) : NULL;

	for (char *v = text ? strtok(text, " ") : NULL; v;
	     v = strtok(NULL, " "))
		putenv(v);
}

static inline int run_one(const struct test *t, const char *path)
{
	const char *chosen = getenv("RMAEXT_PROVIDER");

	set_environment(t);
	alarm(LIMIT);
	library_path = path;
	if (t->provider)
		provider = t->provider;
	else if (chosen && *chosen)
		provider = chosen;
	if (strstr(path, "ucx")) {
		OK(rmaext_ucx_open(path, 0, &library));
		t->run();
		return 0;
	}
	OK(rmaext_library_open(path, 0, &library));
	t->run();
	rmaext_library_close(library);
	return 0;
}

static inline int run_apart(const struct test *t, const char *path)
{
	char *const argv[] = {(char *)"test", (char *)path, (char *)t->name,
			      NULL};
	int64_t start = now();
	char self[4096] = {0};
	int status = -1;
	pid_t pid;

	/* as text: under valgrind the link itself leads to valgrind */
	CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	pid = fork_child();
	if (!pid) {
		set_environment(t); /* sanitizers read theirs at the start */
		execv(self, argv);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	printf("%-6s %-28s %6.2f s\n",
	       !status			     ? "ok"
	       : WIFEXITED(status)	     ? "FAILED"
	       : WTERMSIG(status) == SIGALRM ? "HANGS"
					     : "KILLED",
	       t->name, (double)(now() - start) * 1e-9);
	fflush(stdout);
	return status != 0;
}

static inline int run_all(const char *path)
{
	int failed = 0;

	if (access(path, R_OK)) {
		printf("%s is missing: skipped\n", path);
		return 0;
	}
	printf("%s\n", path);
	fflush(stdout);
	for (const struct test *t = tests; t->name; t++)
		failed += run_apart(t, path);
	return failed;
}

/* Where the dynamic linker finds it; else a name that is missing. */
static inline const char *system_library(void)
{
	struct link_map *map;
	void *handle;

	leaky(true);
	handle = dlopen("libfabric.so.1", RTLD_LAZY | RTLD_LOCAL);
	leaky(false);
	if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map))
		return "libfabric.so.1";
	return map->l_name;
}

int main(int argc, char **argv)
{
	const char *only = getenv("RMAEXT_LIBFABRIC");
	int failed = 0;

	if (argc > 2) {
		for (const struct test *t = tests; t->name; t++)
			if (!strcmp(t->name, argv[2]))
				return run_one(t, argv[1]);
		fprintf(stderr, "no test %s\n", argv[2]);
		return 2;
	}
	if (argc == 2)
		only = argv[1];
#ifdef CHECK_LIBRARY /* the one that the tests are about */
	only = CHECK_LIBRARY;
#endif
	if (only && *only)
		return run_all(only) != 0;
	failed += run_all(system_library());
	failed += run_all(".venv/lib/mpich/libfabric.so.1");
	return failed != 0;
}

/* rmaext_start() with what it is to do in a row. */
static inline int put_begin(rmaext_window *w, int64_t rank, uint64_t offset,
			    const void *buf, uint64_t len, rmaext_op **op_p)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.rank = rank,
		.offset = offset,
		.operand = buf,
		.count = len,
	};

	return rmaext_start(w, &call, op_p);
}

static inline int get_begin(rmaext_window *w, int64_t rank, uint64_t offset,
			    void *buf, uint64_t len, rmaext_op **op_p)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_GET,
		.rank = rank,
		.offset = offset,
		.result = buf,
		.count = len,
	};

	return rmaext_start(w, &call, op_p);
}

static inline int update_begin(rmaext_window *w, int64_t rank, uint64_t offset,
			       int op, int type, const void *operand,
			       const void *compare, void *result,
			       uint64_t count, rmaext_op **op_p)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_UPDATE,
		.op = op,
		.type = type,
		.rank = rank,
		.offset = offset,
		.operand = operand,
		.compare = compare,
		.result = result,
		.count = count,
	};

	return rmaext_start(w, &call, op_p);
}

static inline int strided_begin(rmaext_window *w, int64_t rank, uint64_t offset,
				int kind, uint64_t unit, int ndim,
				const int64_t *shape, const int64_t *steps,
				const int64_t *locals, void *buf,
				rmaext_op **op_p)
{
	const struct rmaext_part part = {unit, ndim, shape, steps, locals};
	const struct rmaext_call call = {
		.kind = kind,
		.rank = rank,
		.offset = offset,
		.operand = buf,
		.result = buf,
		.part = &part,
	};

	return rmaext_start(w, &call, op_p);
}

/* An operation on many elements that goes on, and what was refused. */
struct many_state {
	rmaext_op *op;
	int64_t bad;
};

/* rmaext_start_many() with what it is to do in a row. */
static inline int many_begin(rmaext_window *w, int kind, int op, int type,
			     uint64_t unit, uint64_t count, int ones,
			     const int64_t *ranks, const int64_t *offsets,
			     const void *values, void *results,
			     struct many_state *state)
{
	const struct rmaext_places_call call = {
		.kind = kind,
		.op = op,
		.type = type,
		.ones = ones,
		.unit = unit,
		.count = count,
		.ranks = ranks,
		.offsets = offsets,
		.values = values,
		.results = results,
	};

	return rmaext_start_many(w, &call, &state->op, &state->bad);
}

static inline void many_release(struct many_state *state)
{
	OK(rmaext_op_release(&state->op));
}

/* Waits a slice, and releases what is over then. */
static inline int many_wait(struct many_state *state)
{
	const int ret = rmaext_op_wait(state->op, TENTH);

	if (ret != RMAEXT_PENDING)
		many_release(state);
	return ret;
}

#endif
