/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One operation on many places in memory: what the direct route and the target
 * of a message have in common. The places were checked; see RMX_CELLS.
 */
#include "internal.h"
#include "cpu.h"

#include <string.h>

#define EACH for (size_t k = 0; k < n; k++)
/* step: bytes from one value to the next, 0 where all have the same */
#define VALUE (values + k * step)
#define RESULT (results + k * unit)

static bool all_aligned(size_t unit, void *const *cells, size_t n)
{
	uintptr_t low = 0;

	for (size_t k = 0; k < n; k++)
		low |= (uintptr_t)cells[k];
	return !(low & (unit - 1));
}

static void put(size_t unit, void *const *cells, size_t n, const char *values,
		size_t step)
{
	switch (unit <= 8 && all_aligned(unit, cells, n) ? unit : 0) {
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

static void get(size_t unit, void *const *cells, size_t n, char *results)
{
	switch (unit <= 8 && all_aligned(unit, cells, n) ? unit : 0) {
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

#define ADD(type)                                           \
	if (kind == RMAEXT_ADD)                             \
		EACH rmx_add_##type(cells[k], VALUE, NULL); \
	else                                                \
		EACH rmx_add_##type(cells[k], VALUE, RESULT)

static void add(int kind, int type, size_t unit, void *const *cells, size_t n,
		const char *values, size_t step, char *results)
{
	switch (type) {
	case RMAEXT_INT8:
	case RMAEXT_UINT8:
		ADD(uint8_t);
		break;
	case RMAEXT_INT16:
	case RMAEXT_UINT16:
		ADD(uint16_t);
		break;
	case RMAEXT_INT32:
	case RMAEXT_UINT32:
		ADD(uint32_t);
		break;
	case RMAEXT_INT64:
	case RMAEXT_UINT64:
		ADD(uint64_t);
		break;
	case RMAEXT_FLOAT:
		ADD(float);
		break;
	case RMAEXT_DOUBLE:
		ADD(double);
		break;
	case RMAEXT_FLOAT_COMPLEX:
		ADD(float_complex);
		break;
	}
}

/* Of a message too: every field may be anything. */
bool rmx_cells_valid(int kind, int type, size_t unit)
{
	switch (kind) {
	case RMAEXT_PUT:
	case RMAEXT_GET:
		return unit > 0;
	case RMAEXT_FETCH_ADD:
	case RMAEXT_ADD:
		return rmx_cpu_valid(type) && unit == rmx_unit_of(type);
	}
	return false;
}

int rmx_cells_access(int kind)
{
	switch (kind) {
	case RMAEXT_GET:
		return RMAEXT_READ;
	case RMAEXT_FETCH_ADD:
		return RMAEXT_READ | RMAEXT_WRITE;
	}
	return RMAEXT_WRITE;
}

void rmx_cells_apply(int kind, int type, size_t unit, void *const *cells,
		     size_t n, const char *values, size_t step, char *results)
{
	switch (kind) {
	case RMAEXT_PUT:
		put(unit, cells, n, values, step);
		break;
	case RMAEXT_GET:
		get(unit, cells, n, results);
		break;
	default:
		add(kind, type, unit, cells, n, values, step, results);
	}
}
