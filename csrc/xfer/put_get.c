/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts and gets over the network: by the NIC, or by the target's process. */
#include "xfer/operation.h"

/* Bytes from op->offset to where that byte of the operation lies there. */
static uint64_t op_place(const struct rmaext_op *op, uint64_t offset)
{
	const struct rmx_strides *s = op->strides;

	return s ? rmx_strides_at(s, offset / s->run) + offset % s->run
		 : offset;
}

int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context)
{
	struct rmaext_fabric *f = op->window->fabric;
	struct rmx_target *t = op->target;
	struct iovec iov = {.iov_base = op->local + offset, .iov_len = len};
	struct fi_rma_iov remote = {
		.addr = op->offset + op_place(op, offset),
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

	/*
	 * Without virtual addresses a raw key was mapped with its base. Else it
	 * is added: the window's memory may begin amid the region.
	 */
	if (f->mr_mode & FI_MR_VIRT_ADDR || !(f->mr_mode & FI_MR_RAW))
		remote.addr += t->base;
	if (op->kind == RMX_GET)
		return (int)fi_readmsg(f->ep, &msg, FI_COMPLETION);
	/* a completion must mean: in the target's memory */
	return (int)fi_writemsg(f->ep, &msg,
				FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* Makes a put that the target's process carries out. */
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

int rmx_message_put(struct rmaext_window *w, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot,
		    struct rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret = message_put_new(w, rank, offset, buf, len, slot, &op);

	*op_p = NULL;
	return ret ? ret : rmx_op_run(op, op_p);
}

/* What is too short for a read goes as a message. */
int rmx_get_new(struct rmaext_window *w, int64_t rank, uint64_t offset,
		void *buf, uint64_t len, struct rmaext_op **op_p)
{
	int ret;

	if (!rmx_by_message(w, len))
		return rmx_op_over(w, rank, RMX_GET, offset, buf, len, 0, op_p);
	ret = rmx_op_new(w, rank, RMX_MESSAGE_GET, offset, len, 0, op_p);
	if (ret)
		return ret;
	(*op_p)->local = buf;
	(*op_p)->unit = 1;
	return 0;
}

/* What is too short for a write goes as a message. */
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
