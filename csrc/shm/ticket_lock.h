/* SPDX-License-Identifier: BSD-3-Clause */
/* What others are to know of a change to a lock; see ticket_lock.c. */
#ifndef RMAEXT_TICKET_LOCK_H
#define RMAEXT_TICKET_LOCK_H

#include "base/common.h"

enum { RMX_LOCK_WORDS = 4 };

/*
 * The count of who is inside has readers in its low half, those who join and
 * still wait for a writer included, and in its high half the writer that is
 * inside and those that try to be: they add themselves, and were alone or take
 * it back.
 */
#define RMX_LOCK_WRITER (INT64_C(1) << 32)

/* What has changed: it is another's turn; fewer are inside. */
enum { RMX_LOCK_TURN = 1, RMX_LOCK_LEFT = 2 };

/*
 * After `more` was added to a word of a lock, which is `value` now: wakes the
 * ranks that sleep on it, and returns what has changed, for those that cannot.
 */
unsigned int rmx_lock_changed(int64_t *words, uint64_t word, int64_t more,
			      int64_t value);

/* May the rank of that slot, which waited, enter the lock by now? */
bool rmx_lock_calls(const int64_t *words, int64_t slot, unsigned int changes);

#endif
