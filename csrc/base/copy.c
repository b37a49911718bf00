/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Copies for which glibc (2.36) takes `rep movsb` on AMD's CPUs, from 2 or 4
 * KiB up to the size of the L2 cache.
 *
 * - Since Zen 3 that takes 13 to 29 times as long where the copy begins 1 to 31
 *   bytes behind the original, counted within pages, and 1.4 to 7 times as long
 *   33 to 63 bytes behind (glibc's bug 30994). A loop over registers is nowhere
 *   slow, and elsewhere takes 0.7 to 1.0 of the time of `rep movsb`.
 * - Zen 5 copies 1 to 4 MiB by `rep movsb` in 0.83 to 0.88 of the time that
 *   glibc's loop takes.
 */
#include "base/common.h"

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <cpuid.h>

#define ZEN_5 0x1a	       /* family of AMD's CPUs */
#define FAST_STRINGS (1u << 9) /* leaf 7, EBX: ERMS */
#define STRINGS_FROM ((uint64_t)512 << 10)
#define STREAMED ((uint64_t)4 << 20) /* glibc may write past the caches */

enum { PAGE = 4096, SLOW_PLACES = 63 };
enum { UNKNOWN, AS_GLIBC, SLOW_AT_PLACES, FAST_IF_LONG }; /* `rep movsb` */

static int cpu_strings(void)
{
	unsigned int a, b, c, d, family;

	if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx ||
	    c != signature_AMD_ecx || d != signature_AMD_edx ||
	    !__builtin_cpu_supports("avx2"))
		return AS_GLIBC;
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return AS_GLIBC;
	family = (a >> 8 & 15) + (a >> 20 & 255);
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & FAST_STRINGS))
		return AS_GLIBC;
#ifdef __SANITIZE_ADDRESS__ /* which does not see what `rep movsb` does */
	return SLOW_AT_PLACES;
#endif
	return family < ZEN_5 ? SLOW_AT_PLACES : FAST_IF_LONG;
}

/* A register's worth, at any address. */
typedef char lane __attribute__((vector_size(32), aligned(1), may_alias));

/* Of at least four lanes that do not overlap. The stores are aligned. */
__attribute__((target("avx2"))) static void
copy_by_registers(char *to, const char *from, uint64_t len)
{
	const lane first = *(const lane *)from;
	const lane last = *(const lane *)(from + len - sizeof(lane));
	const uint64_t ahead = sizeof(lane) - (uintptr_t)to % sizeof(lane);
	lane *at = (lane *)(to + ahead);
	const lane *source = (const lane *)(from + ahead);

	*(lane *)to = first;
	for (uint64_t n = (len - ahead) / sizeof(lane) / 4; n; n--) {
		const lane a = source[0], b = source[1], c = source[2],
			   d = source[3];

		at[0] = a;
		at[1] = b;
		at[2] = c;
		at[3] = d;
		at += 4;
		source += 4;
	}
	while ((char *)(at + 1) <= to + len)
		*at++ = *source++;
	*(lane *)(to + len - sizeof(lane)) = last;
}

void rmx_copy_long(void *to, const void *from, uint64_t len)
{
	static atomic_int strings;
	const uint64_t ahead = (uintptr_t)to - (uintptr_t)from;
	int known = atomic_load_explicit(&strings, memory_order_relaxed);
	bool slow;

	if (known == UNKNOWN) {
		known = cpu_strings();
		atomic_store_explicit(&strings, known, memory_order_relaxed);
	}
	slow = (ahead - 1) % PAGE < SLOW_PLACES;
	if (known == AS_GLIBC || ahead < len || -ahead < len)
		memmove(to, from, len);
	else if (len < (slow ? STREAMED : STRINGS_FROM))
		copy_by_registers(to, from, len);
	else if (known == FAST_IF_LONG && !slow)
		__asm__ volatile("rep movsb"
				 : "+D"(to), "+S"(from), "+c"(len)
				 :
				 : "memory");
	else
		memmove(to, from, len);
}
#else
void rmx_copy_long(void *to, const void *from, uint64_t len)
{
	memmove(to, from, len);
}
#endif
