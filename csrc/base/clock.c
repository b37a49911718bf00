/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The clock, and sleeping, on a futex of this process too. All of the library
 * comes here for it (rooms.py): the simulated world has a time of its own.
 */
#define _GNU_SOURCE
#include "base/common.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

int64_t rmx_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t rmx_now_about(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool rmx_sleep(int64_t ns)
{
	const struct timespec t = rmx_timespec(ns);

	return !nanosleep(&t, NULL);
}

bool rmx_thread_join(pthread_t thread, int64_t ns)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until); /* as it is counted there */
	until = rmx_timespec((int64_t)until.tv_sec * 1000000000 +
			     until.tv_nsec + ns);
	return !pthread_timedjoin_np(thread, NULL, &until);
}

void rmx_futex_sleep(atomic_uint *word, unsigned int value, int64_t ns)
{
	struct timespec t = rmx_timespec(ns);

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

void rmx_futex_wake(atomic_uint *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
