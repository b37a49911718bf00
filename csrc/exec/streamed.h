/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets of memory that lies on a device and is mapped here, or is this
 * rank's own (RMAEXT_IPC): a stream of this process copies, while the target
 * does what it likes.
 */
#ifndef RMAEXT_STREAMED_H
#define RMAEXT_STREAMED_H

#include "dtype/places.h"
#include "win/window.h"

/*
 * Carries out a put from or a get to memory of the stream's device, which is
 * that of the rank, behind all that is in the stream: 0, or an error with a
 * record, after which it may go on. RMAEXT_PENDING at the time `until`: call it
 * again. It waits for the device for the window's time limit. The caller is
 * inside the window, and rmx_device_of() is not NULL.
 */
int rmx_streamed_across(const struct rmaext_window *window,
			const struct rmaext_call *call, int64_t until,
			struct rmaext_stream *stream);

/*
 * The error of an operation that is under way, when rmx_device_of() has come to
 * be NULL between two slices: by a close, which may be undone.
 */
int rmx_streamed_closed(const char *call, int64_t rank);

/*
 * As rmx_places_copy(). *stream_p is NULL at first and once all has ended, by
 * an error too. RMAEXT_PENDING at the time `until`: call it again with the same
 * one, or give that stream back; the memory of the caller is not used after
 * that. It waits for the device for the window's time limit. The caller is
 * inside the window, and rmx_device_of() is not NULL.
 */
int rmx_streamed_places(const struct rmaext_window *window, int64_t rank,
			bool put, struct rmx_places *places, int64_t until,
			struct rmaext_stream **stream_p);

#endif
