/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Registered memory, and its keys. A key that UCP has packed is some bytes, as
 * many as a rank has devices; it comes with their number before it and zeros
 * behind, so that those of all ranks have one length. It is unpacked for each
 * connection to the peer anew.
 */
#define _GNU_SOURCE
#include "net/ucx/ucx.h"
#include "shm/pages.h"

#include <errno.h>
#include <stdlib.h>

static int region_failed(const struct rmaext_fabric *f, ucs_status_t status,
			 const char *call, size_t len)
{
	return rmx_fail(rmx_ucx_code(status), RMX_NO_RANK, call,
			"%zu bytes: UCX: %s", len,
			f->endpoint->ucp->status_string(status));
}

/* What others may do with memory, this process must be able to do. */
static unsigned int protection(unsigned int access)
{
	const bool reads = access & (RMX_SOURCE | RMX_REMOTE_READ);
	const bool writes = access & (RMX_RESULT | RMX_REMOTE_WRITE);

	return (reads ? UCP_MEM_MAP_PROT_LOCAL_READ : 0) |
	       (writes ? UCP_MEM_MAP_PROT_LOCAL_READ |
				 UCP_MEM_MAP_PROT_LOCAL_WRITE
		       : 0) |
	       (access & RMX_REMOTE_READ ? UCP_MEM_MAP_PROT_REMOTE_READ : 0) |
	       (access & RMX_REMOTE_WRITE ? UCP_MEM_MAP_PROT_REMOTE_WRITE : 0);
}

/*
 * What UCP says that it has mapped: peers reach no more than that, so it must
 * be all of the window.
 */
static ucs_status_t region_check(const struct rmx_endpoint *e, ucp_mem_h memh,
				 const struct iovec *iov)
{
	ucp_mem_attr_t attr = {
		.field_mask =
			UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH,
	};
	const ucs_status_t status = e->ucp->mem_query(memh, &attr);
	const uintptr_t first = (uintptr_t)attr.address;
	const uintptr_t wanted = (uintptr_t)iov->iov_base;

	if (status)
		return status;
	return first <= wanted && wanted + iov->iov_len <= first + attr.length
		       ? UCS_OK
		       : UCS_ERR_INVALID_ADDR;
}

int rmx_ucx_register(struct rmaext_fabric *f,
		     const struct rmx_registration *what,
		     struct rmx_region *region_p)
{
	struct rmx_endpoint *e = f->endpoint;
	const struct iovec *iov = what->iov; /* limits.region_pieces is 1 */
	const bool lazy = what->options && what->options->lazy;
	const ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
			      UCP_MEM_MAP_PARAM_FIELD_LENGTH |
			      UCP_MEM_MAP_PARAM_FIELD_FLAGS |
			      UCP_MEM_MAP_PARAM_FIELD_PROT,
		.address = iov->iov_base,
		.length = iov->iov_len,
		.flags = lazy ? UCP_MEM_MAP_NONBLOCK : 0,
		.prot = protection(what->access),
	};
	ucp_mem_h memh;
	ucs_status_t status;

	/* where there is no room, somebody would be killed */
	if (!lazy &&
	    rmx_pages_populate(iov->iov_base, iov->iov_len,
			       params.prot & UCP_MEM_MAP_PROT_LOCAL_WRITE) ==
		    -ENOSPC)
		return region_failed(f, UCS_ERR_NO_MEMORY, "madvise",
				     iov->iov_len);
	status = e->ucp->mem_map(e->context, &params, &memh);
	if (status)
		return region_failed(f, status, "ucp_mem_map", iov->iov_len);
	status = region_check(e, memh, iov);
	if (status) {
		e->ucp->mem_unmap(e->context, memh);
		return region_failed(f, status, "ucp_mem_query", iov->iov_len);
	}
	*region_p = (struct rmx_region){.of_transport = memh, .desc = memh};
	return 0;
}

int rmx_ucx_deregister(struct rmaext_fabric *f, struct rmx_region *region)
{
	struct rmx_endpoint *e = f->endpoint;
	const ucs_status_t status =
		e->ucp->mem_unmap(e->context, region->of_transport);

	if (!status)
		region->of_transport = NULL;
	return rmx_ucx_code(status);
}

/* Pages that come late are fetched ahead of their first use. */
int rmx_ucx_refresh(struct rmaext_fabric *f, struct rmx_region *region,
		    const struct iovec *iov, size_t count)
{
	struct rmx_endpoint *e = f->endpoint;

	for (size_t i = 0; i < count; i++) {
		ucp_mem_advise_params_t params = {
			.field_mask = UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS |
				      UCP_MEM_ADVISE_PARAM_FIELD_LENGTH |
				      UCP_MEM_ADVISE_PARAM_FIELD_ADVICE,
			.address = iov[i].iov_base,
			.length = iov[i].iov_len,
			.advice = UCP_MADV_WILLNEED,
		};
		const ucs_status_t status = e->ucp->mem_advise(
			e->context, region->of_transport, &params);

		if (status && status != UCS_ERR_UNSUPPORTED)
			return region_failed(f, status, "ucp_mem_advise",
					     iov[i].iov_len);
	}
	return 0;
}

/* -- keys */

int rmx_ucx_key(struct rmaext_fabric *f, const struct rmx_region *region,
		uint64_t *base, void *buf, size_t *len)
{
	struct rmx_endpoint *e = f->endpoint;
	const size_t room = *len;
	void *packed;
	size_t size;
	uint16_t bytes;
	ucs_status_t status = e->ucp->rkey_pack(
		e->context, region->of_transport, &packed, &size);

	(void)base;
	if (status)
		return region_failed(f, status, "ucp_rkey_pack", 0);
	bytes = (uint16_t)size;
	*len = (sizeof(bytes) + size + RMX_UCX_KEY - 1) / RMX_UCX_KEY *
	       RMX_UCX_KEY;
	if (size <= UINT16_MAX - RMX_UCX_KEY && room >= *len) {
		memset(buf, 0, *len);
		memcpy(buf, &bytes, sizeof(bytes));
		memcpy((char *)buf + sizeof(bytes), packed, size);
	}
	e->ucp->rkey_buffer_release(packed);
	return room >= *len
		       ? 0
		       : rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, "ucp_rkey_pack",
				  "room for %zu bytes, %zu needed", room, *len);
}

/* Any bytes may have come: they are unpacked only when they are used. */
int rmx_ucx_key_map(struct rmaext_fabric *f, uint64_t base, uint8_t *raw,
		    size_t len, uint64_t *key_p)
{
	struct rmx_ucx_key *key;
	uint16_t bytes;

	(void)f, (void)base;
	if (len < sizeof(bytes))
		return -FI_EKEYREJECTED;
	memcpy(&bytes, raw, sizeof(bytes));
	if (bytes > len - sizeof(bytes))
		return -FI_EKEYREJECTED;
	key = calloc(1, sizeof(*key) + bytes);
	if (!key)
		return -FI_ENOMEM;
	memcpy(key->packed, raw + sizeof(bytes), bytes);
	*key_p = (uintptr_t)key;
	return 0;
}

static void key_free(struct rmx_endpoint *e, struct rmx_ucx_key *key)
{
	if (key->epoch)
		e->ucp->rkey_destroy(key->rkey);
	free(key);
}

void rmx_ucx_key_unmap(struct rmaext_fabric *f, uint64_t key)
{
	struct rmx_endpoint *e = f->endpoint;
	struct rmx_ucx_key *it = (void *)(uintptr_t)key;

	pthread_mutex_lock(&e->lock);
	it->unmapped = true;
	if (!it->users)
		key_free(e, it);
	pthread_mutex_unlock(&e->lock);
}

int rmx_ucx_key_use(const struct rmx_ucx_peer *peer, struct rmx_ucx_key *key)
{
	struct rmx_endpoint *e = peer->endpoint;
	ucp_rkey_h rkey;
	ucs_status_t status;

	if (key->epoch != peer->epoch) {
		/* calls of the connection before may use the old one yet */
		if (key->users)
			return -FI_EAGAIN;
		status = e->ucp->ep_rkey_unpack(peer->ep, key->packed, &rkey);
		if (status)
			return rmx_ucx_code(status);
		if (key->epoch)
			e->ucp->rkey_destroy(key->rkey);
		key->rkey = rkey;
		key->epoch = peer->epoch;
	}
	key->users++;
	return 0;
}

void rmx_ucx_key_leave(struct rmx_endpoint *e, struct rmx_ucx_key *key)
{
	if (!--key->users && key->unmapped)
		key_free(e, key);
}
