/* SPDX-License-Identifier: BSD-3-Clause */
/* What kind of memory it is, and whether its pages are there. */
#define _GNU_SOURCE
#include "demand.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* -- device memory, pretended: by a test, through dlsym ------------------- */

static struct {
	const char *start;
	size_t len;
	int iface;
} devices[16];

__attribute__((visibility("default"))) int demand_device(const void *start,
							 size_t len, int iface);

int demand_device(const void *start, size_t len, int iface)
{
	for (size_t i = 0; i < sizeof(devices) / sizeof(*devices); i++)
		if (!devices[i].len) {
			devices[i].start = start;
			devices[i].len = len;
			devices[i].iface = iface;
			return 0;
		}
	return -FI_ENOMEM;
}

int dm_iface_of(const char *start, size_t len)
{
	for (size_t i = 0; i < sizeof(devices) / sizeof(*devices); i++)
		if (start < devices[i].start + devices[i].len &&
		    devices[i].start < start + len)
			return devices[i].iface;
	return FI_HMEM_SYSTEM;
}

/* -- pages ---------------------------------------------------------------- */

size_t dm_page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

char *dm_page_of(const void *address)
{
	return (char *)address - (uintptr_t)address % dm_page_size();
}

size_t dm_pages(const void *start, size_t len)
{
	const char *end = (const char *)start + len - 1;

	return (size_t)(dm_page_of(end) - dm_page_of(start)) / dm_page_size() +
	       1;
}

int dm_resident(const void *start, size_t len, unsigned char *resident)
{
	size_t n = dm_pages(start, len);

	if (mincore(dm_page_of(start), n * dm_page_size(), resident))
		return -errno;
	for (size_t i = 0; i < n; i++)
		resident[i] &= 1;
	return 0;
}

int dm_check_allocated(const struct iovec *iov)
{
	size_t n = dm_pages(iov->iov_base, iov->iov_len);
	unsigned char *resident = malloc(n);
	size_t missing = 0;
	int ret;

	if (!resident)
		return -FI_ENOMEM;
	ret = dm_resident(iov->iov_base, iov->iov_len, resident);
	for (size_t i = 0; !ret && i < n; i++)
		missing += !resident[i];
	free(resident);
	if (ret || missing)
		return dm_violated(DM_allocated, -FI_EFAULT,
				   "%zu of %zu pages missing", missing, n);
	return 0;
}

/* Whether the whole range may be written, as /proc/self/maps says. */
static bool writable(const char *start, const char *end)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	const char *seen = start;
	char line[512];

	while (maps && seen < end && fgets(line, sizeof(line), maps)) {
		void *from, *to;
		char rights[5];

		if (sscanf(line, "%p-%p %4s", &from, &to, rights) == 3 &&
		    (char *)from <= seen && seen < (char *)to &&
		    rights[1] == 'w')
			seen = to;
	}
	if (maps)
		fclose(maps);
	return seen >= end;
}

/* A NIC pins the pages with the rights that it is asked for. */
int dm_check_os_access(const struct iovec *iov, uint64_t access)
{
	const char *start = iov->iov_base;

	if (access & (FI_RECV | FI_READ | FI_REMOTE_WRITE) &&
	    !writable(start, start + iov->iov_len))
		return dm_violated(DM_os_access, -FI_EACCES,
				   "read-only pages registered for writing");
	return 0;
}

/* The pages that the device knows of, from now on. */
void dm_watch(struct dm_region *r, const char *start, size_t len)
{
	unsigned char *all =
		dm_registry_bytes(r->entry, dm_pages(r->base, r->len));

	if (all)
		dm_resident(start, len,
			    all + (size_t)(dm_page_of(start) -
					   dm_page_of(r->base)) /
					    dm_page_size());
}
