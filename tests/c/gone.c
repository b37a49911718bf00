/* SPDX-License-Identifier: BSD-3-Clause */
/* Targets that are no more: nobody listens there, or the process is killed. */
#include "check.h"

#include <sys/syscall.h>

/* There never was a connection: the provider would try for ever. */
static void nobody_listens(void)
{
	int64_t start = now();
	uint64_t word = 1;
	struct rig r;
	int ret;

	rig_open(&r, (struct rig_options){.size = 4096, .two = true});
	OK(rmaext_fabric_close(&r.target));
	ret = put(r.window, 0, &word, 8);
	if (!ret)
		ret = flush(r.window);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	ret = get(r.window, 0, &word, 8);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	CHECK(now() - start < 4 * SECOND);
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
	struct rmaext_targets targets = {
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
	*pid_p = fork();
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
	OK(rmaext_window_create(r->origin, &targets, 5 * SECOND, &r->window));
	OK(put(r->window, 0, "whole", 6));
	OK(flush(r->window));
}

static void killed(void)
{
	int64_t start;
	uint64_t word = 0;
	rmaext_op *op;
	struct rig r;
	pid_t pid;
	int ret;

	for (int dead_before = 0; dead_before < 2; dead_before++) {
		remote(&r, &pid, true);
		kill(pid, SIGSTOP);
		EQUAL(waitpid(pid, NULL, WUNTRACED), pid);
		if (!dead_before) {
			EQUAL(rmaext_get(r.window, 0, 0, &word, 8, &op),
			      RMAEXT_PENDING);
			OK(put(r.window, 0, &word, 8));
		}
		kill(pid, SIGKILL);
		start = now();
		if (!dead_before) {
			while ((ret = rmaext_op_wait(op)) == RMAEXT_PENDING)
				;
			CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
			rmaext_op_release(&op);
		}
		while ((ret = flush_for(r.window, 0, 5)) == 0 &&
		       now() - start < 3 * SECOND)
			put(r.window, 0, &word, 8);
		CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
		for (int i = 0; i < 20; i++) {
			ret = put(r.window, 0, &word, 8);
			CHECK(ret || flush_for(r.window, 0, 3) < 0);
			ret = get(r.window, 0, &word, 8);
			CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
		}
		EQUAL(ret, -FI_ENOTCONN);
		CHECK(now() - start < 3 * SECOND);
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
