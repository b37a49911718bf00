/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets in a row that a stream of a device carries out. Nothing goes on
 * by itself: its owner waits for it, in slices, as for an operation of the
 * network.
 */
#include "api/api.h"
#include "exec/streamed.h"
#include "memory/device.h"

#include <errno.h>
#include <stdlib.h>

struct by_stream {
	struct rmaext_op owned;
	struct rmaext_window *window;
	struct rmaext_call call;
	struct rmaext_stream *stream;
	struct rmaext_op *notifies; /* a message that goes on; or NULL */
};

/* For the record; a notified put is one there. */
static void moved_count(const struct by_stream *b, int ret)
{
	const struct rmaext_call *c = &b->call;
	const bool put = c->kind == RMAEXT_PUT;
	const bool notifies =
		c->notify && rmx_control_block_of(b->window, c->rank);

	if (notifies || c->count)
		rmx_count_copy(&b->window->tally, c->rank,
			       notifies ? RMAEXT_DID_NOTIFY
			       : put	? RMAEXT_DID_PUT
					: RMAEXT_DID_GET,
			       RMAEXT_IPC,
			       notifies ? (uint64_t)c->notify - 1 : c->offset,
			       c->count, ret);
}

/* The caller is inside the window. */
static int by_stream_run(struct by_stream *b, int64_t slice)
{
	const struct rmaext_call only = {
		.kind = RMAEXT_PUT,
		.notify = b->call.notify,
		.rank = b->call.rank,
	};
	const int ret = rmx_streamed_move(b->window, &b->call,
					  rmx_now() + slice, &b->stream);

	if (ret == RMAEXT_PENDING)
		return ret;
	moved_count(b, ret);
	if (ret || !b->call.notify)
		return ret;
	if (!rmx_control_block_of(b->window, b->call.rank))
		return rmx_message_put(b->window, &only, &b->notifies);
	rmx_notify_of(b->window, b->call.rank, b->call.notify - 1);
	return 0;
}

static int by_stream_wait(struct rmaext_op *owned, int64_t slice)
{
	struct by_stream *b = (struct by_stream *)owned;
	int ret;

	if (b->notifies)
		return rmaext_op_wait(b->notifies, slice);
	ret = rmx_window_enter(b->window, rmx_call_name(&b->call));
	if (ret)
		return ret;
	if (rmx_device_of(b->window, b->call.rank)) {
		ret = by_stream_run(b, slice);
	} else {
		ret = rmx_streamed_closed(rmx_call_name(&b->call),
					  b->call.rank);
		moved_count(b, ret);
	}
	rmx_window_leave(b->window);
	return ret;
}

/* What the stream does yet uses no memory of the caller. */
static int by_stream_release(struct rmaext_op *owned)
{
	struct by_stream *b = (struct by_stream *)owned;
	const int ret = rmaext_op_release(&b->notifies);

	if (ret)
		return ret;
	if (b->stream)
		rmx_stream_give(b->stream);
	free(b);
	return 0;
}

static int64_t by_stream_rank(const struct rmaext_op *owned)
{
	return ((const struct by_stream *)owned)->call.rank;
}

static const struct rmx_life by_stream_life = {
	.wait = by_stream_wait,
	.release = by_stream_release,
	.rank = by_stream_rank,
};

int rmx_by_stream(struct rmaext_window *w, const struct rmaext_call *c,
		  struct rmaext_op **op_p)
{
	struct by_stream b = {
		.owned.life = &by_stream_life,
		.window = w,
		.call = *c,
	};
	struct by_stream *left;
	int ret = by_stream_run(&b, RMX_SLICE);

	if (ret != RMAEXT_PENDING)
		return ret;
	left = malloc(sizeof(*left));
	if (!left) {
		if (b.stream)
			rmx_stream_give(b.stream);
		rmaext_op_release(&b.notifies);
		return rmx_no_memory("a copy");
	}
	*left = b;
	*op_p = &left->owned;
	return c->ended ? -FI_EAGAIN : ret;
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
	if (!ret && rmx_device_of(w, c->rank) != s->device) {
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
