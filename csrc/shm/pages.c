/* SPDX-License-Identifier: BSD-3-Clause */
/* The pages of a piece of memory: counting those that the kernel has
 * allocated, and having it allocate all. */
#define _GNU_SOURCE
#include "shm/pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define PAGES_ASKED 4096 /* pages that one mincore() asks about */

/* So many processes may populate at once and stay within the room. */
#define POPULATERS 256
#define POPULATE_LEAST ((uint64_t)2 << 20) /* bytes, between two looks */
#define POPULATE_MOST ((uint64_t)256 << 20)
#define SPARE 256 /* of the bytes; a table of pages takes a 512th */

/* Returns the start of the first page, and adds the bytes before addr to *len.
 */
static char *span_of_pages(const void *addr, uint64_t *len)
{
	const uint64_t skip = (uintptr_t)addr % rmx_page();

	*len += skip;
	return (char *)(uintptr_t)addr - skip;
}

int rmaext_pages_resident(const void *addr, uint64_t len, uint64_t *bytes_p)
{
	const uint64_t page = rmx_page();
	char *at = span_of_pages(addr, &len);
	const char *end = at + len;
	unsigned char there[PAGES_ASKED];
	uint64_t n = 0;

	for (; at < end; at += PAGES_ASKED * page) {
		const uint64_t left = (uint64_t)(end - at);
		const uint64_t some =
			left < PAGES_ASKED * page ? left : PAGES_ASKED * page;

		if (mincore(at, some, there))
			return rmx_fail(-errno, RMX_NO_RANK, "mincore",
					"%llu bytes: %s",
					(unsigned long long)some,
					strerror(errno));
		for (uint64_t i = 0; i < (some + page - 1) / page; i++)
			n += there[i] & 1;
	}
	*bytes_p = n * page;
	return 0;
}

/*
 * Linux before 5.14 has no MADV_POPULATE. A write is an atomic update that
 * changes nothing, as peers may update the memory meanwhile.
 */
static void pages_touch(char *addr, uint64_t len, bool write)
{
	const uint64_t page = rmx_page();

	for (char *p = addr; p < addr + len; p += page - (uintptr_t)p % page) {
		if (write)
			__atomic_fetch_or(p, 0, __ATOMIC_RELAXED);
		else
			(void)*(volatile char *)p;
	}
}

/* Have what is missing of these bytes, and tables of pages for them, room? */
static bool pages_fit(const void *addr, uint64_t len, uint64_t room)
{
	const uint64_t spare = len / SPARE + POPULATE_LEAST;
	const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * rmx_page();
	uint64_t there = 0;

	if (len + spare <= room)
		return true;
	if (len > all && len - all > room) /* however many are there */
		return false;
	return !rmaext_pages_resident(addr, len, &there) &&
	       (there >= len || len - there + spare <= room);
}

int rmx_pages_populate(void *addr, uint64_t len, bool write)
{
	const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	char *at = span_of_pages(addr, &len);
	uint64_t step;

	for (const char *end = at + len; at < end; at += step) {
		const uint64_t left = (uint64_t)(end - at);
		const uint64_t room = rmx_room("");

		if (!pages_fit(at, left, room))
			return -ENOSPC;
		step = room / POPULATERS / POPULATE_LEAST * POPULATE_LEAST;
		if (step < POPULATE_LEAST)
			step = POPULATE_LEAST;
		if (step > POPULATE_MOST)
			step = POPULATE_MOST;
		if (step > left)
			step = left;
		if (!madvise(at, step, advice))
			continue;
		if (errno != EINVAL)
			return -errno;
		pages_touch(at, step, write);
	}
	return 0;
}

int rmaext_pages_populate(void *addr, uint64_t len, int write)
{
	const int ret = rmx_pages_populate(addr, len, write);

	if (ret == -ENOSPC)
		return rmx_fail(-ENOMEM, RMX_NO_RANK, "allocate",
				"no room for the pages of %llu bytes: this "
				"machine, or the job's memory cgroup, has "
				"%llu left: ask for less, give the job more "
				"memory, or let pages come on first touch "
				"(lazy=True)",
				(unsigned long long)len,
				(unsigned long long)rmx_room(""));
	return ret ? rmx_fail(-ENOMEM, RMX_NO_RANK, "madvise",
			      "cannot have %llu bytes in memory: %s",
			      (unsigned long long)len, strerror(-ret))
		   : 0;
}

int rmaext_pages_advise(void *addr, uint64_t len, int willneed)
{
	char *at = span_of_pages(addr, &len);

	return madvise(at, len, willneed ? MADV_WILLNEED : MADV_NORMAL) ? -errno
									: 0;
}
