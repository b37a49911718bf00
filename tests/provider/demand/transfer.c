/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads and writes. */
#define _GNU_SOURCE
#include "demand.h"

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
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_rma_iov rma[DM_IOV];
	size_t n = 0;
	struct fi_msg_rma lower = *msg;
	struct dm_entry *e = NULL;
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, write ? DM_CALL_write : DM_CALL_read,
				    msg->context, &op);

	if (ret)
		return ret;
	if (!(write && flags & FI_INJECT))
		ret = dm_use_iov(op, msg->msg_iov, msg->desc, msg->iov_count,
				 write ? FI_WRITE : FI_READ);
	for (size_t i = 0; !ret && i < msg->rma_iov_count; i++) {
		ret = dm_check_target(ep, msg->addr, &msg->rma_iov[i],
				      write ? FI_REMOTE_WRITE : FI_REMOTE_READ,
				      rma, &n, &e);
		if (!ret && write)
			ret = commit(e, &flags);
	}
	if (ret)
		return dm_post_end(op, ret);
	op->written = write ? e : NULL;
	lower.desc = NULL;
	lower.context = op;
	lower.rma_iov = rma;
	lower.rma_iov_count = n;
	return dm_post_end(op, write ? ep->rma->writemsg(fid, &lower, flags)
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
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_rma_iov from = {addr, len, key}, to[DM_IOV];
	struct dm_entry *e;
	size_t n = 0;
	ssize_t ret = dm_called(DM_CALL_inject_write);

	if (!ret)
		ret = dm_check_target(ep, peer, &from, FI_REMOTE_WRITE, to, &n,
				      &e);
	if (!ret && n > 1)
		ret = -FI_EOPNOTSUPP;
	if (ret)
		return ret;
	ret = with_data
		      ? ep->rma->injectdata(fid, buf, len, data, peer, to->addr,
					    to->key)
		      : ep->rma->inject(fid, buf, len, peer, to->addr, to->key);
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

void dm_transfer_patch(struct dm_endpoint *ep)
{
	struct fid_ep *fid = ep->fid;

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
}
