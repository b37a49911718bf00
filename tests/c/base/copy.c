/* SPDX-License-Identifier: BSD-3-Clause */
/* What is copied by memory is what memmove() copies, wherever the ends lie. */
#include "check.h"
#include "base/common.h"

enum { PAGE = 4096, MOST = 600001, ROOM = MOST + 4 * PAGE };

static unsigned char *room(void)
{
	void *at = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static void copied(unsigned char *to, const unsigned char *from, uint64_t len)
{
	memset(to - GUARD, 0xA5, len + 2 * GUARD);
	rmx_copy(to, from, len);
	OK(memcmp(to, from, len));
	for (int i = 0; i < GUARD; i++) {
		EQUAL(to[-1 - i], 0xA5);
		EQUAL(to[len + (uint64_t)i], 0xA5);
	}
}

static void at_each_distance(void)
{
	static const uint64_t lengths[] = {2047,  2048,	  2049,	  2079,
					   2080,  2176,	  4097,	  65535,
					   65536, 524287, 524288, MOST};
	static const int starts[] = {0, 1, 8, 24, 31, 40, 4090};
	unsigned char *a = room(), *b = room();

	for (int i = 0; i < ROOM; i++)
		a[i] = (unsigned char)(i * 37 + (i >> 8));
	for (size_t n = 0; n < COUNT(lengths); n++)
		for (size_t s = 0; s < COUNT(starts); s++)
			for (int d = -3; d < 36; d++)
				copied(b + PAGE + starts[s] + d,
				       a + PAGE + starts[s], lengths[n]);
	munmap(a, ROOM);
	munmap(b, ROOM);
}

/* As memmove() is to do, and memcpy() need not. */
static void over_itself(void)
{
	static const int distances[] = {-5000, -4097, -31, -1,	 0,
					1,     8,     31,  4097, 5000};
	static unsigned char before[3 * PAGE];
	unsigned char *a = room();

	for (size_t d = 0; d < COUNT(distances); d++) {
		for (int i = 0; i < ROOM; i++)
			a[i] = (unsigned char)(i * 37 + (i >> 8));
		memcpy(before, a + 2 * PAGE, sizeof(before));
		rmx_copy(a + 2 * PAGE + distances[d], a + 2 * PAGE,
			 sizeof(before));
		OK(memcmp(a + 2 * PAGE + distances[d], before, sizeof(before)));
	}
	munmap(a, ROOM);
}

const struct test tests[] = {
	{"at each distance", at_each_distance, NULL, NULL},
	{"over itself", over_itself, NULL, NULL},
	{0},
};
