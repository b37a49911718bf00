/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Slices of an array, as runs of bytes at the distances of nested loops. No
 * table of offsets is made: the offset of a run is computed from the run's
 * number when it is needed, so the memory for a slice does not grow with it.
 */
#include "dtype/strides.h"

/* -- loops */

/* Does each turn of the outer loop begin where the inner loop has ended? */
static bool loop_continues(int64_t step, uint64_t count, int64_t outer)
{
	int64_t reach;

	return !__builtin_mul_overflow(step, (int64_t)count, &reach) &&
	       reach == outer;
}

bool rmx_strides_make(struct rmx_strides *s, const struct rmaext_part *part)
{
	int64_t bytes = (int64_t)part->unit;

	s->run = part->unit;
	s->ndim = 0;
	if (part->ndim < 0 || part->ndim > RMX_DIMS || bytes <= 0)
		return false;
	for (int k = part->ndim - 1; k >= 0; k--) {
		const int64_t count = part->shape[k], step = part->steps[k];
		const int64_t local = part->locals ? part->locals[k] : bytes;
		struct rmx_dim *last = s->ndim ? &s->dim[s->ndim - 1] : NULL;

		if (count < 0 || __builtin_mul_overflow(bytes, count, &bytes))
			return false;
		if (count == 1)
			continue;
		if (!last && step == (int64_t)s->run && local == step)
			s->run *= (uint64_t)count;
		else if (last &&
			 loop_continues(last->step, last->count, step) &&
			 loop_continues(last->local, last->count, local))
			last->count *= (uint64_t)count;
		else
			s->dim[s->ndim++] =
				(struct rmx_dim){(uint64_t)count, step, local};
	}
	s->runs = bytes ? (uint64_t)bytes / s->run : 0;
	if (!bytes)
		s->ndim = 0;
	return true;
}

size_t rmx_strides_bytes(const struct rmx_strides *s)
{
	return offsetof(struct rmx_strides, dim) + s->ndim * sizeof(*s->dim);
}

bool rmx_strides_span(const struct rmx_strides *s, uint64_t offset,
		      int64_t *low_p, int64_t *high_p)
{
	int64_t low, high, reach;

	if (__builtin_add_overflow(offset, 0, &low) ||
	    __builtin_add_overflow(offset, s->run, &high))
		return false;
	for (uint32_t d = 0; d < s->ndim; d++) {
		const struct rmx_dim *dim = &s->dim[d];

		if (__builtin_mul_overflow(dim->step, (int64_t)dim->count - 1,
					   &reach) ||
		    __builtin_add_overflow(reach < 0 ? low : high, reach,
					   reach < 0 ? &low : &high))
			return false;
	}
	*low_p = low;
	*high_p = high;
	return low >= 0;
}

/* -- in messages */

#define MOST_LOOPS 16 /* slices with more loops are sent as offsets */

/* A message has these words, and two for each loop. */
struct head {
	uint64_t loops, first, start;
};
struct loop {
	uint64_t count;
	int64_t step;
};

size_t rmx_loops_bytes(const struct rmx_strides *s)
{
	return s->ndim && s->ndim <= MOST_LOOPS
		       ? sizeof(struct head) + s->ndim * sizeof(struct loop)
		       : 0;
}

void rmx_loops_pack(const struct rmx_strides *s, uint64_t first, uint64_t start,
		    void *buf)
{
	const struct head head = {s->ndim, first, start};
	char *at = (char *)buf + sizeof(head);

	memcpy(buf, &head, sizeof(head));
	for (uint32_t d = 0; d < s->ndim; d++, at += sizeof(struct loop))
		memcpy(at, &(struct loop){s->dim[d].count, s->dim[d].step},
		       sizeof(struct loop));
}

bool rmx_loops_unpack(struct rmx_strides *s, const void *buf, size_t len,
		      uint64_t *start_p)
{
	const char *at = (const char *)buf + sizeof(struct head);
	struct head head;

	if (len < sizeof(head))
		return false;
	memcpy(&head, buf, sizeof(head));
	s->ndim = head.loops < RMX_DIMS ? (uint32_t)head.loops : 0;
	if (!rmx_loops_bytes(s) || len < rmx_loops_bytes(s))
		return false;
	s->first = head.first;
	*start_p = head.start;
	for (uint32_t d = 0; d < s->ndim; d++, at += sizeof(struct loop)) {
		struct loop loop;

		memcpy(&loop, at, sizeof(loop));
		if (!loop.count)
			return false;
		s->dim[d] = (struct rmx_dim){loop.count, loop.step, 0};
	}
	return true;
}

/* -- by memory */

struct side {
	char *at;
	int64_t step;
};

#define LOOP(type)                                                     \
	do {                                                           \
		for (; n; n--, to.at += to.step, from.at += from.step) \
			memcpy(to.at, from.at, sizeof(type));          \
	} while (0)

static void runs_copy(struct side to, struct side from, uint64_t n,
		      uint64_t run)
{
	switch (run) { /* memcpy of a constant length is a load and a store */
	case 1:
		LOOP(uint8_t);
		break;
	case 2:
		LOOP(uint16_t);
		break;
	case 4:
		LOOP(uint32_t);
		break;
	case 8:
		LOOP(uint64_t);
		break;
	case 16:
		LOOP(uint64_t[2]);
		break;
	default:
		for (; n; n--, to.at += to.step, from.at += from.step)
			rmx_move(to.at, from.at, run);
	}
}

static void loops_copy(const struct rmx_strides *s, uint32_t loops, bool put,
		       char *remote, char *local)
{
	const struct rmx_dim *dim = &s->dim[loops - 1];
	const struct side there = {remote, dim->step};
	const struct side here = {local, dim->local};

	if (loops == 1) {
		runs_copy(put ? there : here, put ? here : there, dim->count,
			  s->run);
		return;
	}
	for (uint64_t n = dim->count; n; n--) {
		loops_copy(s, loops - 1, put, remote, local);
		remote += dim->step;
		local += dim->local;
	}
}

void rmx_strides_copy(const struct rmx_strides *s, bool put, char *remote,
		      char *local)
{
	if (s->ndim)
		loops_copy(s, s->ndim, put, remote, local);
	else if (s->runs)
		rmx_copy(put ? remote : local, put ? local : remote, s->run);
}

bool rmx_strides_overlap(const struct rmx_strides *s, const char *remote,
			 const char *local)
{
	const char *high = remote + s->run, *local_high = local + s->run;

	for (uint32_t d = 0; d < s->ndim; d++) {
		const struct rmx_dim *dim = &s->dim[d];
		const int64_t turns = (int64_t)dim->count - 1;

		*(dim->step < 0 ? &remote : &high) += dim->step * turns;
		*(dim->local < 0 ? &local : &local_high) += dim->local * turns;
	}
	return remote < local_high && local < high;
}
