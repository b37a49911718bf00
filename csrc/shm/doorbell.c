/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The doorbell of a process. Threads that wait for a word of that process's
 * memory to change sleep on it (api/wait.c).
 *
 * A waiter first sets the flag `listening` and then looks at the word. A writer
 * first changes the word and then looks at the flag. So one of the two sees the
 * other. The first writer that sees the flag clears it and rings, so that many
 * changes cost one system call; waiters that wake up and sleep on set it again.
 * A flag that a killed process has left behind costs one ring.
 *
 *	waiter			writer
 *	r = rings		word = ...
 *	listening = 1		fence
 *	fence			if (listening)
 *	look at the word		listening = 0, rings++, wake
 *	sleep while rings == r
 *
 * The waiter reads `rings` before it sets the flag. A ring that clears this
 *flag then changes `rings` after the waiter has read it, and ends its sleep.
 */
#define _GNU_SOURCE
#include "shm/neighbour.h"

#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

void rmx_doorbell_ring(struct rmx_doorbell *doorbell)
{
	if (!atomic_exchange(&doorbell->listening, 0))
		return; /* another thread has cleared it, and rings */
	atomic_fetch_add(&doorbell->rings, 1);
	syscall(SYS_futex, &doorbell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL,
		0);
}
