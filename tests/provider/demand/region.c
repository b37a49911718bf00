/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory regions, from their registration to their close; raw keys. */
#define _GNU_SOURCE
#include "demand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define LOCAL_RIGHTS (FI_SEND | FI_RECV | FI_READ | FI_WRITE)
#define REMOTE_RIGHTS (FI_REMOTE_READ | FI_REMOTE_WRITE)
#define RIGHTS (LOCAL_RIGHTS | REMOTE_RIGHTS | FI_COLLECTIVE)
#define FLAGS \
	(FI_RMA_EVENT | FI_RMA_PMEM | FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC)

/* -- registration --------------------------------------------------------- */

static int check_piece(const struct iovec *iov, const struct fi_mr_attr *attr,
		       bool by_attr)
{
	int iface = dm_iface_of(iov->iov_base, iov->iov_len), ret = 0;

	if (!iov->iov_len)
		return dm_violated(DM_argument, -FI_EINVAL, "no bytes");
	if (dm_demanded(FI_MR_HMEM) && (!by_attr || iface != (int)attr->iface))
		return dm_violated(DM_hmem, -FI_EINVAL,
				   "memory of kind %d registered %s", iface,
				   by_attr ? "as another" : "without a kind");
	if (dm_demanded(FI_MR_ALLOCATED)) {
		ret = dm_check_allocated(iov);
		if (!ret)
			ret = dm_check_os_access(iov, attr->access);
	}
	return ret;
}

static int check(struct dm_domain *d, const struct fi_mr_attr *attr,
		 uint64_t flags, bool by_attr)
{
	const struct dm_demands *demands = dm_demands();
	const struct iovec *iov = attr->mr_iov;
	uint64_t known = demands->pmem ? FLAGS : FLAGS & ~FI_RMA_PMEM;
	int ret;

	if (demands->async && !d->eq)
		return -FI_ENOEQ;
	if (flags & ~known)
		return dm_violated(DM_flags, -FI_EBADFLAGS, "flags %#llx",
				   (unsigned long long)flags);
	if (!attr->iov_count || attr->iov_count > demands->iov_limit || !iov ||
	    attr->offset || !attr->access || attr->access & ~RIGHTS)
		return dm_violated(DM_argument, -FI_EINVAL,
				   "%zu pieces, offset %llu, access %#llx",
				   attr->iov_count,
				   (unsigned long long)attr->offset,
				   (unsigned long long)attr->access);
	if (attr->auth_key_size &&
	    ((ret = dm_called(DM_CALL_auth_key)) || !attr->auth_key ||
	     attr->auth_key_size != demands->auth_key_size))
		return ret ? ret
			   : dm_violated(DM_argument, -FI_EINVAL,
					 "auth_key of %zu bytes",
					 attr->auth_key_size);
	if (dm_demanded(FI_MR_COLLECTIVE) && attr->access & REMOTE_RIGHTS &&
	    !(attr->access & FI_COLLECTIVE))
		return dm_violated(DM_collective, -FI_EINVAL, "access %#llx",
				   (unsigned long long)attr->access);
	for (size_t i = 0; i < attr->iov_count; i++) {
		ret = check_piece(&iov[i], attr, by_attr);
		if (ret)
			return ret;
	}
	return 0;
}

static int take_key(struct dm_domain *d, uint64_t requested, uint64_t *key_p)
{
	const struct dm_demands *demands = dm_demands();
	uint64_t mask = demands->key_size < 8
				? (1ULL << (8 * demands->key_size)) - 1
				: ~0ULL;

	if (!dm_demanded(FI_MR_PROV_KEY)) {
		if (requested & ~mask)
			return dm_violated(DM_requested_key, -FI_EKEYREJECTED,
					   "key %#llx of %zu bytes",
					   (unsigned long long)requested,
					   demands->key_size);
		*key_p = requested;
		return dm_registry_find(d->id, requested) ? -FI_ENOKEY : 0;
	}
	for (uint64_t i = 0; i <= mask && i < 1 << 20; i++) {
		d->last_key += 0x9e3779b97f4a7c15u | 1;
		*key_p = d->last_key & mask;
		if (*key_p != (FI_KEY_NOTAVAIL & mask) &&
		    !dm_registry_find(d->id, *key_p))
			return 0;
	}
	return -FI_ENOSPC;
}

static int lower_close(struct dm_region *r)
{
	int ret = 0;

	for (size_t i = 0; i < DM_PIECES && !ret; i++)
		if (r->lower[i] && !(ret = fi_close(&r->lower[i]->fid)))
			r->lower[i] = NULL;
	return ret;
}

/* A region for each piece; the first has the key, the others one of ours. */
static int lower_register(struct dm_domain *d, const struct fi_mr_attr *attr,
			  struct dm_region *r)
{
	struct fi_mr_attr lower = {
		.mr_iov = r->pieces,
		.iov_count = 1,
		.access = attr->access & (LOCAL_RIGHTS | REMOTE_RIGHTS),
		.requested_key = r->key,
	};
	int ret = 0;

	if (!(attr->access & REMOTE_RIGHTS))
		return 0;
	for (size_t i = 0; i < r->n_pieces && !ret; i++) {
		ret = d->mr->regattr(&d->fid->fid, &lower, 0, &r->lower[i]);
		lower.mr_iov++;
		lower.requested_key = dm_random();
	}
	if (ret)
		lower_close(r);
	return ret;
}

void dm_region_show(struct dm_region *r)
{
	bool usable = r->ready && r->enabled;

	r->fid.key =
		usable && !dm_demanded(FI_MR_RAW) ? r->key : FI_KEY_NOTAVAIL;
	atomic_store(&r->entry->enabled, usable);
}

static struct fi_ops region_ops;

static void announce(struct dm_eq *eq, struct dm_region *r)
{
	struct dm_event *event = calloc(1, sizeof(*event)), **end;

	if (!event)
		abort();
	*event = (struct dm_event){
		.region = r,
		.fid = &r->fid.fid,
		.context = r->context,
		.due_ns = dm_now_ns() + dm_demands()->async_delay_ns,
		.fault = dm_called(DM_CALL_mr_complete),
	};
	for (end = &eq->pending; *end; end = &(*end)->next)
		;
	*end = event;
}

static int make(struct dm_domain *d, const struct fi_mr_attr *attr,
		uint64_t flags, struct fid_mr **mr_p)
{
	struct dm_region *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return -FI_ENOMEM;
	r->n_pieces = attr->iov_count;
	memcpy(r->pieces, attr->mr_iov, r->n_pieces * sizeof(*r->pieces));
	for (size_t i = 0; i < r->n_pieces; i++)
		r->len += r->pieces[i].iov_len;
	ret = take_key(d, attr->requested_key, &r->key);
	if (!ret)
		ret = lower_register(d, attr, r);
	if (ret) {
		free(r);
		return ret;
	}
	r->entry = dm_registry_add(d->id, r->key);
	if (!r->entry)
		abort();
	r->domain = d;
	r->context = attr->context;
	r->base = attr->mr_iov->iov_base;
	r->access = attr->access;
	r->flags = flags;
	r->iface = attr->iface;
	r->enabled = !dm_demanded(FI_MR_ENDPOINT) && !(flags & FI_RMA_EVENT);
	r->ready = !d->eq;
	r->fid.fid.fclass = FI_CLASS_MR;
	r->fid.fid.context = attr->context;
	r->fid.fid.ops = &region_ops;
	r->fid.mem_desc = r;
	r->entry->base = dm_demanded(FI_MR_VIRT_ADDR) ? (uintptr_t)r->base : 0;
	r->entry->len = r->len;
	r->entry->first = (uintptr_t)r->base % dm_page_size();
	r->entry->access = r->access;
	r->entry->n_pieces = r->n_pieces;
	for (size_t i = 0; i < r->n_pieces; i++) {
		r->entry->pieces[i].len = r->pieces[i].iov_len;
		r->entry->pieces[i].key = r->lower[i] ? r->lower[i]->key : 0;
	}
	r->entry->flags = flags;
	if (dm_demanded(FI_MR_MMU_NOTIFY) && r->n_pieces == 1)
		dm_watch(r, r->base, r->len);
	dm_region_show(r);
	dm_registry_publish(r->entry);
	r->chain = *dm_region_bucket(r);
	*dm_region_bucket(r) = r;
	d->regions++;
	*mr_p = &r->fid;
	if (d->eq)
		announce(d->eq, r);
	return 0;
}

static int reg_any(struct fid *fid, enum dm_call call,
		   const struct fi_mr_attr *attr, uint64_t flags,
		   struct fid_mr **mr_p)
{
	struct dm_domain *d = dm_ops_owner(fid->ops);
	int ret = dm_called(call);

	if (!ret)
		ret = check(d, attr, flags, call == DM_CALL_regattr);
	if (ret)
		return ret;
	dm_lock();
	ret = make(d, attr, flags, mr_p);
	dm_unlock();
	return ret;
}

static int regattr(struct fid *fid, const struct fi_mr_attr *attr,
		   uint64_t flags, struct fid_mr **mr_p)
{
	return reg_any(fid, DM_CALL_regattr, attr, flags, mr_p);
}

static int regv(struct fid *fid, const struct iovec *iov, size_t count,
		uint64_t access, uint64_t offset, uint64_t requested_key,
		uint64_t flags, struct fid_mr **mr_p, void *context)
{
	struct fi_mr_attr attr = {
		.mr_iov = iov,
		.iov_count = count,
		.access = access,
		.offset = offset,
		.requested_key = requested_key,
		.context = context,
	};

	return reg_any(fid, DM_CALL_regv, &attr, flags, mr_p);
}

static int reg(struct fid *fid, const void *buf, size_t len, uint64_t access,
	       uint64_t offset, uint64_t requested_key, uint64_t flags,
	       struct fid_mr **mr_p, void *context)
{
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = access,
		.offset = offset,
		.requested_key = requested_key,
		.context = context,
	};

	return reg_any(fid, DM_CALL_reg, &attr, flags, mr_p);
}

void dm_region_patch(struct dm_domain *d)
{
	d->fid->mr = dm_ops_copy(d->mr, d);
	d->fid->mr->reg = reg;
	d->fid->mr->regv = regv;
	d->fid->mr->regattr = regattr;
}

/* -- the region's own operations ------------------------------------------ */

static void leave_pending(const struct dm_region *r)
{
	for (struct dm_event *e = r->domain->eq->pending; e; e = e->next)
		if (e->region == r)
			e->region = NULL;
}

static void unlink_counter(struct dm_region *r)
{
	struct dm_region **p = &r->cntr->bound;

	while (*p && *p != r)
		p = &(*p)->counted;
	if (*p)
		*p = r->counted;
	r->cntr->past += atomic_load(&r->entry->writes);
}

static int region_close(struct fid *fid)
{
	struct dm_region *r = (struct dm_region *)fid, **p;
	int ret = dm_called(DM_CALL_close_mr);

	if (ret)
		return ret;
	dm_lock();
	if (r->ops)
		ret = dm_violated(DM_busy, -FI_EBUSY,
				  "region closed under %zu operations", r->ops);
	else
		ret = lower_close(r);
	if (ret) {
		dm_unlock();
		return ret;
	}
	for (p = dm_region_bucket(r); *p != r; p = &(*p)->chain)
		;
	*p = r->chain;
	if (r->domain->eq)
		leave_pending(r);
	if (r->cntr)
		unlink_counter(r);
	if (r->ep)
		r->ep->regions--;
	r->domain->regions--;
	dm_registry_remove(r->entry);
	dm_unlock();
	free(r);
	return 0;
}

static int region_bind(struct fid *fid, struct fid *bound, uint64_t flags)
{
	struct dm_region *r = (struct dm_region *)fid;
	struct dm_endpoint *ep = dm_endpoint_of(bound);
	struct dm_cntr *cntr = ep ? NULL : dm_cntr_of(bound);
	int ret = dm_called(DM_CALL_bind);

	if (ret)
		return ret;
	if (!ep && !cntr)
		return -FI_EINVAL;
	if (cntr && !(flags & FI_REMOTE_WRITE))
		return dm_violated(DM_argument, -FI_EINVAL,
				   "counter bound to a region with flags %#llx",
				   (unsigned long long)flags);
	if ((ep ? r->enabled : r->enabled && dm_demanded(FI_MR_RMA_EVENT)) ||
	    !r->ready || (ep ? !!r->ep : !!r->cntr))
		return dm_violated(DM_unbound, -FI_EINVAL,
				   "%s bound to a region that is enabled, "
				   "bound or not ready",
				   ep ? "endpoint" : "counter");
	dm_lock();
	if (ep) {
		r->ep = ep;
		ep->regions++;
	} else {
		r->cntr = cntr;
		r->counted = cntr->bound;
		cntr->bound = r;
	}
	dm_unlock();
	return 0;
}

static int enable(struct dm_region *r)
{
	int ret = dm_called(DM_CALL_enable);

	if (ret)
		return ret;
	if (r->enabled || !r->ready)
		return dm_violated(DM_unbound, -FI_EINVAL,
				   "fi_mr_enable of a region that is %s",
				   r->enabled ? "enabled" : "not ready");
	if ((dm_demanded(FI_MR_ENDPOINT) && !r->ep) ||
	    (r->flags & FI_RMA_EVENT && !r->cntr))
		return dm_violated(
			DM_unbound, -FI_EINVAL, "fi_mr_enable without %s bound",
			r->flags & FI_RMA_EVENT && !r->cntr ? "a counter"
							    : "an endpoint");
	dm_lock();
	r->enabled = true;
	dm_region_show(r);
	dm_unlock();
	return 0;
}

static int refresh(struct dm_region *r, const struct fi_mr_modify *modify)
{
	int ret = dm_called(DM_CALL_refresh);

	if (ret)
		return ret;
	if (!dm_demanded(FI_MR_MMU_NOTIFY))
		return -FI_ENOSYS;
	if (r->n_pieces > 1) /* are not watched */
		return 0;
	if (!modify->attr.iov_count)
		dm_watch(r, r->base, r->len);
	for (size_t i = 0; i < modify->attr.iov_count; i++) {
		const struct iovec *iov = &modify->attr.mr_iov[i];
		const char *start = iov->iov_base;

		if (start < r->base || !iov->iov_len ||
		    start + iov->iov_len > r->base + r->len)
			return dm_violated(DM_address, -FI_EINVAL,
					   "refresh outside the region");
		dm_watch(r, start, iov->iov_len);
	}
	return 0;
}

static int region_control(struct fid *fid, int command, void *arg)
{
	struct dm_region *r = (struct dm_region *)fid;

	switch (command) {
	case FI_ENABLE:
		return enable(r);
	case FI_REFRESH:
		return refresh(r, arg);
	case FI_GET_RAW_MR:
		return dm_raw_attr(r, arg);
	}
	return -FI_ENOSYS;
}

static struct fi_ops region_ops = {
	.size = sizeof(struct fi_ops),
	.close = region_close,
	.bind = region_bind,
	.control = region_control,
};
