/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets of many cells, which are elements anywhere in memory. The
 * direct route uses them, and so does the target of a message. The caller has
 * checked the cells, and computes RMX_CELLS addresses at a time. Updates of
 * cells are in exec/update.c.
 */
#include "dtype/gather.h"

#include <string.h>

static bool cells_aligned(size_t unit, void *const *cells, size_t n)
{
	uintptr_t low = 0;

	for (size_t k = 0; k < n; k++)
		low |= (uintptr_t)cells[k];
	return !(low & (unit - 1));
}

bool rmx_cells_valid(int kind, int op, int type, size_t unit)
{
	switch (kind) {
	case RMAEXT_PUT:
	case RMAEXT_GET:
		return unit > 0;
	case RMAEXT_UPDATE:
		return rmx_update_valid(op, type) && unit == rmx_unit_of(type);
	}
	return false;
}

int rmx_cells_access(int kind, int op, bool fetch)
{
	if (kind == RMAEXT_UPDATE)
		return rmx_update_access(op, fetch);
	return kind == RMAEXT_GET ? RMAEXT_READ : RMAEXT_WRITE;
}

#define VALUE (values + k * step)
#define RESULT (results + k * unit)
#define EACH(put, get)                                 \
	do {                                           \
		if (kind == RMAEXT_PUT)                \
			for (size_t k = 0; k < n; k++) \
				put;                   \
		else                                   \
			for (size_t k = 0; k < n; k++) \
				get;                   \
	} while (0)
#define MOVE(type)                                            \
	case sizeof(type):                                    \
		EACH(rmx_put_##type(cells[k], VALUE, NULL),   \
		     rmx_get_##type(cells[k], NULL, RESULT)); \
		break

void rmx_cells_move(int kind, size_t unit, void *const *cells, size_t n,
		    const char *values, size_t step, char *results)
{
	switch (unit <= 8 && cells_aligned(unit, cells, n) ? unit : 0) {
		MOVE(uint8_t);
		MOVE(uint16_t);
		MOVE(uint32_t);
		MOVE(uint64_t);
	default:
		EACH(memcpy(cells[k], VALUE, unit),
		     memcpy(RESULT, cells[k], unit));
	}
}
