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
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fi_errno.h>

#include "rmaext.h"

#ifdef __SANITIZE_THREAD__
#define LIMIT 120 /* seconds a test may take; TSan is slow */
#else
#define LIMIT 30
#endif
#define GUARD 256
#define SECOND ((int64_t)1000 * 1000 * 1000)
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

/* -- a window of one rank, over one or two endpoints of this process */

struct rig {
	rmaext_fabric *origin, *target; /* the same, or two */
	rmaext_peer *peer;
	rmaext_memory *memory;
	rmaext_window *window;
	rmaext_window *there; /* the target's own, if served */
	uint8_t token[16];
	struct rmaext_fabric_info info;
	char *block; /* guard, window, guard */
	char *window_memory;
	size_t size;
	char key[256];
	size_t key_len;
};

struct rig_options {
	size_t size;
	size_t shift;	  /* of the window from an aligned address */
	int access;	  /* 0: both */
	bool two;	  /* the target is an endpoint of its own */
	bool served;	  /* and has a window, to serve messages */
	bool no_progress; /* of the target by itself */
	bool no_thread;	  /* nor of the origin */
	bool mr_basic;
	bool direct; /* route */
	bool wrong_key;
	double timeout; /* seconds; 0: 10 */
};

static inline rmaext_fabric *fabric_open(bool progress, bool mr_basic)
{
	struct rmaext_fabric_options options = {
		.provider = provider,
		.address = strstr(provider, "shm") ? NULL : "127.0.0.1",
		.mr_basic = mr_basic,
		.progress = progress,
		.spin_ns = 20000,
		.arena = arena,
		.cache_count = cache_count,
		.cache_bytes = (uint64_t)1 << 30,
	};
	rmaext_fabric *f = NULL;

	OK(rmaext_fabric_open(library, &options, &f));
	CHECK(f);
	return f;
}

static inline rmaext_peer *peer_of(rmaext_fabric *origin, rmaext_fabric *target)
{
	char name[256];
	size_t len = sizeof(name);
	rmaext_peer *peer = NULL;

	OK(rmaext_fabric_address(target, name, &len));
	OK(rmaext_peer_add(origin, name, len, -1, &peer));
	CHECK(peer);
	return peer;
}

static inline int memory_register(rmaext_fabric *f, void *addr, size_t len,
				  int access, uint64_t key,
				  rmaext_memory **memory_p)
{
	const struct rmaext_piece piece = {addr, len};
	const struct rmaext_memory_options options = {
		.pieces = &piece,
		.n_pieces = 1,
		.access = access,
		.requested_key = key,
	};

	return rmaext_memory_register(f, &options, memory_p);
}

/* A window, described rank by rank; what no rank has may be NULL. */
struct ranks {
	int64_t count, self;
	const uint8_t *token;
	rmaext_peer *const *peer;
	rmaext_near *const *near;
	void *const *map;
	const uint64_t *address, *size, *base;
	const uint8_t *access, *align, *route, *keys;
	size_t key_len;
	void *const *control; /* blocks */
	int dynamic;
	rmaext_arena *arena;
	int64_t spin_ns;
	unsigned int same; /* columns that have one entry */
};

static inline int window_new(rmaext_fabric *f, const struct ranks *r,
			     int64_t timeout, rmaext_window **window_p)
{
	void *map[64] = {0}, *control[64] = {0};
	struct rmaext_targets targets = {
		.token = r->token,
		.same = r->same,
		.size = r->size,
		.base = r->base,
		.access = r->access,
		.align = r->align,
		.keys = r->keys,
		.key_len = r->key_len,
		.map = map,
		.dynamic = r->dynamic,
		.spin_ns = r->spin_ns,
	};
	uint64_t address[64] = {0};
	uint8_t route[64] = {0};
	int here = 0, ret;

	OK(rmaext_members_new(r->count, r->self, r->peer, r->near, r->arena,
			      &targets.members));
	for (int64_t i = 0; i < r->count; i++) {
		if (i != r->self && !(r->near && r->near[i]))
			continue;
		map[here] = r->map ? r->map[i] : NULL;
		control[here] = r->control ? r->control[i] : NULL;
		address[here] = r->address ? r->address[i] : 0;
		route[here++] = r->route[i];
	}
	targets.address = address;
	targets.route = route;
	if (r->control)
		OK(rmaext_blocks_new(targets.members, control,
				     &targets.blocks));
	ret = rmaext_window_create(f, &targets, timeout, window_p);
	rmaext_blocks_release(targets.blocks);
	rmaext_members_release(targets.members);
	return ret;
}

static inline void rig_window(struct rig *r, const struct rig_options *o,
			      rmaext_window **window_p)
{
	uint64_t size = r->size, base = rmaext_memory_base(r->memory);
	uint8_t access =
		(uint8_t)(o->access ? o->access : RMAEXT_READ | RMAEXT_WRITE);
	uint8_t align = (uint8_t)((uintptr_t)r->window_memory % 64);
	uint8_t route = o->direct ? RMAEXT_DIRECT : RMAEXT_FABRIC;
	char key[sizeof(r->key)];
	void *map = r->window_memory;
	struct ranks targets = {
		.count = 1,
		.token = r->token,
		.map = &map,
		.peer = &r->peer,
		.size = &size,
		.base = &base,
		.access = &access,
		.align = &align,
		.route = &route,
		.keys = (const uint8_t *)key,
		.key_len = r->key_len,
		.arena = arena,
	};

	memcpy(key, r->key, sizeof(key));
	if (o->wrong_key)
		key[0] ^= 0x55;
	/* each serves itself, unless the target is an endpoint of its own */
	if (!r->there)
		(*(uint64_t *)(void *)r->token)++;
	OK(window_new(r->origin, &targets,
		      (int64_t)((o->timeout > 0 ? o->timeout : 10) * 1e9),
		      window_p));
}

static inline void rig_serve(struct rig *r, const struct rig_options *o)
{
	rmaext_fabric *origin = r->origin;
	rmaext_peer *peer = r->peer;
	struct rig_options there = *o;

	there.direct = true;
	r->origin = r->target;
	r->peer = peer_of(r->target, origin);
	rig_window(r, &there, &r->there);
	r->origin = origin;
	r->peer = peer;
}

static inline void rig_open(struct rig *r, struct rig_options o)
{
	static uint64_t next_key = 0x1122334455667700;
	int access = o.access ? o.access : RMAEXT_READ | RMAEXT_WRITE;

	memset(r, 0, sizeof(*r));
	r->size = o.size;
	r->block = aligned_alloc(64, (2 * GUARD + o.size + 127) / 64 * 64);
	CHECK(r->block);
	memset(r->block, 0xa5, 2 * GUARD + o.size + o.shift);
	r->window_memory = r->block + GUARD + o.shift;
	memset(r->window_memory, 0, o.size);
	r->target = fabric_open(!o.no_progress, o.mr_basic);
	r->origin = o.two ? fabric_open(!o.no_thread, o.mr_basic) : r->target;
	rmaext_fabric_describe(r->origin, &r->info);
	if (strstr(provider, "ofi_mrail")) /* never frees its regions */
		leaky(true);
	OK(memory_register(r->target, r->window_memory, r->size, access,
			   ++next_key, &r->memory));
	if (strstr(provider, "ofi_mrail"))
		leaky(false);
	r->key_len = sizeof(r->key);
	OK(rmaext_memory_key(r->memory, r->key, &r->key_len));
	r->peer = peer_of(r->origin, r->target);
	if (o.served)
		rig_serve(r, &o);
	rig_window(r, &o, &r->window);
}

static inline void rig_guards(const struct rig *r)
{
	const unsigned char *end = (unsigned char *)r->window_memory + r->size;

	for (const char *p = r->block; p < r->window_memory; p++)
		EQUAL((unsigned char)*p, 0xa5);
	for (size_t i = 0; i < GUARD; i++)
		EQUAL(end[i], 0xa5);
}

static inline void rig_close(struct rig *r)
{
	rig_guards(r);
	if (r->window) {
		OK(rmaext_window_close(r->window));
		rmaext_window_free(r->window);
	}
	if (r->there) {
		OK(rmaext_window_close(r->there));
		rmaext_window_free(r->there);
	}
	if (r->memory) {
		OK(rmaext_memory_close(&r->memory));
		EQUAL(r->memory, NULL);
	}
	if (r->target != r->origin)
		OK(rmaext_fabric_close(&r->target));
	OK(rmaext_fabric_close(&r->origin));
	free(r->block);
}

/* -- operations to their end */

/* After the first call: wait, then release; returns the code. */
static inline int finish(int ret, rmaext_op **op)
{
	while (ret == RMAEXT_PENDING && *op)
		ret = rmaext_op_wait(*op);
	/* closed under us: on its way until the answer or the endpoint's end */
	while (ret == -FI_ESHUTDOWN && rmaext_op_release(op) == RMAEXT_PENDING)
		nap(1e-4);
	OK(rmaext_op_release(op));
	EQUAL(*op, NULL);
	return ret;
}

static inline int put(rmaext_window *w, uint64_t offset, const void *buf,
		      uint64_t len)
{
	rmaext_op *op = NULL;

	return finish(rmaext_put(w, 0, offset, buf, len, &op), &op);
}

static inline int get(rmaext_window *w, uint64_t offset, void *buf,
		      uint64_t len)
{
	rmaext_op *op = NULL;

	return finish(rmaext_get(w, 0, offset, buf, len, &op), &op);
}

static inline int flush_for(rmaext_window *w, int64_t rank, double seconds)
{
	struct rmaext_wait wait = {.timeout = (int64_t)(seconds * 1e9)};
	int ret;

	do
		ret = rmaext_flush(w, rank, &wait);
	while (ret == RMAEXT_PENDING);
	return ret;
}

static inline int flush(rmaext_window *w)
{
	return flush_for(w, -1, 10);
}

static inline int fetch_add(rmaext_window *w, uint64_t offset, int type,
			    const void *operand, void *result, uint64_t count)
{
	rmaext_op *op = NULL;

	return finish(rmaext_update(w, 0, offset, RMAEXT_SUM, type, operand,
				    NULL, result, count, &op),
		      &op);
}

/* any update; without a result, an accumulate */
static inline int update(rmaext_window *w, uint64_t offset, int operation,
			 int type, const void *operand, void *result,
			 uint64_t count)
{
	rmaext_op *op = NULL;

	return finish(rmaext_update(w, 0, offset, operation, type, operand,
				    NULL, result, count, &op),
		      &op);
}

static inline int swap(rmaext_window *w, uint64_t offset, int type,
		       const void *compare, const void *value, void *result,
		       uint64_t count)
{
	rmaext_op *op = NULL;

	return finish(rmaext_update(w, 0, offset, RMAEXT_CSWAP, type, value,
				    compare, result, count, &op),
		      &op);
}

/* bytes that depend on the place and on a seed */
static inline void fill(void *buf, size_t len, unsigned int seed)
{
	unsigned char *p = buf;

	for (size_t i = 0; i < len; i++)
		p[i] = (unsigned char)(seed * 131 + i * 7 + (i >> 8) + 1);
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
	if (only && *only)
		return run_all(only) != 0;
	failed += run_all(system_library());
	failed += run_all(".venv/lib/mpich/libfabric.so.1");
	return failed != 0;
}

#endif
