/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that the other processes of this node can map: a few anonymous files
 * a process, from which blocks are carved. Peers reach them through
 * /proc/PID/fd, so nothing has a name, and nothing stays behind after a crash.
 *
 * The last page of each segment says whose it is; that of the first also tells
 * the peers whether its owner lives.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((uint64_t)4096)
#define HUGE_PAGE ((uint64_t)2 << 20)
#define FIRST_SEGMENT ((uint64_t)16 << 20)
#define LAST_DOUBLING ((uint64_t)1 << 30)
#define LINE ((uint64_t)64)
#define GIVE_BACK ((uint64_t)64 << 10) /* smaller blocks are zeroed by hand */

/* A part of a segment, free or in use; those of a segment lie side by side. */
struct rmx_extent {
	uint64_t offset, len;
	bool used;
	struct rmx_extent *next;
};

struct rmx_segment {
	struct rmaext_block block; /* fd, inode, size; offset 0 */
	char *base;
	struct rmx_extent *extents;
	struct rmx_segment *next;
};

struct rmaext_arena {
	pid_t pid; /* not that of a forked child */
	uint8_t nonce[RMX_TOKEN];
	pthread_mutex_t lock;
	struct rmx_segment *segments; /* the newest first */
	struct rmx_control *control;
	bool lives; /* its life is held by a thread */
};

static uint64_t up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/*
 * Sealed, so that no peer can be killed by SIGBUS because it shrank. Pages
 * come on first touch.
 */
static int make_file(uint64_t size, int *fd_p)
{
	int fd = memfd_create("rmaext", MFD_CLOEXEC | MFD_ALLOW_SEALING), ret;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	*fd_p = fd;
	return 0;
}

static int map_file(struct rmx_segment *s, uint64_t size)
{
	/* at an address that huge pages can begin at */
	char *room = mmap(NULL, size + HUGE_PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base;

	if (room == MAP_FAILED)
		return -errno;
	base = (char *)(uintptr_t)up((uintptr_t)room, HUGE_PAGE);
	if (base > room)
		munmap(room, (size_t)(base - room));
	munmap(base + size, (size_t)(room + HUGE_PAGE - base));
	if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		 (int)s->block.fd, 0) == MAP_FAILED) {
		int ret = -errno;

		munmap(base, size);
		return ret;
	}
	madvise(base, size, MADV_HUGEPAGE); /* where the kernel has them */
	s->base = base;
	return 0;
}

static struct rmx_control *control_of(const struct rmx_segment *s)
{
	return (struct rmx_control *)(s->base + s->block.size - PAGE);
}

/* The caller holds the lock. */
static int grow(struct rmaext_arena *a, uint64_t len)
{
	struct rmx_segment *last = a->segments;
	uint64_t size = last ? last->block.size * 2 : FIRST_SEGMENT;
	struct rmx_segment *s = calloc(1, sizeof(*s));
	struct rmx_extent *all = calloc(1, sizeof(*all));
	struct stat status;
	int ret = -ENOMEM, fd = -1;

	_Static_assert(sizeof(struct rmx_control) <= 4096, "one page");
	if (!s || !all)
		goto free;
	if (size > LAST_DOUBLING)
		size = LAST_DOUBLING;
	if (len > UINT64_MAX / 4)
		goto free;
	if (size < len + HUGE_PAGE)
		size = up(len + PAGE, HUGE_PAGE);
	ret = make_file(size, &fd);
	if (ret)
		goto free;
	s->block.fd = fd;
	s->block.size = size;
	if (fstat(fd, &status)) {
		ret = -errno;
		goto close;
	}
	s->block.inode = status.st_ino;
	ret = map_file(s, size);
	if (ret)
		goto close;
	memcpy(control_of(s)->nonce, a->nonce, sizeof(a->nonce));
	all->len = size - PAGE;
	s->extents = all;
	s->next = last;
	a->segments = s;
	return 0;
close:
	close(fd);
free:
	free(all);
	free(s);
	return ret;
}

/* Held as long as its thread lives: the kernel marks it when that is killed. */
static int take_life(struct rmx_control *control)
{
	pthread_mutexattr_t attr;
	int ret;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	ret = pthread_mutex_init(&control->life, &attr);
	pthread_mutexattr_destroy(&attr);
	return ret ? ret : pthread_mutex_lock(&control->life);
}

int rmaext_arena_open(const uint8_t *nonce, rmaext_arena **arena_p)
{
	struct rmaext_arena *a = calloc(1, sizeof(*a));
	int ret;

	if (!a)
		return rmx_fail(-ENOMEM, RMX_NO_RANK, "calloc", "arena");
	a->pid = getpid();
	memcpy(a->nonce, nonce, sizeof(a->nonce));
	pthread_mutex_init(&a->lock, NULL);
	ret = grow(a, 0);
	if (ret) {
		free(a);
		return rmx_fail(ret, RMX_NO_RANK, "memfd_create", "arena: %s",
				strerror(-ret));
	}
	a->control = control_of(a->segments);
	a->lives = !take_life(a->control);
	if (!a->lives) /* peers then learn of our end by pidfd only */
		memset(&a->control->life, 0, sizeof(a->control->life));
	*arena_p = a;
	return 0;
}

struct rmx_bell *rmx_arena_bell(struct rmaext_arena *a)
{
	return a ? &a->control->bell : NULL;
}

void rmaext_arena_leave(rmaext_arena *a)
{
	if (getpid() == a->pid)
		atomic_store(&a->control->left, 1);
}

/* The thread that held it may have ended: the next one that comes takes over.
 */
static void renew_life(struct rmx_control *control)
{
	if (pthread_mutex_trylock(&control->life) == EOWNERDEAD)
		pthread_mutex_consistent(&control->life);
}

void rmaext_arena_describe(rmaext_arena *a, struct rmaext_process *process_p)
{
	struct rmx_segment *s;

	pthread_mutex_lock(&a->lock);
	if (a->lives)
		renew_life(a->control);
	s = a->segments;
	pthread_mutex_unlock(&a->lock);
	while (s->next)
		s = s->next;
	process_p->pid = getpid();
	process_p->address = (uintptr_t)a->control->nonce;
	memcpy(process_p->nonce, a->nonce, sizeof(a->nonce));
	process_p->first = s->block;
}

/* Cut `len` bytes out of a free extent, at a multiple of `align`. */
static char *carve(struct rmx_segment *s, uint64_t len, uint64_t align)
{
	for (struct rmx_extent *e = s->extents; e; e = e->next) {
		uint64_t start = up(e->offset, align), skip = start - e->offset;
		struct rmx_extent *own = e, *rest;

		if (e->used || e->len < skip || e->len - skip < len)
			continue;
		if (skip) { /* what is before it stays free */
			own = calloc(1, sizeof(*own));
			if (!own)
				return NULL;
			*own = (struct rmx_extent){start, e->len - skip, false,
						   e->next};
			e->len = skip;
			e->next = own;
		}
		if (own->len > len) {
			rest = calloc(1, sizeof(*rest));
			if (!rest)
				return NULL;
			*rest = (struct rmx_extent){start + len, own->len - len,
						    false, own->next};
			own->len = len;
			own->next = rest;
		}
		own->used = true;
		return s->base + start;
	}
	return NULL;
}

int rmaext_arena_allocate(rmaext_arena *a, uint64_t len, void **addr_p)
{
	uint64_t align = len >= HUGE_PAGE ? HUGE_PAGE
			 : len >= PAGE	  ? PAGE
					  : LINE;
	char *addr = NULL;
	int ret = 0;

	if (!len || len > UINT64_MAX / 4)
		return rmx_fail(-ENOMEM, RMX_NO_RANK, "arena", "%llu bytes",
				(unsigned long long)len);
	len = up(len, LINE);
	pthread_mutex_lock(&a->lock);
	for (struct rmx_segment *s = a->segments; s && !addr; s = s->next)
		addr = carve(s, len, align);
	if (!addr) {
		ret = grow(a, len);
		if (!ret)
			addr = carve(a->segments, len, align);
	}
	pthread_mutex_unlock(&a->lock);
	if (!addr)
		return rmx_fail(-ENOMEM, RMX_NO_RANK, "memfd_create",
				"%llu bytes: %s", (unsigned long long)len,
				strerror(ret ? -ret : ENOMEM));
	*addr_p = addr;
	return 0;
}

/* The caller holds the lock. */
static struct rmx_segment *segment_of(struct rmaext_arena *a, const void *addr,
				      uint64_t len)
{
	for (struct rmx_segment *s = a->segments; s; s = s->next) {
		uint64_t at = (uintptr_t)addr - (uintptr_t)s->base;

		if ((uintptr_t)addr >= (uintptr_t)s->base &&
		    at < s->block.size - PAGE &&
		    len <= s->block.size - PAGE - at)
			return s;
	}
	return NULL;
}

/* Zeros again: its pages go back to the system, its edges are wiped. */
static void clear(char *addr, uint64_t len)
{
	char *first = (char *)(uintptr_t)up((uintptr_t)addr, PAGE);
	char *end = addr + len;
	char *last = end - (uintptr_t)end % PAGE;

	if (len < GIVE_BACK ||
	    madvise(first, (size_t)(last - first), MADV_REMOVE)) {
		memset(addr, 0, len);
		return;
	}
	memset(addr, 0, (size_t)(first - addr));
	memset(last, 0, (size_t)(end - last));
}

static void merge_next(struct rmx_extent *e)
{
	struct rmx_extent *next = e->next;

	if (!next || next->used || e->used)
		return;
	e->len += next->len;
	e->next = next->next;
	free(next);
}

void rmaext_arena_free(rmaext_arena *a, void *addr)
{
	struct rmx_segment *s;
	struct rmx_extent *before = NULL, *e;

	if (getpid() != a->pid || atomic_load(&a->control->left))
		return; /* the parent's; or peers may still look at it */
	pthread_mutex_lock(&a->lock);
	s = segment_of(a, addr, 1);
	for (e = s ? s->extents : NULL; e; before = e, e = e->next)
		if (s->base + e->offset == (char *)addr && e->used)
			break;
	if (e) {
		clear(addr, e->len);
		e->used = false;
		merge_next(e);
		if (before)
			merge_next(before);
	}
	pthread_mutex_unlock(&a->lock);
}

int rmaext_arena_find(rmaext_arena *a, const void *addr, uint64_t len,
		      struct rmaext_block *block_p)
{
	struct rmx_segment *s;

	pthread_mutex_lock(&a->lock);
	s = segment_of(a, addr, len);
	if (s) {
		*block_p = s->block;
		block_p->offset = (uintptr_t)addr - (uintptr_t)s->base;
	}
	pthread_mutex_unlock(&a->lock);
	return s != NULL;
}
