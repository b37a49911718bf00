/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Places: where the data of an operation lies, at its target and in own memory.
 * One range needs none of this; see places.c for the others.
 */
#ifndef RMAEXT_PLACES_H
#define RMAEXT_PLACES_H

#include "dtype/layout.h"

/*
 * How the places of an item of a message are told, see am/message.h. Ranges,
 * and long elements, are a row each.
 */
enum rmx_form { RMX_ROW = 1, RMX_ELEMENTS = 2, RMX_LOOPS = 3 };

/* Bytes that lie in one piece at both ends. */
struct rmx_piece {
	uint64_t offset; /* bytes, in the root window */
	uint64_t len;	 /* bytes of each of these */
	const char *compare, *value;
	char *result; /* each may be NULL: there is none */
};

/*
 * Elements, or ranges of several. The arrays are the maker's, and stay until
 * the operation has ended.
 */
struct rmx_places {
	uint64_t count;
	/* those before `next` are in messages, and `part` bytes of that one */
	uint64_t next, part;
	/*
	 * Of coalesced ones, more of which come, see am/coalesce.c: this is
	 * from malloc(), and ends with the operation. Else 0.
	 */
	uint32_t room;
	uint64_t unit;	/* bytes of an element */
	uint64_t width; /* of its value: unit, or twice that: first compare */
	/* numbers of the elements in the arrays, less `start`; NULL: in order
	 */
	const uint32_t *order;
	uint64_t start;
	uint64_t first; /* byte in the root window that offsets count from */
	/* the offsets, which count `scale` bytes; or the loops of a part */
	const char *offsets;
	uint64_t scale;
	const struct rmx_layout *loops;
	/* place n has values from starts[n] to starts[n + 1]; NULL: one each */
	const uint64_t *starts;
	const char *values; /* NULL: there are none */
	char *results;
	/* bytes from one to the next; 0: one stands for all */
	size_t offset_step, value_step;
};

/*
 * What goes into one message: elements; or rows, the first of which may be the
 * rest of one, and the last a part.
 */
struct rmx_some {
	uint64_t first, part;
	uint64_t next, next_part; /* what comes after them */
	uint32_t count;
	enum rmx_form form;
};

/* The number of element i in the caller's arrays. */
static inline uint64_t rmx_place_number(const struct rmx_places *p, uint64_t i)
{
	return p->start + (p->order ? p->order[i] : i);
}

/*
 * Reads an offset in one piece, as another thread may change the caller's
 * arrays. Those of coalesced ones nobody else has; they may lie anywhere.
 */
static inline uint64_t rmx_offset_number(const struct rmx_places *p, uint64_t n)
{
	const void *at = p->offsets + n * p->offset_step;
	uint64_t offset;

	if (!p->room)
		return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
	memcpy(&offset, at, sizeof(offset));
	return offset;
}

/* The bytes of it. */
static inline uint64_t rmx_len_number(const struct rmx_places *p, uint64_t n)
{
	return p->starts ? (p->starts[n + 1] - p->starts[n]) * p->unit
			 : p->unit;
}

/* Returns place number i. */
static inline struct rmx_piece rmx_place_at(const struct rmx_places *p,
					    uint64_t i)
{
	const uint64_t n = rmx_place_number(p, i);
	const uint64_t from = p->starts ? p->starts[n] : n;
	struct rmx_piece it = {.len = rmx_len_number(p, n)};

	it.offset = p->first + (p->loops ? rmx_part_at(p->loops, n)
					 : rmx_offset_number(p, n) * p->scale);
	if (p->values)
		it.value = p->values + from * p->value_step;
	if (it.value && p->width > p->unit) {
		it.compare = it.value;
		it.value += p->unit;
	}
	if (p->results)
		it.result = p->results + from * p->unit;
	return it;
}

/*
 * The places of a part of an array, whose own memory is in one piece: a run is
 * an element. They are written to `room` for so many bytes, with a copy of the
 * loops; `first` is the byte of the root window where the part begins.
 */
static inline size_t rmx_part_places_bytes(const struct rmx_layout *part)
{
	return sizeof(struct rmx_places) + rmx_part_bytes(part);
}
struct rmx_places *rmx_part_places(void *room, const struct rmx_layout *part,
				   uint64_t first, const char *values,
				   char *results);

/*
 * The loops in a message, with all that rmx_part_at() needs. bytes returns the
 * length that they take, or 0 for loops that do not go into a message: none, or
 * too many. pack writes so many bytes: `first` is the window's byte in its
 * root, and `start` the number of the run that the message begins with.
 */
size_t rmx_loops_bytes(const struct rmx_layout *part);
void rmx_loops_pack(const struct rmx_layout *part, uint64_t first,
		    uint64_t start, void *buf);
/*
 * Reads what rmx_loops_pack() wrote; false if these are no such bytes. They may
 * come from anybody, so the offsets are to be checked one by one. Of the part
 * there are loops only.
 */
bool rmx_loops_unpack(struct rmx_layout *part, const void *buf, size_t len,
		      uint64_t *first_p, uint64_t *start_p);

/* How places are told in messages of `room` bytes. */
enum rmx_form rmx_places_form(const struct rmx_places *places, size_t room);

/*
 * Returns which elements go next into a message of `room` bytes; some are left,
 * which are no rows.
 */
struct rmx_some rmx_places_some(const struct rmx_places *places, size_t room);

/*
 * Writes where these elements are, and their values if there are any; returns
 * the bytes.
 */
size_t rmx_places_pack(const struct rmx_places *places,
		       const struct rmx_some *some, char *to);

/* Reads the results of these elements, which lie one after another. */
void rmx_places_unpack(const struct rmx_places *places,
		       const struct rmx_some *some, const char *from);

/* They are in a message now. */
static inline void rmx_places_advance(struct rmx_places *p,
				      const struct rmx_some *some)
{
	p->next = some->next;
	p->part = some->next_part;
}

#endif
