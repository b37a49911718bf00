/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Arena memory at an address that the caller has chosen, or of huge pages. Each
 * piece is a segment with a file of its own. When a piece is freed it is
 * unmapped here, but peers keep their mapping of the file, as they do of all
 * files. So the file is kept for the next piece that fits.
 */
#define _GNU_SOURCE
#include "shm/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* Gives the memory of the file back, which then reads as zeros. */
static int segment_empty(const struct rmx_segment *s)
{
	return fallocate((int)s->block.fd,
			 FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			 (off_t)s->block.size)
		       ? -errno
		       : 0;
}

void rmx_place_end(struct rmx_segment *s)
{
	munmap(s->base, s->mapped);
	segment_empty(s);
	s->base = NULL;
	s->room = s->mapped = 0;
}

/* Writes the owner's nonce into the tail, which is not mapped otherwise. */
static int segment_sign(const struct rmaext_arena *a,
			const struct rmx_segment *s, uint64_t unit)
{
	char *end = mmap(NULL, unit, PROT_READ | PROT_WRITE, MAP_SHARED,
			 (int)s->block.fd, (off_t)(s->block.size - unit));

	if (end == MAP_FAILED)
		return -errno;
	memcpy(((struct rmx_segment_tail *)(end + unit - RMX_TAIL))->nonce,
	       a->nonce, sizeof(a->nonce));
	munmap(end, unit);
	return 0;
}

/*
 * Returns a segment that is not in use, or NULL. Huge pages are allocated at
 * once, as for a new file.
 */
static struct rmx_segment *segment_find_idle(const struct rmaext_arena *a,
					     uint64_t size, bool huge)
{
	struct rmx_segment *best = NULL;

	for (struct rmx_segment *s = a->placed; s; s = s->next)
		if (!s->mapped && s->huge == huge && s->block.size >= size &&
		    (!huge || s->block.size == size) &&
		    (!best || s->block.size < best->block.size))
			best = s;
	if (best && huge && fallocate((int)best->block.fd, 0, 0, (off_t)size)) {
		segment_empty(best);
		return NULL;
	}
	return best;
}

static int segment_map_at(struct rmx_segment *s, uint64_t len, char *wanted,
			  int how)
{
	const bool exactly = how & RMAEXT_EXACTLY;
	char *base = mmap(wanted, len, PROT_READ | PROT_WRITE,
			  MAP_SHARED | (exactly ? MAP_FIXED_NOREPLACE : 0),
			  (int)s->block.fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	if (exactly && base != wanted) { /* Linux before 4.17 */
		munmap(base, len);
		return -EEXIST;
	}
	madvise(base, len, MADV_HUGEPAGE);
	s->base = base;
	s->mapped = len;
	s->room =
		len < s->block.size - RMX_TAIL ? len : s->block.size - RMX_TAIL;
	return 0;
}

/* The caller holds the lock. */
static int arena_place(struct rmaext_arena *a, uint64_t len, char *wanted,
		       int how, char **addr_p)
{
	const bool huge = how & RMAEXT_HUGE;
	const uint64_t unit = huge ? RMX_HUGE_PAGE : rmx_page();
	const uint64_t size = rmx_up(len + RMX_TAIL, unit);
	struct rmx_segment *s = segment_find_idle(a, size, huge);
	int ret = 0;

	if (!s) {
		ret = rmx_segment_make(a, size, huge, &s);
		if (ret)
			return ret;
		s->next = a->placed;
		a->placed = s;
	}
	ret = segment_sign(a, s, unit);
	if (!ret)
		ret = segment_map_at(s, rmx_up(len, unit), wanted, how);
	if (ret)
		segment_empty(s); /* it is kept for another piece */
	else
		*addr_p = s->base;
	return ret;
}

int rmaext_arena_place(rmaext_arena *a, uint64_t len, uint64_t wanted, int how,
		       void **addr_p)
{
	const bool huge = how & RMAEXT_HUGE;
	char *addr = NULL;
	int ret = -ENOMEM;

	if (len && len <= UINT64_MAX / 4) {
		pthread_mutex_lock(&a->lock);
		ret = arena_place(a, len, (char *)(uintptr_t)wanted, how,
				  &addr);
		pthread_mutex_unlock(&a->lock);
	}
	if (ret && wanted)
		return rmx_fail(ret, RMX_NO_RANK, "mmap",
				"no %llu bytes%s at address %#llx: %s",
				(unsigned long long)len,
				huge ? " of huge pages" : "",
				(unsigned long long)wanted, strerror(-ret));
	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "mmap", "no %llu bytes%s: %s",
				(unsigned long long)len,
				huge ? " of huge pages" : "", strerror(-ret));
	*addr_p = addr;
	return 0;
}
