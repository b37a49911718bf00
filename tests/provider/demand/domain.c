/* SPDX-License-Identifier: BSD-3-Clause */
/* A domain, and the counters and event queues that registration involves. */
#define _GNU_SOURCE
#include "demand.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct dm_domain *domain_of(struct fid *fid)
{
	return dm_ops_owner(fid->ops);
}

/* -- counters: also of what peers write to a region ----------------------- */

static int cntr_close(struct fid *fid)
{
	struct dm_cntr *c = dm_cntr_of(fid);
	void *copies[] = {fid->ops, c->fid->ops};
	int ret;

	if (c->bound)
		return dm_violated(DM_order, -FI_EBUSY,
				   "counter closed before its regions");
	ret = dm_close_lower(c->fid_ops, fid, "counter");
	if (ret)
		return ret;
	dm_domain_count(c->domain, -1);
	dm_ops_free(copies[0]);
	dm_ops_free(copies[1]);
	free(c);
	return 0;
}

struct dm_cntr *dm_cntr_of(struct fid *fid)
{
	return fid->ops->close == cntr_close ? dm_ops_owner(fid->ops) : NULL;
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
	struct dm_cntr *c = dm_cntr_of(&fid->fid);
	uint64_t sum = c->ops->read(fid);

	dm_lock();
	sum += c->past;
	for (struct dm_region *r = c->bound; r; r = r->counted)
		sum += atomic_load(&r->entry->writes);
	dm_unlock();
	return sum;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static bool over(uint64_t start, int timeout_ms)
{
	return timeout_ms >= 0 &&
	       dm_now_ns() - start > (uint64_t)timeout_ms * 1000000u;
}

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	uint64_t start = dm_now_ns();

	while (cntr_read(fid) < threshold) {
		if (over(start, timeout))
			return -FI_ETIMEDOUT;
		nap();
	}
	return 0;
}

static int cntr_patch(struct dm_domain *domain, struct fid_cntr *fid)
{
	struct dm_cntr *c = calloc(1, sizeof(*c));

	if (!c)
		abort();
	c->fid = fid;
	c->domain = domain;
	dm_domain_count(domain, 1);
	c->fid_ops = fid->fid.ops;
	c->ops = fid->ops;
	fid->fid.ops = dm_ops_copy(c->fid_ops, c);
	fid->fid.ops->close = cntr_close;
	fid->ops = dm_ops_copy(c->ops, c);
	fid->ops->read = cntr_read;
	fid->ops->wait = cntr_wait;
	return 0;
}

/* -- domain --------------------------------------------------------------- */

static int domain_close(struct fid *fid)
{
	struct dm_domain *d = domain_of(fid);
	void *copies[] = {fid->ops, d->fid->ops, d->fid->mr};
	size_t left = d->regions + d->mappings;
	struct dm_mapped *m;
	int ret = dm_called(DM_CALL_close_domain);

	if (ret)
		return ret;
	if (left)
		return dm_violated(DM_leak, -FI_EBUSY,
				   "domain closed with %zu regions and %zu "
				   "mapped keys",
				   d->regions, d->mappings);
	if (d->objects) /* ofi_rxm would close its half of it */
		return dm_violated(DM_order, -FI_EBUSY,
				   "domain closed before its %zu objects",
				   d->objects);
	ret = dm_close_lower(d->fid_ops, fid, "domain");
	if (ret)
		return ret;
	dm_report_event("close", left);
	dm_lock();
	if (d->eq)
		d->eq->domains--;
	while ((m = d->mapped)) {
		d->mapped = m->next;
		free(m);
	}
	dm_unlock();
	for (int i = 0; i < 3; i++)
		dm_ops_free(copies[i]);
	free(d);
	return 0;
}

static int domain_bind(struct fid *fid, struct fid *bound, uint64_t flags)
{
	struct dm_domain *d = domain_of(fid);

	if (bound->fclass != FI_CLASS_EQ || !(flags & RMX_REG_MR))
		return d->fid_ops->bind(fid, bound, flags);
	if (d->eq || d->regions)
		return dm_violated(DM_unbound, -FI_EINVAL,
				   "EQ bound to a domain with %zu regions",
				   d->regions);
	dm_lock();
	d->eq = dm_eq_of(bound);
	d->eq->domains++;
	dm_unlock();
	return 0;
}

static int domain_control(struct fid *fid, int command, void *arg)
{
	struct dm_domain *d = domain_of(fid);

	switch (command) {
	case FI_MAP_RAW_MR:
		return dm_raw_map(d, arg);
	case FI_UNMAP_KEY:
		return dm_raw_unmap(d, *(uint64_t *)arg);
	}
	return d->fid_ops->control(fid, command, arg);
}

static int open_endpoint(struct fid_domain *fid, struct fi_info *info,
			 struct fid_ep **ep, void *context)
{
	struct dm_domain *d = domain_of(&fid->fid);
	struct fi_info *lower = dm_lower_info(d->fabric->library, info);
	int ret;

	if (!lower)
		return -FI_ENOMEM;
	ret = d->ops->endpoint(fid, lower, ep, context);
	d->fabric->library->freeinfo(lower);
	return ret ? ret : dm_endpoint_patch(d, *ep);
}

static int open_endpoint2(struct fid_domain *fid, struct fi_info *info,
			  struct fid_ep **ep, uint64_t flags, void *context)
{
	if (flags)
		return -FI_EBADFLAGS;
	return open_endpoint(fid, info, ep, context);
}

static int open_cq(struct fid_domain *fid, struct fi_cq_attr *attr,
		   struct fid_cq **cq, void *context)
{
	struct dm_domain *d = domain_of(&fid->fid);
	struct fi_cq_attr plain = *attr;
	int ret;

	if (plain.format == FI_CQ_FORMAT_UNSPEC)
		plain.format = FI_CQ_FORMAT_CONTEXT;
	ret = d->ops->cq_open(fid, &plain, cq, context);
	return ret ? ret : dm_cq_patch(d, *cq, &plain);
}

static int open_cntr(struct fid_domain *fid, struct fi_cntr_attr *attr,
		     struct fid_cntr **cntr, void *context)
{
	struct dm_domain *d = domain_of(&fid->fid);
	int ret = d->ops->cntr_open(fid, attr, cntr, context);

	return ret ? ret : cntr_patch(d, *cntr);
}

/* Of an address vector only the close matters. */
struct av {
	struct fi_ops *fid_ops;
	struct dm_domain *domain;
	size_t endpoints;
};

void dm_av_count(struct fid_av *fid, int change)
{
	struct av *av = dm_ops_owner(fid->fid.ops);

	dm_lock();
	av->endpoints += (size_t)change;
	dm_unlock();
}

static int av_close(struct fid *fid)
{
	struct fi_ops *copy = fid->ops;
	struct av *av = dm_ops_owner(copy);
	int ret;

	if (av->endpoints) /* ofi_rxm would close its half of it */
		return dm_violated(DM_order, -FI_EBUSY,
				   "address vector closed while in use");
	ret = dm_close_lower(av->fid_ops, fid, "address vector");
	if (ret)
		return ret;
	dm_domain_count(av->domain, -1);
	dm_ops_free(copy);
	free(av);
	return 0;
}

static int open_av(struct fid_domain *fid, struct fi_av_attr *attr,
		   struct fid_av **av_p, void *context)
{
	struct dm_domain *d = domain_of(&fid->fid);
	struct av *av = calloc(1, sizeof(*av));
	int ret;

	if (!av)
		abort();
	ret = d->ops->av_open(fid, attr, av_p, context);
	if (ret) {
		free(av);
		return ret;
	}
	av->fid_ops = (*av_p)->fid.ops;
	av->domain = d;
	(*av_p)->fid.ops = dm_ops_copy(av->fid_ops, av);
	(*av_p)->fid.ops->close = av_close;
	dm_domain_count(d, 1);
	return 0;
}

void dm_domain_count(struct dm_domain *d, int change)
{
	dm_lock();
	d->objects += (size_t)change;
	dm_unlock();
}

void dm_domain_patch(struct dm_fabric *fabric, struct fid_domain *fid)
{
	struct dm_domain *d = calloc(1, sizeof(*d));

	if (!d)
		abort();
	d->fid = fid;
	d->fabric = fabric;
	d->id = dm_random();
	d->last_key = dm_random();
	d->fid_ops = fid->fid.ops;
	d->ops = fid->ops;
	d->mr = fid->mr;
	fid->fid.ops = dm_ops_copy(d->fid_ops, d);
	fid->fid.ops->close = domain_close;
	fid->fid.ops->bind = domain_bind;
	fid->fid.ops->control = domain_control;
	fid->ops = dm_ops_copy(d->ops, d);
	fid->ops->endpoint = open_endpoint;
	if (FI_CHECK_OP(d->ops, struct fi_ops_domain, endpoint2))
		fid->ops->endpoint2 = open_endpoint2;
	fid->ops->av_open = open_av;
	fid->ops->cq_open = open_cq;
	fid->ops->cntr_open = open_cntr;
	dm_region_patch(d);
	dm_report_begin();
	dm_report_event("open", 0);
}

/* -- event queues: asynchronous registration ------------------------------ */

/* The oldest event. */
static void take(struct dm_eq *eq)
{
	struct dm_event *e = eq->pending;

	if (e->region && !e->fault) {
		e->region->ready = true;
		dm_region_show(e->region);
	}
	eq->pending = e->next;
	free(e);
}

static int eq_close(struct fid *fid)
{
	struct dm_eq *eq = dm_eq_of(fid);
	void *copies[] = {fid->ops, ((struct fid_eq *)fid)->ops};
	int ret;

	if (eq->domains)
		return dm_violated(DM_order, -FI_EBUSY,
				   "event queue closed before its domain");
	ret = dm_close_lower(eq->fid_ops, fid, "event queue");
	if (ret)
		return ret;
	while (eq->pending)
		take(eq);
	dm_ops_free(copies[0]);
	dm_ops_free(copies[1]);
	free(eq);
	return 0;
}

struct dm_eq *dm_eq_of(struct fid *fid)
{
	return fid->ops->close == eq_close ? dm_ops_owner(fid->ops) : NULL;
}

/* The oldest event, if it is due, and of a failure or not as asked. */
static struct dm_event *due(struct dm_eq *eq, bool failed)
{
	struct dm_event *e = eq->pending;

	return e && e->due_ns <= dm_now_ns() && !!e->fault == failed ? e : NULL;
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buf,
		       size_t len, uint64_t flags)
{
	struct dm_eq *eq = dm_eq_of(&fid->fid);
	struct fi_eq_entry entry = {0};
	struct dm_event *e;
	ssize_t ret = dm_called(DM_CALL_eq_read);

	if (ret)
		return ret;
	dm_lock();
	if (due(eq, true)) {
		dm_unlock();
		return -FI_EAVAIL;
	}
	e = due(eq, false);
	if (!e) {
		dm_unlock();
		return eq->ops->read(fid, event, buf, len, flags);
	}
	if (len < sizeof(entry)) {
		dm_unlock();
		return -FI_ETOOSMALL;
	}
	entry.fid = e->fid;
	entry.context = e->context;
	*event = FI_MR_COMPLETE;
	memcpy(buf, &entry, sizeof(entry));
	if (!(flags & FI_PEEK))
		take(eq);
	dm_unlock();
	return sizeof(entry);
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *buf,
			  uint64_t flags)
{
	struct dm_eq *eq = dm_eq_of(&fid->fid);
	struct dm_event *e;

	dm_lock();
	e = due(eq, true);
	if (e) {
		buf->fid = e->fid;
		buf->context = e->context;
		buf->data = 0;
		buf->err = -e->fault;
		buf->prov_errno = -e->fault;
		buf->err_data_size = 0;
		if (!(flags & FI_PEEK))
			take(eq);
	}
	dm_unlock();
	return e ? (ssize_t)sizeof(*buf) : eq->ops->readerr(fid, buf, flags);
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *buf,
			size_t len, int timeout, uint64_t flags)
{
	uint64_t start = dm_now_ns();
	ssize_t n;

	while ((n = eq_read(fid, event, buf, len, flags)) == -FI_EAGAIN) {
		if (over(start, timeout))
			return -FI_EAGAIN;
		nap();
	}
	return n;
}

int dm_eq_patch(struct fid_eq *fid)
{
	struct dm_eq *eq = calloc(1, sizeof(*eq));

	if (!eq)
		abort();
	eq->fid_ops = fid->fid.ops;
	eq->ops = fid->ops;
	fid->fid.ops = dm_ops_copy(eq->fid_ops, eq);
	fid->fid.ops->close = eq_close;
	fid->ops = dm_ops_copy(eq->ops, eq);
	fid->ops->read = eq_read;
	fid->ops->readerr = eq_readerr;
	fid->ops->sread = eq_sread;
	return 0;
}
