/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts and gets over the network: by the NIC, or by the target's process. */
#include "xfer/operation.h"

int rmx_put_small(struct rmaext_window *w, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len)
{
	const struct rmx_target *t = rmx_target_of(w, rank);
	struct rmaext_fabric *f = w->fabric;
	struct rmx_remote to;

	if (len > f->limits.copied || rmx_by_message(w, t, len))
		return rmx_message_post(w, rank, offset, buf, len, -1);
	to = rmx_remote_at(f, t, offset);
	return f->transport->put_copy(f, &to, buf, len);
}

/* Makes a put that the target's process carries out. */
static int message_put_new(struct rmaext_window *w, int64_t rank,
			   uint64_t offset, const void *buf, uint64_t len,
			   int slot, struct rmx_op **op_p)
{
	const bool copy = len <= RMX_COPY_MAX;
	struct rmx_op *op;
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
	const unsigned int kind = slot < 0 ? RMAEXT_DID_PUT : RMAEXT_DID_NOTIFY;
	struct rmx_op *op;
	int ret;

	if (len > RMX_COPY_MAX)
		return -FI_EAGAIN;
	ret = message_put_new(w, rank, offset, buf, len, slot, &op);
	if (ret)
		return ret;
	rmx_op_note(op);
	if (w->fabric->hooks->send(&op) == RMX_DONE) {
		rmx_count(&w->tally, rank, kind, RMAEXT_MESSAGE, 1, len);
		if (slot >= 0)
			rmx_sent_count(rmx_sent(&w->tally, rank, slot), false);
		return 0;
	}
	op->begun = 0; /* nothing was done */
	rmx_op_free(op);
	return -FI_EAGAIN;
}

int rmx_message_put(struct rmaext_window *w, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot,
		    struct rmaext_op **op_p)
{
	struct rmx_op *op;
	int ret = message_put_new(w, rank, offset, buf, len, slot, &op);

	*op_p = NULL;
	return ret ? ret : rmx_op_run(op, op_p);
}

/* What is too short for a read goes as a message. */
int rmx_get_new(struct rmaext_window *w, int64_t rank, uint64_t offset,
		void *buf, uint64_t len, struct rmx_op **op_p)
{
	int ret;

	if (!rmx_by_message(w, rmx_target_of(w, rank), len))
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
		const void *buf, uint64_t len, struct rmx_op **op_p)
{
	int ret;

	if (!rmx_by_message(w, rmx_target_of(w, rank), len))
		return rmx_op_over(w, rank, RMX_PUT, offset, buf, len, 0, op_p);
	ret = rmx_op_new(w, rank, RMX_MESSAGE_PUT, offset, len, 0, op_p);
	if (ret)
		return ret;
	(*op_p)->operand = buf;
	(*op_p)->unit = 1;
	(*op_p)->notify = -1;
	return 0;
}
