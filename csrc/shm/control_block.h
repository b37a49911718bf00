/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The control block of a window on one rank: zeros at first, in memory that the
 * ranks of its node map (rmx_target.control). What origins elsewhere do there
 * they do as updates of a hidden window (rmaext/_comm/control.py).
 *
 * After the fixed part come, for `count` ranks: a cache line each for the guard
 * of updates, then three words each: place in a queue for the lock, posts
 * received, completions received.
 */
#ifndef RMAEXT_CONTROL_BLOCK_H
#define RMAEXT_CONTROL_BLOCK_H

#include "base/common.h"

struct rmx_guard_line {
	_Alignas(RMX_LINE) atomic_uint singles; /* updates that are under way */
};

/* Of write_back.c: counts of what was asked for, and of what has been done. */
struct rmx_storage_words {
	atomic_int_fast64_t asked, done;
	atomic_int_fast64_t failed; /* the last that did, with this error */
	atomic_int_fast64_t error;
};

struct rmx_control_block {
	_Alignas(RMX_LINE) atomic_uint bulk; /* 1 + rank of its holder */
	atomic_uint waiters;		     /* for it to become 0, about */
	/* nobody is to claim it before this time: somebody waited in vain */
	atomic_int_fast64_t pause;
	_Alignas(RMX_LINE) atomic_int_fast64_t lock[4];
	struct rmx_storage_words storage;
	atomic_int_fast64_t calls[2]; /* of rmaext/_comm/meeting.py */
	_Alignas(RMX_LINE) atomic_int_fast64_t notify[RMAEXT_NOTIFY];
	struct rmx_guard_line guard[];
};

#endif
