/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Bundles: requests that are one for their owner. Only the owner uses one, and
 * is inside the window when it begins and waits.
 */
#ifndef RMAEXT_BUNDLE_H
#define RMAEXT_BUNDLE_H

#include "xfer/operation.h"

struct rmx_bundled {
	struct rmx_op *op;
	int ended;
};

struct rmx_bundle {
	struct rmaext_op owned;
	struct rmx_siblings siblings;
	/* ends with it: what the members' places are in; may be NULL */
	void *places;
	void (*dispose)(void *places);
	uint64_t count, at; /* those before `at` have ended well */
	struct rmx_bundled of[];
};

/*
 * Returns a bundle with room for so many members, none of which it has; or
 * NULL. *ended is set once all members have ended and the owner has said, by
 * one call of begun, that there are no more; it lives as long as the bundle.
 * Who does not need it gives NULL, and does not call begun.
 */
struct rmx_bundle *rmx_bundle_new(uint64_t members, int *ended);
static inline void rmx_bundle_begun(struct rmx_bundle *bundle)
{
	rmx_sibling_ended(&bundle->siblings);
}
/*
 * Begins a new operation as the next member; 0, or -FI_ENOMEM with a record and
 * the operation gone.
 */
int rmx_bundle_begin(struct rmx_bundle *bundle, struct rmx_op *op);
/*
 * Waits until all members have ended, or one has failed, or the time `until`.
 * Returns 0, the error with a record, or RMAEXT_PENDING.
 */
int rmx_bundle_wait(struct rmx_bundle *bundle, int64_t until);
/*
 * Ends all members, which go as messages: nothing refers to their buffers any
 * more. The bundle is gone, and may be NULL.
 */
void rmx_bundle_end(struct rmx_bundle *bundle);

#endif
