/* SPDX-License-Identifier: BSD-3-Clause */
/* An endpoint. Its operations are checked before the lower one gets them. */
#define _GNU_SOURCE
#include "demand.h"

#include <stdlib.h>

static ssize_t cancel(struct fid *fid, void *context)
{
	struct dm_endpoint *ep = dm_endpoint_of(fid);
	struct dm_op *op = dm_op_of(ep, context);

	return op ? ep->ops->cancel(fid, op) : -FI_ENOENT;
}

static int ep_close(struct fid *fid)
{
	struct dm_endpoint *ep = dm_endpoint_of(fid);
	void *copies[] = {fid->ops,	   ep->fid->ops, ep->fid->msg,
			  ep->fid->tagged, ep->fid->rma, ep->fid->atomic};
	size_t n = ep->enabled ? sizeof(copies) / sizeof(*copies) : 2;
	int ret = dm_called(DM_CALL_close_ep);

	if (ret)
		return ret;
	if (ep->regions)
		return dm_violated(DM_order, -FI_EBUSY,
				   "endpoint closed before its %zu regions",
				   ep->regions);
	ret = dm_close_lower(ep->fid_ops, fid, "endpoint");
	if (ret)
		return ret;
	dm_op_forget_all(ep);
	dm_domain_count(ep->domain, -1);
	if (ep->av)
		dm_av_count(ep->av, -1);
	for (size_t i = 0; i < ep->n_cqs; i++)
		dm_cq_count(ep->cqs[i], -1);
	for (size_t i = 0; i < n; i++)
		dm_ops_free(copies[i]);
	free(ep);
	return 0;
}

struct dm_endpoint *dm_endpoint_of(struct fid *fid)
{
	return fid->ops->close == ep_close ? dm_ops_owner(fid->ops) : NULL;
}

static int ep_bind(struct fid *fid, struct fid *bound, uint64_t flags)
{
	struct dm_endpoint *ep = dm_endpoint_of(fid);
	int ret = ep->fid_ops->bind(fid, bound, flags);

	if (!ret && bound->fclass == FI_CLASS_AV) {
		ep->av = (struct fid_av *)bound;
		dm_av_count(ep->av, 1);
	}
	if (!ret && bound->fclass == FI_CLASS_CQ && ep->n_cqs < 2) {
		ep->cqs[ep->n_cqs++] = bound;
		dm_cq_count(bound, 1);
	}
	return ret;
}

/* From now on it has its operations, and an address. */
static int ep_control(struct fid *fid, int command, void *arg)
{
	struct dm_endpoint *ep = dm_endpoint_of(fid);
	int ret = ep->fid_ops->control(fid, command, arg);
	unsigned char name[64];
	size_t len = sizeof(name);

	if (ret || command != FI_ENABLE || ep->enabled)
		return ret;
	dm_message_patch(ep);
	dm_transfer_patch(ep);
	dm_atomic_patch(ep);
	ep->enabled = true;
	ret = fi_getname(fid, name, &len);
	if (!ret)
		dm_registry_name(name, len, ep->domain->id);
	return ret;
}

int dm_endpoint_patch(struct dm_domain *domain, struct fid_ep *fid)
{
	struct dm_endpoint *ep = calloc(1, sizeof(*ep));

	if (!ep)
		abort();
	ep->fid = fid;
	ep->domain = domain;
	dm_domain_count(domain, 1);
	ep->fid_ops = fid->fid.ops;
	ep->ops = fid->ops;
	fid->fid.ops = dm_ops_copy(ep->fid_ops, ep);
	fid->fid.ops->close = ep_close;
	fid->fid.ops->bind = ep_bind;
	fid->fid.ops->control = ep_control;
	fid->ops = dm_ops_copy(ep->ops, ep);
	fid->ops->cancel = cancel;
	return 0;
}
