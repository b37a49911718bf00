/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets of many cells, which are elements anywhere in memory. The
 * direct route uses them, and so does the target of a message. The caller has
 * checked the cells, and computes RMX_CELLS addresses at a time. Updates of
 * cells are in exec/update.c.
 */
#include "dtype/gather.h"

#include <string.h>

#define EACH for (size_t k = 0; k < n; k++)
#define VALUE (values + k * step)
#define RESULT (results + k * unit)

static bool cells_aligned(size_t unit, void *const *cells, size_t n)
{
	uintptr_t low = 0;

	for (size_t k = 0; k < n; k++)
		low |= (uintptr_t)cells[k];
	return !(low & (unit - 1));
}

static void cells_put(size_t unit, void *const *cells, size_t n,
		      const char *values, size_t step)
{
	switch (unit <= 8 && cells_aligned(unit, cells, n) ? unit : 0) {
	case 1:
		EACH rmx_put_uint8_t(cells[k], VALUE, NULL);
		break;
	case 2:
		EACH rmx_put_uint16_t(cells[k], VALUE, NULL);
		break;
	case 4:
		EACH rmx_put_uint32_t(cells[k], VALUE, NULL);
		break;
	case 8:
		EACH rmx_put_uint64_t(cells[k], VALUE, NULL);
		break;
	default:
		EACH memcpy(cells[k], VALUE, unit);
	}
}

static void cells_get(size_t unit, void *const *cells, size_t n, char *results)
{
	switch (unit <= 8 && cells_aligned(unit, cells, n) ? unit : 0) {
	case 1:
		EACH rmx_get_uint8_t(cells[k], NULL, RESULT);
		break;
	case 2:
		EACH rmx_get_uint16_t(cells[k], NULL, RESULT);
		break;
	case 4:
		EACH rmx_get_uint32_t(cells[k], NULL, RESULT);
		break;
	case 8:
		EACH rmx_get_uint64_t(cells[k], NULL, RESULT);
		break;
	default:
		EACH memcpy(RESULT, cells[k], unit);
	}
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

void rmx_cells_move(int kind, size_t unit, void *const *cells, size_t n,
		    const char *values, size_t step, char *results)
{
	if (kind == RMAEXT_PUT)
		cells_put(unit, cells, n, values, step);
	else
		cells_get(unit, cells, n, results);
}
