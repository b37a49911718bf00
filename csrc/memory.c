/* SPDX-License-Identifier: BSD-3-Clause */
/* Registration of window memory. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* FI_MR_ALLOCATED: every page must be backed when it is registered. */
static void touch(char *addr, size_t len, int access)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *start = addr - (uintptr_t)addr % page;
	char *end = addr + len;

	if (!madvise(start, (size_t)(end - start),
		     access & RMAEXT_WRITE ? MADV_POPULATE_WRITE
					   : MADV_POPULATE_READ))
		return;
	/* before Linux 5.14; an atomic no-change, as peers may update */
	for (char *p = addr; p < end; p += page - (uintptr_t)p % page) {
		if (access & RMAEXT_WRITE)
			__atomic_fetch_or(p, 0, __ATOMIC_RELAXED);
		else
			(void)*(volatile char *)p;
	}
}

static int register_memory(struct rmaext_fabric *f, void *addr, size_t len,
			   int access, uint64_t requested_key,
			   struct rmaext_memory **memory_p)
{
	struct iovec iov = {.iov_base = addr, .iov_len = len};
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = (access & RMAEXT_READ ? FI_REMOTE_READ : 0) |
			  (access & RMAEXT_WRITE ? FI_REMOTE_WRITE : 0),
		.requested_key = requested_key,
	};
	struct rmaext_memory *memory;
	int ret;

	/* some providers accept these, and fail later */
	if (!len || !attr.access)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "fi_mr_regattr",
				"%zu bytes, access %#x", len, access);
	if (f->key_size && f->key_size < 8)
		attr.requested_key &= (1ULL << (8 * f->key_size)) - 1;
	if (f->mr_mode & FI_MR_ALLOCATED)
		touch(addr, len, access);
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "memory");
	ret = fi_mr_regattr(f->domain, &attr, 0, &memory->mr);
	if (ret) {
		free(memory);
		return rmx_fail(ret, RMX_NO_RANK, "fi_mr_regattr",
				"%zu bytes, key %#llx, provider %s: %s", len,
				(unsigned long long)attr.requested_key,
				f->info->fabric_attr->prov_name,
				f->lib->strerror(-ret));
	}
	memory->fabric = f;
	memory->base = f->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)addr : 0;
	pthread_mutex_lock(&f->lock);
	memory->next = f->memories;
	memory->prev = &f->memories;
	if (memory->next)
		memory->next->prev = &memory->next;
	f->memories = memory;
	pthread_mutex_unlock(&f->lock);
	*memory_p = memory;
	return 0;
}

int rmaext_memory_register(rmaext_fabric *f, void *addr, size_t len, int access,
			   uint64_t requested_key, rmaext_memory **memory_p)
{
	int ret = rmx_fabric_enter(f, "rmaext_memory_register");

	if (ret)
		return ret;
	ret = register_memory(f, addr, len, access, requested_key, memory_p);
	rmx_fabric_leave(f);
	return ret;
}

uint64_t rmaext_memory_base(const rmaext_memory *memory)
{
	return memory->base;
}

static void memory_unlink(struct rmaext_memory *memory)
{
	pthread_mutex_lock(&memory->fabric->lock);
	*memory->prev = memory->next;
	if (memory->next)
		memory->next->prev = memory->prev;
	pthread_mutex_unlock(&memory->fabric->lock);
}

int rmaext_memory_close(rmaext_memory **memory)
{
	struct rmaext_memory *m = *memory;
	struct rmaext_fabric *f = m ? m->fabric : NULL;
	int ret;

	if (!m)
		return 0;
	if (rmx_fabric_enter(f, "rmaext_memory_close")) {
		*memory = NULL; /* closing the fabric has deregistered it */
		return 0;
	}
	ret = fi_close(&m->mr->fid);
	if (ret) {
		rmx_fail(ret, RMX_NO_RANK, "fi_close", "memory region: %s",
			 f->lib->strerror(-ret));
	} else {
		memory_unlink(m);
		free(m);
		*memory = NULL;
	}
	rmx_fabric_leave(f);
	return ret;
}
