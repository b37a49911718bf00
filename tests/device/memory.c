/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory: of devices, of other processes' devices, pinned, managed. */
#include "device.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct allocation *allocations;
static uint64_t ids;

struct allocation *device_find(CUdeviceptr address)
{
	struct allocation *at = allocations;

	while (at && address - at->base >= at->len)
		at = at->next;
	return at;
}

struct allocation *device_allocation(enum kind kind, size_t len)
{
	struct allocation *new = calloc(1, sizeof(*new));

	if (!new)
		return NULL;
	*new = (struct allocation){.kind = kind,
				   .len = len,
				   .fd = -1,
				   .id = ++ids,
				   .next = allocations,
				   .context = device_current()};
	return allocations = new;
}

void device_forget(struct allocation *old)
{
	struct allocation **at = &allocations;

	while (*at != old)
		at = &(*at)->next;
	*at = old->next;
}

/* What is no longer in the list is unmapped. */
void device_end(struct allocation *old)
{
	if (old->view && old->kind != REGISTERED && old->kind != MAPPED)
		munmap(old->view, old->len);
	/* an address is not given again: who uses freed memory is to be told */
	if (old->kind == DEVICE || old->kind == IMPORTED || old->kind == POOLED)
		mmap((void *)(uintptr_t)old->base, old->len, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		     -1, 0);
	if (old->kind == DEVICE || old->kind >= POOLED)
		old->context->used -= old->len;
	if (old->fd >= 0)
		close(old->fd);
	free(old);
}

void device_memory_free(struct context *context)
{
	struct allocation *next;

	for (struct allocation *at = allocations; at; at = next) {
		next = at->next;
		if (at->context != context)
			continue;
		device_forget(at);
		device_end(at);
	}
}

/* Nothing new can name it from then on; what is queued is waited for. */
static CUresult allocation_free(CUdeviceptr base, unsigned kinds,
				CUresult otherwise)
{
	struct allocation *old = device_find(base);

	if (!old || old->base != base || !(kinds >> old->kind & 1))
		return otherwise;
	device_forget(old);
	if (old->kind != POOLED)
		device_drain();
	device_end(old);
	return SUCCESS;
}

static void *map(int fd, size_t len, int protection)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *at = mmap(NULL, len, protection, flags, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* Both mappings of `fd`, which becomes the allocation's. */
static struct allocation *allocation_map(enum kind kind, size_t len, int fd)
{
	void *view = map(fd, len, PROT_READ | PROT_WRITE);
	void *base = map(fd, len, PROT_NONE);
	struct allocation *new = NULL;

	if (view && base)
		new = device_allocation(kind, len);
	if (!new) {
		if (view)
			munmap(view, len);
		if (base)
			munmap(base, len);
		close(fd);
		return NULL;
	}
	new->view = view;
	new->base = (uintptr_t)base;
	new->fd = fd;
	return new;
}

static bool has_room(size_t len)
{
	return len <= device_limit() - device_current()->used;
}

static CUresult device_memory(enum kind kind, size_t len, CUdeviceptr *base)
{
	struct allocation *new;
	int fd;

	if (!base || !len)
		return INVALID_VALUE;
	if (!has_room(len))
		return OUT_OF_MEMORY;
	fd = memfd_create("device", MFD_CLOEXEC);
	if (fd < 0)
		return OUT_OF_MEMORY;
	if (ftruncate(fd, (off_t)len)) {
		close(fd);
		return OUT_OF_MEMORY;
	}
	new = allocation_map(kind, len, fd);
	if (!new)
		return OUT_OF_MEMORY;
	new->context->used += len;
	/* Nobody may count on zeros: the documents say "not cleared". */
	memset(new->view, 0xa5, len < 4096 ? len : 4096);
	*base = new->base;
	return SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *base, size_t len)
{
	ENTER(CONTEXT);
	return device_leave(device_memory(DEVICE, len, base));
}

CUresult cuMemFree_v2(CUdeviceptr base)
{
	ENTER(CONTEXT);
	return device_leave(allocation_free(
		base, 1 << DEVICE | 1 << MANAGED | 1 << POOLED, INVALID_VALUE));
}

/* It is there at once, which the documents do not promise. */
CUresult cuMemAllocAsync(CUdeviceptr *base, size_t len, CUstream stream)
{
	ENTER(CONTEXT);
	(void)stream;
	return device_leave(device_memory(POOLED, len, base));
}

/* Touched by the CPU, too: its view is its address. */
static CUresult host_memory(enum kind kind, size_t len, uintptr_t *at)
{
	void *view = map(-1, len, PROT_READ | PROT_WRITE);
	struct allocation *new = view ? device_allocation(kind, len) : NULL;

	if (!new) {
		if (view)
			munmap(view, len);
		return OUT_OF_MEMORY;
	}
	new->view = view;
	*at = new->base = (uintptr_t)view;
	return SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *base, size_t len, unsigned flags)
{
	CUresult result;
	uintptr_t at;

	ENTER(CONTEXT);
	if (!base || !len || (flags != 1 && flags != 2)) /* global, host */
		return device_leave(INVALID_VALUE);
	if (!has_room(len))
		return device_leave(OUT_OF_MEMORY);
	result = host_memory(MANAGED, len, &at);
	if (!result) {
		device_current()->used += len;
		*base = at;
	}
	return device_leave(result);
}

CUresult cuMemHostAlloc(void **base, size_t len, unsigned flags)
{
	CUresult result;
	uintptr_t at;

	ENTER(CONTEXT);
	if (!base || !len || flags > 7)
		return device_leave(INVALID_VALUE);
	result = host_memory(PINNED, len, &at);
	if (!result)
		*base = (void *)at;
	return device_leave(result);
}

CUresult cuMemFreeHost(void *base)
{
	ENTER(CONTEXT);
	return device_leave(
		allocation_free((uintptr_t)base, 1 << PINNED, INVALID_VALUE));
}

CUresult cuMemHostRegister_v2(void *base, size_t len, unsigned flags)
{
	CUdeviceptr from = (uintptr_t)base;
	struct allocation *new;

	ENTER(CONTEXT);
	if (!base || !len || flags > 15)
		return device_leave(INVALID_VALUE);
	for (struct allocation *at = allocations; at; at = at->next)
		if (at->base < from + len && from < at->base + at->len)
			return device_leave(at->kind == REGISTERED
						    ? ALREADY_REGISTERED
						    : INVALID_VALUE);
	new = device_allocation(REGISTERED, len);
	if (!new)
		return device_leave(OUT_OF_MEMORY);
	new->view = base;
	new->base = from;
	return device_leave(SUCCESS);
}

CUresult cuMemHostUnregister(void *base)
{
	ENTER(CONTEXT);
	return device_leave(allocation_free((uintptr_t)base, 1 << REGISTERED,
					    NOT_REGISTERED));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *at, void *host,
				      unsigned flags)
{
	struct allocation *found;

	ENTER(CONTEXT);
	found = device_find((uintptr_t)host);
	if (flags || !found ||
	    (found->kind != PINNED && found->kind != REGISTERED))
		return device_leave(INVALID_VALUE);
	*at = (uintptr_t)host;
	return device_leave(SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *len,
				 CUdeviceptr address)
{
	struct allocation *found;

	ENTER(CONTEXT);
	found = device_find(address);
	if (!found)
		return device_leave(INVALID_VALUE);
	if (base)
		*base = found->base;
	if (len)
		*len = found->len;
	return device_leave(SUCCESS);
}

/* -- what an address is */

static CUresult attribute_get(const struct allocation *of, CUdeviceptr address,
			      int attribute, void *data)
{
	bool cpu = of && (of->kind < DEVICE || of->kind == MANAGED);
	bool device = of && of->kind >= DEVICE;
	CUdeviceptr start = of ? of->base : 0;
	size_t len = of ? of->len : 0;

	if (of && of->kind == MAPPED)
		device_reserved(address, &start, &len);

	switch (attribute) {
	case POINTER_CONTEXT:
		*(CUcontext *)data = of ? of->context : NULL;
		return SUCCESS;
	case POINTER_MEMORY_TYPE:
		*(unsigned *)data = !of	     ? 0
				    : device ? MEMORY_DEVICE
					     : MEMORY_HOST;
		return SUCCESS;
	case POINTER_DEVICE_POINTER:
		*(CUdeviceptr *)data = of ? address : 0;
		return SUCCESS;
	case POINTER_HOST_POINTER:
		*(void **)data = cpu ? (void *)(uintptr_t)address : NULL;
		return cpu || !of ? SUCCESS : INVALID_VALUE;
	case POINTER_BUFFER_ID:
		*(uint64_t *)data = of ? of->id : 0;
		return SUCCESS;
	case POINTER_IS_MANAGED:
		*(bool *)data = of && of->kind == MANAGED;
		return SUCCESS;
	case POINTER_DEVICE_ORDINAL:
		*(int *)data = of ? of->context->device : -2;
		return SUCCESS;
	case POINTER_IS_LEGACY_IPC:
		*(bool *)data = of && of->kind == DEVICE;
		return SUCCESS;
	case POINTER_RANGE_START:
		*(CUdeviceptr *)data = start;
		return SUCCESS;
	case POINTER_RANGE_SIZE:
		*(size_t *)data = len;
		return SUCCESS;
	case POINTER_MAPPED:
		*(bool *)data = of != NULL;
		return SUCCESS;
	case POINTER_ALLOWED_HANDLE_TYPES:
		*(uint64_t *)data = of && of->exports ? HANDLE_FD : 0;
		return SUCCESS;
	case POINTER_POOL:
		*(void **)data = of && of->kind == POOLED ? of->context : NULL;
		return SUCCESS;
	default:
		return INVALID_VALUE;
	}
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
	struct allocation *of;

	ENTER(DRIVER);
	of = device_find(address);
	if (!data || !of)
		return device_leave(INVALID_VALUE);
	return device_leave(attribute_get(of, address, attribute, data));
}

/* Of an address that CUDA does not know all are zero, and that is no error. */
CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **data,
				CUdeviceptr address)
{
	struct allocation *of;

	ENTER(DRIVER);
	of = device_find(address);
	for (unsigned i = 0; i < n; i++)
		if (attribute_get(of, address, attributes[i], data[i]) &&
		    attributes[i] != POINTER_HOST_POINTER)
			return device_leave(INVALID_VALUE);
	return device_leave(SUCCESS);
}

/* -- between processes */

struct exported { /* a CUipcMemHandle */
	pid_t pid;
	int fd;
	ino_t inode; /* of the memfd: a number may be another file's now */
	size_t len;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr base)
{
	struct allocation *of;
	struct exported out = {.pid = getpid()};
	struct stat file;

	ENTER(CONTEXT);
	of = device_find(base);
	if (!of || of->kind != DEVICE || of->base != base)
		return device_leave(INVALID_VALUE);
	if (fstat(of->fd, &file))
		return device_leave(NOT_MAPPED);
	out.fd = of->fd;
	out.inode = file.st_ino;
	out.len = of->len;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &out, sizeof(out));
	return device_leave(SUCCESS);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *base, CUipcMemHandle handle,
			       unsigned flags)
{
	struct exported in;
	struct allocation *at;
	struct stat file;
	char path[64];
	int fd;

	ENTER(CONTEXT);
	memcpy(&in, &handle, sizeof(in));
	if (flags != IPC_LAZY_PEER_ACCESS)
		return device_leave(INVALID_VALUE);
	if (in.pid == getpid())
		return device_leave(INVALID_CONTEXT);
	for (at = allocations; at; at = at->next)
		if (at->kind == IMPORTED && at->context == device_current() &&
		    !memcmp(&at->handle, &handle, sizeof(handle))) {
			at->opened++;
			*base = at->base;
			return device_leave(SUCCESS);
		}
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)in.pid, in.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return device_leave(INVALID_HANDLE);
	if (fstat(fd, &file) || file.st_ino != in.inode ||
	    (size_t)file.st_size != in.len) {
		close(fd);
		return device_leave(INVALID_HANDLE);
	}
	at = allocation_map(IMPORTED, in.len, fd);
	if (!at)
		return device_leave(NOT_MAPPED);
	at->handle = handle;
	at->opened = 1;
	*base = at->base;
	return device_leave(SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr base)
{
	struct allocation *of;

	ENTER(CONTEXT);
	of = device_find(base);
	if (!of || of->kind != IMPORTED || of->base != base)
		return device_leave(INVALID_VALUE);
	if (--of->opened)
		return device_leave(SUCCESS);
	return device_leave(
		allocation_free(base, 1 << IMPORTED, INVALID_VALUE));
}

/* No part of the API: how often others' memory is open in this process. */
unsigned device_opened(void)
{
	unsigned opened = 0;

	if (device_enter(__func__, DRIVER))
		return 0;
	for (struct allocation *at = allocations; at; at = at->next)
		opened += at->opened;
	device_leave(SUCCESS);
	return opened;
}

/* No part of the API: where a kernel of tests/device/array.py works. */
void *device_view(CUdeviceptr address)
{
	struct allocation *of;
	void *view = NULL;

	if (device_enter(__func__, DRIVER))
		return NULL;
	of = device_find(address);
	if (of)
		view = of->view + (address - of->base);
	device_leave(SUCCESS);
	return view;
}
