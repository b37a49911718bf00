/* SPDX-License-Identifier: BSD-3-Clause */
/* Atomics. */
#define _GNU_SOURCE
#include "demand.h"

static size_t item_size(enum fi_datatype type)
{
	static const unsigned char sizes[] = {1, 1, 2, 2, 4,  4,  8,
					      8, 4, 8, 8, 16, 16, 32};

	return type < sizeof(sizes) ? sizes[type] : 16;
}

static int use_ioc(struct dm_op *op, const struct fi_ioc *ioc, void **desc,
		   size_t count, size_t size, uint64_t access)
{
	int ret = count > DM_IOV ? -FI_EINVAL : 0;

	for (size_t i = 0; !ret && i < count; i++)
		ret = dm_region_use(op, op->ep, ioc[i].addr,
				    ioc[i].count * size, desc ? desc[i] : NULL,
				    access);
	return ret;
}

/* Operands, compared values and results: those that the operation has. */
struct vectors {
	const struct fi_ioc *compare;
	void **compare_desc;
	size_t n_compare;
	struct fi_ioc *result;
	void **result_desc;
	size_t n_result;
};

static int check_items(struct dm_endpoint *ep, fi_addr_t peer,
		       const struct fi_rma_ioc *items, size_t size,
		       uint64_t access, struct fi_rma_ioc *to, size_t *n_p,
		       struct dm_entry **entry_p)
{
	struct fi_rma_iov bytes = {items->addr, items->count * size,
				   items->key};
	struct fi_rma_iov parts[DM_IOV];
	size_t n = 0;
	int ret = dm_check_target(ep, peer, &bytes, access, parts, &n, entry_p);

	for (size_t i = 0; !ret && i < n; i++) {
		if (*n_p == DM_IOV || parts[i].len % size)
			return -FI_EINVAL;
		to[(*n_p)++] = (struct fi_rma_ioc){
			parts[i].addr, parts[i].len / size, parts[i].key};
	}
	return ret;
}

static ssize_t update(struct fid_ep *fid, const struct fi_msg_atomic *msg,
		      const struct vectors *v, uint64_t flags)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	size_t size = item_size(msg->datatype);
	struct fi_msg_atomic lower = *msg;
	struct fi_rma_ioc rma[DM_IOV];
	struct dm_entry *e = NULL;
	struct dm_op *op;
	size_t n = 0;
	uint64_t access = v->n_result ? FI_REMOTE_READ | FI_REMOTE_WRITE
				      : FI_REMOTE_WRITE;
	ssize_t ret = dm_post_begin(ep, DM_CALL_atomic, msg->context, &op);

	if (ret)
		return ret;
	if (msg->op == FI_ATOMIC_READ) /* no operand */
		access = FI_REMOTE_READ;
	else if (!(flags & FI_INJECT))
		ret = use_ioc(op, msg->msg_iov, msg->desc, msg->iov_count, size,
			      FI_WRITE);
	if (!ret)
		ret = use_ioc(op, v->compare, v->compare_desc, v->n_compare,
			      size, FI_WRITE);
	if (!ret)
		ret = use_ioc(op, v->result, v->result_desc, v->n_result, size,
			      FI_READ);
	for (size_t i = 0; !ret && i < msg->rma_iov_count; i++)
		ret = check_items(ep, msg->addr, &msg->rma_iov[i], size, access,
				  rma, &n, &e);
	op->written = !ret && access & FI_REMOTE_WRITE ? e : NULL;
	if (ret)
		return dm_post_end(op, ret);
	lower.desc = NULL;
	lower.context = op;
	lower.rma_iov = rma;
	lower.rma_iov_count = n;
	if (v->n_compare)
		ret = ep->atomic->compwritemsg(fid, &lower, v->compare, NULL,
					       v->n_compare, v->result, NULL,
					       v->n_result, flags);
	else if (v->n_result)
		ret = ep->atomic->readwritemsg(fid, &lower, v->result, NULL,
					       v->n_result, flags);
	else
		ret = ep->atomic->writemsg(fid, &lower, flags);
	return dm_post_end(op, ret);
}

static ssize_t plain_update(struct fid_ep *fid, const struct fi_ioc *iov,
			    void **desc, size_t count, const struct vectors *v,
			    fi_addr_t peer, uint64_t addr, uint64_t key,
			    enum fi_datatype type, enum fi_op op, void *context)
{
	struct fi_rma_ioc rma = {.addr = addr, .key = key};
	struct fi_msg_atomic msg = {
		.msg_iov = iov,
		.desc = desc,
		.iov_count = count,
		.addr = peer,
		.rma_iov = &rma,
		.rma_iov_count = 1,
		.datatype = type,
		.op = op,
		.context = context,
	};

	for (size_t i = 0; i < count; i++)
		rma.count += iov[i].count;
	return update(fid, &msg, v, FI_COMPLETION);
}

static const struct vectors none;

static ssize_t at_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
			   uint64_t flags)
{
	return update(fid, msg, &none, flags);
}

static ssize_t at_writev(struct fid_ep *fid, const struct fi_ioc *iov,
			 void **desc, size_t count, fi_addr_t peer,
			 uint64_t addr, uint64_t key, enum fi_datatype type,
			 enum fi_op op, void *context)
{
	return plain_update(fid, iov, desc, count, &none, peer, addr, key, type,
			    op, context);
}

static ssize_t at_write(struct fid_ep *fid, const void *buf, size_t count,
			void *desc, fi_addr_t peer, uint64_t addr, uint64_t key,
			enum fi_datatype type, enum fi_op op, void *context)
{
	struct fi_ioc iov = {.addr = (void *)buf, .count = count};

	return at_writev(fid, &iov, &desc, 1, peer, addr, key, type, op,
			 context);
}

static ssize_t at_inject(struct fid_ep *fid, const void *buf, size_t count,
			 fi_addr_t peer, uint64_t addr, uint64_t key,
			 enum fi_datatype type, enum fi_op op)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_rma_ioc from = {addr, count, key}, to[DM_IOV];
	struct dm_entry *e;
	size_t n = 0;
	ssize_t ret = dm_called(DM_CALL_atomic);

	if (!ret)
		ret = check_items(ep, peer, &from, item_size(type),
				  FI_REMOTE_WRITE, to, &n, &e);
	if (!ret && n > 1)
		ret = -FI_EOPNOTSUPP;
	return ret ? ret
		   : ep->atomic->inject(fid, buf, count, peer, to->addr,
					to->key, type, op);
}

static ssize_t at_readwritemsg(struct fid_ep *fid,
			       const struct fi_msg_atomic *msg,
			       struct fi_ioc *result, void **result_desc,
			       size_t n_result, uint64_t flags)
{
	struct vectors v = {.result = result,
			    .result_desc = result_desc,
			    .n_result = n_result};

	return update(fid, msg, &v, flags);
}

static ssize_t at_readwritev(struct fid_ep *fid, const struct fi_ioc *iov,
			     void **desc, size_t count, struct fi_ioc *result,
			     void **result_desc, size_t n_result,
			     fi_addr_t peer, uint64_t addr, uint64_t key,
			     enum fi_datatype type, enum fi_op op,
			     void *context)
{
	struct vectors v = {.result = result,
			    .result_desc = result_desc,
			    .n_result = n_result};

	return plain_update(fid, iov, desc, count, &v, peer, addr, key, type,
			    op, context);
}

static ssize_t at_readwrite(struct fid_ep *fid, const void *buf, size_t count,
			    void *desc, void *result, void *result_desc,
			    fi_addr_t peer, uint64_t addr, uint64_t key,
			    enum fi_datatype type, enum fi_op op, void *context)
{
	struct fi_ioc iov = {.addr = (void *)buf, .count = count};
	struct fi_ioc to = {.addr = result, .count = count};

	return at_readwritev(fid, &iov, &desc, 1, &to, &result_desc, 1, peer,
			     addr, key, type, op, context);
}

static ssize_t at_compwritemsg(struct fid_ep *fid,
			       const struct fi_msg_atomic *msg,
			       const struct fi_ioc *compare,
			       void **compare_desc, size_t n_compare,
			       struct fi_ioc *result, void **result_desc,
			       size_t n_result, uint64_t flags)
{
	struct vectors v = {compare, compare_desc, n_compare,
			    result,  result_desc,  n_result};

	return update(fid, msg, &v, flags);
}

static ssize_t
at_compwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
	      size_t count, const struct fi_ioc *compare, void **compare_desc,
	      size_t n_compare, struct fi_ioc *result, void **result_desc,
	      size_t n_result, fi_addr_t peer, uint64_t addr, uint64_t key,
	      enum fi_datatype type, enum fi_op op, void *context)
{
	struct vectors v = {compare, compare_desc, n_compare,
			    result,  result_desc,  n_result};

	return plain_update(fid, iov, desc, count, &v, peer, addr, key, type,
			    op, context);
}

static ssize_t at_compwrite(struct fid_ep *fid, const void *buf, size_t count,
			    void *desc, const void *compare, void *compare_desc,
			    void *result, void *result_desc, fi_addr_t peer,
			    uint64_t addr, uint64_t key, enum fi_datatype type,
			    enum fi_op op, void *context)
{
	struct fi_ioc iov = {.addr = (void *)buf, .count = count};
	struct fi_ioc with = {.addr = (void *)compare, .count = count};
	struct fi_ioc to = {.addr = result, .count = count};

	return at_compwritev(fid, &iov, &desc, 1, &with, &compare_desc, 1, &to,
			     &result_desc, 1, peer, addr, key, type, op,
			     context);
}

void dm_atomic_patch(struct dm_endpoint *ep)
{
	struct fid_ep *fid = ep->fid;

	ep->atomic = fid->atomic;
	if (!ep->atomic) /* no FI_ATOMIC among the capabilities */
		return;
	fid->atomic = dm_ops_copy(ep->atomic, ep);
	fid->atomic->write = at_write;
	fid->atomic->writev = at_writev;
	fid->atomic->writemsg = at_writemsg;
	fid->atomic->inject = at_inject;
	fid->atomic->readwrite = at_readwrite;
	fid->atomic->readwritev = at_readwritev;
	fid->atomic->readwritemsg = at_readwritemsg;
	fid->atomic->compwrite = at_compwrite;
	fid->atomic->compwritev = at_compwritev;
	fid->atomic->compwritemsg = at_compwritemsg;
}
