/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One registration, in the steps that the provider demands by its mr_mode: the
 * pages are allocated (ALLOCATED), fi_mr_regattr is called, its event is
 * awaited (where the provider has an EQ), the region is bound (ENDPOINT,
 * RMA_EVENT), enabled and refreshed (MMU_NOTIFY). See fi_mr(3).
 */
#define _GNU_SOURCE
#include "net/libfabric/libfabric.h"
#include "shm/pages.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define RMX_EVENT_WAIT ((int64_t)10 * 1000 * 1000 * 1000) /* ns */
#define RMX_EVENT_NAP 1					  /* ms */

static int region_failed(struct rmaext_fabric *f, int ret, const char *call,
			 const struct fi_mr_attr *attr)
{
	size_t len = 0;

	for (size_t i = 0; i < attr->iov_count; i++)
		len += attr->mr_iov[i].iov_len;
	return rmx_fail(ret, RMX_NO_RANK, call,
			"%zu bytes, key %#llx, provider %s: %s", len,
			(unsigned long long)attr->requested_key,
			f->limits.provider, f->lib->strerror(-ret));
}

/* -- for a provider that registers in the background */

/* The provider has said, by -FI_ENOEQ, that it needs a queue to report to. */
static int eq_open(struct rmx_endpoint *e)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE};
	struct fid_eq *eq;
	int ret = fi_eq_open(e->fabric, &attr, &eq, NULL);

	if (ret)
		return ret;
	ret = fi_domain_bind(e->domain, &eq->fid, RMX_REG_MR);
	if (ret)
		fi_close(&eq->fid);
	else
		atomic_store(&e->eq, eq);
	return ret;
}

/* Waits for the event of one registration; other events are of given-up ones.
 */
static int eq_await(struct fid_eq *eq, const void *context)
{
	const int64_t end = rmx_now() + RMX_EVENT_WAIT;
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
static int region_register_and_wait(struct rmx_endpoint *e,
				    struct fi_mr_attr *attr, uint64_t flags,
				    struct fid_mr **mr_p)
{
	int ret = 0;

	pthread_mutex_lock(&e->registering);
	if (!atomic_load(&e->eq))
		ret = eq_open(e);
	/*
	 * A number rather than an address, which could be used again when the
	 * event of a given-up registration comes.
	 */
	attr->context = (void *)++e->asked;
	if (!ret)
		ret = fi_mr_regattr(e->domain, attr, flags, mr_p);
	if (!ret) {
		ret = eq_await(atomic_load(&e->eq), attr->context);
		if (ret) {
			fi_close(&(*mr_p)->fid);
			*mr_p = NULL;
		}
	}
	pthread_mutex_unlock(&e->registering);
	return ret;
}

/* -- for all providers */

static int count_writes(struct rmx_endpoint *e, struct rmx_region *region)
{
	struct fi_cntr_attr attr = {
		.events = FI_CNTR_EVENTS_COMP,
		.wait_obj = FI_WAIT_NONE,
	};
	struct fid_cntr *writes;
	int ret = fi_cntr_open(e->domain, &attr, &writes, NULL);

	if (ret)
		return ret;
	region->writes = writes;
	return fi_mr_bind(region->of_transport, &writes->fid, FI_REMOTE_WRITE);
}

/* What could not be closed stays. */
int rmx_fi_deregister(struct rmaext_fabric *f, struct rmx_region *region)
{
	struct fid_mr *mr = region->of_transport;
	struct fid_cntr *writes = region->writes;
	int ret = mr ? fi_close(&mr->fid) : 0;

	(void)f;
	/* fi_mr(3): -FI_EBUSY while a counter is bound */
	if (ret == -FI_EBUSY && writes && !fi_close(&writes->fid)) {
		region->writes = writes = NULL;
		ret = fi_close(&mr->fid);
	}
	if (ret)
		return ret;
	region->of_transport = region->writes = NULL;
	return writes ? fi_close(&writes->fid) : 0;
}

int rmx_fi_refresh(struct rmaext_fabric *f, struct rmx_region *region,
		   const struct iovec *iov, size_t count)
{
	int ret;

	if (!(f->endpoint->mr_mode & FI_MR_MMU_NOTIFY))
		return 0;
	ret = fi_mr_refresh(region->of_transport, iov, count, 0);
	return ret ? rmx_fail(ret, RMX_NO_RANK, "fi_mr_refresh",
			      "provider %s: %s", f->limits.provider,
			      f->lib->strerror(-ret))
		   : 0;
}

uint64_t rmx_fi_writes(const struct rmx_region *region)
{
	return fi_cntr_read(region->writes);
}

/* Does what a new region needs before it is used; *call_p is what failed. */
static int region_prepare(struct rmx_endpoint *e, const struct fi_mr_attr *attr,
			  bool counts, bool lazy, struct rmx_region *region,
			  const char **call_p)
{
	struct fid_mr *mr = region->of_transport;
	int ret = 0;

	if (e->mr_mode & FI_MR_ENDPOINT) {
		*call_p = "fi_mr_bind";
		ret = fi_mr_bind(mr, &e->ep->fid, 0);
	}
	if (!ret && counts) {
		*call_p = "fi_mr_bind";
		ret = count_writes(e, region);
	}
	if (!ret && (e->mr_mode & FI_MR_ENDPOINT ||
		     (counts && e->mr_mode & FI_MR_RMA_EVENT))) {
		*call_p = "fi_mr_enable";
		ret = fi_mr_enable(mr);
	}
	if (!ret && !lazy && e->mr_mode & FI_MR_MMU_NOTIFY) {
		*call_p = "fi_mr_refresh";
		ret = fi_mr_refresh(mr, attr->mr_iov, attr->iov_count, 0);
	}
	return ret;
}

/*
 * FI_RMA_EVENT in `flags` asks to count writes, whether or not the provider
 * wants to be told.
 */
static int region_open(struct rmaext_fabric *f, struct fi_mr_attr *attr,
		       uint64_t flags, bool lazy, struct rmx_region *region_p)
{
	const bool writable = attr->access & ~(FI_REMOTE_READ | FI_WRITE |
					       FI_SEND | FI_COLLECTIVE);
	const bool system = attr->iface == FI_HMEM_SYSTEM;
	struct rmx_endpoint *e = f->endpoint;
	const size_t key = e->info->domain_attr->mr_key_size;
	const char *call = "fi_mr_regattr";
	struct rmx_region region = {0};
	struct fid_mr *mr = NULL;
	uint64_t told = flags;
	int ret;

	lazy = lazy && !(e->mr_mode & FI_MR_ALLOCATED);
	if (system && !lazy &&
	    e->mr_mode & (FI_MR_ALLOCATED | FI_MR_MMU_NOTIFY))
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
	if (e->mr_mode & FI_MR_COLLECTIVE)
		attr->access |=
			FI_COLLECTIVE | FI_SEND | (writable ? FI_RECV : 0);
	if (key && key < 8)
		attr->requested_key &= ((uint64_t)1 << (8 * key)) - 1;
	if (!(e->mr_mode & FI_MR_RMA_EVENT))
		told &= ~FI_RMA_EVENT;
	ret = atomic_load(&e->eq) ? -FI_ENOEQ
				  : fi_mr_regattr(e->domain, attr, told, &mr);
	if (ret == -FI_ENOEQ)
		ret = region_register_and_wait(e, attr, told, &mr);
	if (!ret) {
		region = (struct rmx_region){mr, fi_mr_desc(mr), NULL};
		ret = region_prepare(e, attr, flags & FI_RMA_EVENT, lazy,
				     &region, &call);
		if (ret)
			rmx_fi_deregister(f, &region);
	}
	if (ret)
		return region_failed(f, ret, call, attr);
	*region_p = region;
	return 0;
}

static uint64_t access_of(unsigned int access)
{
	return (access & RMX_SOURCE ? FI_SEND | FI_WRITE : 0) |
	       (access & RMX_RESULT ? FI_RECV | FI_READ : 0) |
	       (access & RMX_REMOTE_READ ? FI_REMOTE_READ : 0) |
	       (access & RMX_REMOTE_WRITE ? FI_REMOTE_WRITE : 0);
}

int rmx_fi_register(struct rmaext_fabric *f,
		    const struct rmx_registration *what,
		    struct rmx_region *region_p)
{
	static const struct rmaext_memory_options none;
	const struct rmaext_memory_options *o =
		what->options ? what->options : &none;
	const struct fi_mr_attr like = {
		.mr_iov = what->iov,
		.iov_count = what->count,
		.access = access_of(what->access),
		.requested_key = what->key,
		.auth_key_size = o->auth_key_len,
		.auth_key = (uint8_t *)(uintptr_t)o->auth_key,
		.iface = (enum fi_hmem_iface)o->iface,
		.device.cuda = (int)o->device, /* all of the union are alike */
	};
	const uint64_t caps = f->endpoint->info->caps;
	const uint64_t counts = o->counts_writes ? caps & FI_RMA_EVENT : 0;
	const uint64_t flags = o->persistent ? caps & FI_RMA_PMEM : 0;
	struct fi_mr_attr attr = like;
	int ret = region_open(f, &attr, flags | counts, o->lazy, region_p);

	/* the provider has the capability for other events only */
	if (ret != -FI_ENOSYS || !counts)
		return ret;
	attr = like;
	return region_open(f, &attr, flags, o->lazy, region_p);
}
