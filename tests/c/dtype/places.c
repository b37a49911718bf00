/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Places in messages: whatever their shape, the messages tell each byte once,
 * in order, with its value; and results come back to where they belong.
 */
#include "check.h"
#include "dtype/places.h"

enum { MOST = 400, ROOM = 1000, LONGEST = 992 };

static char values[(MOST + 3) * 2 * LONGEST], results[(MOST + 3) * LONGEST];

static uint32_t dice(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

/* What a message said: it must be element i. */
struct reader {
	const struct rmx_places *places;
	uint64_t element;
};

static void expect(struct reader *r, uint64_t offset, const char *value)
{
	const struct rmx_piece it = rmx_place_at(r->places, r->element++);
	const size_t operands = r->places->width / r->places->unit;

	EQUAL(offset, it.offset);
	if (it.value && operands == 2)
		CHECK(!memcmp(value, it.compare, it.len));
	if (it.value)
		CHECK(!memcmp(value + (operands - 1) * it.len, it.value,
			      it.len));
}

static void read_message(struct reader *r, const struct rmx_some *some,
			 const char *data, size_t len)
{
	const struct rmx_places *p = r->places;
	const size_t width = p->width;
	struct rmx_layout loops;
	uint64_t first, start, offset;
	size_t told = some->count * sizeof(offset);

	if (rmx_places_form(p, ROOM) == RMX_LOOPS) {
		CHECK(rmx_loops_unpack(&loops, data, len, &first, &start));
		told = rmx_loops_bytes(&loops);
	}
	EQUAL(len, told + (p->values ? some->count * width : 0));
	for (uint64_t i = 0; i < some->count; i++) {
		memcpy(&offset, data + i * sizeof(offset), sizeof(offset));
		if (rmx_places_form(p, ROOM) == RMX_LOOPS)
			offset = first + rmx_part_at(&loops, start + i);
		expect(r, offset, data + told + i * width);
	}
}

/* Sends all, and answers with what tells each byte from its neighbours. */
static void walk(struct rmx_places *p)
{
	struct reader r = {.places = p};
	char message[ROOM], answer[ROOM];

	while (p->next < p->count) {
		const struct rmx_some some = rmx_places_some(p, ROOM);
		size_t len;

		CHECK(some.count);
		len = rmx_places_pack(p, &some, message);
		CHECK(len <= ROOM);
		for (uint64_t i = 0; i < some.count; i++)
			for (uint64_t k = 0; k < p->unit; k++)
				answer[i * p->unit + k] =
					(char)((some.first + i) * 7 + k);
		read_message(&r, &some, message, len);
		if (p->results)
			rmx_places_unpack(p, &some, answer);
		rmx_places_advance(p, &some);
	}
	EQUAL(r.element, p->count);
	for (uint64_t i = 0; p->results && i < p->count; i++)
		for (uint64_t k = 0; k < p->unit; k++)
			EQUAL(rmx_place_at(p, i).result[k], (char)(i * 7 + k));
}

/* Elements by offsets: as a call on many has them, and as coalesced ones do. */
static void elements(void)
{
	static const uint64_t units[] = {1, 4, 8, 24, 491, 496, LONGEST};
	int64_t offsets[MOST + 3];
	uint32_t order[MOST], seed = 1;

	for (size_t k = 0; k < sizeof(values); k++)
		values[k] = (char)dice(&seed);
	for (int round = 0; round < 3000; round++) {
		const uint64_t unit = units[dice(&seed) % COUNT(units)];
		const bool pairs = unit <= 8 && dice(&seed) % 3 == 0;
		const bool fetches = dice(&seed) % 2, sorted = dice(&seed) % 2;
		struct rmx_places p = {
			.count = 1 + dice(&seed) % MOST,
			.unit = unit,
			.width = pairs ? 2 * unit : unit,
			.start = dice(&seed) % 3,
			.first = dice(&seed),
			.offsets = (char *)offsets,
			.scale = 1 + dice(&seed) % 16,
			.values = dice(&seed) % 3 ? values : NULL,
			.results = fetches ? results : NULL,
			.offset_step = dice(&seed) % 4 ? sizeof(*offsets) : 0,
		};

		p.value_step = dice(&seed) % 4 ? p.width : 0;
		for (uint64_t i = 0; i < MOST + 3; i++)
			offsets[i] = (int64_t)dice(&seed);
		if (sorted) { /* some numbers of elements, each once */
			p.count = 1 + p.count % (MOST / 2 - 1);
			for (uint64_t i = 0; i < p.count; i++)
				order[i] = (uint32_t)(2 * (p.count - i) - 2);
			p.order = order;
		}
		walk(&p);
	}
}

static void loops(void)
{
	uint32_t seed = 7;

	for (int round = 0; round < 2000; round++) {
		const uint64_t unit = 1 + dice(&seed) % LONGEST;
		struct rmx_layout l;
		struct rmx_places p = {
			.unit = unit,
			.width = unit,
			.count = 1,
			.first = 1 << 20,
			.loops = &l,
			.values = values,
			.value_step = unit,
		};

		l.loops = 1 + (int)(dice(&seed) % (dice(&seed) % 10 ? 3 : 20));
		for (int d = 0; d < l.loops; d++) {
			const uint64_t turns = d < 3 ? 1 + dice(&seed) % 7 : 1;

			l.loop[d] = (struct rmx_turns){
				(int64_t)turns,
				(int64_t)(dice(&seed) % 999) - 499};
			p.count *= turns;
		}
		if (dice(&seed) % 2) {
			p.values = NULL;
			p.results = results;
		}
		walk(&p);
	}
}

/* Ranges have no message of their own here: they are walked one by one. */
static void ranges(void)
{
	static const uint64_t starts[] = {0, 3, 3, 12};
	static const int64_t offsets[] = {5, 100, 7};
	struct rmx_places p = {
		.count = COUNT(offsets),
		.unit = 2,
		.width = 2,
		.first = 1000,
		.offsets = (const char *)offsets,
		.scale = 2,
		.starts = starts,
		.values = values,
		.results = results,
		.offset_step = sizeof(*offsets),
		.value_step = 2,
	};

	EQUAL(rmx_places_form(&p, ROOM), RMX_ROW);
	p.starts = NULL; /* elements are rows where they are long */
	EQUAL(rmx_places_form(&p, sizeof(uint64_t) + 2), RMX_ELEMENTS);
	EQUAL(rmx_places_form(&p, sizeof(uint64_t) + 1), RMX_ROW);
	p.starts = starts;
	for (uint64_t i = 0; i < p.count; i++) {
		const struct rmx_piece it = rmx_place_at(&p, i);

		EQUAL(it.offset, 1000 + 2 * (uint64_t)offsets[i]);
		EQUAL(it.len, 2 * (starts[i + 1] - starts[i]));
		EQUAL(it.value - values, 2 * (ptrdiff_t)starts[i]);
		EQUAL(it.result - results, 2 * (ptrdiff_t)starts[i]);
	}
	rmx_places_advance(&p, &(struct rmx_some){.next = 2, .next_part = 4});
	EQUAL(p.next, 2);
	EQUAL(p.part, 4);
}

const struct test tests[] = {
	{.name = "elements", .run = elements},
	{.name = "loops", .run = loops},
	{.name = "ranges", .run = ranges},
	{0},
};
