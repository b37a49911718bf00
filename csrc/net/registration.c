/* SPDX-License-Identifier: BSD-3-Clause */
/* Registration of memory: of windows, and of this library's own. */
#include "net/endpoint.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_KEYS_TRIED 512u /* enough for all keys of one byte */

static int region_open(struct rmaext_fabric *f,
		       const struct rmx_registration *what,
		       struct rmx_region *region_p)
{
	int ret = f->transport->register_memory(f, what, region_p);

	if (!ret)
		atomic_fetch_add(&f->regions_opened, 1);
	return ret;
}

int rmx_region_close(struct rmaext_fabric *f, struct rmx_region *region)
{
	const bool was = region->of_transport;
	int ret =
		was || region->writes ? f->transport->deregister(f, region) : 0;

	if (was && !region->of_transport)
		atomic_fetch_add(&f->regions_closed, 1);
	return ret;
}

void rmx_region_closed(struct rmaext_fabric *f, int ret, int *ret_p)
{
	if (ret && !*ret_p)
		*ret_p = rmx_fail(ret, RMX_NO_RANK,
				  f->transport->deregister_call,
				  "memory region: %s", rmx_words(f, ret));
}

int rmx_region_local(struct rmaext_fabric *f, void *addr, size_t len,
		     unsigned int access, struct rmx_region *region_p)
{
	const struct iovec iov = {addr, len};
	int ret = -FI_ENOKEY;

	for (unsigned int i = 0; ret == -FI_ENOKEY && i < RMX_KEYS_TRIED; i++)
		ret = region_open(
			f,
			&(struct rmx_registration){
				.iov = &iov,
				.count = 1,
				.access = access,
				.key = __atomic_fetch_add(&f->cache.next_key, 1,
							  __ATOMIC_RELAXED),
			},
			region_p);
	return ret;
}

/* Refuses at once what a provider would accept here and fail on later. */
static int memory_check(const struct rmaext_fabric *f,
			const struct rmaext_memory_options *o)
{
	const size_t limit = f->limits.region_pieces;
	const char *call = "rmaext_memory_register";

	if (!o->n_pieces || o->n_pieces > limit)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, call,
				"memory of %zu pieces: provider %s takes 1 to "
				"%zu",
				o->n_pieces, f->limits.provider, limit);
	for (size_t i = 0; i < o->n_pieces; i++)
		if (!o->pieces[i].len ||
		    o->pieces[i].len - 1 >
			    UINTPTR_MAX - (uintptr_t)o->pieces[i].addr)
			return rmx_fail(-FI_EINVAL, RMX_NO_RANK, call,
					"a piece cannot have %llu bytes",
					(unsigned long long)o->pieces[i].len);
	if (!(o->access & (RMAEXT_READ | RMAEXT_WRITE)))
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, call,
				"access %#x has no right to read or write",
				o->access);
	if (o->iface != RMAEXT_IFACE_SYSTEM && !f->limits.devices)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, call,
				"provider %s does not reach the memory of a "
				"device (FI_HMEM)",
				f->limits.provider);
	return 0;
}

static int memory_register(struct rmaext_fabric *f,
			   const struct rmaext_memory_options *o,
			   struct rmaext_memory **memory_p)
{
	struct rmaext_memory *memory;
	int ret = memory_check(f, o);

	if (ret)
		return ret;
	memory =
		calloc(1, sizeof(*memory) + o->n_pieces * sizeof(struct iovec));
	if (!memory)
		return rmx_no_memory("a memory region");
	for (size_t i = 0; i < o->n_pieces; i++)
		memory->iov[i] =
			(struct iovec){o->pieces[i].addr, o->pieces[i].len};
	memory->iov_count = o->n_pieces;
	ret = region_open(
		f,
		&(struct rmx_registration){
			.iov = memory->iov,
			.count = o->n_pieces,
			.access = (o->access & RMAEXT_READ ? RMX_REMOTE_READ
							   : 0) |
				  (o->access & RMAEXT_WRITE ? RMX_REMOTE_WRITE
							    : 0),
			.key = o->requested_key,
			.options = o,
		},
		&memory->region);
	if (ret) {
		free(memory);
		return ret;
	}
	memory->fabric = f;
	memory->base =
		f->limits.addressed ? (uintptr_t)memory->iov[0].iov_base : 0;
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

void rmx_memories_close(struct rmaext_fabric *f, int *ret_p)
{
	for (struct rmaext_memory *m = f->memories; m; m = m->next)
		rmx_region_closed(f, rmx_region_close(f, &m->region), ret_p);
}

int rmaext_memory_register(rmaext_fabric *f,
			   const struct rmaext_memory_options *options,
			   rmaext_memory **memory_p)
{
	int ret = rmx_fabric_enter(f, "rmaext_memory_register");

	if (ret)
		return ret;
	ret = memory_register(f, options, memory_p);
	rmx_fabric_leave(f);
	return ret;
}

/*
 * Sets `part` to the bytes of the memory's pieces that offset and len name.
 * Returns how many pieces these are, 0 if they end after the memory.
 */
static size_t memory_part(const struct rmaext_memory *m, uint64_t offset,
			  uint64_t len, struct iovec *part)
{
	size_t n = 0;

	for (size_t i = 0; i < m->iov_count && len; i++) {
		const struct iovec *piece = &m->iov[i];
		uint64_t left;

		if (offset >= piece->iov_len) {
			offset -= piece->iov_len;
			continue;
		}
		left = piece->iov_len - offset;
		part[n].iov_base = (char *)piece->iov_base + offset;
		part[n].iov_len = len < left ? len : left;
		len -= part[n++].iov_len;
		offset = 0;
	}
	return len ? 0 : n;
}

static int memory_refresh(struct rmaext_memory *m, uint64_t offset,
			  uint64_t len)
{
	struct iovec *part = calloc(m->iov_count, sizeof(*part));
	size_t n = part ? memory_part(m, offset, len, part) : 0;
	int ret = 0;

	if (!part)
		ret = rmx_no_memory("the pieces of a memory region");
	else if (n)
		ret = m->fabric->transport->refresh(m->fabric, &m->region, part,
						    n);
	else if (len)
		ret = rmx_fail(-ERANGE, RMX_NO_RANK, "rmaext_memory_refresh",
			       "%llu bytes at byte %llu end after the memory",
			       (unsigned long long)len,
			       (unsigned long long)offset);
	free(part);
	return ret;
}

int rmaext_memory_refresh(rmaext_memory *memory, uint64_t offset, uint64_t len)
{
	struct rmaext_fabric *f = memory->fabric;
	int ret = rmx_fabric_enter(f, "rmaext_memory_refresh");

	if (ret)
		return ret;
	ret = memory_refresh(memory, offset, len);
	rmx_fabric_leave(f);
	return ret;
}

int rmaext_memory_writes(rmaext_memory *memory, uint64_t *count_p)
{
	struct rmaext_fabric *f = memory->fabric;
	int ret = rmx_fabric_enter(f, "rmaext_memory_writes");

	if (ret)
		return ret;
	if (memory->region.writes)
		*count_p = f->transport->writes(&memory->region);
	else
		ret = rmx_fail(-FI_ENOSYS, RMX_NO_RANK, "rmaext_memory_writes",
			       "provider %s does not count what is written to "
			       "this memory",
			       f->limits.provider);
	rmx_fabric_leave(f);
	return ret;
}

int rmaext_memory_key(rmaext_memory *memory, void *buf, size_t *len)
{
	struct rmaext_fabric *f = memory->fabric;
	int ret = rmx_fabric_enter(f, "rmaext_memory_key");

	if (ret)
		return ret;
	ret = f->transport->key(f, &memory->region, &memory->base, buf, len);
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
	int ret = 0;

	if (!m)
		return 0;
	if (rmx_fabric_enter(f, "rmaext_memory_close")) {
		*memory = NULL; /* closing the fabric deregistered it */
		return 0;
	}
	rmx_region_closed(f, rmx_region_close(f, &m->region), &ret);
	if (!ret) {
		memory_unlink(m);
		free(m);
		*memory = NULL;
	}
	rmx_fabric_leave(f);
	return ret;
}
