/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts and gets over the network: by the NIC, or by the target's process. */
#include "win/notify.h"
#include "xfer/operation.h"

int rmx_put_small(struct rmaext_window *w, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len)
{
	const struct rmx_target *t = rmx_target_of(w, rank);
	struct rmaext_fabric *f = w->fabric;
	struct rmx_remote to;

	if (len > f->limits.copied || rmx_by_message(w, t, len))
		return rmx_message_post(w, &(struct rmaext_call){
						   .kind = RMAEXT_PUT,
						   .rank = rank,
						   .offset = offset,
						   .operand = buf,
						   .count = len,
					   });
	to = rmx_remote_at(f, t, offset);
	return f->transport->put_copy(f, &to, buf, len);
}

int rmx_message_post(struct rmaext_window *w, const struct rmaext_call *c)
{
	const unsigned int kind =
		c->notify ? RMAEXT_DID_NOTIFY : RMAEXT_DID_PUT;
	struct rmx_op *op;
	int ret;

	if (c->count > RMX_COPY_MAX)
		return -FI_EAGAIN;
	ret = rmx_message_op(w, c, true, 0, &op);
	if (ret)
		return ret;
	rmx_op_note(op);
	if (w->fabric->hooks->send(&op) == RMX_DONE) {
		rmx_count(&w->tally, c->rank, kind, RMAEXT_MESSAGE, 1,
			  c->count);
		if (c->notify)
			rmx_sent_count(
				rmx_sent(&w->tally, c->rank, c->notify - 1),
				false);
		return 0;
	}
	op->begun = 0; /* nothing was done */
	rmx_op_free(op);
	return -FI_EAGAIN;
}

int rmx_message_put(struct rmaext_window *w, const struct rmaext_call *c,
		    struct rmaext_op **op_p)
{
	struct rmx_op *op;
	int ret = rmx_message_op(w, c, c->count <= RMX_COPY_MAX, 0, &op);

	*op_p = NULL;
	return ret ? ret : rmx_op_run(op, op_p);
}

/* Adds the message that notifies to a new write; after an error it is gone. */
static int note_new(struct rmaext_window *w, const struct rmaext_call *c,
		    struct rmx_op *write)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.rank = c->rank,
		.notify = c->notify,
	};
	struct rmx_op *note;
	int ret = rmx_message_op(w, &call, true, 0, &note);

	if (ret) {
		rmx_op_free(write);
		return ret;
	}
	note->hint = true; /* the write tells */
	note->write = write;
	atomic_store(&write->note, note);
	return 0;
}

int rmx_move_new(struct rmaext_window *w, const struct rmaext_call *c,
		 struct rmx_op **op_p)
{
	int ret;

	if (rmx_by_message(w, rmx_target_of(w, c->rank), c->count))
		return rmx_message_op(w, c, false, 0, op_p);
	ret = rmx_op_over(w, c, false, 0, op_p);
	return ret || !c->notify ? ret : note_new(w, c, *op_p);
}

int rmx_notify(struct rmaext_window *w, int64_t rank, int slot,
	       struct rmaext_op **op_p)
{
	const struct rmaext_call only = {
		.kind = RMAEXT_PUT,
		.notify = slot + 1,
		.rank = rank,
	};

	if (!rmx_control_block_of(w, rank))
		return rmx_message_put(w, &only, op_p);
	rmx_sent_count(rmx_sent(&w->tally, rank, slot), false);
	rmx_notify_add(w, rank, slot, 1);
	return 0;
}
