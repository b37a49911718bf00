/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The doorbell of a process, on which those sleep who wait for words of its
 *memory to change (api/wait.c).
 *
 * Whoever changes a word looks afterwards whether anybody listens, whoever
 * waits says that he listens and looks at the word afterwards: one of the two
 * sees the other. The first to see a listener takes the flag away and rings, so
 * many changes cost one system call; those who are woken and want to sleep on
 * put it back. A flag that a process left behind when it was killed costs one
 * ring.
 *
 *	waiter			changes a word
 *	r = rings		word = ...
 *	listening = 1		fence
 *	fence			if (listening)
 *	look at the word		listening = 0, rings++, wake
 *	sleep while rings == r
 *
 * `rings` is read first: a ring that takes the flag just put up is then one
 * that came too late to be slept through.
 */
#define _GNU_SOURCE
#include "shm/neighbour.h"

#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

void rmx_doorbell_ring(struct rmx_doorbell *doorbell)
{
	if (!atomic_exchange(&doorbell->listening, 0))
		return; /* another one is about to ring */
	atomic_fetch_add(&doorbell->rings, 1);
	syscall(SYS_futex, &doorbell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL,
		0);
}
