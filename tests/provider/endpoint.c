/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An endpoint: each operation is checked, its buffers and its target, before
 * the lower endpoint gets it, with a context of ours.
 */
#define _GNU_SOURCE
#include "demand.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dm_endpoint *of(struct fid_ep *fid)
{
	return dm_ops_owner(fid->fid.ops);
}

/* -- the target --------------------------------------------------------------
 */

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

/*
 * May this be done there? Replaces address and key by those that the lower
 * provider takes.
 */
static int check_target(struct dm_endpoint *ep, fi_addr_t peer, uint64_t *addr,
			uint64_t len, uint64_t *key, uint64_t access,
			struct dm_entry **entry_p)
{
	uint64_t domain, offset;
	struct dm_entry *e;
	int ret;

	if (dm_demands()->mr_mode & FI_MR_RAW &&
	    (ret = dm_raw_find(ep->domain, *key, key)))
		return ret;
	ret = target_domain(ep, peer, &domain);
	if (ret)
		return ret;
	e = dm_registry_find(domain, *key);
	if (!e)
		return dm_violated(DM_key, -FI_EKEYREJECTED, "key %#llx",
				   (unsigned long long)*key);
	if (!atomic_load(&e->enabled))
		return dm_violated(DM_disabled, -FI_EKEYREJECTED,
				   "target's region is not enabled");
	offset = *addr - e->base;
	if (*addr < e->base || offset > e->len || len > e->len - offset)
		return dm_violated(DM_address, -FI_EACCES,
				   "address %#llx, %llu bytes; region %#llx, "
				   "%llu bytes",
				   (unsigned long long)*addr,
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
	*addr = offset;
	if (entry_p)
		*entry_p = e;
	return 0;
}

/* -- begin and end of each operation -----------------------------------------
 */

static int begin(struct dm_endpoint *ep, enum dm_call call, void *context,
		 struct dm_op **op_p)
{
	int ret = dm_called(call);

	if (ret)
		return ret;
	*op_p = dm_op_begin(ep, context);
	return *op_p ? 0 : -FI_ENOMEM;
}

static ssize_t end(struct dm_op *op, ssize_t ret)
{
	if (ret)
		dm_op_drop(op);
	return ret;
}

static int use_iov(struct dm_op *op, const struct iovec *iov, void **desc,
		   size_t count, uint64_t access)
{
	int ret = count > DM_IOV ? -FI_EINVAL : 0;

	for (size_t i = 0; !ret && i < count; i++)
		ret = dm_region_use(op, op->ep, iov[i].iov_base, iov[i].iov_len,
				    desc ? desc[i] : NULL, access);
	return ret;
}

/* -- messages ----------------------------------------------------------------
 */

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg,
			   uint64_t flags)
{
	struct dm_endpoint *ep = of(fid);
	struct fi_msg lower = *msg;
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_recv, msg->context, &op);

	if (ret)
		return ret;
	ret = use_iov(op, msg->msg_iov, msg->desc, msg->iov_count, FI_RECV);
	lower.desc = NULL;
	lower.context = op;
	return end(op, ret ? ret : ep->msg->recvmsg(fid, &lower, flags));
}

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 void *context)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_recv, context, &op);

	if (ret)
		return ret;
	ret = use_iov(op, iov, desc, count, FI_RECV);
	return end(op,
		   ret ? ret : ep->msg->recvv(fid, iov, NULL, count, addr, op));
}

static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc,
			fi_addr_t addr, void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	return msg_recvv(fid, &iov, &desc, 1, addr, context);
}

/* What is injected need not be registered. */
static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg,
			   uint64_t flags)
{
	struct dm_endpoint *ep = of(fid);
	struct fi_msg lower = *msg;
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_send, msg->context, &op);

	if (ret)
		return ret;
	if (!(flags & FI_INJECT))
		ret = use_iov(op, msg->msg_iov, msg->desc, msg->iov_count,
			      FI_SEND);
	lower.desc = NULL;
	lower.context = op;
	return end(op, ret ? ret : ep->msg->sendmsg(fid, &lower, flags));
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 void *context)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = use_iov(op, iov, desc, count, FI_SEND);
	return end(op,
		   ret ? ret : ep->msg->sendv(fid, iov, NULL, count, addr, op));
}

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t len,
			void *desc, fi_addr_t addr, void *context)
{
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};

	return msg_sendv(fid, &iov, &desc, 1, addr, context);
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buf, size_t len,
			    void *desc, uint64_t data, fi_addr_t addr,
			    void *context)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = dm_region_use(op, ep, buf, len, desc, FI_SEND);
	return end(op, ret ? ret
			   : ep->msg->senddata(fid, buf, len, NULL, data, addr,
					       op));
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len,
			  fi_addr_t addr)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret : of(fid)->msg->inject(fid, buf, len, addr);
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t len,
			      uint64_t data, fi_addr_t addr)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret : of(fid)->msg->injectdata(fid, buf, len, data, addr);
}

/* -- tagged messages ---------------------------------------------------------
 */

static ssize_t tag_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg,
			   uint64_t flags)
{
	struct dm_endpoint *ep = of(fid);
	struct fi_msg_tagged lower = *msg;
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_recv, msg->context, &op);

	if (ret)
		return ret;
	ret = use_iov(op, msg->msg_iov, msg->desc, msg->iov_count, FI_RECV);
	lower.desc = NULL;
	lower.context = op;
	return end(op, ret ? ret : ep->tagged->recvmsg(fid, &lower, flags));
}

static ssize_t tag_recvv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 uint64_t tag, uint64_t ignore, void *context)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_recv, context, &op);

	if (ret)
		return ret;
	ret = use_iov(op, iov, desc, count, FI_RECV);
	return end(op, ret ? ret
			   : ep->tagged->recvv(fid, iov, NULL, count, addr, tag,
					       ignore, op));
}

static ssize_t tag_recv(struct fid_ep *fid, void *buf, size_t len, void *desc,
			fi_addr_t addr, uint64_t tag, uint64_t ignore,
			void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	return tag_recvv(fid, &iov, &desc, 1, addr, tag, ignore, context);
}

static ssize_t tag_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg,
			   uint64_t flags)
{
	struct dm_endpoint *ep = of(fid);
	struct fi_msg_tagged lower = *msg;
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_send, msg->context, &op);

	if (ret)
		return ret;
	if (!(flags & FI_INJECT))
		ret = use_iov(op, msg->msg_iov, msg->desc, msg->iov_count,
			      FI_SEND);
	lower.desc = NULL;
	lower.context = op;
	return end(op, ret ? ret : ep->tagged->sendmsg(fid, &lower, flags));
}

static ssize_t tag_sendv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 uint64_t tag, void *context)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = use_iov(op, iov, desc, count, FI_SEND);
	return end(op, ret ? ret
			   : ep->tagged->sendv(fid, iov, NULL, count, addr, tag,
					       op));
}

static ssize_t tag_send(struct fid_ep *fid, const void *buf, size_t len,
			void *desc, fi_addr_t addr, uint64_t tag, void *context)
{
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};

	return tag_sendv(fid, &iov, &desc, 1, addr, tag, context);
}

static ssize_t tag_senddata(struct fid_ep *fid, const void *buf, size_t len,
			    void *desc, uint64_t data, fi_addr_t addr,
			    uint64_t tag, void *context)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_op *op;
	ssize_t ret = begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = dm_region_use(op, ep, buf, len, desc, FI_SEND);
	return end(op, ret ? ret
			   : ep->tagged->senddata(fid, buf, len, NULL, data,
						  addr, tag, op));
}

static ssize_t tag_inject(struct fid_ep *fid, const void *buf, size_t len,
			  fi_addr_t addr, uint64_t tag)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret : of(fid)->tagged->inject(fid, buf, len, addr, tag);
}

static ssize_t tag_injectdata(struct fid_ep *fid, const void *buf, size_t len,
			      uint64_t data, fi_addr_t addr, uint64_t tag)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret
		   : of(fid)->tagged->injectdata(fid, buf, len, data, addr,
						 tag);
}

/* -- reads and writes --------------------------------------------------------
 */

static size_t total(const struct iovec *iov, size_t count)
{
	size_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += iov[i].iov_len;
	return sum;
}

static int commit(struct dm_entry *e, uint64_t *flags)
{
	int ret;

	if (!(*flags & FI_COMMIT_COMPLETE))
		return 0;
	ret = dm_called(DM_CALL_commit);
	if (ret)
		return ret;
	if (!dm_demands()->pmem || !(e->flags & FI_RMA_PMEM))
		return dm_violated(DM_flags, -FI_EBADFLAGS,
				   "FI_COMMIT_COMPLETE to memory that is not "
				   "persistent");
	*flags = (*flags & ~FI_COMMIT_COMPLETE) | FI_DELIVERY_COMPLETE;
	return 0;
}

/* All reads and writes are made by this. */
static ssize_t transfer(struct fid_ep *fid, const struct fi_msg_rma *msg,
			uint64_t flags, bool write)
{
	struct dm_endpoint *ep = of(fid);
	struct fi_rma_iov rma[DM_IOV];
	struct fi_msg_rma lower = *msg;
	struct dm_entry *e = NULL;
	struct dm_op *op;
	ssize_t ret = begin(ep, write ? DM_CALL_write : DM_CALL_read,
			    msg->context, &op);

	if (ret)
		return ret;
	if (!(write && flags & FI_INJECT))
		ret = use_iov(op, msg->msg_iov, msg->desc, msg->iov_count,
			      write ? FI_WRITE : FI_READ);
	if (!ret && msg->rma_iov_count > DM_IOV)
		ret = -FI_EINVAL;
	for (size_t i = 0; !ret && i < msg->rma_iov_count; i++) {
		rma[i] = msg->rma_iov[i];
		ret = check_target(
			ep, msg->addr, &rma[i].addr, rma[i].len, &rma[i].key,
			write ? FI_REMOTE_WRITE : FI_REMOTE_READ, &e);
		if (!ret && write)
			ret = commit(e, &flags);
	}
	if (ret)
		return end(op, ret);
	op->written = write ? e : NULL;
	lower.desc = NULL;
	lower.context = op;
	lower.rma_iov = rma;
	return end(op, write ? ep->rma->writemsg(fid, &lower, flags)
			     : ep->rma->readmsg(fid, &lower, flags));
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg,
			   uint64_t flags)
{
	return transfer(fid, msg, flags, false);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg,
			    uint64_t flags)
{
	return transfer(fid, msg, flags, true);
}

static ssize_t plain(struct fid_ep *fid, const struct iovec *iov, void **desc,
		     size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
		     uint64_t data, uint64_t flags, void *context, bool write)
{
	struct fi_rma_iov rma = {
		.addr = addr, .len = total(iov, count), .key = key};
	struct fi_msg_rma msg = {
		.msg_iov = iov,
		.desc = desc,
		.iov_count = count,
		.addr = peer,
		.rma_iov = &rma,
		.rma_iov_count = 1,
		.context = context,
		.data = data,
	};

	/* as the lower endpoint's default says */
	return transfer(fid, &msg, flags | FI_COMPLETION, write);
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t peer,
			 uint64_t addr, uint64_t key, void *context)
{
	return plain(fid, iov, desc, count, peer, addr, key, 0, 0, context,
		     false);
}

static ssize_t rma_read(struct fid_ep *fid, void *buf, size_t len, void *desc,
			fi_addr_t peer, uint64_t addr, uint64_t key,
			void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	return rma_readv(fid, &iov, &desc, 1, peer, addr, key, context);
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov,
			  void **desc, size_t count, fi_addr_t peer,
			  uint64_t addr, uint64_t key, void *context)
{
	return plain(fid, iov, desc, count, peer, addr, key, 0, 0, context,
		     true);
}

static ssize_t rma_write(struct fid_ep *fid, const void *buf, size_t len,
			 void *desc, fi_addr_t peer, uint64_t addr,
			 uint64_t key, void *context)
{
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};

	return rma_writev(fid, &iov, &desc, 1, peer, addr, key, context);
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buf, size_t len,
			     void *desc, uint64_t data, fi_addr_t peer,
			     uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = len};

	return plain(fid, &iov, &desc, 1, peer, addr, key, data,
		     FI_REMOTE_CQ_DATA, context, true);
}

/* It has no completion: what it writes is counted as it is posted. */
static ssize_t inject(struct fid_ep *fid, const void *buf, size_t len,
		      uint64_t data, bool with_data, fi_addr_t peer,
		      uint64_t addr, uint64_t key)
{
	struct dm_endpoint *ep = of(fid);
	struct dm_entry *e;
	ssize_t ret = dm_called(DM_CALL_inject_write);

	if (!ret)
		ret = check_target(ep, peer, &addr, len, &key, FI_REMOTE_WRITE,
				   &e);
	if (ret)
		return ret;
	ret = with_data ? ep->rma->injectdata(fid, buf, len, data, peer, addr,
					      key)
			: ep->rma->inject(fid, buf, len, peer, addr, key);
	if (!ret)
		atomic_fetch_add(&e->writes, 1);
	return ret;
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len,
			  fi_addr_t peer, uint64_t addr, uint64_t key)
{
	return inject(fid, buf, len, 0, false, peer, addr, key);
}

static ssize_t rma_injectdata(struct fid_ep *fid, const void *buf, size_t len,
			      uint64_t data, fi_addr_t peer, uint64_t addr,
			      uint64_t key)
{
	return inject(fid, buf, len, data, true, peer, addr, key);
}

/* -- atomics -----------------------------------------------------------------
 */

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

static ssize_t update(struct fid_ep *fid, const struct fi_msg_atomic *msg,
		      const struct vectors *v, uint64_t flags)
{
	struct dm_endpoint *ep = of(fid);
	size_t size = item_size(msg->datatype);
	struct fi_msg_atomic lower = *msg;
	struct fi_rma_ioc rma[DM_IOV];
	struct dm_entry *e;
	struct dm_op *op;
	uint64_t access = v->n_result ? FI_REMOTE_READ | FI_REMOTE_WRITE
				      : FI_REMOTE_WRITE;
	ssize_t ret = begin(ep, DM_CALL_atomic, msg->context, &op);

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
	if (!ret && msg->rma_iov_count > DM_IOV)
		ret = -FI_EINVAL;
	for (size_t i = 0; !ret && i < msg->rma_iov_count; i++) {
		rma[i] = msg->rma_iov[i];
		ret = check_target(ep, msg->addr, &rma[i].addr,
				   rma[i].count * size, &rma[i].key, access,
				   &e);
		op->written = access & FI_REMOTE_WRITE ? e : NULL;
	}
	if (ret)
		return end(op, ret);
	lower.desc = NULL;
	lower.context = op;
	lower.rma_iov = rma;
	if (v->n_compare)
		ret = ep->atomic->compwritemsg(fid, &lower, v->compare, NULL,
					       v->n_compare, v->result, NULL,
					       v->n_result, flags);
	else if (v->n_result)
		ret = ep->atomic->readwritemsg(fid, &lower, v->result, NULL,
					       v->n_result, flags);
	else
		ret = ep->atomic->writemsg(fid, &lower, flags);
	return end(op, ret);
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
	struct dm_endpoint *ep = of(fid);
	struct dm_entry *e;
	ssize_t ret = dm_called(DM_CALL_atomic);

	if (!ret)
		ret = check_target(ep, peer, &addr, count * item_size(type),
				   &key, FI_REMOTE_WRITE, &e);
	return ret ? ret
		   : ep->atomic->inject(fid, buf, count, peer, addr, key, type,
					op);
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

/* -- the endpoint itself ------------------------------------------------------
 */

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

	if (bound->fclass == FI_CLASS_AV)
		ep->av = (struct fid_av *)bound;
	return ep->fid_ops->bind(fid, bound, flags);
}

static void patch_transfers(struct dm_endpoint *ep)
{
	struct fid_ep *fid = ep->fid;

	ep->msg = fid->msg;
	fid->msg = dm_ops_copy(ep->msg, ep);
	fid->msg->recv = msg_recv;
	fid->msg->recvv = msg_recvv;
	fid->msg->recvmsg = msg_recvmsg;
	fid->msg->send = msg_send;
	fid->msg->sendv = msg_sendv;
	fid->msg->sendmsg = msg_sendmsg;
	fid->msg->senddata = msg_senddata;
	fid->msg->inject = msg_inject;
	fid->msg->injectdata = msg_injectdata;

	ep->tagged = fid->tagged;
	fid->tagged = dm_ops_copy(ep->tagged, ep);
	fid->tagged->recv = tag_recv;
	fid->tagged->recvv = tag_recvv;
	fid->tagged->recvmsg = tag_recvmsg;
	fid->tagged->send = tag_send;
	fid->tagged->sendv = tag_sendv;
	fid->tagged->sendmsg = tag_sendmsg;
	fid->tagged->senddata = tag_senddata;
	fid->tagged->inject = tag_inject;
	fid->tagged->injectdata = tag_injectdata;

	ep->rma = fid->rma;
	fid->rma = dm_ops_copy(ep->rma, ep);
	fid->rma->read = rma_read;
	fid->rma->readv = rma_readv;
	fid->rma->readmsg = rma_readmsg;
	fid->rma->write = rma_write;
	fid->rma->writev = rma_writev;
	fid->rma->writemsg = rma_writemsg;
	fid->rma->writedata = rma_writedata;
	fid->rma->inject = rma_inject;
	fid->rma->injectdata = rma_injectdata;

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

/* From now on it has its operations, and an address. */
static int ep_control(struct fid *fid, int command, void *arg)
{
	struct dm_endpoint *ep = dm_endpoint_of(fid);
	int ret = ep->fid_ops->control(fid, command, arg);
	unsigned char name[64];
	size_t len = sizeof(name);

	if (ret || command != FI_ENABLE || ep->enabled)
		return ret;
	patch_transfers(ep);
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
