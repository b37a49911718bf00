/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets in a row that a stream of a device carries out. Nothing goes on
 * by itself: its owner waits for it, in slices, as for an operation of the
 * network. And what Python asks of devices' memory besides.
 */
#include "api/api.h"
#include "exec/streamed.h"
#include "memory/device.h"

#include <errno.h>

/* It is a part of one run. */
int rmx_by_stream(struct rmaext_window *w, const struct rmaext_call *c,
		  struct rmaext_op **op_p)
{
	struct rmx_layout row;
	int ret;

	rmx_layout_part(&row, c->count, 0, NULL, NULL);
	ret = rmx_many_copy(w, c, &row, op_p);
	return ret == RMAEXT_PENDING && c->ended ? -FI_EAGAIN : ret;
}

/* Its own memory may be what is put there, or got: no library copies that. */
static bool across_overlaps(struct rmaext_window *w,
			    const struct rmaext_call *c)
{
	const uintptr_t there = (uintptr_t)rmx_target_of(w, c->rank)->map +
				c->offset,
			here = (uintptr_t)rmx_host_end(c->kind == RMAEXT_PUT,
						       c->operand, c->result);

	return there - here < c->count || here - there < c->count;
}

int rmaext_stream_across(rmaext_stream *s, rmaext_window *w,
			 const struct rmaext_call *c, int64_t slice)
{
	const bool put = c->kind == RMAEXT_PUT;
	const char *call = rmx_call_name(c);
	int ret = rmx_window_enter(w, call);

	if (ret)
		return ret;
	ret = rmx_check(w, call, c->rank, c->offset, c->count,
			put ? RMAEXT_WRITE : RMAEXT_READ);
	if (!ret &&
	    (rmx_device_of(w, c->rank) != s->device || across_overlaps(w, c))) {
		ret = s->crosses ? rmx_streamed_closed(call, c->rank) : -EXDEV;
	} else if (!ret && c->count) {
		ret = rmx_streamed_across(w, c, rmx_now() + slice, s);
		if (ret != RMAEXT_PENDING)
			rmx_count_copy(&w->tally, c->rank,
				       put ? RMAEXT_DID_PUT : RMAEXT_DID_GET,
				       RMAEXT_IPC, c->offset, c->count, ret);
	}
	rmx_window_leave(w);
	return ret;
}

void *rmaext_device_memory(rmaext_window *w, int64_t rank)
{
	void *memory = NULL;

	if (rmx_window_enter(w, "memory"))
		return NULL;
	if (rmx_device_of(w, rank))
		memory = rmx_target_of(w, rank)->map;
	rmx_window_leave(w);
	return memory;
}
