/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages: their buffers are checked, and they get a context of ours. */
#define _GNU_SOURCE
#include "demand.h"

/* -- messages ------------------------------------------------------------- */

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg,
			   uint64_t flags)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_msg lower = *msg;
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_recv, msg->context, &op);

	if (ret)
		return ret;
	ret = dm_use_iov(op, msg->msg_iov, msg->desc, msg->iov_count, FI_RECV);
	lower.desc = NULL;
	lower.context = op;
	return dm_post_end(op,
			   ret ? ret : ep->msg->recvmsg(fid, &lower, flags));
}

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 void *context)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_recv, context, &op);

	if (ret)
		return ret;
	ret = dm_use_iov(op, iov, desc, count, FI_RECV);
	return dm_post_end(
		op,
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
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_msg lower = *msg;
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_send, msg->context, &op);

	if (ret)
		return ret;
	if (!(flags & FI_INJECT))
		ret = dm_use_iov(op, msg->msg_iov, msg->desc, msg->iov_count,
				 FI_SEND);
	lower.desc = NULL;
	lower.context = op;
	return dm_post_end(op,
			   ret ? ret : ep->msg->sendmsg(fid, &lower, flags));
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 void *context)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = dm_use_iov(op, iov, desc, count, FI_SEND);
	return dm_post_end(
		op,
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
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = dm_region_use(op, ep, buf, len, desc, FI_SEND);
	return dm_post_end(op, ret ? ret
				   : ep->msg->senddata(fid, buf, len, NULL,
						       data, addr, op));
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len,
			  fi_addr_t addr)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret : dm_ep_of(fid)->msg->inject(fid, buf, len, addr);
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t len,
			      uint64_t data, fi_addr_t addr)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret
		   : dm_ep_of(fid)->msg->injectdata(fid, buf, len, data, addr);
}

/* -- tagged messages ------------------------------------------------------ */

static ssize_t tag_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg,
			   uint64_t flags)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_msg_tagged lower = *msg;
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_recv, msg->context, &op);

	if (ret)
		return ret;
	ret = dm_use_iov(op, msg->msg_iov, msg->desc, msg->iov_count, FI_RECV);
	lower.desc = NULL;
	lower.context = op;
	return dm_post_end(op,
			   ret ? ret : ep->tagged->recvmsg(fid, &lower, flags));
}

static ssize_t tag_recvv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 uint64_t tag, uint64_t ignore, void *context)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_recv, context, &op);

	if (ret)
		return ret;
	ret = dm_use_iov(op, iov, desc, count, FI_RECV);
	return dm_post_end(op, ret ? ret
				   : ep->tagged->recvv(fid, iov, NULL, count,
						       addr, tag, ignore, op));
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
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct fi_msg_tagged lower = *msg;
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_send, msg->context, &op);

	if (ret)
		return ret;
	if (!(flags & FI_INJECT))
		ret = dm_use_iov(op, msg->msg_iov, msg->desc, msg->iov_count,
				 FI_SEND);
	lower.desc = NULL;
	lower.context = op;
	return dm_post_end(op,
			   ret ? ret : ep->tagged->sendmsg(fid, &lower, flags));
}

static ssize_t tag_sendv(struct fid_ep *fid, const struct iovec *iov,
			 void **desc, size_t count, fi_addr_t addr,
			 uint64_t tag, void *context)
{
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = dm_use_iov(op, iov, desc, count, FI_SEND);
	return dm_post_end(op, ret ? ret
				   : ep->tagged->sendv(fid, iov, NULL, count,
						       addr, tag, op));
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
	struct dm_endpoint *ep = dm_ep_of(fid);
	struct dm_op *op;
	ssize_t ret = dm_post_begin(ep, DM_CALL_send, context, &op);

	if (ret)
		return ret;
	ret = dm_region_use(op, ep, buf, len, desc, FI_SEND);
	return dm_post_end(op, ret ? ret
				   : ep->tagged->senddata(fid, buf, len, NULL,
							  data, addr, tag, op));
}

static ssize_t tag_inject(struct fid_ep *fid, const void *buf, size_t len,
			  fi_addr_t addr, uint64_t tag)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret
		   : dm_ep_of(fid)->tagged->inject(fid, buf, len, addr, tag);
}

static ssize_t tag_injectdata(struct fid_ep *fid, const void *buf, size_t len,
			      uint64_t data, fi_addr_t addr, uint64_t tag)
{
	int ret = dm_called(DM_CALL_inject);

	return ret ? ret
		   : dm_ep_of(fid)->tagged->injectdata(fid, buf, len, data,
						       addr, tag);
}

void dm_message_patch(struct dm_endpoint *ep)
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
}
