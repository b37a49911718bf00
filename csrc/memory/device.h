/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that this CPU neither reads nor writes: its owner copies it. Each kind
 * of it is a row of functions; the host's memory is of none, and its paths do
 * not come here. A library is opened when an array of its kind first appears.
 */
#ifndef RMAEXT_DEVICE_H
#define RMAEXT_DEVICE_H

#include "base/common.h"

#include <errno.h>

struct rmx_memory_kind;

/* A queue of a device's copies, which one caller has at a time. */
struct rmaext_stream {
	struct rmx_device *device;
	void *it; /* the library's, and not its default one */
	struct rmaext_stream *next;
};

/* A device that an array was found on; it stays until the process ends. */
struct rmx_device {
	const struct rmx_memory_kind *kind;
	int number;
	void *context;
	pthread_mutex_t lock; /* guards free */
	struct rmaext_stream *free;
};

/*
 * Any thread may call these. They may block, and call nothing of Python or of
 * this library. All return 0, or -fi_errno with a record.
 */
struct rmx_memory_kind {
	const char *name;
	/* Which device has these bytes? Opens the library of that file name. */
	int (*find)(const char *library, const void *address, uint64_t len,
		    int *number_p);
	/* Fills in context, if the application has made one there. */
	int (*open)(const char *library, struct rmx_device *device);
	int (*stream)(const struct rmx_device *device, void **it_p);
	/*
	 * Copy between the device's memory and the host's, either of which may
	 * be `to`, behind all that is in the stream; and wait for all that.
	 * The host's memory stays as it is until the wait has ended.
	 */
	int (*copy)(const struct rmaext_stream *stream, bool in, void *to,
		    const void *from, uint64_t len);
	int (*wait)(const struct rmx_device *device, void *it);
	/* Of undefined contents. free fails silently, as in a forked child. */
	int (*allocate)(const struct rmx_device *device, uint64_t len,
			void **memory_p);
	void (*free)(const struct rmx_device *device, void *memory);
};

/* cuda.c */
extern const struct rmx_memory_kind rmx_cuda;

/*
 * Returns a stream that nobody else has until it is given back. NULL: there is
 * a record.
 */
struct rmaext_stream *rmx_stream_take(struct rmx_device *device);
void rmx_stream_give(struct rmaext_stream *stream);

static inline int rmx_stream_copy(const struct rmaext_stream *s, bool in,
				  void *to, const void *from, uint64_t len)
{
	return s->device->kind->copy(s, in, to, from, len);
}

static inline int rmx_stream_wait(const struct rmaext_stream *s)
{
	return s->device->kind->wait(s->device, s->it);
}

#endif
