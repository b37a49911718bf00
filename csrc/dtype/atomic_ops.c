/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What each operation does to an element of each type it is defined for, which
 * is what NumPy's ufunc of that name does. Integers wrap around, the minimum or
 * maximum of two numbers is NaN if one of them is, and a logical operation
 * gives 0 or 1.
 */
#include "dtype/atomic_ops.h"

/* -O2 does not vectorise loops whose length it does not know. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

/*
 * Types are named as NumPy names them, by kind and bytes. In all expressions, a
 * is what is in the window, and b the operand.
 */
#ifdef __FLT16_MAX__
__extension__ typedef _Float16 f2;
#define HALF(...) __VA_ARGS__
#else
#define HALF(...)
#endif

typedef uint8_t b1; /* a bool: all values but 0 are true */

struct c8 {
	float re, im;
};

struct c16 {
	double re, im;
};

struct c_long_double {
	long double re, im;
};

/* Value and index. */
#define PAIR(name, value_type, index_type) \
	struct name {                      \
		value_type value;          \
		index_type index;          \
	}

PAIR(f4i4, float, int32_t);
PAIR(f8i4, double, int32_t);
PAIR(i2i4, int16_t, int32_t);
PAIR(i4i4, int32_t, int32_t);
PAIR(i8i4, int64_t, int32_t);
PAIR(f8i8, double, int64_t);
PAIR(i8i8, int64_t, int64_t);
PAIR(long_double_i4, long double, int32_t);
PAIR(f4i8, float, int64_t);
PAIR(i4i8, int32_t, int64_t);
PAIR(u8i8, uint64_t, int64_t);

_Static_assert(sizeof(struct i2i4) == 8 && offsetof(struct i2i4, index) == 4 &&
		       sizeof(struct f8i4) == 16 && sizeof(struct i8i4) == 16 &&
		       sizeof(struct f4i8) == 16 && sizeof(struct i4i8) == 16 &&
		       sizeof(struct long_double_i4) == RMX_MOST_UNIT,
	       "as rmx_type_of() says");

/* -- how an operation is made from an expression -- */

#define ROW(op, name, type)                                                    \
	RMX_WIDER static void row_##op##_##name(void *memory,                  \
						const void *operand, size_t n) \
	{                                                                      \
		const char *from = operand;                                    \
		type *m = memory, b;                                           \
                                                                               \
		for (size_t i = 0; i < n; i++) {                               \
			memcpy(&b, from + i * sizeof(b), sizeof(b));           \
			m[i] = op##_##name(m[i], b);                           \
		}                                                              \
	}

/* a type that is too long for an update without a lock: a row only */
#define WIDE(op, name, type, expression)               \
	static inline type op##_##name(type a, type b) \
	{                                              \
		return expression;                     \
	}                                              \
	ROW(op, name, type)

#define NARROW(op, name, type, bits, expression) \
	WIDE(op, name, type, expression)         \
	RMX_BY_SWAP(one_##op##_##name, type, bits, op##_##name)

/* an operation that the CPU has an instruction for */
#define NATIVE(op, name, type, instruction, expression) \
	WIDE(op, name, type, expression)                \
	RMX_BY_FETCH(one_##op##_##name, type, instruction)

/* -- integers: the sign matters for minimum and maximum only -- */

#define INTEGER(name, type)                                         \
	NATIVE(sum, name, type, __atomic_fetch_add, (type)(a + b))  \
	NATIVE(band, name, type, __atomic_fetch_and, (type)(a & b)) \
	NATIVE(bor, name, type, __atomic_fetch_or, (type)(a | b))   \
	NATIVE(bxor, name, type, __atomic_fetch_xor, (type)(a ^ b)) \
	NARROW(prod, name, type, type, (type)(1u * a * b))          \
	NARROW(land, name, type, type, (type)((a != 0) & (b != 0))) \
	NARROW(lor, name, type, type, (type)((a != 0) | (b != 0)))  \
	NARROW(lxor, name, type, type, (type)((a != 0) ^ (b != 0)))

#define ORDERED(name, type, bits)                    \
	NARROW(min, name, type, bits, a < b ? a : b) \
	NARROW(max, name, type, bits, a > b ? a : b)

INTEGER(u1, uint8_t)
INTEGER(u2, uint16_t)
INTEGER(u4, uint32_t)
INTEGER(u8, uint64_t)
ORDERED(u1, uint8_t, uint8_t)
ORDERED(u2, uint16_t, uint16_t)
ORDERED(u4, uint32_t, uint32_t)
ORDERED(u8, uint64_t, uint64_t)
ORDERED(i1, int8_t, uint8_t)
ORDERED(i2, int16_t, uint16_t)
ORDERED(i4, int32_t, uint32_t)
ORDERED(i8, int64_t, uint64_t)

NARROW(land, b1, b1, uint8_t, (a != 0) & (b != 0))
NARROW(lor, b1, b1, uint8_t, (a != 0) | (b != 0))
NARROW(lxor, b1, b1, uint8_t, (a != 0) ^ (b != 0))

/* -- replace and no-op: of any type of so many bytes -- */

#define ROW_REPLACE(name, type)                                           \
	static void row_replace_##name(void *memory, const void *operand, \
				       size_t n)                          \
	{                                                                 \
		memmove(memory, operand, n * sizeof(type));               \
	}

#define MOVE(name, type)                                                  \
	ROW_REPLACE(name, type)                                           \
	RMX_BY_FETCH(one_replace_##name, type, __atomic_exchange_n)       \
	static void one_no_op_##name(void *cell, const void *operand,     \
				     void *result)                        \
	{                                                                 \
		type a = __atomic_load_n((type *)cell, __ATOMIC_SEQ_CST); \
                                                                          \
		(void)operand;                                            \
		if (result)                                               \
			memcpy(result, &a, sizeof(a));                    \
	}

MOVE(u1, uint8_t)
MOVE(u2, uint16_t)
MOVE(u4, uint32_t)
MOVE(u8, uint64_t)
ROW_REPLACE(c16, struct c16)
ROW_REPLACE(long_double, long double)
ROW_REPLACE(c_long_double, struct c_long_double)

static void row_no_op(void *memory, const void *operand, size_t n)
{
	(void)memory;
	(void)operand;
	(void)n;
}

#define row_no_op_u1 row_no_op
#define row_no_op_u2 row_no_op
#define row_no_op_u4 row_no_op
#define row_no_op_u8 row_no_op
#define row_no_op_c16 row_no_op
#define row_no_op_long_double row_no_op
#define row_no_op_c_long_double row_no_op

/* -- floats -- */

/*
 * FORM is NARROW or WIDE; what follows are its arguments: name, type[, bits].
 * Of two zeros min and max take what NumPy takes on x86: b, as its instructions
 * do, for float and double, and a for the others.
 */
#define FLOAT(FORM, BELOW, ABOVE, ...)                         \
	FORM(sum, __VA_ARGS__, a + b)                          \
	FORM(prod, __VA_ARGS__, a *b)                          \
	FORM(min, __VA_ARGS__, (a BELOW b) | (a != a) ? a : b) \
	FORM(max, __VA_ARGS__, (a ABOVE b) | (a != a) ? a : b) \
	FORM(land, __VA_ARGS__, (a != 0) & (b != 0))           \
	FORM(lor, __VA_ARGS__, (a != 0) | (b != 0))            \
	FORM(lxor, __VA_ARGS__, (a != 0) ^ (b != 0))

HALF(FLOAT(NARROW, <=, >=, f2, f2, uint16_t))
FLOAT(NARROW, <, >, f4, float, uint32_t)
FLOAT(NARROW, <, >, f8, double, uint64_t)
FLOAT(WIDE, <=, >=, long_double, long double)

/*
 * C's complex product looks for infinities behind a NaN; NumPy's does not.
 * Where the CPU can, NumPy rounds one product of each pair only with the sum
 * (FMA), in arrays, and its scalars and longdouble round each by itself. Ours
 * are the arrays'.
 */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FUSED
#define FUSES true
#elif defined(__x86_64__)
#define FUSED __attribute__((target("fma")))
#define FUSES (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
#endif

#define PRODUCT(type) \
	((type){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re})
#ifdef FUSED
#define PRODUCT_FUSED(type, fma)                                            \
	FUSED static struct type fused_##type(struct type a, struct type b) \
	{                                                                   \
		return (struct type){                                       \
			fma(a.re, b.re, -(a.im * b.im)),                    \
			fma(a.re, b.im, a.im * b.re),                       \
		};                                                          \
	}

PRODUCT_FUSED(c8, __builtin_fmaf)
PRODUCT_FUSED(c16, __builtin_fma)
#define PRODUCT_OR_FUSED(type) \
	(FUSES ? fused_##type(a, b) : PRODUCT(struct type))
#else
#define PRODUCT_OR_FUSED(type) PRODUCT(struct type)
#endif

NARROW(prod, c8, struct c8, uint64_t, PRODUCT_OR_FUSED(c8))
WIDE(prod, c16, struct c16, PRODUCT_OR_FUSED(c16))
WIDE(prod, c_long_double, struct c_long_double, PRODUCT(struct c_long_double))

#define TRUTH(z) ((z.re != 0) | (z.im != 0))
#define COMPLEX(FORM, type, ...)                                   \
	FORM(sum, __VA_ARGS__, ((type){a.re + b.re, a.im + b.im})) \
	FORM(land, __VA_ARGS__, ((type){TRUTH(a) & TRUTH(b), 0}))  \
	FORM(lor, __VA_ARGS__, ((type){TRUTH(a) | TRUTH(b), 0}))   \
	FORM(lxor, __VA_ARGS__, ((type){TRUTH(a) ^ TRUTH(b), 0}))

COMPLEX(NARROW, struct c8, c8, struct c8, uint64_t)
COMPLEX(WIDE, struct c16, c16, struct c16)
COMPLEX(WIDE, struct c_long_double, c_long_double, struct c_long_double)

/*
 * -- values with an index: of two equal values the smaller index counts, and
 * NaN is less and more than all numbers, as in NumPy's argmin and argmax --
 */

#define IS_NAN(z) ((z).value != (z).value)
#define LOC_BY(BEFORE)                                                       \
	(IS_NAN(a) != IS_NAN(b)                                              \
		 ? IS_NAN(b)                                                 \
		 : b.value BEFORE a.value ||                                 \
			   (!(a.value BEFORE b.value) && b.index < a.index)) \
		? b                                                          \
		: a
#define LOC(FORM, type, ...)                 \
	FORM(minloc, __VA_ARGS__, LOC_BY(<)) \
	FORM(maxloc, __VA_ARGS__, LOC_BY(>))

LOC(NARROW, struct f4i4, f4i4, struct f4i4, uint64_t)
LOC(NARROW, struct i2i4, i2i4, struct i2i4, uint64_t)
LOC(NARROW, struct i4i4, i4i4, struct i4i4, uint64_t)
LOC(WIDE, struct f8i4, f8i4, struct f8i4)
LOC(WIDE, struct i8i4, i8i4, struct i8i4)
LOC(WIDE, struct f8i8, f8i8, struct f8i8)
LOC(WIDE, struct i8i8, i8i8, struct i8i8)
LOC(WIDE, struct f4i8, f4i8, struct f4i8)
LOC(WIDE, struct i4i8, i4i8, struct i4i8)
LOC(WIDE, struct u8i8, u8i8, struct u8i8)
LOC(WIDE, struct long_double_i4, long_double_i4, struct long_double_i4)

/* -- the table of all operations that there are -- */

#define BOTH(op, name) {one_##op##_##name, row_##op##_##name}
#define LONG(op, name) {NULL, row_##op##_##name}

#define BITS(op)                                                       \
	[RMAEXT_INT8] = BOTH(op, u1), [RMAEXT_UINT8] = BOTH(op, u1),   \
	[RMAEXT_INT16] = BOTH(op, u2), [RMAEXT_UINT16] = BOTH(op, u2), \
	[RMAEXT_INT32] = BOTH(op, u4), [RMAEXT_UINT32] = BOTH(op, u4), \
	[RMAEXT_INT64] = BOTH(op, u8), [RMAEXT_UINT64] = BOTH(op, u8)
#define SIGNS(op)                                                      \
	[RMAEXT_INT8] = BOTH(op, i1), [RMAEXT_UINT8] = BOTH(op, u1),   \
	[RMAEXT_INT16] = BOTH(op, i2), [RMAEXT_UINT16] = BOTH(op, u2), \
	[RMAEXT_INT32] = BOTH(op, i4), [RMAEXT_UINT32] = BOTH(op, u4), \
	[RMAEXT_INT64] = BOTH(op, i8), [RMAEXT_UINT64] = BOTH(op, u8)
#define FLOATS(op)                                                     \
	HALF([RMAEXT_HALF] = BOTH(op, f2), )                           \
	[RMAEXT_FLOAT] = BOTH(op, f4), [RMAEXT_DOUBLE] = BOTH(op, f8), \
	[RMAEXT_LONG_DOUBLE] = LONG(op, long_double)
#define COMPLEXES(op)                            \
	[RMAEXT_FLOAT_COMPLEX] = BOTH(op, c8),   \
	[RMAEXT_DOUBLE_COMPLEX] = LONG(op, c16), \
	[RMAEXT_LONG_DOUBLE_COMPLEX] = LONG(op, c_long_double)
#define BOOL(like) [RMAEXT_BOOL] = BOTH(like, b1)
#define PAIRS(op)                               \
	[RMAEXT_FLOAT_INT32] = BOTH(op, f4i4),  \
	[RMAEXT_DOUBLE_INT32] = LONG(op, f8i4), \
	[RMAEXT_INT16_INT32] = BOTH(op, i2i4),  \
	[RMAEXT_INT32_INT32] = BOTH(op, i4i4),  \
	[RMAEXT_INT64_INT32] = LONG(op, i8i4),  \
	[RMAEXT_DOUBLE_INT64] = LONG(op, f8i8), \
	[RMAEXT_INT64_INT64] = LONG(op, i8i8),  \
	[RMAEXT_FLOAT_INT64] = LONG(op, f4i8),  \
	[RMAEXT_INT32_INT64] = LONG(op, i4i8),  \
	[RMAEXT_UINT64_INT64] = LONG(op, u8i8), \
	[RMAEXT_LONG_DOUBLE_INT32] = LONG(op, long_double_i4)

/* an operation of all types */
#define ALL(op)                                                         \
	BITS(op), [RMAEXT_BOOL] = BOTH(op, u1),                         \
		  HALF([RMAEXT_HALF] = BOTH(op, u2), )[RMAEXT_FLOAT] =  \
			  BOTH(op, u4),                                 \
		  [RMAEXT_DOUBLE] = BOTH(op, u8),                       \
		  [RMAEXT_FLOAT_COMPLEX] = BOTH(op, u8),                \
		  [RMAEXT_FLOAT_INT32] = BOTH(op, u8),                  \
		  [RMAEXT_INT16_INT32] = BOTH(op, u8),                  \
		  [RMAEXT_INT32_INT32] = BOTH(op, u8),                  \
		  [RMAEXT_LONG_DOUBLE] = LONG(op, long_double),         \
		  [RMAEXT_DOUBLE_COMPLEX] = LONG(op, c16),              \
		  [RMAEXT_DOUBLE_INT32] = LONG(op, c16),                \
		  [RMAEXT_INT64_INT32] = LONG(op, c16),                 \
		  [RMAEXT_DOUBLE_INT64] = LONG(op, c16),                \
		  [RMAEXT_INT64_INT64] = LONG(op, c16),                 \
		  [RMAEXT_FLOAT_INT64] = LONG(op, c16),                 \
		  [RMAEXT_INT32_INT64] = LONG(op, c16),                 \
		  [RMAEXT_UINT64_INT64] = LONG(op, c16),                \
		  [RMAEXT_LONG_DOUBLE_INT32] = LONG(op, c_long_double), \
		  [RMAEXT_LONG_DOUBLE_COMPLEX] = LONG(op, c_long_double)

static const struct rmx_element elements[RMX_OPS][RMX_TYPES] = {
	[RMAEXT_MIN] = {SIGNS(min), FLOATS(min), BOOL(land)},
	[RMAEXT_MAX] = {SIGNS(max), FLOATS(max), BOOL(lor)},
	[RMAEXT_SUM] = {BITS(sum), FLOATS(sum), COMPLEXES(sum), BOOL(lor)},
	[RMAEXT_PROD] = {BITS(prod), FLOATS(prod), COMPLEXES(prod), BOOL(land)},
	[RMAEXT_LOR] = {BITS(lor), FLOATS(lor), COMPLEXES(lor), BOOL(lor)},
	[RMAEXT_LAND] = {BITS(land), FLOATS(land), COMPLEXES(land), BOOL(land)},
	[RMAEXT_LXOR] = {BITS(lxor), FLOATS(lxor), COMPLEXES(lxor), BOOL(lxor)},
	[RMAEXT_BOR] = {BITS(bor), BOOL(lor)},
	[RMAEXT_BAND] = {BITS(band), BOOL(land)},
	[RMAEXT_BXOR] = {BITS(bxor), BOOL(lxor)},
	[RMAEXT_MINLOC] = {PAIRS(minloc)},
	[RMAEXT_MAXLOC] = {PAIRS(maxloc)},
	[RMAEXT_REPLACE] = {ALL(replace)},
	[RMAEXT_NO_OP] = {ALL(no_op)},
};

const struct rmx_element *rmx_element_of(int op, int type)
{
	const struct rmx_element *e;

	if ((unsigned int)op >= RMX_OPS || (unsigned int)type >= RMX_TYPES)
		return NULL;
	e = &elements[op][type];
	return e->row ? e : NULL;
}

/* -- compare and swap -- */

bool rmx_swap_valid(int type)
{
	return rmx_element_of(RMAEXT_REPLACE, type);
}

/* Bits outside the mask are swapped, but not compared. */
#define SWAP_ONE(bits)                                                        \
	static void swap_##bits(void *cell, const void *compare,              \
				const void *operand, void *result, bits mask) \
	{                                                                     \
		bits old = __atomic_load_n((bits *)cell, __ATOMIC_SEQ_CST);   \
		bits wanted, new;                                             \
                                                                              \
		memcpy(&wanted, compare, sizeof(wanted));                     \
		memcpy(&new, operand, sizeof(new));                           \
		while (!((old ^ wanted) & mask) &&                            \
		       !__atomic_compare_exchange_n((bits *)cell, &old, new,  \
						    0, __ATOMIC_SEQ_CST,      \
						    __ATOMIC_SEQ_CST))        \
			;                                                     \
		if (result)                                                   \
			memcpy(result, &old, sizeof(old));                    \
	}

SWAP_ONE(uint8_t)
SWAP_ONE(uint16_t)
SWAP_ONE(uint32_t)
SWAP_ONE(uint64_t)

void rmx_swap_one(int type, void *cell, const void *compare,
		  const void *operand, void *result)
{
	uint64_t mask = UINT64_MAX;

	switch (rmx_unit_of(type)) {
	case 1:
		swap_uint8_t(cell, compare, operand, result, UINT8_MAX);
		break;
	case 2:
		swap_uint16_t(cell, compare, operand, result, UINT16_MAX);
		break;
	case 4:
		swap_uint32_t(cell, compare, operand, result, UINT32_MAX);
		break;
	case 8:
		if (type == RMAEXT_INT16_INT32) /* the gap after the value */
			memset((char *)&mask + 2, 0, 2);
		swap_uint64_t(cell, compare, operand, result, mask);
		break;
	}
}

/* Are the values of two elements equal, whatever is in the gaps? */
static bool element_equal(int type, const char *a, const char *b)
{
	size_t second = 0, bytes = 0; /* the part that follows a gap */

	if (type == RMAEXT_INT16_INT32) {
		second = offsetof(struct i2i4, index);
		bytes = sizeof(int32_t);
	} else if (type == RMAEXT_FLOAT_INT64 || type == RMAEXT_INT32_INT64) {
		second = offsetof(struct f4i8, index);
		bytes = sizeof(int64_t);
	} else if (type == RMAEXT_LONG_DOUBLE_INT32) {
		second = offsetof(struct long_double_i4, index);
		bytes = sizeof(int32_t);
	} else if (type == RMAEXT_LONG_DOUBLE_COMPLEX) {
		second = offsetof(struct c_long_double, im);
		bytes = RMX_LDBL_BYTES;
	}
	return !memcmp(a, b, rmx_type_of(type).compared) &&
	       !memcmp(a + second, b + second, bytes);
}

void rmx_swap_row(int type, void *memory, const void *compare,
		  const void *operand, size_t n)
{
	const size_t unit = rmx_unit_of(type);

	for (size_t at = 0; at < n * unit; at += unit)
		if (element_equal(type, (char *)memory + at,
				  (const char *)compare + at))
			memcpy((char *)memory + at, (const char *)operand + at,
			       unit);
}
