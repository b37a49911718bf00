/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Element types, and operations on one element by this CPU. An update without a
 * lock is sequentially consistent. What the loops over many elements inline is
 * here, all else in atomic_ops.c. Any thread may call any of these functions;
 * the elements lie in memory that the caller has checked.
 */
#ifndef RMAEXT_ATOMIC_OPS_H
#define RMAEXT_ATOMIC_OPS_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rmaext.h"

#define RMX_TYPES (RMAEXT_UINT64_INT64 + 1)
#define RMX_OPS (RMAEXT_MAXLOC + 1)

/* bytes of a long double that are no padding */
#define RMX_LDBL_BYTES (LDBL_MANT_DIG == 64 ? 10 : sizeof(long double))
#define RMX_MOST_UNIT (2 * sizeof(long double))

/*
 * What an update must know of a type. Elements of up to 8 bytes are updated
 * without a lock, and are aligned to their size; longer ones are aligned as C
 * aligns them.
 */
struct rmx_type {
	uint8_t unit;	  /* bytes an element; 0: there is no such type */
	uint8_t align;	  /* of its address */
	uint8_t compared; /* bytes that CSWAP compares, from the first; what
			   * follows is padding, or see element_equal() */
};

static inline struct rmx_type rmx_type_of(int type)
{
	static const struct rmx_type types[RMX_TYPES] = {
		[RMAEXT_INT8] = {1, 1, 1},
		[RMAEXT_UINT8] = {1, 1, 1},
		[RMAEXT_INT16] = {2, 2, 2},
		[RMAEXT_UINT16] = {2, 2, 2},
		[RMAEXT_INT32] = {4, 4, 4},
		[RMAEXT_UINT32] = {4, 4, 4},
		[RMAEXT_INT64] = {8, 8, 8},
		[RMAEXT_UINT64] = {8, 8, 8},
		[RMAEXT_FLOAT] = {4, 4, 4},
		[RMAEXT_DOUBLE] = {8, 8, 8},
		[RMAEXT_FLOAT_COMPLEX] = {8, 8, 8},
		[RMAEXT_DOUBLE_COMPLEX] = {16, _Alignof(double), 16},
		[RMAEXT_LONG_DOUBLE] = {sizeof(long double),
					_Alignof(long double), RMX_LDBL_BYTES},
		[RMAEXT_LONG_DOUBLE_COMPLEX] = {2 * sizeof(long double),
						_Alignof(long double),
						RMX_LDBL_BYTES},
		[RMAEXT_LONG_DOUBLE_INT32] = {2 * sizeof(long double),
					      _Alignof(long double),
					      RMX_LDBL_BYTES},
		[RMAEXT_BOOL] = {1, 1, 1},
		[RMAEXT_HALF] = {2, 2, 2},
		[RMAEXT_FLOAT_INT32] = {8, 8, 8},
		[RMAEXT_DOUBLE_INT32] = {16, 8, 12},
		[RMAEXT_INT16_INT32] = {8, 8, 2},
		[RMAEXT_INT32_INT32] = {8, 8, 8},
		[RMAEXT_INT64_INT32] = {16, 8, 12},
		[RMAEXT_DOUBLE_INT64] = {16, 8, 16},
		[RMAEXT_INT64_INT64] = {16, 8, 16},
		[RMAEXT_FLOAT_INT64] = {16, 8, 4},
		[RMAEXT_INT32_INT64] = {16, 8, 4},
		[RMAEXT_UINT64_INT64] = {16, 8, 16},
	};

	return (unsigned int)type < RMX_TYPES ? types[type]
					      : (struct rmx_type){0, 1, 0};
}

/* Bytes of an element; 0: there is no such type. */
static inline size_t rmx_unit_of(int type)
{
	return rmx_type_of(type).unit;
}

/* Is the type too long for an update without a lock? */
static inline bool rmx_wide(int type)
{
	return rmx_unit_of(type) > 8;
}

/*
 * A loop with it is compiled a second time, for the wider registers of AVX2,
 * and the dynamic linker takes what the CPU has. AVX-512 is left out, as it
 * brings instructions that round a product and a sum only once. So are builds
 * with sanitizers, which do not run yet when the linker asks.
 */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define RMX_SANITIZED 1
#elif defined(__has_feature) /* clang */
#define RMX_SANITIZED \
	(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define RMX_SANITIZED 0
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && \
	!RMX_SANITIZED
#define RMX_WIDER __attribute__((target_clones("avx2", "default")))
#else
#define RMX_WIDER
#endif

/*
 * rmx_put_<type>, rmx_get_<type>(cell, value, result) access an aligned cell in
 * one piece; value and result need not be aligned.
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

RMX_MOVE(uint8_t)
RMX_MOVE(uint16_t)
RMX_MOVE(uint32_t)
RMX_MOVE(uint64_t)

#undef RMX_MOVE

/*
 * These macros make updates <name>(cell, operand, result) of an aligned cell.
 * Operand and result need not be aligned; a NULL result is not wanted. This one
 * is for operations that the CPU has an instruction for.
 */
#define RMX_BY_FETCH(name, type, instruction)                                  \
	static inline void name(void *cell, const void *operand, void *result) \
	{                                                                      \
		type a;                                                        \
                                                                               \
		memcpy(&a, operand, sizeof(a));                                \
		a = instruction((type *)cell, a, __ATOMIC_SEQ_CST);            \
		if (result)                                                    \
			memcpy(result, &a, sizeof(a));                         \
	}

/* And this one is for all others: function(old, operand) by compare and swap */
#define RMX_BY_SWAP(name, type, bits, function)                                \
	static inline void name(void *cell, const void *operand, void *result) \
	{                                                                      \
		bits old = __atomic_load_n((bits *)cell, __ATOMIC_SEQ_CST);    \
		bits new;                                                      \
		type a, b;                                                     \
                                                                               \
		memcpy(&b, operand, sizeof(b));                                \
		do {                                                           \
			memcpy(&a, &old, sizeof(a));                           \
			a = function(a, b);                                    \
			memcpy(&new, &a, sizeof(new));                         \
		} while (!__atomic_compare_exchange_n((bits *)cell, &old, new, \
						      0, __ATOMIC_SEQ_CST,     \
						      __ATOMIC_SEQ_CST));      \
		if (result)                                                    \
			memcpy(result, &old, sizeof(old));                     \
	}

#define RMX_PLUS(a, b) ((a) + (b))

RMX_BY_FETCH(rmx_add_u4, uint32_t, __atomic_fetch_add)
RMX_BY_FETCH(rmx_add_u8, uint64_t, __atomic_fetch_add)
RMX_BY_SWAP(rmx_add_f4, float, uint32_t, RMX_PLUS)
RMX_BY_SWAP(rmx_add_f8, double, uint64_t, RMX_PLUS)

/* atomic_ops.c */
struct rmx_element {
	/*
	 * Updates one aligned cell without a lock. A NULL result is not
	 * wanted. The function is NULL where the type is too long.
	 */
	void (*one)(void *cell, const void *operand, void *result);
	/*
	 * Updates n elements in a row by a plain loop. The caller holds the
	 * guard in bulk (exec/guard.h), so that nobody else updates them
	 * meanwhile. The operand need not be aligned.
	 */
	void (*row)(void *memory, const void *operand, size_t n);
};

/*
 * Returns the functions of an operation on a type, which are static, or NULL if
 * there is no such operation. Both numbers may be anything.
 */
const struct rmx_element *rmx_element_of(int op, int type);

/*
 * Compare and swap, which replaces an element by the operand if its value
 * equals `compare`. one works on an aligned cell of up to 8 bytes without a
 * lock, and a result that is not NULL gets what was there. row works on n
 * elements of any type, and the caller holds the guard in bulk.
 */
bool rmx_swap_valid(int type);
void rmx_swap_one(int type, void *cell, const void *compare,
		  const void *operand, void *result);
void rmx_swap_row(int type, void *memory, const void *compare,
		  const void *operand, size_t n);

/* Is there such an update? Both numbers may be anything. */
static inline bool rmx_update_valid(int op, int type)
{
	return op == RMAEXT_CSWAP ? rmx_swap_valid(type)
				  : rmx_element_of(op, type) != NULL;
}

/* Returns the rights that a valid update needs at the target. */
static inline int rmx_update_access(int op, bool fetch)
{
	if (op == RMAEXT_NO_OP)
		return RMAEXT_READ;
	return fetch ? RMAEXT_READ | RMAEXT_WRITE : RMAEXT_WRITE;
}

#endif
