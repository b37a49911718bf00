/* SPDX-License-Identifier: BSD-3-Clause */
/* A stream of this process copies from and to the memory of a device. */
#include "exec/streamed.h"
#include "exec/copy_places.h"

#define SOME 1024u /* places that are copied before the clock is looked at */

/* The error is one of an operation on that rank, which may be gone. */
static int streamed_failed(const struct rmaext_window *w, int64_t rank)
{
	struct rmaext_error record;
	int gone;

	rmaext_error_last(&record);
	gone = rmx_check(w, record.call, rank, 0, 0, 0);
	record.rank = rank;
	return gone ? gone : rmx_fail_record(&record);
}

static struct rmaext_stream *stream_of(const struct rmaext_window *w,
				       int64_t rank)
{
	return rmx_stream_take(rmx_device_of(w, rank), w->timeout, true);
}

static int stream_end(const struct rmaext_window *w, int64_t rank,
		      struct rmaext_stream *s, int ret)
{
	ret = rmx_stream_finish(s, ret);
	rmx_stream_give(s);
	return ret ? streamed_failed(w, rank) : 0;
}

int rmx_streamed_across(const struct rmaext_window *w,
			const struct rmaext_call *c, struct rmaext_stream *s)
{
	char *there = rmx_target_of(w, c->rank)->map + c->offset;
	int ret;

	s->limit = w->timeout;
	/* else what is told to have failed would be put later, over others' */
	ret = rmx_stream_finish(s, 0);
	if (!ret)
		ret = rmx_stream_finish(
			s, rmx_stream_across(s, there, c->operand, c->count));
	return ret ? streamed_failed(w, c->rank) : 0;
}

int rmx_streamed_move(const struct rmaext_window *w,
		      const struct rmaext_call *c)
{
	const bool put = c->kind == RMAEXT_PUT;
	char *there = rmx_target_of(w, c->rank)->map + c->offset;
	struct rmaext_stream *s;

	if (!c->count)
		return 0; /* it only notifies */
	s = stream_of(w, c->rank);
	if (!s)
		return streamed_failed(w, c->rank);
	return stream_end(
		w, c->rank, s,
		rmx_stream_move(s, put ? RMX_IN : RMX_OUT, there,
				put ? (char *)(uintptr_t)c->operand : c->result,
				c->count));
}

int rmx_streamed_places(const struct rmaext_window *w, int64_t rank, bool put,
			struct rmx_places *p, int64_t until)
{
	char *base = rmx_target_of(w->root, rank)->map;
	struct rmaext_stream *s = stream_of(w, rank);
	uint64_t i = p->next;
	int ret = 0;

	if (!s)
		return streamed_failed(w, rank);
	for (uint64_t end = i + SOME; i < p->count && !ret; i++) {
		struct rmx_piece it;

		if (i == end) {
			if (rmx_now() > until)
				break;
			end += SOME;
		}
		it = rmx_place_at(p, i);
		if (!rmx_place_is_inside(w, rank, &it))
			ret = rmx_places_changed(rank, put);
		else
			ret = rmx_stream_move(
				s, put ? RMX_IN : RMX_OUT, base + it.offset,
				put ? (char *)(uintptr_t)it.value : it.result,
				it.len);
	}
	ret = stream_end(w, rank, s, ret);
	if (ret)
		return ret;
	p->next = i;
	return i < p->count ? RMAEXT_PENDING : 0;
}
