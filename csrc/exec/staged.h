/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations on memory of this rank that lies on a device (window->device): it
 * is copied from and to, and updates are made in between, on the host.
 *
 * The reader of the CQ calls these for what a message asks of it, which was
 * checked. They return 0, -EREMOTEIO when the device fails, RMAEXT_PENDING as
 * rmx_update_apply() does, or another error. In the guard of updates nobody
 * else updates that memory through a window; kernels of the owner may.
 */
#ifndef RMAEXT_STAGED_H
#define RMAEXT_STAGED_H

#include "dtype/gather.h"
#include "win/window.h"

/*
 * Elements in a row from `memory` on, of a put or get bytes; call->offset is
 * not looked at. *done counts what an update has done, 0 at first.
 */
int rmx_staged_row(struct rmaext_window *window, void *memory,
		   const struct rmaext_call *call, uint64_t *done, int64_t ns);

/* RMX_CELLS cells at most: all else is as in rmx_update_cells(). */
int rmx_staged_cells(struct rmaext_window *window, int kind, int op, int type,
		     size_t unit, void *const *cells, size_t n,
		     const char *values, size_t step, char *results,
		     int64_t ns);

#endif
