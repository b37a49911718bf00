/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The control block of a window on one rank. It is zeros at first, and lies in
 * memory that the ranks of its node map (rmaext_blocks). Origins on other nodes
 * work on it by updates of a hidden window (rmaext/_comm/control.py).
 *
 * After the fixed part each of `count` ranks has a cache line for the guard of
 * updates; then come three words a rank: its slot in the lock, the posts that
 * it has received, and the completions that it has received.
 */
#ifndef RMAEXT_CONTROL_BLOCK_H
#define RMAEXT_CONTROL_BLOCK_H

#include "base/common.h"

struct rmx_guard_line {
	_Alignas(RMX_LINE) atomic_uint singles; /* updates that are running */
};

/* Counts of the write-backs that were asked for and done; see write_back.c. */
struct rmx_storage_words {
	atomic_int_fast64_t asked, done;
	atomic_int_fast64_t failed; /* number of the last that failed */
	atomic_int_fast64_t error;  /* its error */
};

/* May others update the memory by copies? The owner says so. */
enum {
	RMX_COPIES_UNTOLD, /* not yet */
	RMX_COPIES_MADE,
	RMX_COPIES_REFUSED, /* for good: another window has some of it, too */
};

struct rmx_control_block {
	_Alignas(RMX_LINE)
		atomic_uint bulk; /* 1 + rank that is in bulk, or 0 */
	atomic_uint waiters;	  /* ranks that wait for it to be 0, about */
	/* time before which no rank claims `bulk`: one has given way */
	atomic_int_fast64_t pause;
	atomic_uint copies; /* RMX_COPIES_...; see exec/overlap.h */
	_Alignas(RMX_LINE) atomic_int_fast64_t lock[4]; /* ticket_lock.c */
	struct rmx_storage_words storage;
	atomic_int_fast64_t calls[2]; /* of rmaext/_comm/venue.py */
	atomic_int_fast64_t wakeups;  /* of this rank's waits; am/wakeups.c */
	_Alignas(RMX_LINE) atomic_int_fast64_t notify[RMAEXT_NOTIFY];
	struct rmx_guard_line guard[];
};

#endif
