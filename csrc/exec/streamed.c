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

/* Waits for all that was begun, if `ret` is no error. */
static int stream_end(const struct rmaext_window *w, int64_t rank,
		      struct rmaext_stream **s_p, int ret)
{
	ret = rmx_stream_finish(*s_p, ret);
	if (ret == RMAEXT_PENDING)
		return ret;
	rmx_stream_give(*s_p);
	*s_p = NULL;
	return ret ? streamed_failed(w, rank) : 0;
}

/* Returns the stream of an operation, at first a new one; or NULL. */
static struct rmaext_stream *stream_of(const struct rmaext_window *w,
				       int64_t rank, int64_t until,
				       struct rmaext_stream **s_p)
{
	if (!*s_p)
		*s_p = rmx_stream_take(rmx_device_of(w, rank), w->timeout,
				       true);
	if (*s_p)
		(*s_p)->until = until;
	return *s_p;
}

int rmx_streamed_across(const struct rmaext_window *w,
			const struct rmaext_call *c, int64_t until,
			struct rmaext_stream *s)
{
	char *there = rmx_target_of(w, c->rank)->map + c->offset;
	const bool put = c->kind == RMAEXT_PUT;
	int ret;

	s->limit = w->timeout;
	s->until = until;
	/* else what is told to have failed would be put later, over others' */
	ret = rmx_stream_finish(s, 0);
	if (!ret && !s->crosses) {
		s->crosses = true;
		ret = rmx_stream_finish(
			s,
			rmx_stream_across(s, put ? there : c->result,
					  put ? c->operand : there, c->count));
	}
	return ret && ret != RMAEXT_PENDING ? streamed_failed(w, c->rank) : ret;
}

int rmx_streamed_closed(const char *call, int64_t rank)
{
	return rmx_fail(-FI_ESHUTDOWN, rank, call,
			"the window was closed meanwhile, or was to be: some "
			"of it may have been copied");
}

int rmx_streamed_places(const struct rmaext_window *w, int64_t rank, bool put,
			struct rmx_places *p, int64_t until,
			struct rmaext_stream **s_p)
{
	char *base = rmx_target_of(w->root, rank)->map;
	struct rmaext_stream *s = stream_of(w, rank, until, s_p);
	int ret;

	if (!s)
		return streamed_failed(w, rank);
	ret = rmx_stream_resume(s);
	for (uint64_t n = 0; p->next < p->count && !ret; p->next++) {
		struct rmx_piece it = rmx_place_at(p, p->next);

		if (++n % SOME == 0 && rmx_now() > until)
			return RMAEXT_PENDING;
		if (!rmx_place_is_inside(w, rank, &it))
			ret = rmx_places_changed(rank, put);
		else
			ret = rmx_stream_move(
				s, put ? RMX_IN : RMX_OUT, base + it.offset,
				rmx_host_end(put, it.value, it.result), it.len);
	}
	return ret == RMAEXT_PENDING ? ret : stream_end(w, rank, s_p, ret);
}
