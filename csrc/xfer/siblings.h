/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Siblings: requests that are one for their owner. Only the owner uses one, and
 * is inside the window when it begins and waits.
 */
#ifndef RMAEXT_SIBLINGS_H
#define RMAEXT_SIBLINGS_H

#include "xfer/operation.h"

struct rmx_sibling {
	struct rmx_op *op;
	int ended;
};

struct rmx_siblings {
	struct rmaext_op owned;
	atomic_uint left;   /* the last to end sets *ended */
	atomic_bool failed; /* one of them */
	int *ended;
	/* ends with them: what their places are in; may be NULL */
	void *places;
	void (*dispose)(void *places);
	uint64_t count, at; /* those before `at` have ended well */
	struct rmx_sibling of[];
};

/*
 * Returns siblings with room for so many members, none of which it has; or
 * NULL. *ended is set once all members have ended and the owner has said, by
 * one call of rmx_sibling_ended(), that there are no more; it lives as long as
 * they do. Who does not need it gives NULL, and does not say so.
 */
struct rmx_siblings *rmx_siblings_new(uint64_t members, int *ended);
/* One of them has ended, or who counts as one is done. */
void rmx_sibling_ended(struct rmx_siblings *siblings);
/* What a new operation is to set as the next member, and how it begins. */
static inline int *rmx_siblings_ended(struct rmx_siblings *siblings)
{
	return &siblings->of[siblings->count].ended;
}
void rmx_siblings_begin(struct rmx_siblings *siblings, struct rmx_op *op);
/*
 * Waits until all members have ended, or one has failed, or the time `until`.
 * Returns 0, the error with a record, or RMAEXT_PENDING.
 */
int rmx_siblings_wait(struct rmx_siblings *siblings, int64_t until);
/*
 * Ends all members, which go as messages: nothing refers to their buffers any
 * more. They are gone, and may be NULL.
 */
void rmx_siblings_end(struct rmx_siblings *siblings);

#endif
