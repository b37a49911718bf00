/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts and gets over the network: by the NIC, or by the target's hand. */
#include "xfer/operation.h"

/* From the operation's offset in the window. */
static uint64_t place_of(const struct rmaext_op *op, uint64_t offset)
{
	const struct rmx_strides *s = op->strides;

	return s ? rmx_strides_at(s, offset / s->run) + offset % s->run
		 : offset;
}

/* offset: within the operation */
int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context)
{
	struct rmaext_fabric *f = op->window->fabric;
	struct rmx_target *t = op->target;
	struct iovec iov = {.iov_base = op->local + offset, .iov_len = len};
	struct fi_rma_iov remote = {
		.addr = op->offset + place_of(op, offset),
		.len = len,
		.key = t->key,
	};
	struct fi_msg_rma msg = {
		.msg_iov = &iov,
		.desc = f->cache.demanded ? &op->desc : NULL,
		.iov_count = 1,
		.addr = t->member->peer->addr,
		.rma_iov = &remote,
		.rma_iov_count = 1,
		.context = context,
	};

	/* else that of a raw key; it may lie amid the region in any case */
	if (f->mr_mode & FI_MR_VIRT_ADDR || !(f->mr_mode & FI_MR_RAW))
		remote.addr += t->base;
	if (op->kind == RMX_GET)
		return (int)fi_readmsg(f->ep, &msg, FI_COMPLETION);
	/* a completion must mean: in the target's memory */
	return (int)fi_writemsg(f->ep, &msg,
				FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* A put by the target's hand. */
static int message_put_new(struct rmaext_window *w, int64_t rank,
			   uint64_t offset, const void *buf, uint64_t len,
			   int slot, struct rmaext_op **op_p)
{
	const bool copy = len <= RMX_COPY_MAX;
	struct rmaext_op *op;
	int ret = rmx_op_new(w, rank, RMX_MESSAGE_PUT, offset, len,
			     copy ? len : 0, &op);

	if (ret)
		return ret;
	op->unit = 1;
	op->notify = slot;
	op->operand = buf;
	if (copy)
		rmx_op_buffer(op);
	*op_p = op;
	return 0;
}

/* See rmx_notify_post(). */
int rmx_message_post(struct rmaext_window *w, int64_t rank, uint64_t offset,
		     const void *buf, uint64_t len, int slot)
{
	struct rmaext_op *op;
	int ret;

	if (len > RMX_COPY_MAX)
		return -FI_EAGAIN;
	ret = message_put_new(w, rank, offset, buf, len, slot, &op);
	if (ret || w->fabric->hooks->send(&op) == RMX_DONE)
		return ret;
	rmaext_op_release(&op);
	return -FI_EAGAIN;
}

/*
 * As rmaext_put(), but carried out by the target's process, which then counts
 * one up in the slot, unless that is -1. In order with the updates of this
 * rank.
 */
int rmx_message_put(struct rmaext_window *w, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot,
		    struct rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = message_put_new(w, rank, offset, buf, len, slot, &op);

	*op_p = NULL;
	return ret ? ret : rmx_op_run(op, op_p);
}

/* What is too short to be read goes as an update that changes nothing. */
int rmx_get_new(struct rmaext_window *w, int64_t rank, uint64_t offset,
		void *buf, uint64_t len, struct rmaext_op **op_p)
{
	int ret;

	if (!rmx_by_message(w, len))
		return rmx_op_over(w, rank, RMX_GET, offset, buf, len, 0, op_p);
	ret = rmx_op_new(w, rank, RMX_UPDATE, offset, len, 0, op_p);
	if (ret)
		return ret;
	(*op_p)->local = buf;
	(*op_p)->op = RMAEXT_NO_OP;
	(*op_p)->type = RMAEXT_UINT8;
	(*op_p)->unit = 1;
	return 0;
}

/* What is too short to be written goes as a message. */
int rmx_put_new(struct rmaext_window *w, int64_t rank, uint64_t offset,
		const void *buf, uint64_t len, struct rmaext_op **op_p)
{
	int ret;

	if (!rmx_by_message(w, len))
		return rmx_op_over(w, rank, RMX_PUT, offset, buf, len, 0, op_p);
	ret = rmx_op_new(w, rank, RMX_MESSAGE_PUT, offset, len, 0, op_p);
	if (ret)
		return ret;
	(*op_p)->operand = buf;
	(*op_p)->unit = 1;
	(*op_p)->notify = -1;
	return 0;
}
