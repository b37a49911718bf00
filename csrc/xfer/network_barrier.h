/* SPDX-License-Identifier: BSD-3-Clause */
/* Meetings of ranks by the network, of which the CQ's reader takes care. */
#ifndef RMAEXT_NETWORK_BARRIER_H
#define RMAEXT_NETWORK_BARRIER_H

#include "xfer/operation.h"

/*
 * The reader of the CQ takes meetings further that this rank has come to. It
 * must not hold a lock. Does one of them have something to post that the
 * provider did not take? Any thread may ask that.
 */
void rmx_meetings_advance(struct rmaext_fabric *fabric);
bool rmx_meetings_retry(const struct rmaext_fabric *fabric);

static inline bool rmx_meetings_wait(const struct rmaext_fabric *fabric)
{
	return atomic_load(&fabric->meetings.inside);
}

#endif
