/* SPDX-License-Identifier: BSD-3-Clause */
/* Which regions there are, and the use of one by an operation of this process.
 */
#define _GNU_SOURCE
#include "demand.h"

#define BUCKETS 8192

static struct dm_region *table[BUCKETS];

struct dm_region **dm_region_bucket(const void *region)
{
	return &table[((uintptr_t)region >> 6) % BUCKETS];
}

static struct dm_region *live(const void *desc)
{
	struct dm_region *r = *dm_region_bucket(desc);

	while (r && r != desc)
		r = r->chain;
	return r;
}

static int check_pages(struct dm_region *r, const char *start, size_t len)
{
	const unsigned char *all;
	size_t first, n;

	if (!dm_demanded(FI_MR_MMU_NOTIFY) || !r->entry->resident)
		return 0;
	all = dm_registry_bytes(r->entry, 0);
	first = (size_t)(dm_page_of(start) - dm_page_of(r->base)) /
		dm_page_size();
	n = dm_pages(start, len);
	for (size_t i = first; i < first + n; i++)
		if (!all[i])
			return dm_violated(DM_refresh, -FI_EFAULT,
					   "origin's page %zu not refreshed",
					   i);
	return 0;
}

static bool covers(const struct dm_region *r, const char *buf, size_t len)
{
	for (size_t i = 0; i < r->n_pieces; i++) {
		const char *start = r->pieces[i].iov_base;

		if (start <= buf && buf + len <= start + r->pieces[i].iov_len)
			return true;
	}
	return false;
}

static int use(struct dm_endpoint *ep, const char *buf, size_t len, void *desc,
	       uint64_t access, struct dm_region **r_p)
{
	struct dm_region *r = desc ? live(desc) : NULL;
	int device = dm_demanded(FI_MR_HMEM) ? dm_iface_of(buf, len) : 0;

	if (desc && (!r || r->domain != ep->domain))
		return dm_violated(DM_desc, -FI_EINVAL,
				   "descriptor of no live region");
	if (!desc && (dm_demanded(FI_MR_LOCAL) || device))
		return dm_violated(DM_origin, -FI_EINVAL,
				   "%zu bytes without a descriptor, access "
				   "%#llx",
				   len, (unsigned long long)access);
	if (!r)
		return 0;
	if (!r->ready || !r->enabled)
		return dm_violated(DM_disabled, -FI_EINVAL,
				   "origin's region is not enabled");
	if (!covers(r, buf, len))
		return dm_violated(DM_origin, -FI_EINVAL,
				   "%zu bytes outside the region", len);
	if ((r->access & access) != access)
		return dm_violated(DM_rights, -FI_EACCES,
				   "origin's access %#llx, needed %#llx",
				   (unsigned long long)r->access,
				   (unsigned long long)access);
	*r_p = r;
	return check_pages(r, buf, len);
}

int dm_region_use(struct dm_op *op, struct dm_endpoint *ep, const void *buf,
		  size_t len, void *desc, uint64_t access)
{
	struct dm_region *r = NULL;
	int ret;

	if (!len)
		return 0;
	dm_lock();
	ret = use(ep, buf, len, desc, access, &r);
	if (!ret && r) {
		r->ops++;
		op->regions[op->n_regions++] = r;
	}
	dm_unlock();
	return ret;
}
