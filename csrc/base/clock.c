/* SPDX-License-Identifier: BSD-3-Clause */
/* The clock, and sleeping on a futex of this process. */
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
