/* SPDX-License-Identifier: BSD-3-Clause */
/* fetch_add and compare_and_swap: all types, by the network and by the CPU. */
#include "rig.h"
#include "dtype/atomic_ops.h"

static const size_t units[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8};

enum { MANY = 5000 }; /* more elements than any provider takes at once */

/* Element i of a type, small enough for all. */
static void set(void *array, int type, size_t i, int value)
{
	switch (type) {
	case RMAEXT_FLOAT:
		((float *)array)[i] = (float)value / 4;
		break;
	case RMAEXT_DOUBLE:
		((double *)array)[i] = (double)value / 4;
		break;
	case RMAEXT_FLOAT_COMPLEX:
		((float *)array)[2 * i] = (float)value / 4;
		((float *)array)[2 * i + 1] = (float)value * 2;
		break;
	default:
		memcpy((char *)array + i * units[type], &value,
		       units[type] < 4 ? units[type] : 4);
		if (units[type] == 8)
			((int64_t *)array)[i] = value;
	}
}

static void fetch_add_type(struct rig *r, int type, size_t count, size_t at)
{
	const size_t bytes = count * units[type], place = at * units[type];
	char *operand = malloc(bytes), *result = malloc(bytes + 1);
	char *sum = malloc(bytes), *old = malloc(bytes);
	char *cells = r->window_memory + place;

	CHECK(operand && result && sum && old);
	for (size_t i = 0; i < count; i++) {
		int a = (int)(i * 37 % 200) - 100, b = (int)(i * 11 % 40) - 20;

		set(old, type, i, a);
		set(operand, type, i, b);
		set(sum, type, i, a + b);
	}
	memset(r->window_memory, 0x44, r->size);
	memcpy(cells, old, bytes);
	result[bytes] = 0x55;
	OK(fetch_add(r->window, place, type, operand, result, count));
	CHECK(!memcmp(result, old, bytes));
	EQUAL(result[bytes], 0x55);
	CHECK(!memcmp(cells, sum, bytes));
	if (place)
		EQUAL(cells[-1], 0x44);
	if (place + bytes < r->size)
		EQUAL(cells[bytes], 0x44);
	rig_guards(r);
	free(operand);
	free(result);
	free(sum);
	free(old);
}

/* Every other element compares equal. */
static void swap_type(struct rig *r, int type, size_t count)
{
	const size_t unit = units[type], bytes = count * unit;
	char *compare = malloc(bytes), *value = malloc(bytes);
	char *result = malloc(bytes), *old = malloc(bytes);

	CHECK(compare && value && result && old);
	for (size_t i = 0; i < count; i++) {
		set(old, type, i, (int)(i % 100));
		set(compare, type, i, (int)(i % 100) + (int)(i % 2));
		set(value, type, i, -(int)(i % 50) - 1);
	}
	memcpy(r->window_memory, old, bytes);
	OK(swap(r->window, 0, type, compare, value, result, count));
	CHECK(!memcmp(result, old, bytes));
	for (size_t i = 0; i < count; i++)
		CHECK(!memcmp(r->window_memory + i * unit,
			      (i % 2 ? old : value) + i * unit, unit));
	rig_guards(r);
	free(compare);
	free(value);
	free(result);
	free(old);
}

static void types_of(bool direct)
{
	struct rig_options o = {.size = MANY * 8, .direct = direct};
	char operand[64] = {0}, result[64];
	struct rig r;

	rig_open(&r, o);
	for (int type = RMAEXT_INT8; type <= RMAEXT_FLOAT_COMPLEX; type++) {
		fetch_add_type(&r, type, 1, 0);
		fetch_add_type(&r, type, 1, r.size / units[type] - 1);
		fetch_add_type(&r, type, 3, 5);
		fetch_add_type(&r, type, MANY, 0);
		swap_type(&r, type, 1);
		swap_type(&r, type, MANY);
	}
	memset(r.window_memory, 0x66, r.size);
	memset(result, 0x77, sizeof(result));
	for (int type = -3; type < 40; type++) {
		if (type >= 0 && type < RMX_TYPES)
			continue;
		CHECK(!rmaext_update_valid(RMAEXT_SUM, type));
		CHECK(!rmaext_update_valid(RMAEXT_CSWAP, type));
		CHECK(fetch_add(r.window, 0, type, operand, result, 1) < 0);
		CHECK(swap(r.window, 0, type, operand, operand, result, 1) < 0);
	}
	for (size_t i = 0; i < r.size; i++)
		EQUAL(r.window_memory[i], 0x66);
	for (size_t i = 0; i < sizeof(result); i++)
		EQUAL(result[i], 0x77);
	fetch_add_type(&r, RMAEXT_INT64, 1, 0);
	rig_close(&r);
}

static void by_network(void)
{
	types_of(false);
}

static void by_cpu(void)
{
	types_of(true);
}

/* What is hard: wrap-around, signed zeros, NaN. Both routes must agree. */
static void corners(struct rig *r, rmaext_window *w)
{
	const double zero = 0.0, minus = -0.0, one = 1.0;
	const uint64_t nan1 = 0x7ff8000000000001, nan2 = 0x7ff8000000000002;
	uint64_t *cell = (uint64_t *)(void *)r->window_memory, seen = 1;
	int8_t big = 127, step = 2, was = 0;

	*r->window_memory = big;
	OK(fetch_add(w, 0, RMAEXT_INT8, &step, &was, 1));
	EQUAL(was, 127);
	EQUAL((int8_t)*r->window_memory, -127);

	/* bits are compared, not values */
	memcpy(cell, &zero, 8);
	OK(swap(w, 0, RMAEXT_DOUBLE, &minus, &one, &seen, 1));
	EQUAL(seen, 0);
	EQUAL(*cell, 0);
	*cell = nan1;
	OK(swap(w, 0, RMAEXT_DOUBLE, &nan2, &one, &seen, 1));
	EQUAL(seen, nan1);
	EQUAL(*cell, nan1);
	OK(swap(w, 0, RMAEXT_DOUBLE, &nan1, &one, &seen, 1));
	EQUAL(seen, nan1);
	CHECK(!memcmp(cell, &one, 8));
	/* a complex number: both parts */
	*cell = 0x8000000000000000;
	seen = 1;
	OK(swap(w, 0, RMAEXT_FLOAT_COMPLEX, &zero, &one, &seen, 1));
	EQUAL(seen, 0x8000000000000000);
	EQUAL(*cell, 0x8000000000000000);
	*cell = nan1;
	OK(swap(w, 0, RMAEXT_FLOAT_COMPLEX, &nan1, &one, &seen, 1));
	EQUAL(seen, nan1);
	CHECK(!memcmp(cell, &one, 8));
}

static void routes_agree(void)
{
	struct rig_options o = {.size = 64};
	rmaext_window *direct;
	struct rig r;

	rig_open(&r, o);
	o.direct = true;
	rig_window(&r, &o, &direct);
	corners(&r, direct);
	corners(&r, r.window);
	OK(rmaext_window_close(direct));
	rmaext_window_free(direct);
	rig_close(&r);
}

static void misaligned(bool direct)
{
	struct rig_options o = {.size = 64, .shift = 4, .direct = direct};
	uint64_t one = 1, old = 9;
	struct rig r;

	rig_open(&r, o);
	EQUAL(fetch_add(r.window, 0, RMAEXT_UINT64, &one, &old, 1), -FI_EFAULT);
	EQUAL(fetch_add(r.window, 8, RMAEXT_DOUBLE, &one, &old, 1), -FI_EFAULT);
	EQUAL(fetch_add(r.window, 2, RMAEXT_UINT32, &one, &old, 1), -FI_EFAULT);
	EQUAL(swap(r.window, 1, RMAEXT_INT16, &one, &one, &old, 1), -FI_EFAULT);
	EQUAL(old, 9);
	for (size_t i = 0; i < r.size; i++)
		EQUAL(r.window_memory[i], 0);
	OK(fetch_add(r.window, 4, RMAEXT_UINT64, &one, &old, 1));
	EQUAL(old, 0);
	OK(fetch_add(r.window, 1, RMAEXT_UINT8, &one, &old, 1));
	EQUAL(r.window_memory[1], 1);
	EQUAL(r.window_memory[4], 1);
	rig_close(&r);
}

static void alignment(void)
{
	misaligned(false);
	misaligned(true);
}

/* Operands and results need not be aligned where they lie. */
static void loose_buffers(void)
{
	struct rig_options o = {.size = 64};
	_Alignas(16) char operand[33], result[33], compare[33];
	rmaext_window *direct;
	struct rig r;

	rig_open(&r, o);
	o.direct = true;
	rig_window(&r, &o, &direct);
	memset(operand, 0, sizeof(operand));
	memset(compare, 0, sizeof(compare));
	for (int type = RMAEXT_INT8; type <= RMAEXT_FLOAT_COMPLEX; type++) {
		OK(fetch_add(direct, 0, type, operand + 1, result + 1, 2));
		OK(fetch_add(r.window, 0, type, operand + 1, result + 1, 2));
		OK(swap(direct, 0, type, compare + 1, operand + 1, result + 1,
			2));
		OK(swap(r.window, 0, type, compare + 1, operand + 1, result + 1,
			2));
	}
	OK(rmaext_window_close(direct));
	rmaext_window_free(direct);
	rig_close(&r);
}

static void native(void)
{
	if (rmaext_library_version(library) < 2u << 16)
		provider = "net";
	by_network();
}

const struct test tests[] = {
	{"by_network", by_network, NULL, NULL},
	{"by_cpu", by_cpu, NULL, NULL},
	{"sockets", by_network, NULL, "sockets"},
	{"shm", by_network, NULL, "shm"},
	{"routes_agree", routes_agree, NULL, NULL},
	{"alignment", alignment, NULL, NULL},
	{"loose_buffers", loose_buffers, NULL, NULL},
	{"udp", by_network, NULL, "udp;ofi_rxd"},
	/* 1.17 never frees the fi_info of a connection */
	{"native", native, "ASAN_OPTIONS=detect_leaks=0", "tcp"},
	{0},
};
