/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls are bracketed, so that close can wait for those of other threads. */
#define _GNU_SOURCE
#include "base/common.h"

#include <time.h>

bool rmx_gate_try(struct rmx_gate *gate)
{
	atomic_fetch_add(&gate->users, 1);
	if (!atomic_load(&gate->closed))
		return true;
	atomic_fetch_sub(&gate->users, 1);
	return false;
}

int rmx_gate_enter(struct rmx_gate *gate, const char *call, const char *closed)
{
	if (rmx_gate_try(gate))
		return 0;
	return rmx_fail(-FI_ESHUTDOWN, RMX_NO_RANK, call, "%s", closed);
}

void rmx_gate_leave(struct rmx_gate *gate)
{
	atomic_fetch_sub(&gate->users, 1);
}

/* Refuse new calls; those inside return within a slice, else -FI_EBUSY. */
int rmx_gate_shut(struct rmx_gate *gate)
{
	int64_t until = rmx_now() + 20 * (int64_t)RMX_SLICE;
	struct timespec nap = {.tv_nsec = 100000};

	atomic_store(&gate->closed, true);
	while (atomic_load(&gate->users)) {
		if (rmx_now() > until)
			return -FI_EBUSY;
		nanosleep(&nap, NULL);
	}
	return 0;
}
