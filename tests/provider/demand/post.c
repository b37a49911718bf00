/* SPDX-License-Identifier: BSD-3-Clause */
/* What all operations of an endpoint have in common: their target, their end.
 */
#define _GNU_SOURCE
#include "demand.h"

#include <unistd.h>

struct dm_endpoint *dm_ep_of(struct fid_ep *fid)
{
	return dm_ops_owner(fid->fid.ops);
}

/* -- the target ----------------------------------------------------------- */

static int target_domain(struct dm_endpoint *ep, fi_addr_t addr,
			 uint64_t *domain_p)
{
	unsigned char name[64];
	size_t len = sizeof(name);
	int ret = fi_av_lookup(ep->av, addr, name, &len);

	return ret ? ret : dm_registry_domain(name, len, domain_p);
}

static int check_resident(struct dm_entry *e, uint64_t offset, uint64_t len)
{
	const unsigned char *all;
	uint64_t start = e->first + offset;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (!e->resident || !len)
		return 0;
	all = dm_registry_bytes(e, 0);
	for (uint64_t i = start / page; i <= (start + len - 1) / page; i++)
		if (!all[i])
			return dm_violated(DM_refresh, -FI_EFAULT,
					   "target's page %llu not refreshed",
					   (unsigned long long)i);
	return 0;
}

static int divide(const struct dm_entry *e, uint64_t offset, uint64_t len,
		  struct fi_rma_iov *to, size_t *n_p)
{
	for (uint64_t i = 0; i < e->n_pieces; i++) {
		const struct dm_piece *piece = &e->pieces[i];
		uint64_t part = piece->len - offset;

		if (offset >= piece->len && i + 1 < e->n_pieces) {
			offset -= piece->len;
			continue;
		}
		if (*n_p == DM_IOV)
			return -FI_EINVAL;
		if (part > len)
			part = len;
		to[(*n_p)++] = (struct fi_rma_iov){offset, part, piece->key};
		offset = 0;
		len -= part;
		if (!len)
			break;
	}
	return 0;
}

int dm_check_target(struct dm_endpoint *ep, fi_addr_t peer,
		    const struct fi_rma_iov *from, uint64_t access,
		    struct fi_rma_iov *to, size_t *n_p,
		    struct dm_entry **entry_p)
{
	uint64_t domain, offset, key = from->key, len = from->len;
	struct dm_entry *e;
	int ret;

	if (dm_demands()->mr_mode & FI_MR_RAW &&
	    (ret = dm_raw_find(ep->domain, key, &key)))
		return ret;
	ret = target_domain(ep, peer, &domain);
	if (ret)
		return ret;
	e = dm_registry_find(domain, key);
	if (!e)
		return dm_violated(DM_key, -FI_EKEYREJECTED, "key %#llx",
				   (unsigned long long)key);
	if (!atomic_load(&e->enabled))
		return dm_violated(DM_disabled, -FI_EKEYREJECTED,
				   "target's region is not enabled");
	offset = from->addr - e->base;
	if (from->addr < e->base || offset > e->len || len > e->len - offset)
		return dm_violated(DM_address, -FI_EACCES,
				   "address %#llx, %llu bytes; region %#llx, "
				   "%llu bytes",
				   (unsigned long long)from->addr,
				   (unsigned long long)len,
				   (unsigned long long)e->base,
				   (unsigned long long)e->len);
	if ((e->access & access) != access)
		return dm_violated(DM_rights, -FI_EACCES,
				   "target's access %#llx, needed %#llx",
				   (unsigned long long)e->access,
				   (unsigned long long)access);
	ret = check_resident(e, offset, len);
	if (ret)
		return ret;
	*entry_p = e;
	return divide(e, offset, len, to, n_p);
}

/* -- begin and end of each operation -------------------------------------- */

int dm_post_begin(struct dm_endpoint *ep, enum dm_call call, void *context,
		  struct dm_op **op_p)
{
	int ret = dm_called(call);

	if (ret)
		return ret;
	*op_p = dm_op_begin(ep, context);
	return *op_p ? 0 : -FI_ENOMEM;
}

ssize_t dm_post_end(struct dm_op *op, ssize_t ret)
{
	if (ret)
		dm_op_drop(op);
	return ret;
}

/* A receive may have more room than the longest message. */
static int check_length(const struct iovec *iov, size_t count, uint64_t access)
{
	const size_t most = dm_demands()->max_msg;
	size_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += iov[i].iov_len;
	return most && sum > most && access != FI_RECV
		       ? dm_violated(DM_argument, -FI_EMSGSIZE,
				     "%zu bytes are more than %zu", sum, most)
		       : 0;
}

int dm_use_iov(struct dm_op *op, const struct iovec *iov, void **desc,
	       size_t count, uint64_t access)
{
	int ret =
		count > DM_IOV ? -FI_EINVAL : check_length(iov, count, access);

	for (size_t i = 0; !ret && i < count; i++)
		ret = dm_region_use(op, op->ep, iov[i].iov_base, iov[i].iov_len,
				    desc ? desc[i] : NULL, access);
	return ret;
}
