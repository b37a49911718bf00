/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls of libfabric that read and write the memory of a target. */
#include "net/quirks.h"
#include "xfer/operation.h"

/* The byte of the root window where that byte of the operation lies. */
static uint64_t op_place(const struct rmaext_op *op, uint64_t offset)
{
	const struct rmx_places *p = op->places;

	return p ? rmx_place_at(p, offset / p->unit).offset + offset % p->unit
		 : op->offset + offset;
}

/*
 * Byte `offset` of a target's memory, for fi_*: without virtual addresses a raw
 * key was mapped with its base. Else it is added: the window's memory may begin
 * amid the region.
 */
static uint64_t remote_address(const struct rmaext_fabric *f,
			       const struct rmx_target *t, uint64_t offset)
{
	const bool relative =
		f->mr_mode & FI_MR_RAW && !(f->mr_mode & FI_MR_VIRT_ADDR);

	return offset + (relative ? 0 : t->base);
}

int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context)
{
	struct rmaext_fabric *f = op->window->fabric;
	struct rmx_target *t = op->target;
	struct iovec iov = {.iov_base = op->local + offset, .iov_len = len};
	const struct fi_rma_iov remote = {
		.addr = remote_address(f, t, op_place(op, offset)),
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

	if (op->kind == RMX_GET)
		return (int)fi_readmsg(f->ep, &msg, FI_COMPLETION);
	/* a completion must mean: in the target's memory */
	return (int)fi_writemsg(f->ep, &msg,
				FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

int rmx_rma_inject(struct rmaext_window *w, const struct rmx_target *t,
		   uint64_t offset, const void *buf, uint64_t len)
{
	struct rmaext_fabric *f = w->fabric;
	/* two, see rmx_forgets_injected() */
	struct iovec iov[] = {
		{.iov_base = (void *)buf, .iov_len = len / 2},
		{.iov_base = (char *)buf + len / 2, .iov_len = len - len / 2},
	};
	const struct fi_rma_iov remote = {
		.addr = remote_address(f, t, offset),
		.len = len,
		.key = t->key,
	};
	const struct fi_msg_rma msg = {
		.msg_iov = iov,
		.iov_count = 2,
		.addr = t->member->peer->addr,
		.rma_iov = &remote,
		.rma_iov_count = 1,
	};

	if (rmx_forgets_injected(f->info->fabric_attr->prov_name))
		return (int)fi_writemsg(f->ep, &msg, FI_INJECT);
	return (int)fi_inject_write(f->ep, buf, len, msg.addr, remote.addr,
				    remote.key);
}
