/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call on an object enters and leaves its rundown, so that whoever closes
 * the object can wait for the calls of other threads.
 */
#define _GNU_SOURCE
#include "base/common.h"

#include <time.h>

bool rmx_rundown_try(struct rmx_rundown *rundown)
{
	atomic_fetch_add(&rundown->users, 1);
	if (!atomic_load(&rundown->closed))
		return true;
	atomic_fetch_sub(&rundown->users, 1);
	return false;
}

int rmx_rundown_enter(struct rmx_rundown *rundown, const char *call,
		      const char *closed)
{
	if (rmx_rundown_try(rundown))
		return 0;
	return rmx_fail(-FI_ESHUTDOWN, RMX_NO_RANK, call, "%s", closed);
}

void rmx_rundown_leave(struct rmx_rundown *rundown)
{
	atomic_fetch_sub(&rundown->users, 1);
}

int rmx_rundown_shut(struct rmx_rundown *rundown)
{
	int64_t until = rmx_now() + 20 * (int64_t)RMX_SLICE;

	atomic_store(&rundown->closed, true);
	while (atomic_load(&rundown->users)) {
		if (rmx_now() > until)
			return -FI_EBUSY;
		rmx_sleep(100000);
	}
	return 0;
}
