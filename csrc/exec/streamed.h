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
 * Carries out a put or get in a row, which was checked: it is complete when it
 * returns. The caller is inside the window, and rmx_device_of() is not NULL.
 * Waits for the device, for the window's time limit; the memory of the caller
 * is not used any more, however it ends. Returns 0, or an error with a record.
 */
int rmx_streamed_move(const struct rmaext_window *window,
		      const struct rmaext_call *call);

/*
 * The same of a put from memory of the stream's device, which is that of the
 * rank, behind all that is in the stream. After an error it may go on.
 */
int rmx_streamed_across(const struct rmaext_window *window,
			const struct rmaext_call *call,
			struct rmaext_stream *stream);

/* As rmx_places_copy(), if rmx_device_of() is not NULL. */
int rmx_streamed_places(const struct rmaext_window *window, int64_t rank,
			bool put, struct rmx_places *places, int64_t until);

#endif
