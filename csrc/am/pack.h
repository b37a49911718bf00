/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is in a message: pack.c alone knows. The callers hold am->lock.
 */
#ifndef RMAEXT_PACK_H
#define RMAEXT_PACK_H

#include "am/am.h"

/* What `values` bytes of an operation add to a message and to its reply. */
static inline struct rmx_share rmx_op_share(const struct rmx_op *op,
					    uint64_t values)
{
	return rmx_share_of(op->kind, op->op, rmx_op_fetches(op), values);
}

/* The operands or the results are too long for a send buffer. */
static inline bool rmx_op_is_bulk(const struct rmx_op *op)
{
	const struct rmx_share s = rmx_op_share(op, op->len);
	const uint64_t room = RMX_MESSAGE - RMX_HEADERS;

	return !op->places && (s.values > room || s.values * s.operands > room);
}

/* A put of nothing to another job announces a client: its introduction takes
 * room. */
static inline bool rmx_op_is_announcement(const struct rmx_op *op)
{
	return op->window->is_client && !op->len;
}

/* A message for the network: its first piece lies in the buffer. */
struct rmx_packed {
	struct iovec iov[RMX_MESSAGE_PIECES];
	size_t count;
	struct rmx_op *last; /* of those in it, which follow one another */
};

/*
 * Fills a new message with the first operation of a line and those behind it
 * that may share it; or with some of its places, or the next part of a bulk
 * one, which buffer->some then names (buffer->shared). 0, or -FI_EMSGSIZE: a
 * message has no room for one element.
 */
int rmx_pack(struct rmx_send_buffer *buffer, struct rmx_op *first,
	     struct rmx_packed *packed);
/* Copies the results of a message to where its operations want them. */
void rmx_unpack(const struct rmx_send_buffer *buffer, const char *results);

#endif
