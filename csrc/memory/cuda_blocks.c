/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that cuMemCreate has made block by block, as PyTorch's expandable
 * segments are: CUDA has no handle for it, but a descriptor for each block. The
 * owner keeps these, and a file that lists them; others take what is listed
 * there, by pidfd_getfd(), and map it in one piece.
 */
#define _GNU_SOURCE
#include "memory/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define DESCRIPTOR 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define ON_DEVICE 1  /* CU_MEM_LOCATION_TYPE_DEVICE */
#define READ_WRITE 3 /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
#define MOST 65536   /* blocks */

struct block {
	uint64_t size;
	int64_t fd; /* the owner's */
};

/* In place of CUDA's handle, and at the beginning of the file. */
struct ticket {
	int64_t pid, fd; /* the owner, and its file */
	int64_t stamp;	 /* when it was made, in ns */
	uint64_t count;	 /* blocks, which follow in the file */
};

struct rmx_parts {
	uint64_t count, len;
	struct block of[];
};

/* What this process exports; the same blocks once. */
struct exported {
	struct ticket ticket;
	rmx_address start;
	unsigned int users;
	struct exported *next;
	struct rmx_parts *parts;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards this */
static struct exported *exports;

/* -- the owner's side */

static void parts_close(struct rmx_parts *parts, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		close((int)parts->of[i].fd);
}

/*
 * Counts the blocks that have those bytes, and sums up their sizes. The caller
 * has entered the context.
 */
static int blocks_count(rmx_address at, uint64_t len, rmx_address *start_p,
			struct rmx_parts *all)
{
	const rmx_address end = at + (len ? len : 1);
	rmx_address base;
	size_t size;
	int ret;

	for (*all = (struct rmx_parts){0}; at < end; at = base + size) {
		ret = rmx_driver.cuMemGetAddressRange_v2(&base, &size, at);
		if (ret)
			return ret;
		if (!all->count++)
			*start_p = base;
		all->len += size;
	}
	return 0;
}

static int not_exported(void)
{
	return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
			"a pool (cudaMallocAsync) has made that memory, or "
			"cudaMallocManaged, or it is the host's: CUDA exports "
			"nothing of it; take cudaMalloc's or cuMemCreate's");
}

static int block_export(rmx_address at, struct block *block)
{
	unsigned long long handle;
	rmx_address base;
	size_t size;
	int fd, ret;

	ret = rmx_driver.cuMemGetAddressRange_v2(&base, &size, at);
	if (ret)
		return rmx_cuda_fail(ret, "cuMemGetAddressRange");
	if (rmx_driver.cuMemRetainAllocationHandle(&handle,
						   (void *)(uintptr_t)at))
		return not_exported();
	ret = rmx_driver.cuMemExportToShareableHandle(&fd, handle, DESCRIPTOR,
						      0);
	rmx_driver.cuMemRelease(handle);
	if (ret)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"cuMemCreate has made that memory without a "
				"descriptor (requestedHandleTypes), or there "
				"are no more (ulimit -n)");
	*block = (struct block){.size = size, .fd = fd};
	return 0;
}

static bool file_write(int fd, const void *data, size_t len)
{
	return write(fd, data, len) == (ssize_t)len;
}

/* The file, which others read; the descriptors are in the list. */
static int ticket_fill(struct exported *it)
{
	struct ticket *t = &it->ticket;
	int code;

	*t = (struct ticket){
		.pid = getpid(),
		.fd = memfd_create("rmaext blocks", MFD_CLOEXEC),
		.stamp = rmx_now(),
		.count = it->parts->count,
	};
	if (t->fd >= 0 && file_write((int)t->fd, t, sizeof(*t)) &&
	    file_write((int)t->fd, it->parts->of,
		       t->count * sizeof(struct block)))
		return 0;
	code = errno ? errno : EIO;
	if (t->fd >= 0)
		close((int)t->fd);
	return rmx_fail(-code, RMX_NO_RANK, "memfd_create", "%s",
			strerror(code));
}

static int exported_new(rmx_address start, const struct rmx_parts *all,
			struct exported **it_p)
{
	const size_t bytes = all->count * sizeof(struct block);
	struct exported *it = calloc(1, sizeof(*it));
	struct rmx_parts *parts = malloc(sizeof(*parts) + bytes);
	rmx_address at = start;
	uint64_t done = 0;
	int ret = 0;

	if (!it || !parts) {
		ret = rmx_no_memory("descriptors of a device's memory");
		goto free_both;
	}
	*parts = *all;
	it->parts = parts;
	it->start = start;
	for (; done < all->count && !ret; done += !ret) {
		ret = block_export(at, &parts->of[done]);
		at += ret ? 0 : parts->of[done].size;
	}
	if (!ret)
		ret = ticket_fill(it);
	if (!ret) {
		*it_p = it;
		return 0;
	}
	parts_close(parts, done);
free_both:
	free(parts);
	free(it);
	return ret;
}

/* How many descriptors there are, by half of what may be. */
static bool has_room(const struct rmx_parts *all)
{
	uint64_t count = all->count + 1;
	struct rlimit limit;

	for (const struct exported *it = exports; it; it = it->next)
		count += it->parts->count + 1;
	return all->count <= MOST && !getrlimit(RLIMIT_NOFILE, &limit) &&
	       count <= limit.rlim_cur / 2;
}

/*
 * In a child the list is as another thread of its parent has left it, whole; it
 * exports nothing, and would keep the memory from being freed.
 */
static void exports_forked(void)
{
	for (const struct exported *it = exports; it; it = it->next) {
		parts_close(it->parts, it->parts->count);
		close((int)it->ticket.fd);
	}
	exports = NULL;
}

static void fork_watch(void)
{
	pthread_atfork(NULL, NULL, exports_forked);
}

/* The caller has the lock. */
static int exported_find(rmx_address start, const struct rmx_parts *all,
			 struct exported **it_p)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct exported *it = exports;
	int ret;

	pthread_once(&once, fork_watch);
	while (it && (it->start != start || it->parts->len != all->len))
		it = it->next;
	if (!it) {
		if (!has_room(all))
			return rmx_fail(
				-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"%llu blocks of cuMemCreate, each of "
				"which takes a descriptor: raise ulimit -n",
				(unsigned long long)all->count);
		ret = exported_new(start, all, &it);
		if (ret)
			return ret;
		it->next = exports;
		exports = it;
	}
	it->users++;
	*it_p = it;
	return 0;
}

int rmx_blocks_export(rmx_address at, uint64_t len,
		      struct rmaext_export *export_p)
{
	struct exported *it = NULL;
	struct rmx_parts all;
	rmx_address start = 0;
	int ret;

	if (!rmx_driver.cuMemRetainAllocationHandle)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"cudaMalloc has not made that memory, and this "
				"driver, of before CUDA 11, exports no other");
	if (blocks_count(at, len, &start, &all))
		return not_exported();
	pthread_mutex_lock(&lock);
	ret = exported_find(start, &all, &it);
	if (!ret) {
		export_p->kind = RMX_BLOCKS;
		memset(export_p->handle, 0, sizeof(export_p->handle));
		memcpy(export_p->handle, &it->ticket, sizeof(it->ticket));
		export_p->at = at - start;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

void rmx_cuda_unexport(const struct rmaext_export *export)
{
	struct exported **at = &exports, *it;
	struct ticket ticket;

	memcpy(&ticket, export->handle, sizeof(ticket));
	if (export->kind != RMX_BLOCKS || ticket.pid != getpid())
		return; /* a child has none */
	pthread_mutex_lock(&lock);
	while ((it = *at) && memcmp(&it->ticket, &ticket, sizeof(ticket)))
		at = &it->next;
	if (it && !--it->users) {
		*at = it->next;
		parts_close(it->parts, it->parts->count);
		close((int)ticket.fd);
		free(it->parts);
		free(it);
	}
	pthread_mutex_unlock(&lock);
}

/* -- the others' side */

static int take_failed(const struct ticket *ticket, int code)
{
	return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "pidfd_getfd",
			"cannot take a descriptor of process %lld: %s: it "
			"needs Linux 5.6, and the right to trace it: in "
			"containers --pid=host and CAP_SYS_PTRACE may help",
			(long long)ticket->pid, strerror(code));
}

/* Returns the list that a ticket names, checked, but for its descriptors. */
static int parts_read(int pidfd, const struct ticket *ticket,
		      struct rmx_parts **parts_p)
{
	const size_t bytes = ticket->count * sizeof(struct block);
	struct rmx_parts *parts;
	struct ticket seen;
	struct stat file;
	int ret = 0, fd;

	if (!ticket->count || ticket->count > MOST)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "map", "no list");
	fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)ticket->fd, 0);
	if (fd < 0)
		return take_failed(ticket, errno);
	parts = malloc(sizeof(*parts) + bytes);
	if (!parts) {
		close(fd);
		return rmx_no_memory("a mapping");
	}
	/* who has the pid by now may have anything there */
	if (fstat(fd, &file) || !S_ISREG(file.st_mode) ||
	    pread(fd, &seen, sizeof(seen), 0) != (ssize_t)sizeof(seen) ||
	    memcmp(&seen, ticket, sizeof(seen)) ||
	    pread(fd, parts->of, bytes, sizeof(seen)) != (ssize_t)bytes)
		ret = rmx_fail(-ESTALE, RMX_NO_RANK, "map",
			       "process %lld exports that memory no more",
			       (long long)ticket->pid);
	close(fd);
	parts->count = ticket->count;
	parts->len = 0;
	for (uint64_t i = 0; i < parts->count && !ret; i++)
		if (!parts->of[i].size ||
		    __builtin_add_overflow(parts->len, parts->of[i].size,
					   &parts->len))
			ret = rmx_fail(-ERANGE, RMX_NO_RANK, "map",
				       "blocks of no size");
	if (ret)
		free(parts);
	else
		*parts_p = parts;
	return ret;
}

static int block_map(int pidfd, const struct ticket *ticket,
		     const struct block *block, rmx_address at)
{
	int fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)block->fd, 0), ret;
	unsigned long long handle;

	if (fd < 0)
		return take_failed(ticket, errno);
	ret = rmx_driver.cuMemImportFromShareableHandle(
		&handle, (void *)(uintptr_t)fd, DESCRIPTOR);
	close(fd);
	if (ret)
		return rmx_cuda_fail(ret, "cuMemImportFromShareableHandle");
	ret = rmx_driver.cuMemMap(at, block->size, 0, handle, 0);
	rmx_driver.cuMemRelease(handle); /* the mapping has it */
	return ret ? rmx_cuda_fail(ret, "cuMemMap") : 0;
}

/* The first of them are mapped. */
static void parts_unmap(const struct rmx_parts *parts, uint64_t count,
			rmx_address base)
{
	rmx_address at = base;

	for (uint64_t i = 0; i < count; at += parts->of[i++].size)
		rmx_driver.cuMemUnmap(at, parts->of[i].size);
	rmx_driver.cuMemAddressFree(base, parts->len);
}

static int parts_map(const struct rmx_device *device, int pidfd,
		     const struct ticket *ticket, const struct rmx_parts *parts,
		     rmx_address *base_p)
{
	const struct rmx_access access = {
		.kind = ON_DEVICE,
		.number = device->number,
		.flags = READ_WRITE,
	};
	rmx_address base = 0, at;
	uint64_t done = 0;
	int ret;

	ret = rmx_driver.cuMemAddressReserve(&base, parts->len, 0, 0, 0);
	if (ret)
		return rmx_cuda_fail(ret, "cuMemAddressReserve");
	for (at = base; done < parts->count && !ret; done += !ret) {
		ret = block_map(pidfd, ticket, &parts->of[done], at);
		at += parts->of[done].size;
	}
	if (!ret) {
		ret = rmx_driver.cuMemSetAccess(base, parts->len, &access, 1);
		ret = ret ? rmx_cuda_fail(ret, "cuMemSetAccess") : 0;
	}
	if (ret)
		parts_unmap(parts, done, base);
	else
		*base_p = base;
	return ret;
}

int rmx_blocks_import(const struct rmx_device *device,
		      const struct rmaext_export *export, rmx_address *base_p,
		      struct rmx_parts **parts_p)
{
	struct rmx_parts *parts = NULL;
	struct ticket ticket;
	int pidfd, ret;

	memcpy(&ticket, export->handle, sizeof(ticket));
	pidfd = (int)syscall(SYS_pidfd_open, (pid_t)ticket.pid, 0);
	if (pidfd < 0)
		return take_failed(&ticket, errno);
	ret = parts_read(pidfd, &ticket, &parts);
	if (!ret)
		ret = parts_map(device, pidfd, &ticket, parts, base_p);
	close(pidfd);
	if (ret)
		free(parts);
	else
		*parts_p = parts;
	return ret;
}

void rmx_blocks_close(struct rmx_parts *parts, rmx_address base)
{
	parts_unmap(parts, parts->count, base);
	free(parts);
}
