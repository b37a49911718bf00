/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages are handed to the provider tagged or not, as am->tagged says. Each
 * function returns what the fi_* call does.
 */
#ifndef RMAEXT_WIRE_H
#define RMAEXT_WIRE_H

#include "am/am.h"

#include <rdma/fi_tagged.h>

#define RMX_WIRE_PIECES 3 /* pieces of memory in a message, at most */

static inline int rmx_wire_receive(struct rmaext_fabric *f, void *buf,
				   size_t len, void *desc, void *context)
{
	if (f->am->tagged)
		return (int)fi_trecv(f->ep, buf, len, desc, FI_ADDR_UNSPEC, 0,
				     0, context);
	return (int)fi_recv(f->ep, buf, len, desc, FI_ADDR_UNSPEC, context);
}

static inline int rmx_wire_send(struct rmaext_fabric *f,
				const struct iovec *iov, void **descs,
				size_t count, fi_addr_t to, void *context)
{
	const struct fi_msg message = {
		.msg_iov = iov,
		.desc = descs,
		.iov_count = count,
		.addr = to,
		.context = context,
	};
	const struct fi_msg_tagged tagged = {
		.msg_iov = iov,
		.desc = descs,
		.iov_count = count,
		.addr = to,
		.context = context,
	};

	if (f->am->tagged)
		return (int)fi_tsendmsg(f->ep, &tagged, FI_COMPLETION);
	return (int)fi_sendmsg(f->ep, &message, FI_COMPLETION);
}

static inline int rmx_wire_inject(struct rmaext_fabric *f, const void *buf,
				  size_t len, fi_addr_t to)
{
	if (f->am->tagged)
		return (int)fi_tinject(f->ep, buf, len, to, 0);
	return (int)fi_inject(f->ep, buf, len, to);
}

#endif
