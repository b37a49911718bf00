/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that is made, and mapped into reserved addresses, block by block. */
#include "device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE ((size_t)2 << 20)

struct block { /* what a CUmemGenericAllocationHandle names */
	struct block *next;
	struct context *context; /* whose `used` counts it; NULL: imported */
	size_t len;
	int fd;
	unsigned handles, mappings;
	bool exports;
};

struct reservation {
	struct reservation *next;
	CUdeviceptr base;
	char *view; /* as far as it is mapped, and has access */
	size_t len;
};

static struct block *blocks;
static struct reservation *reservations;

static struct block *block_of(unsigned long long handle)
{
	struct block *at = blocks;

	while (at && ((uintptr_t)at != handle || !at->handles))
		at = at->next;
	return at;
}

static CUresult block_new(int fd, size_t len, unsigned long long *handle)
{
	struct block *new = fd < 0 ? NULL : calloc(1, sizeof(*new));

	if (!new) {
		if (fd >= 0)
			close(fd);
		return OUT_OF_MEMORY;
	}
	*new = (struct block){.next = blocks, .len = len, .fd = fd};
	new->handles = 1;
	blocks = new;
	*handle = (uintptr_t)new;
	return SUCCESS;
}

/* Nobody names it any more, and it is mapped nowhere. */
static void block_let_go(struct block *block)
{
	struct block **at = &blocks;

	if (block->handles || block->mappings)
		return;
	while (*at != block)
		at = &(*at)->next;
	*at = block->next;
	if (block->context)
		block->context->used -= block->len;
	close(block->fd);
	free(block);
}

static struct reservation *reservation_of(CUdeviceptr base, size_t len)
{
	struct reservation *at = reservations;

	while (at && (base - at->base >= at->len ||
		      len > at->len - (base - at->base)))
		at = at->next;
	return at;
}

void device_reserved(CUdeviceptr address, CUdeviceptr *base, size_t *len)
{
	const struct reservation *it = reservation_of(address, 1);

	*base = it->base;
	*len = it->len;
}

CUresult cuMemGetAllocationGranularity(size_t *granule,
				       const CUmemAllocationProp *prop,
				       int recommended)
{
	ENTER(DRIVER);
	if (!granule || prop->type != ALLOCATION_PINNED || recommended > 1)
		return device_leave(INVALID_VALUE);
	*granule = GRANULE;
	return device_leave(SUCCESS);
}

CUresult cuMemCreate(unsigned long long *handle, size_t len,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct context *context;
	CUresult result;
	int fd;

	ENTER(DRIVER);
	context = device_context(prop->location.id);
	if (!len || len % GRANULE || flags || prop->type != ALLOCATION_PINNED ||
	    prop->location.type != LOCATION_DEVICE || !context)
		return device_leave(INVALID_VALUE);
	if (len > device_limit() - context->used)
		return device_leave(OUT_OF_MEMORY);
	fd = memfd_create("block", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)len)) {
		close(fd);
		fd = -1;
	}
	result = block_new(fd, len, handle);
	if (!result) {
		blocks->context = context;
		blocks->exports = prop->requestedHandleTypes & HANDLE_FD;
		context->used += len;
	}
	return device_leave(result);
}

CUresult cuMemRelease(unsigned long long handle)
{
	struct block *block;

	ENTER(DRIVER);
	block = block_of(handle);
	if (!block)
		return device_leave(INVALID_VALUE);
	block->handles--;
	block_let_go(block);
	return device_leave(SUCCESS);
}

CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *address)
{
	struct allocation *of;

	ENTER(DRIVER);
	of = device_find((uintptr_t)address);
	if (!of || of->kind != MAPPED)
		return device_leave(INVALID_VALUE);
	of->block->handles++;
	*handle = (uintptr_t)of->block;
	return device_leave(SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *fd, unsigned long long handle,
				      int type, unsigned long long flags)
{
	struct block *block;
	int new;

	ENTER(DRIVER);
	block = block_of(handle);
	if (!block || type != HANDLE_FD || flags || !block->exports)
		return device_leave(INVALID_VALUE);
	new = fcntl(block->fd, F_DUPFD_CLOEXEC, 0);
	if (new < 0)
		return device_leave(OPERATING_SYSTEM);
	*(int *)fd = new;
	return device_leave(SUCCESS);
}

/* The descriptor stays the caller's. */
CUresult cuMemImportFromShareableHandle(unsigned long long *handle, void *given,
					int type)
{
	const int fd = (int)(uintptr_t)given;
	struct stat file;

	ENTER(DRIVER);
	if (type != HANDLE_FD || fstat(fd, &file) || !S_ISREG(file.st_mode) ||
	    !file.st_size || (size_t)file.st_size % GRANULE)
		return device_leave(INVALID_VALUE);
	return device_leave(block_new(fcntl(fd, F_DUPFD_CLOEXEC, 0),
				      (size_t)file.st_size, handle));
}

CUresult cuMemAddressReserve(CUdeviceptr *base, size_t len, size_t alignment,
			     CUdeviceptr wanted, unsigned long long flags)
{
	const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	struct reservation *new;
	void *at, *view;

	(void)wanted; /* a hint */
	ENTER(DRIVER);
	if (!len || len % 4096 || alignment & (alignment - 1) || flags)
		return device_leave(INVALID_VALUE);
	new = malloc(sizeof(*new));
	at = mmap(NULL, len + GRANULE, PROT_NONE, how, -1, 0);
	view = mmap(NULL, len, PROT_NONE, how, -1, 0);
	if (!new || at == MAP_FAILED || view == MAP_FAILED)
		return device_leave(OUT_OF_MEMORY); /* and the test ends */
	*new = (struct reservation){
		.next = reservations,
		.base = ((uintptr_t)at + GRANULE - 1) / GRANULE * GRANULE,
		.view = view,
		.len = len,
	};
	reservations = new;
	*base = new->base;
	return device_leave(SUCCESS);
}

/* An address is not given again. */
CUresult cuMemAddressFree(CUdeviceptr base, size_t len)
{
	struct reservation **at = &reservations, *old;

	ENTER(DRIVER);
	while (*at && ((*at)->base != base || (*at)->len != len))
		at = &(*at)->next;
	if (!*at)
		return device_leave(INVALID_VALUE);
	for (CUdeviceptr page = base; page < base + len; page += GRANULE)
		if (device_find(page))
			return device_leave(INVALID_VALUE);
	old = *at;
	*at = old->next;
	munmap(old->view, old->len);
	free(old);
	return device_leave(SUCCESS);
}

CUresult cuMemMap(CUdeviceptr base, size_t len, size_t offset,
		  unsigned long long handle, unsigned long long flags)
{
	struct block *block;
	struct reservation *in;
	struct allocation *new;

	ENTER(CONTEXT);
	block = block_of(handle);
	in = reservation_of(base, len);
	if (!block || !in || !len || base % GRANULE || len % GRANULE ||
	    offset || len > block->len || flags)
		return device_leave(INVALID_VALUE);
	for (CUdeviceptr page = base; page < base + len; page += GRANULE)
		if (device_find(page))
			return device_leave(INVALID_VALUE);
	new = device_allocation(MAPPED, len);
	if (!new)
		return device_leave(OUT_OF_MEMORY);
	new->base = base;
	new->view = in->view + (base - in->base);
	new->block = block;
	new->exports = block->exports;
	block->mappings++;
	return device_leave(SUCCESS);
}

/* The parts of a range are mappings, one after another, and nothing else. */
static bool is_mapped(CUdeviceptr base, size_t len)
{
	const CUdeviceptr end = base + len;
	struct allocation *of;

	for (; base < end; base += of->len) {
		of = device_find(base);
		if (!of || of->kind != MAPPED || of->base != base)
			return false;
	}
	return base == end;
}

CUresult cuMemSetAccess(CUdeviceptr base, size_t len,
			const CUmemAccessDesc *what, size_t count)
{
	const CUdeviceptr end = base + len;
	struct allocation *of;

	ENTER(CONTEXT);
	if (!len || !is_mapped(base, len) || count != 1 ||
	    what->location.type != LOCATION_DEVICE ||
	    !device_context(what->location.id) ||
	    (what->flags != ACCESS_NONE && what->flags != ACCESS_READWRITE))
		return device_leave(INVALID_VALUE);
	for (; base < end; base += of->len) {
		of = device_find(base);
		of->access = what->flags == ACCESS_READWRITE;
		if (of->access &&
		    mmap(of->view, of->len, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, of->block->fd,
			 0) == MAP_FAILED)
			return device_leave(NOT_MAPPED);
	}
	return device_leave(SUCCESS);
}

/* Of one mapping; it waits for what is queued. */
CUresult cuMemUnmap(CUdeviceptr base, size_t len)
{
	struct allocation *old;
	struct block *block;

	ENTER(CONTEXT);
	old = device_find(base);
	if (!old || old->kind != MAPPED || old->base != base || old->len != len)
		return device_leave(INVALID_VALUE);
	block = old->block;
	device_forget(old);
	device_drain();
	mmap(old->view, old->len, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	free(old);
	block->mappings--;
	block_let_go(block);
	return device_leave(SUCCESS);
}

/* No part of the API: how many blocks this process knows. */
unsigned device_blocks(void)
{
	unsigned count = 0;

	if (device_enter(__func__, DRIVER))
		return 0;
	for (struct block *at = blocks; at; at = at->next)
		count++;
	device_leave(SUCCESS);
	return count;
}
