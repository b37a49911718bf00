/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One registration, in the steps that the provider demands by its mr_mode: the
 * pages are allocated (ALLOCATED), fi_mr_regattr is called, its event is
 * awaited (where the provider has an EQ), the region is bound (ENDPOINT,
 * RMA_EVENT), enabled and refreshed (MMU_NOTIFY). See fi_mr(3).
 */
#define _GNU_SOURCE
#include "net/endpoint.h"
#include "net/quirks.h"
#include "shm/pages.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <rdma/fi_eq.h>

#define RMX_EVENT_WAIT ((int64_t)10 * 1000 * 1000 * 1000) /* ns */
#define RMX_KEYS_TRIED 512u /* enough for all keys of one byte */
#define RMX_EVENT_NAP 1	    /* ms */

static int region_failed(struct rmaext_fabric *f, int ret, const char *call,
			 const struct fi_mr_attr *attr)
{
	size_t len = 0;

	for (size_t i = 0; i < attr->iov_count; i++)
		len += attr->mr_iov[i].iov_len;
	return rmx_fail(
		ret, RMX_NO_RANK, call, "%zu bytes, key %#llx, provider %s: %s",
		len, (unsigned long long)attr->requested_key,
		f->info->fabric_attr->prov_name, f->lib->strerror(-ret));
}

/* -- for a provider that registers in the background */

/* The provider has said, by -FI_ENOEQ, that it needs a queue to report to. */
static int eq_open(struct rmaext_fabric *f)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE};
	struct fid_eq *eq;
	int ret = fi_eq_open(f->fabric, &attr, &eq, NULL);

	if (ret)
		return ret;
	ret = fi_domain_bind(f->domain, &eq->fid, RMX_REG_MR);
	if (ret)
		fi_close(&eq->fid);
	else
		atomic_store(&f->registrar.eq, eq);
	return ret;
}

/* Waits for the event of one registration; other events are of given-up ones.
 */
static int eq_await(struct rmaext_fabric *f, const void *context)
{
	const int64_t end = rmx_now() + RMX_EVENT_WAIT;
	struct fid_eq *eq = atomic_load(&f->registrar.eq);
	struct fi_eq_err_entry error;
	struct fi_eq_entry entry;
	uint32_t event;
	ssize_t n;

	do {
		n = fi_eq_read(eq, &event, &entry, sizeof(entry), 0);
		if (n == -FI_EAVAIL) {
			memset(&error, 0, sizeof(error));
			n = fi_eq_readerr(eq, &error, 0);
			if (n > 0 && error.context == context)
				return error.err ? -error.err : -FI_EIO;
		} else if (n == -FI_EAGAIN) {
			poll(NULL, 0, RMX_EVENT_NAP);
		} else if (n < 0) {
			return (int)n;
		} else if (event == FI_MR_COMPLETE &&
			   entry.context == context) {
			return 0;
		}
	} while (rmx_now() < end);
	return -FI_ETIMEDOUT;
}

/* There is one EQ, so registrations that it reports are made one by one. */
static int region_register_and_wait(struct rmaext_fabric *f,
				    struct fi_mr_attr *attr, uint64_t flags,
				    struct fid_mr **mr_p)
{
	struct rmx_registrar *r = &f->registrar;
	int ret = 0;

	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->eq))
		ret = eq_open(f);
	/*
	 * A number rather than an address, which could be used again when the
	 * event of a given-up registration comes.
	 */
	attr->context = (void *)++r->asked;
	if (!ret)
		ret = fi_mr_regattr(f->domain, attr, flags, mr_p);
	if (!ret) {
		ret = eq_await(f, attr->context);
		if (ret) {
			fi_close(&(*mr_p)->fid);
			*mr_p = NULL;
		}
	}
	pthread_mutex_unlock(&r->lock);
	return ret;
}

/* -- for all providers */

static int region_count_writes(struct rmaext_fabric *f,
			       struct rmx_region *region)
{
	struct fi_cntr_attr attr = {
		.events = FI_CNTR_EVENTS_COMP,
		.wait_obj = FI_WAIT_NONE,
	};
	int ret = fi_cntr_open(f->domain, &attr, &region->writes, NULL);

	if (!ret)
		ret = fi_mr_bind(region->mr, &region->writes->fid,
				 FI_REMOTE_WRITE);
	return ret;
}

static int region_close_objects(struct rmx_region *region)
{
	int ret = region->mr ? fi_close(&region->mr->fid) : 0;

	/* fi_mr(3): -FI_EBUSY while a counter is bound */
	if (ret == -FI_EBUSY && region->writes &&
	    !fi_close(&region->writes->fid)) {
		region->writes = NULL;
		ret = fi_close(&region->mr->fid);
	}
	if (ret)
		return ret;
	region->mr = NULL;
	if (region->writes)
		ret = fi_close(&region->writes->fid);
	region->writes = NULL;
	return ret;
}

int rmx_region_close(struct rmaext_fabric *f, struct rmx_region *region)
{
	const bool was = region->mr;
	int ret = region_close_objects(region);

	if (was && !region->mr)
		atomic_fetch_add(&f->registrar.closed, 1);
	return ret;
}

int rmx_region_refresh(struct rmaext_fabric *f, struct rmx_region *region,
		       const struct iovec *iov, size_t count)
{
	int ret;

	if (!(f->mr_mode & FI_MR_MMU_NOTIFY))
		return 0;
	ret = fi_mr_refresh(region->mr, iov, count, 0);
	return ret ? rmx_fail(ret, RMX_NO_RANK, "fi_mr_refresh",
			      "provider %s: %s",
			      f->info->fabric_attr->prov_name,
			      f->lib->strerror(-ret))
		   : 0;
}

/* Does what a new region needs before it is used; *call_p is what failed. */
static int region_prepare(struct rmaext_fabric *f,
			  const struct fi_mr_attr *attr, uint64_t flags,
			  bool lazy, struct rmx_region *region,
			  const char **call_p)
{
	const bool counts = flags & FI_RMA_EVENT;
	int ret = 0;

	if (f->mr_mode & FI_MR_ENDPOINT) {
		*call_p = "fi_mr_bind";
		ret = fi_mr_bind(region->mr, &f->ep->fid, 0);
	}
	if (!ret && counts) {
		*call_p = "fi_mr_bind";
		ret = region_count_writes(f, region);
	}
	if (!ret && (f->mr_mode & FI_MR_ENDPOINT ||
		     (counts && f->mr_mode & FI_MR_RMA_EVENT))) {
		*call_p = "fi_mr_enable";
		ret = fi_mr_enable(region->mr);
	}
	if (!ret && !lazy && f->mr_mode & FI_MR_MMU_NOTIFY) {
		*call_p = "fi_mr_refresh";
		ret = fi_mr_refresh(region->mr, attr->mr_iov, attr->iov_count,
				    0);
	}
	return ret;
}

int rmx_region_open(struct rmaext_fabric *f, struct fi_mr_attr *attr,
		    uint64_t flags, bool lazy, struct rmx_region *region_p)
{
	const bool writable = attr->access & ~(FI_REMOTE_READ | FI_WRITE |
					       FI_SEND | FI_COLLECTIVE);
	const bool system = attr->iface == FI_HMEM_SYSTEM;
	const char *call = "fi_mr_regattr";
	struct rmx_region region = {0};
	uint64_t told = flags;
	int ret;

	lazy = lazy && !(f->mr_mode & FI_MR_ALLOCATED);
	if (system && !lazy &&
	    f->mr_mode & (FI_MR_ALLOCATED | FI_MR_MMU_NOTIFY))
		/*
		 * where there are no pages to be had, fi_mr_regattr says so;
		 * where there is no room, somebody would be killed
		 */
		for (size_t i = 0; i < attr->iov_count; i++)
			if (rmx_pages_populate(attr->mr_iov[i].iov_base,
					       attr->mr_iov[i].iov_len,
					       writable) == -ENOSPC)
				return region_failed(f, -FI_ENOMEM, "madvise",
						     attr);
	if (f->mr_mode & FI_MR_COLLECTIVE)
		attr->access |=
			FI_COLLECTIVE | FI_SEND | (writable ? FI_RECV : 0);
	if (f->key_size && f->key_size < 8)
		attr->requested_key &= (1ULL << (8 * f->key_size)) - 1;
	if (!(f->mr_mode & FI_MR_RMA_EVENT))
		told &= ~FI_RMA_EVENT;
	ret = atomic_load(&f->registrar.eq)
		      ? -FI_ENOEQ
		      : fi_mr_regattr(f->domain, attr, told, &region.mr);
	if (ret == -FI_ENOEQ)
		ret = region_register_and_wait(f, attr, told, &region.mr);
	if (!ret) {
		atomic_fetch_add(&f->registrar.opened, 1);
		ret = region_prepare(f, attr, flags, lazy, &region, &call);
		if (ret)
			rmx_region_close(f, &region);
	}
	if (ret)
		return region_failed(f, ret, call, attr);
	*region_p = region;
	return 0;
}

int rmx_region_local(struct rmaext_fabric *f, void *addr, size_t len,
		     uint64_t access, struct rmx_region *region_p)
{
	struct rmx_registration_cache *c = &f->cache;
	struct iovec iov = {addr, len};
	int ret = -FI_ENOKEY;

	for (unsigned int i = 0; ret == -FI_ENOKEY && i < RMX_KEYS_TRIED; i++) {
		struct fi_mr_attr attr = {
			.mr_iov = &iov,
			.iov_count = 1,
			.access = access,
			.requested_key = __atomic_fetch_add(&c->next_key, 1,
							    __ATOMIC_RELAXED),
		};

		ret = rmx_region_open(f, &attr, 0, false, region_p);
	}
	return ret;
}

void *rmx_region_desc(const struct rmx_region *region)
{
	return region->mr ? fi_mr_desc(region->mr) : NULL;
}
