/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts and gets of many places in memory; see gather.c. */
#ifndef RMAEXT_GATHER_H
#define RMAEXT_GATHER_H

#include "dtype/element.h"

#define RMX_CELLS 256 /* places computed at a time, then operated on */

/* Kinds are those of rmaext_many, op is that of an update. */
bool rmx_cells_valid(int kind, int op, int type, size_t unit);
int rmx_cells_access(int kind, int op, bool fetch); /* rights it needs */
/* puts and gets */
void rmx_cells_move(int kind, size_t unit, void *const *cells, size_t n,
		    const char *values, size_t step, char *results);

#endif
