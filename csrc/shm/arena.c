/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that the other processes of this node can map. A process has a few
 * anonymous files, its segments, from which blocks are cut. Peers open them
 * through /proc/PID/fd, so nothing has a name, and nothing stays behind after a
 * crash.
 *
 * The tail of each segment says whose it is; the tail of the first segment also
 * tells the peers whether its owner lives.
 */
#define _GNU_SOURCE
#include "shm/arena.h"
#include "shm/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define FIRST_SEGMENT ((uint64_t)16 << 20)
#define LAST_DOUBLING ((uint64_t)1 << 30)
#define GIVE_BACK ((uint64_t)64 << 10) /* smaller blocks are set to zero */

static int segment_map(struct rmx_segment *s, uint64_t size)
{
	/* aligned, so that the kernel can use huge pages */
	char *room = mmap(NULL, size + RMX_HUGE_PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base;

	if (room == MAP_FAILED)
		return -errno;
	base = (char *)(uintptr_t)rmx_up((uintptr_t)room, RMX_HUGE_PAGE);
	if (base > room)
		munmap(room, (size_t)(base - room));
	munmap(base + size, (size_t)(room + RMX_HUGE_PAGE - base));
	if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		 (int)s->block.fd, 0) == MAP_FAILED) {
		int ret = -errno;

		munmap(base, size);
		return ret;
	}
	madvise(base, size, MADV_HUGEPAGE); /* an error does no harm */
	s->base = base;
	return 0;
}

static struct rmx_segment_tail *segment_tail(const struct rmx_segment *s)
{
	return (struct rmx_segment_tail *)(s->base + s->block.size - RMX_TAIL);
}

/* The caller holds the lock. */
static int arena_grow(struct rmaext_arena *a, uint64_t len)
{
	uint64_t size =
		a->segments ? a->segments->block.size * 2 : FIRST_SEGMENT;
	struct rmx_segment *s;
	int ret;

	_Static_assert(sizeof(struct rmx_segment_tail) <= RMX_TAIL, "has room");
	if (len > UINT64_MAX / 4)
		return -ENOMEM;
	if (size > LAST_DOUBLING)
		size = LAST_DOUBLING;
	if (size < len + RMX_HUGE_PAGE)
		size = rmx_up(len + RMX_TAIL, RMX_HUGE_PAGE);
	ret = rmx_segment_make(a, size, false, &s);
	if (ret)
		return ret;
	ret = segment_map(s, size);
	if (ret)
		goto close;
	memcpy(segment_tail(s)->nonce, a->nonce, sizeof(a->nonce));
	s->room = size - RMX_TAIL;
	ret = rmx_extent_add(&a->extents, s->base, s->room);
	if (ret)
		goto unmap;
	s->next = a->segments;
	a->segments = s;
	return 0;
unmap:
	munmap(s->base, size);
close:
	close((int)s->block.fd);
	free(s);
	return ret;
}

/*
 * The robust mutex is held as long as this thread lives. When the thread is
 * killed the kernel marks the mutex, which peers see.
 */
static int life_take(struct rmx_segment_tail *tail)
{
	pthread_mutexattr_t attr;
	int ret;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	ret = pthread_mutex_init(&tail->life, &attr);
	pthread_mutexattr_destroy(&attr);
	return ret ? ret : pthread_mutex_lock(&tail->life);
}

int rmaext_arena_open(const uint8_t *nonce, rmaext_arena **arena_p)
{
	struct rmaext_arena *a = calloc(1, sizeof(*a));
	int ret;

	if (!a)
		return rmx_no_memory("the arena");
	a->pid = getpid();
	memcpy(a->nonce, nonce, sizeof(a->nonce));
	pthread_mutex_init(&a->lock, NULL);
	ret = arena_grow(a, 0);
	if (ret) {
		free(a);
		return rmx_fail(ret, RMX_NO_RANK, "memfd_create",
				"cannot make the memory that the ranks of a "
				"node share: %s",
				strerror(-ret));
	}
	a->tail = segment_tail(a->segments);
	a->lives = !life_take(a->tail);
	if (!a->lives) /* peers then learn of our end from the pidfd only */
		memset(&a->tail->life, 0, sizeof(a->tail->life));
	*arena_p = a;
	return 0;
}

struct rmx_doorbell *rmx_arena_doorbell(struct rmaext_arena *a)
{
	return a ? &a->tail->doorbell : NULL;
}

void rmaext_arena_leave(rmaext_arena *a)
{
	if (getpid() == a->pid)
		atomic_store(&a->tail->left, 1);
}

/* Takes the mutex over where the thread that held it has ended. */
static void life_renew(struct rmx_segment_tail *tail)
{
	if (pthread_mutex_trylock(&tail->life) == EOWNERDEAD)
		pthread_mutex_consistent(&tail->life);
}

void rmaext_arena_describe(rmaext_arena *a, struct rmaext_process *process_p)
{
	struct rmx_segment *s;

	pthread_mutex_lock(&a->lock);
	if (a->lives)
		life_renew(a->tail);
	s = a->segments;
	pthread_mutex_unlock(&a->lock);
	while (s->next)
		s = s->next;
	process_p->pid = getpid();
	process_p->address = (uintptr_t)a->tail->nonce;
	memcpy(process_p->nonce, a->nonce, sizeof(a->nonce));
	process_p->first = s->block;
}

/* Records that there are no `len` bytes, how many there are, and what to do. */
static int no_memory(uint64_t len, int ret)
{
	const double gib = 1 << 30;
	const uint64_t room = rmx_room("");
	char there[64] = "", limited[64] = "";
	struct rlimit limit;

	if (room != UINT64_MAX)
		snprintf(there, sizeof(there),
			 ". This machine, or the job, has %.1f GiB left",
			 (double)room / gib);
	if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
		snprintf(limited, sizeof(limited), " (ulimit -v: %.1f GiB)",
			 (double)limit.rlim_cur / gib);
	return rmx_fail(-ENOMEM, RMX_NO_RANK, "allocate",
			"no %llu bytes (%.1f GiB) of shared memory: %s%s%s: "
			"ask for less, or spread the ranks over more nodes",
			(unsigned long long)len, (double)len / gib,
			strerror(-ret), there, limited);
}

int rmaext_arena_allocate(rmaext_arena *a, uint64_t len, void **addr_p)
{
	const uint64_t page = rmx_page();
	uint64_t align = len >= RMX_HUGE_PAGE ? RMX_HUGE_PAGE
			 : len >= page	      ? page
					      : RMX_LINE;
	char *addr = NULL;
	int ret = 0;

	if (!len || len > UINT64_MAX / 4)
		return no_memory(len, -ENOMEM);
	len = rmx_up(len, RMX_LINE);
	pthread_mutex_lock(&a->lock);
	addr = rmx_extent_take(&a->extents, len, align);
	if (!addr) {
		ret = arena_grow(a, len);
		if (!ret)
			addr = rmx_extent_take(&a->extents, len, align);
	}
	pthread_mutex_unlock(&a->lock);
	if (!addr)
		return no_memory(len, ret ? ret : -ENOMEM);
	*addr_p = addr;
	return 0;
}

static struct rmx_segment *segment_among(struct rmx_segment *s,
					 const void *addr, uint64_t len)
{
	for (; s; s = s->next) {
		uint64_t at = (uintptr_t)addr - (uintptr_t)s->base;

		if ((uintptr_t)addr >= (uintptr_t)s->base && at < s->room &&
		    len <= s->room - at)
			return s;
	}
	return NULL;
}

/* The caller holds the lock. */
static struct rmx_segment *arena_segment_of(struct rmaext_arena *a,
					    const void *addr, uint64_t len)
{
	struct rmx_segment *s = segment_among(a->placed, addr, len);

	return s ? s : segment_among(a->segments, addr, len);
}

/*
 * Makes the block zeros. Punching a hole gives whole pages back to the system,
 * and the kernel sets the bytes at the edges to zero.
 */
static void block_clear(struct rmaext_arena *a, char *addr, uint64_t len)
{
	const struct rmx_segment *s = segment_among(a->segments, addr, len);

	if (len < GIVE_BACK ||
	    fallocate((int)s->block.fd,
		      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)(addr - s->base), (off_t)len))
		memset(addr, 0, len);
}

void rmaext_arena_free(rmaext_arena *a, void *addr)
{
	struct rmx_segment *s;
	struct rmx_extent *e;

	if (getpid() != a->pid || atomic_load(&a->tail->left))
		return; /* a fork's child; or peers may still read it */
	pthread_mutex_lock(&a->lock);
	s = segment_among(a->placed, addr, 1);
	e = rmx_extent_find(&a->extents, addr);
	if (s && s->base == (char *)addr) {
		rmx_place_end(s);
	} else if (e) {
		block_clear(a, addr, e->len);
		rmx_extent_free(&a->extents, e);
	}
	pthread_mutex_unlock(&a->lock);
}

int rmaext_arena_find(rmaext_arena *a, const void *addr, uint64_t len,
		      struct rmaext_block *block_p)
{
	struct rmx_segment *s;

	pthread_mutex_lock(&a->lock);
	s = arena_segment_of(a, addr, len);
	if (s) {
		*block_p = s->block;
		block_p->offset = (uintptr_t)addr - (uintptr_t)s->base;
	}
	pthread_mutex_unlock(&a->lock);
	return s != NULL;
}
