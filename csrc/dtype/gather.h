/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts and gets of many elements anywhere in memory; see gather.c. */
#ifndef RMAEXT_GATHER_H
#define RMAEXT_GATHER_H

#include "dtype/atomic_ops.h"

#define RMX_CELLS 256 /* addresses computed at a time, then operated on */

/*
 * Says whether there is such an operation on elements of `unit` bytes. `kind`
 * is one of rmaext_many(); `op` and `type` count for updates only. All may come
 * from a message, so any value is allowed. Any thread may call it.
 */
bool rmx_cells_valid(int kind, int op, int type, size_t unit);

/* Returns the rights that a valid operation needs at the target. */
int rmx_cells_access(int kind, int op, bool fetch);

/*
 * Carries out a put or a get on n cells. The caller has checked that they lie
 * in memory that stays until it returns. A put takes the values, `step` bytes
 * from one to the next, where 0 means one value for all; a get writes the
 * results one after another. Where all cells are aligned to a unit of 1, 2, 4
 * or 8 bytes, each is accessed in one piece. No lock is needed.
 */
void rmx_cells_move(int kind, size_t unit, void *const *cells, size_t n,
		    const char *values, size_t step, char *results);

#endif
