/* SPDX-License-Identifier: BSD-3-Clause */
/* Single short updates and puts that join each other; see coalesce.c. */
#ifndef RMAEXT_COALESCE_H
#define RMAEXT_COALESCE_H

#include "am/am.h"
#include "dtype/atomic_ops.h"

#define RMX_SINGLE_MOST 64u /* bytes of a value that joins others */

/*
 * A single is an update of one element without a result, or a put, which was
 * checked. Returns the bytes of its value.
 */
static inline uint64_t rmx_single_bytes(const struct rmaext_call *single)
{
	return single->kind == RMAEXT_UPDATE ? rmx_unit_of(single->type)
					     : single->count;
}

/* What became of a single; it was counted only if it is IN_LINE, as a copy. */
enum rmx_joined { RMX_IN_LINE, RMX_ALONE, RMX_LINE_FULL };

/*
 * The caller is inside the window, and any thread without a lock. Unless the
 * single is in its target's line now, nothing was done: it is to go by itself,
 * or by a message that waits until the line takes it. join only adds to a
 * coalesced operation that is there, and neither waits nor sends: the
 * interpreter's lock may be held. False: nothing was done.
 */
enum rmx_joined rmx_coalesce(struct rmaext_window *window,
			     const struct rmaext_call *single);
bool rmx_coalesce_join(struct rmaext_window *window,
		       const struct rmaext_call *single);

/* The hook `push` of struct rmx_hooks; takes am->lock. */
void rmx_coalesced_push(struct rmaext_window *window, int64_t first,
			int64_t end);

#endif
