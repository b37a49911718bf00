/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Ranks that wait for a lock whose control block is not mapped there. They need
 * not ask whether it is their turn: whoever changes the lock where the block is
 * mapped, a rank of the target's node or the reader of its completion queue,
 * tells them, by an addition to the word `wakeups` of their own block.
 *
 * That is no more than a reason to look. One that is lost, or that another
 * thread of the rank takes for its own, costs a waiter the time until it looks
 * by itself.
 */
#ifndef RMAEXT_WAKEUPS_H
#define RMAEXT_WAKEUPS_H

#include "am/am.h"
#include "shm/ticket_lock.h"

/* What a request is about to change: of one lock, as its origin sends them. */
struct rmx_lock_update {
	int64_t *words; /* NULL: no lock is changed */
	uint64_t block; /* bytes from the window's start */
	int64_t more[RMX_LOCK_WORDS];
};

/* Looks for it in additions to `n` places, before they are made. */
struct rmx_lock_update rmx_lock_update_find(struct rmaext_window *window,
					    const uint64_t *offsets,
					    const void *values, uint32_t n);
/* After that: wakes ranks that sleep here, and tells the others. */
void rmx_lock_update_tell(struct rmaext_window *window,
			  const struct rmx_lock_update *update);
/* The same after a word may have been changed from a value to another. */
void rmx_lock_swap_tell(struct rmaext_window *window, uint64_t offset);

/*
 * Tells the ranks that wait for a lock, whose slots say that they do not map
 * its block, what has changed. `at` is the block, as mapped here. Any thread
 * inside the window that holds no lock may call it, and the reader of the CQ;
 * it never waits.
 */
void rmx_wakeups_send(struct rmaext_window *window, char *at, uint64_t block,
		      unsigned int changes);

#endif
