/* SPDX-License-Identifier: BSD-3-Clause */
/* Types, and operations on one element by the own CPU; updates are SEQ_CST. */
#ifndef RMAEXT_CPU_H
#define RMAEXT_CPU_H

#include <complex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rmaext.h"

/* Bytes of an element; 0: there is no such type. */
static inline size_t rmx_unit_of(int type)
{
	static const size_t units[] = {
		[RMAEXT_INT8] = 1,
		[RMAEXT_UINT8] = 1,
		[RMAEXT_INT16] = 2,
		[RMAEXT_UINT16] = 2,
		[RMAEXT_INT32] = 4,
		[RMAEXT_UINT32] = 4,
		[RMAEXT_INT64] = 8,
		[RMAEXT_UINT64] = 8,
		[RMAEXT_FLOAT] = 4,
		[RMAEXT_DOUBLE] = 8,
		[RMAEXT_FLOAT_COMPLEX] = 8,
		[RMAEXT_DOUBLE_COMPLEX] = 16,
		[RMAEXT_LONG_DOUBLE] = sizeof(long double),
	};

	return type < 0 || type > RMAEXT_LONG_DOUBLE ? 0 : units[type];
}

/* The CPU's are the same set as the software providers' native ones. */
static inline bool rmx_cpu_valid(int type)
{
	return type >= RMAEXT_INT8 && type <= RMAEXT_FLOAT_COMPLEX;
}

/*
 * rmx_put_<type>, rmx_get_<type>(cell, value, result): single accesses of an
 * aligned cell.
 */
#define RMX_MOVE(type)                                                    \
	static inline void rmx_put_##type(void *cell, const void *value,  \
					  void *result)                   \
	{                                                                 \
		type v;                                                   \
                                                                          \
		(void)result;                                             \
		memcpy(&v, value, sizeof(v));                             \
		__atomic_store_n((type *)cell, v, __ATOMIC_RELAXED);      \
	}                                                                 \
	static inline void rmx_get_##type(void *cell, const void *value,  \
					  void *result)                   \
	{                                                                 \
		type v = __atomic_load_n((type *)cell, __ATOMIC_RELAXED); \
                                                                          \
		(void)value;                                              \
		memcpy(result, &v, sizeof(v));                            \
	}

/*
 * rmx_add_<type>(cell, operand, result). Operand and result lie where the
 * caller has them, aligned or not; a NULL result is not wanted.
 */
#define RMX_ADD(type)                                                      \
	static inline void rmx_add_##type(void *cell, const void *operand, \
					  void *result)                    \
	{                                                                  \
		type a;                                                    \
                                                                           \
		memcpy(&a, operand, sizeof(a));                            \
		a = __atomic_fetch_add((type *)cell, a, __ATOMIC_SEQ_CST); \
		if (result)                                                \
			memcpy(result, &a, sizeof(a));                     \
	}

/* A float has no fetch_add instruction: compare and swap its bits. */
#define RMX_ADD_BY_SWAP(name, type, bits)                                      \
	static inline void rmx_add_##name(void *cell, const void *operand,     \
					  void *result)                        \
	{                                                                      \
		bits old = __atomic_load_n((bits *)cell, __ATOMIC_SEQ_CST);    \
		bits new;                                                      \
		type a, b;                                                     \
                                                                               \
		memcpy(&b, operand, sizeof(b));                                \
		do {                                                           \
			memcpy(&a, &old, sizeof(a));                           \
			a += b;                                                \
			memcpy(&new, &a, sizeof(new));                         \
		} while (!__atomic_compare_exchange_n((bits *)cell, &old, new, \
						      0, __ATOMIC_SEQ_CST,     \
						      __ATOMIC_SEQ_CST));      \
		if (result)                                                    \
			memcpy(result, &old, sizeof(old));                     \
	}

RMX_MOVE(uint8_t)
RMX_MOVE(uint16_t)
RMX_MOVE(uint32_t)
RMX_MOVE(uint64_t)
RMX_ADD(uint8_t)
RMX_ADD(uint16_t)
RMX_ADD(uint32_t)
RMX_ADD(uint64_t)
RMX_ADD_BY_SWAP(float, float, uint32_t)
RMX_ADD_BY_SWAP(double, double, uint64_t)
RMX_ADD_BY_SWAP(float_complex, float complex, uint64_t)

#undef RMX_MOVE
#undef RMX_ADD
#undef RMX_ADD_BY_SWAP

#endif
