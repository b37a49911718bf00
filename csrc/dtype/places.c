/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The walk over the places of an operation, as messages tell them: elements go
 * as a list of offsets, or as loops (of dtype/layout.h) if these are few; then
 * come their values, in the same order, without gaps. Elements that are too
 * long for that are rows, as ranges are, see am/pack.c.
 */
#include "dtype/places.h"

#define MOST_LOOPS 16 /* parts with more loops are sent as offsets */

/* A message has these words, and two for each loop, the innermost first. */
struct head {
	uint64_t loops, first, start;
};

struct rmx_places *rmx_part_places(void *room, const struct rmx_layout *part,
				   uint64_t first, const char *values,
				   char *results)
{
	const uint64_t run = (uint64_t)part->one.len;
	struct rmx_places *p = room;

	*p = (struct rmx_places){
		.count = part->bytes / run,
		.unit = run,
		.width = run,
		.first = first,
		.loops = rmx_part_copy(p + 1, part),
		.values = values,
		.value_step = run,
		.results = results,
	};
	return p;
}

size_t rmx_loops_bytes(const struct rmx_layout *l)
{
	return l->loops && l->loops <= MOST_LOOPS
		       ? sizeof(struct head) +
				 (size_t)l->loops * sizeof(*l->loop)
		       : 0;
}

void rmx_loops_pack(const struct rmx_layout *l, uint64_t first, uint64_t start,
		    void *buf)
{
	const struct head head = {(uint64_t)l->loops, first, start};

	memcpy(buf, &head, sizeof(head));
	memcpy((char *)buf + sizeof(head), l->loop,
	       (size_t)l->loops * sizeof(*l->loop));
}

bool rmx_loops_unpack(struct rmx_layout *l, const void *buf, size_t len,
		      uint64_t *first_p, uint64_t *start_p)
{
	struct head head;

	if (len < sizeof(head))
		return false;
	memcpy(&head, buf, sizeof(head));
	l->loops = head.loops < RMX_DIMS ? (int)head.loops : 0;
	if (!rmx_loops_bytes(l) || len < rmx_loops_bytes(l))
		return false;
	memcpy(l->loop, (const char *)buf + sizeof(head),
	       (size_t)l->loops * sizeof(*l->loop));
	for (int k = 0; k < l->loops; k++)
		if (!l->loop[k].count)
			return false;
	*first_p = head.first;
	*start_p = head.start;
	return true;
}

enum rmx_form rmx_places_form(const struct rmx_places *p, size_t room)
{
	const size_t loops = p->loops ? rmx_loops_bytes(p->loops) : 0;

	if (!p->starts && loops && loops + p->unit <= room)
		return RMX_LOOPS;
	return p->starts || sizeof(uint64_t) + p->unit > room ? RMX_ROW
							      : RMX_ELEMENTS;
}

struct rmx_some rmx_places_some(const struct rmx_places *p, size_t room)
{
	struct rmx_some some = {
		.first = p->next,
		.form = rmx_places_form(p, room),
	};
	uint64_t most = room / (sizeof(uint64_t) + p->width);

	if (some.form == RMX_LOOPS)
		most = (room - rmx_loops_bytes(p->loops)) / p->unit;
	if (most > UINT16_MAX)
		most = UINT16_MAX;
	some.count = (uint32_t)(p->count - p->next < most ? p->count - p->next
							  : most);
	some.next = p->next + some.count;
	return some;
}

static size_t places_pack_values(const struct rmx_places *p,
				 const struct rmx_some *some, char *to)
{
	const size_t width = p->width;

	if (!p->order && p->value_step == width) {
		memcpy(to, p->values + rmx_place_number(p, some->first) * width,
		       some->count * width);
		return some->count * width;
	}
	for (uint64_t i = 0; i < some->count; i++) {
		const uint64_t n = rmx_place_number(p, some->first + i);

		memcpy(to + i * width, p->values + n * p->value_step, width);
	}
	return some->count * width;
}

size_t rmx_places_pack(const struct rmx_places *p, const struct rmx_some *some,
		       char *to)
{
	char *at = to;

	if (some->form == RMX_LOOPS) {
		rmx_loops_pack(p->loops, p->first,
			       rmx_place_number(p, some->first), at);
		at += rmx_loops_bytes(p->loops);
	} else {
		for (uint64_t i = 0; i < some->count; i++) {
			const uint64_t offset =
				rmx_place_at(p, some->first + i).offset;

			memcpy(at, &offset, sizeof(offset));
			at += sizeof(offset);
		}
	}
	if (p->values)
		at += places_pack_values(p, some, at);
	return (size_t)(at - to);
}

void rmx_places_unpack(const struct rmx_places *p, const struct rmx_some *some,
		       const char *from)
{
	if (!p->order) {
		memcpy(p->results + rmx_place_number(p, some->first) * p->unit,
		       from, some->count * p->unit);
		return;
	}
	for (uint64_t i = 0; i < some->count; i++) {
		const uint64_t n = rmx_place_number(p, some->first + i);

		memcpy(p->results + n * p->unit, from + i * p->unit, p->unit);
	}
}
