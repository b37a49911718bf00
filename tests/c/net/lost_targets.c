/* SPDX-License-Identifier: BSD-3-Clause */
/* Targets that are no more: nobody listens there, or the process is killed. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/*
 * Time as this process gets some: a thread counts how often it has slept a
 * millisecond, which takes longer where many run.
 */
#define BACKSTOP 300 /* seconds, should nothing go on at all */

static atomic_uint ticks;

static void *tick(void *arg)
{
	for (;;) {
		nap(1e-3);
		atomic_fetch_add(&ticks, 1);
	}
	return arg;
}

static void ticks_start(void)
{
	pthread_t thread;

	OK(pthread_create(&thread, NULL, tick, NULL));
	OK(pthread_detach(thread));
	alarm(BACKSTOP);
	/* a child must not be forked while it holds a lock of malloc's */
	while (!atomic_load(&ticks))
		nap(1e-3);
}

/* There never was a connection: the provider would try for ever. */
static void nobody_listens(void)
{
	uint64_t word = 1;
	unsigned int start;
	struct rig r;
	int ret;

	ticks_start();
	rig_open(&r, (struct rig_options){
			     .size = 4096,
			     .two = true,
			     .timeout = BACKSTOP,
		     });
	start = atomic_load(&ticks);
	OK(rmaext_fabric_close(&r.target));
	ret = put(r.window, 0, &word, 8);
	if (!ret)
		ret = flush_for(r.window, 0, BACKSTOP);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	ret = get(r.window, 0, &word, 8);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	CHECK(atomic_load(&ticks) - start < 4000);
	OK(rmaext_fabric_close(&r.origin));
	rmaext_window_free(r.window);
	free(r.block);
}

/* -- a target in another process */

struct hello {
	char name[256], key[256];
	size_t name_len, key_len;
	uint64_t base;
};

static void child(int out)
{
	struct rig r;
	struct hello h = {0};

	rig_open(&r, (struct rig_options){.size = 4096});
	h.name_len = sizeof(h.name);
	OK(rmaext_fabric_address(r.target, h.name, &h.name_len));
	memcpy(h.key, r.key, r.key_len);
	h.key_len = r.key_len;
	h.base = rmaext_memory_base(r.memory);
	EQUAL(write(out, &h, sizeof(h)), sizeof(h));
	for (;;)
		pause();
}

/* A window over the memory of a child; *pid_p is its process. */
static void remote(struct rig *r, pid_t *pid_p, bool watched)
{
	uint64_t size = 4096;
	uint8_t access = 3, align = 0, route = RMAEXT_FABRIC;
	struct ranks targets = {
		.count = 1,
		.peer = &r->peer,
		.size = &size,
		.access = &access,
		.align = &align,
		.route = &route,
		.key_len = 8,
	};
	struct hello h;
	int fds[2], pidfd;

	OK(pipe(fds));
	*pid_p = fork_child();
	if (!*pid_p)
		child(fds[1]);
	EQUAL(read(fds[0], &h, sizeof(h)), sizeof(h));
	close(fds[0]);
	close(fds[1]);
	memset(r, 0, sizeof(*r));
	r->origin = fabric_open(true, false);
	pidfd = watched ? (int)syscall(SYS_pidfd_open, *pid_p, 0) : -1;
	CHECK(!watched || pidfd >= 0);
	OK(rmaext_peer_add(r->origin, h.name, h.name_len, pidfd, &r->peer));
	targets.base = &h.base;
	targets.keys = (uint8_t *)h.key;
	OK(window_new(r->origin, &targets, BACKSTOP * SECOND, &r->window));
	OK(put(r->window, 0, "whole", 6));
	OK(flush(r->window));
}

static void killed(void)
{
	unsigned int start;
	uint64_t word = 0;
	rmaext_op *op;
	struct rig r;
	pid_t pid;
	int ret;

	ticks_start();
	for (int dead_before = 0; dead_before < 2; dead_before++) {
		remote(&r, &pid, true);
		kill(pid, SIGSTOP);
		EQUAL(waitpid(pid, NULL, WUNTRACED), pid);
		if (!dead_before) {
			EQUAL(get_begin(r.window, 0, 0, &word, 8, &op),
			      RMAEXT_PENDING);
			OK(put(r.window, 0, &word, 8));
		}
		kill(pid, SIGKILL);
		start = atomic_load(&ticks);
		if (!dead_before) {
			while ((ret = rmaext_op_wait(op, TENTH)) ==
			       RMAEXT_PENDING)
				;
			CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
			rmaext_op_release(&op);
		}
		while ((ret = flush_for(r.window, 0, BACKSTOP)) == 0)
			put(r.window, 0, &word, 8);
		CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
		for (int i = 0; i < 20; i++) {
			ret = put(r.window, 0, &word, 8);
			CHECK(ret || flush_for(r.window, 0, BACKSTOP) < 0);
			ret = get(r.window, 0, &word, 8);
			CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
		}
		EQUAL(ret, -FI_ENOTCONN);
		CHECK(atomic_load(&ticks) - start < 3000);
		OK(rmaext_fabric_close(&r.origin));
		if (!dead_before)
			OK(rmaext_op_release(&op));
		rmaext_window_free(r.window);
		waitpid(pid, NULL, 0);
	}
}

const struct test tests[] = {
	{"nobody_listens", nobody_listens, NULL, NULL},
	{"killed", killed, NULL, NULL},
	{0},
};
