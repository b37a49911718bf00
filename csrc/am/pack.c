/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations in messages: how their places and values are written, and their
 * results read. The target's side of it is in items.c.
 */
#include "am/pack.h"

/* -- items */

static struct rmx_item item_of(const struct rmx_op *op, enum rmx_form form,
			       uint64_t count, uint64_t unit)
{
	return (struct rmx_item){
		.count = count,
		.unit = (uint32_t)unit,
		.kind = (uint8_t)op->kind,
		.op = (uint8_t)op->op,
		.type = (uint8_t)op->type,
		.flags = rmx_op_fetches(op) ? RMX_WITH_FETCH : 0,
		.form = (uint8_t)form,
	};
}

/* `len` bytes from `offset` on, with a notification or not. */
static struct rmx_item row_of(const struct rmx_op *op, uint64_t offset,
			      uint64_t len, bool notify)
{
	/* a division takes as long as all else here */
	struct rmx_item row = item_of(
		op, RMX_ROW, op->unit == 1 ? len : len / op->unit, op->unit);

	row.offset = offset;
	if (notify) {
		row.flags |= RMX_WITH_NOTIFY;
		row.slot = (uint16_t)op->notify;
	}
	return row;
}

/* Writes it, and counts its results; returns where its places begin. */
static char *item_begin(struct rmx_send_buffer *buffer, size_t end,
			const struct rmx_item *item)
{
	char *at = buffer->data + RMX_ALIGNED(end);

	buffer->request.count++;
	memcpy(at, item, sizeof(*item));
	if (item->flags & RMX_WITH_FETCH)
		buffer->results = (uint32_t)(RMX_ALIGNED(buffer->results) +
					     item->count * item->unit);
	return at + sizeof(*item);
}

static bool row_has_room(const struct rmx_send_buffer *buffer, size_t end,
			 const struct rmx_share *s)
{
	return RMX_ALIGNED(end) + sizeof(struct rmx_item) +
			       s->values * s->operands <=
		       RMX_MESSAGE &&
	       (!s->results ||
		RMX_ALIGNED(buffer->results) + s->values <= RMX_MESSAGE);
}

/* Appends a row, for which there is room; returns the message's new end. */
static size_t row_append(struct rmx_send_buffer *buffer, size_t end,
			 const struct rmx_op *op, const struct rmx_piece *it,
			 bool notify)
{
	const struct rmx_share s = rmx_op_share(op, it->len);
	const struct rmx_item row = row_of(op, it->offset, it->len, notify);
	char *at = item_begin(buffer, end, &row);

	if (s.operands > 1) {
		memcpy(at, it->compare, s.values);
		at += s.values;
	}
	if (s.operands && s.values) {
		memcpy(at, it->value, s.values);
		at += s.values;
	}
	return (size_t)(at - buffer->data);
}

/* Appends as many elements, from the first that is in no message yet. */
static size_t elements_append(struct rmx_send_buffer *buffer, size_t end,
			      const struct rmx_op *op)
{
	const struct rmx_some some = rmx_places_some(
		op->places,
		RMX_MESSAGE - sizeof(struct rmx_item) - RMX_ALIGNED(end));
	const struct rmx_item item =
		item_of(op, some.form, some.count, op->places->unit);
	char *at = item_begin(buffer, end, &item);

	buffer->some = some;
	at += rmx_places_pack(op->places, &some, at);
	return (size_t)(at - buffer->data);
}

/*
 * The next piece of places that are rows, with room in a message; *i and *part
 * move on. This is inlined, as short ranges are many.
 */
__attribute__((always_inline)) static inline struct rmx_piece
piece_next(const struct rmx_places *p, uint64_t *i, uint64_t *part)
{
	struct rmx_piece it = rmx_place_at(p, *i);
	const uint64_t left = it.len - *part;

	if (!*part && left <= RMX_PIECE_MOST) {
		++*i;
		return it;
	}
	it.offset += *part;
	if (it.value)
		it.value += *part;
	if (it.result)
		it.result += *part;
	it.len = left < RMX_PIECE_MOST ? left : RMX_PIECE_MOST;
	*part = it.len < left ? *part + it.len : 0;
	*i += it.len == left;
	return it;
}

/*
 * Appends as many pieces of an operation, from the first that is in no message
 * yet, as there is room for. The last of all notifies: it is carried out after
 * the others.
 */
static size_t rows_append(struct rmx_send_buffer *buffer, size_t end,
			  const struct rmx_op *op)
{
	const struct rmx_places *p = op->places;
	struct rmx_some some = {
		.first = p->next,
		.part = p->part,
		.next = p->next,
		.next_part = p->part,
		.form = RMX_ROW,
	};

	while (some.next < p->count) {
		uint64_t next = some.next, part = some.next_part;
		const struct rmx_piece it = piece_next(p, &next, &part);
		const struct rmx_share s = rmx_op_share(op, it.len);

		if (!row_has_room(buffer, end, &s))
			break;
		end = row_append(buffer, end, op, &it,
				 op->notify >= 0 && next == p->count);
		some.next = next;
		some.next_part = part;
		some.count++;
	}
	buffer->some = some;
	return end;
}

static size_t op_append(struct rmx_send_buffer *buffer, size_t end,
			struct rmx_op *op)
{
	const struct rmx_piece all = {op->offset, op->len, op->compare,
				      op->operand, op->local};

	if (op->places)
		return rmx_places_form(op->places, RMX_PIECE_MOST) == RMX_ROW
			       ? rows_append(buffer, end, op)
			       : elements_append(buffer, end, op);
	op->results_at = (uint32_t)RMX_ALIGNED(buffer->results);
	return row_append(buffer, end, op, &all, op->notify >= 0);
}

/* -- which operations share a message */

static bool op_has_room(const struct rmx_send_buffer *buffer, size_t end,
			const struct rmx_op *op)
{
	const struct rmx_share s = rmx_op_share(op, op->len);
	const size_t each = sizeof(uint64_t) + op->unit;

	if (!op->places)
		return row_has_room(buffer, end, &s);
	return RMX_ALIGNED(end) + sizeof(struct rmx_item) +
		       op->places->count * each <=
	       RMX_MESSAGE;
}

/* Only operations that the target accepts or refuses together. */
static bool ops_may_share(const struct rmx_op *op, const struct rmx_op *next)
{
	return next->window == op->window && !op->window->attached &&
	       (!next->places || rmx_is_coalesced(next)) &&
	       !rmx_op_is_announcement(op) && !rmx_op_is_announcement(next) &&
	       !rmx_op_is_bulk(next) && !next->held;
}

/* -- parts of a bulk operation */

/*
 * The most bytes of each operand in a message, and whether they are loaned.
 *
 * ofi_rxm has a message of more than 16 KiB fetched by its receiver, and never
 * gives up one whose receiver has died: its buffers stay, and if the fetching
 * one closes its endpoint then, it crashes (1.17). Clients come and go while
 * their owner lives on, so messages between them are short over tcp.
 */
static uint64_t op_bulk_most(const struct rmx_op *op, bool *loaned)
{
	const struct rmx_share s = rmx_op_share(op, op->len);
	const struct rmaext_fabric *f = op->fabric;
	uint64_t most = f->am->bulk;

	*loaned = s.operands && f->limits.pieces > s.operands &&
		  (!f->limits.registers || op->desc);
	if (((s.operands && !*loaned) ||
	     (op->window->root->is_client && f->limits.tcp)) &&
	    most > RMX_MESSAGE - RMX_HEADERS)
		most = RMX_MESSAGE - RMX_HEADERS;
	if (s.operands > 1)
		most /= s.operands;
	return most - most % op->unit;
}

/*
 * The next part of a bulk operation: its row, and its values, in the buffer
 * or from where they are. Its last part notifies.
 */
static int part_pack(struct rmx_send_buffer *buffer, const struct rmx_op *op,
		     struct rmx_packed *packed)
{
	struct iovec *iov = packed->iov;
	struct rmx_share s;
	struct rmx_item row;

	s = rmx_op_share(op, op_bulk_most(op, &buffer->loaned));
	if (!s.values)
		return -FI_EMSGSIZE;
	if (s.values > op->len - op->posted)
		s.values = op->len - op->posted;
	row = row_of(op, op->offset + op->posted, s.values,
		     op->notify >= 0 && op->posted + s.values == op->len);
	item_begin(buffer, sizeof(buffer->request), &row);
	iov->iov_len = RMX_HEADERS;
	for (unsigned int i = 0; i < s.operands; i++) {
		const char *from =
			i + 1 < s.operands ? op->compare : op->operand;

		from += op->posted;
		if (buffer->loaned) {
			iov[packed->count++] = (struct iovec){
				(char *)(uintptr_t)from,
				s.values,
			};
		} else {
			memcpy(buffer->data + iov->iov_len, from, s.values);
			iov->iov_len += s.values;
		}
	}
	buffer->some = (struct rmx_some){
		.part = op->posted,
		.next_part = op->posted + s.values,
	};
	return 0;
}

/* -- messages */

int rmx_pack(struct rmx_send_buffer *buffer, struct rmx_op *op,
	     struct rmx_packed *packed)
{
	size_t end = sizeof(buffer->request);

	*packed = (struct rmx_packed){
		.iov = {{buffer->data, 0}},
		.count = 1,
		.last = op,
	};
	buffer->bulk = rmx_op_is_bulk(op);
	buffer->shared = buffer->bulk || (op->places && !rmx_is_coalesced(op));
	if (buffer->bulk)
		return part_pack(buffer, op, packed);
	end = op_append(buffer, end, op);
	while (!buffer->shared && op->next && ops_may_share(op, op->next) &&
	       op_has_room(buffer, end, op->next)) {
		op = op->next;
		end = op_append(buffer, end, op);
	}
	packed->last = op;
	packed->iov->iov_len = end;
	return 0;
}

/* Each result begins at a multiple of RMX_ALIGN, see struct rmx_item. */
static void pieces_unpack(const struct rmx_send_buffer *buffer,
			  const char *results)
{
	uint64_t i = buffer->some.first, part = buffer->some.part;
	size_t at = 0;

	for (uint32_t k = 0; k < buffer->some.count; k++) {
		const struct rmx_piece it =
			piece_next(buffer->op->places, &i, &part);

		at = RMX_ALIGNED(at);
		memcpy(it.result, results + at, it.len);
		at += it.len;
	}
}

void rmx_unpack(const struct rmx_send_buffer *buffer, const char *results)
{
	struct rmx_op *op = buffer->op;

	if (buffer->bulk)
		memcpy(op->local + buffer->some.part, results, buffer->results);
	else if (buffer->shared && buffer->some.form == RMX_ROW)
		pieces_unpack(buffer, results);
	else if (buffer->shared)
		rmx_places_unpack(op->places, &buffer->some, results);
	for (; op && !buffer->shared; op = op->next)
		if (rmx_op_fetches(op))
			memcpy(op->local, results + op->results_at, op->len);
}
