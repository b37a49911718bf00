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
struct rmx_parts;

/*
 * A device copies between its memory and pinned memory of the host, which this
 * library keeps for ever: the memory of callers is never the device's, also if
 * a copy does not end. There are two halves, each of which is filled while the
 * other is copied.
 */
#define RMX_HALF ((size_t)256 << 10) /* bytes */
#define RMX_PIECES 1024		     /* of a half */

/* Rows of `len` bytes, one after another here, and `pitch` apart there. */
struct rmx_pitched {
	enum rmx_way { RMX_IN, RMX_OUT } way; /* to the device; from it */
	char *there, *here;
	size_t len, rows, pitch;
};

/* Bytes of a half that are copied to `to` once they are there. */
struct rmx_landing {
	char *to;
	size_t len;
};

struct rmx_half {
	char *at;
	size_t used; /* bytes */
	void *event; /* the library's */
	bool marked; /* it is being copied; the event comes behind that */
	unsigned int run_count, count;
	struct rmx_pitched runs[RMX_PIECES]; /* to be copied */
	struct rmx_landing of[RMX_PIECES];   /* one after another */
};

/* A queue of a device's copies, which one caller has at a time. */
struct rmaext_stream {
	struct rmx_device *device;
	void *it; /* the library's, and not its default one; NULL: none yet */
	int64_t limit;	/* ns for which one wait waits */
	int64_t until;	/* when it comes back with RMAEXT_PENDING meanwhile */
	int64_t since;	/* when the wait began that goes on; or 0 */
	bool moves_mpi; /* waits call MPI */
	bool crosses;	/* that of rmaext_stream_across() was begun */
	bool busy;	/* there may be work in it, or there was an error */
	struct rmx_pitched rest; /* what is left of a copy: rest.len bytes */
	struct rmx_pitched rows; /* the runs of rmaext_stream_copy() */
	const int64_t *runs; /* offset and length of those left: rows.rows */
	uintptr_t low, high; /* what it may write of the device's memory */
	unsigned int filled; /* the half that is being filled */
	struct rmx_half half[2];
	struct rmaext_stream *next;
};

/* A device that an array was found on; it stays until the process ends. */
struct rmx_device {
	const struct rmx_memory_kind *kind;
	int number;
	void *context;
	pthread_mutex_t lock; /* guards these */
	struct rmaext_stream *free;
	struct rmaext_stream *late; /* given up; may become free */
	atomic_uint late_count;	    /* of these */
	unsigned int taken;
	pid_t owner;		 /* whose; not its children's */
	pthread_mutex_t looks;	 /* guards these; comes before `lock` */
	void *settled;		 /* an event */
	bool recorded;		 /* it was, and has not come yet */
	bool stays;		 /* nor in time when it was last waited for */
	struct rmx_freed *freed; /* what is to be freed yet */
};

/*
 * Any thread may call these. They call nothing of Python or of this library.
 * All return 0, or -fi_errno with a record; those of the last group also
 * RMAEXT_PENDING: not yet.
 */
struct rmx_memory_kind {
	const char *name;
	/* Which device has these bytes? Opens the library of that file name. */
	int (*find)(const char *library, const void *address, uint64_t len,
		    int *number_p);
	/* Fills in context, if the application has made one there; settled. */
	int (*open)(const char *library, struct rmx_device *device);
	/* Fills in `it`, and of each half `at` and `event`. */
	int (*stream)(struct rmaext_stream *stream);
	/* What other processes of this node can map those bytes by, until
	 * unexport. */
	int (*export)(const void *address, uint64_t len,
		      const struct rmx_device *device,
		      struct rmaext_export *export_p);
	void (*unexport)(const struct rmaext_export *export);
	/*
	 * Which device of this process is that? The library is not opened for
	 * it, nor is there one where the application has made no context.
	 */
	int (*seek)(const char *library, const struct rmaext_export *export,
		    int *number_p);
	/* Maps what is exported, once; and ends that. */
	int (*import)(const struct rmx_device *device,
		      const struct rmaext_export *export, char **base_p,
		      struct rmx_parts **parts_p);
	void (*close)(const struct rmx_device *device, char *base,
		      struct rmx_parts *parts);
	/*
	 * Queue copies, one within the device, and an event: the memory stays
	 * as it is until idle() or passed() has returned 0. The host's is
	 * pinned. behind: what is queued from now on comes behind what `other`
	 * has, a stream of the application's.
	 */
	int (*copy)(const struct rmaext_stream *stream,
		    const struct rmx_pitched *runs, unsigned int count);
	int (*across)(const struct rmaext_stream *stream, void *to,
		      const void *from, uint64_t len);
	int (*mark)(const struct rmaext_stream *stream, void *event);
	int (*behind)(const struct rmaext_stream *stream, void *other);
	/* Has a stream nothing left to do; has an event come? */
	int (*idle)(const struct rmx_device *device, void *it);
	int (*passed)(const struct rmx_device *device, void *event);
	/*
	 * Records `settled` behind what the device has to do, of everybody in
	 * this process. RMAEXT_PENDING: not now, as it would not be behind
	 * streams of ours that have work.
	 */
	int (*settle)(struct rmx_device *device);
	/*
	 * Of undefined contents. free and close may wait for all that the
	 * device has to do when they are called: see rmx_device_idle().
	 */
	int (*allocate)(const struct rmx_device *device, uint64_t len,
			void **memory_p);
	void (*free)(const struct rmx_device *device, void *memory);
};

/*
 * Memory of another process's device that is mapped here: once for all windows
 * over what one allocation has.
 */
struct rmx_import {
	struct rmx_device *device;
	struct rmaext_export from; /* but for `at` */
	char *base;
	struct rmx_parts *parts; /* the kind's; or NULL */
	unsigned int users;
	pid_t owner; /* not its children */
	struct rmx_import *next;
};

/*
 * Maps `size` bytes that another process of this node has exported; the record
 * is from there, and may be anything. Returns 0, and the caller has one use of
 * the import, or an error with a record.
 */
int rmx_import_open(const char *library, const void *export, uint64_t size,
		    struct rmx_import **import_p, char **map_p);
/*
 * Only what was given up is under way yet. A mapping is closed when the device
 * has nothing to do, for which this waits a second at most; else a later open
 * or close does it. NULL does nothing.
 */
void rmx_import_close(struct rmx_import *import);

/* cuda.c */
extern const struct rmx_memory_kind rmx_cuda;

/*
 * freed.c. Has the device nothing to do just now? What waits for it, as CUDA's
 * free does, would wait for a kernel that hangs, also for one that was begun
 * later than what is to be freed was used. With `wait` it waits a second for
 * that, and then no more until all has ended that was there; nor does it where
 * a stream of ours may be the caller's own (see `settle`). The caller holds no
 * lock that others need.
 */
bool rmx_device_idle(struct rmx_device *device, bool wait);
/* Frees what may be by now. It does not wait. */
void rmx_device_look(struct rmx_device *device);

/*
 * Makes the streams of a new device, before there is work of ours there: memory
 * is pinned perhaps only once the application's kernels have ended. Returns 0,
 * or an error with a record.
 */
int rmx_streams_prepare(struct rmx_device *device);

/*
 * Returns a stream that nobody else has until it is given back; it does not
 * wait. Functions that wait for its work do so for `limit` ns, then
 * -FI_ETIMEDOUT, and call MPI meanwhile if the caller holds no lock; they come
 * back at stream->until with RMAEXT_PENDING, which the caller sets. NULL: there
 * is a record. What was given back with work in it is used again once that has
 * ended. While some of it has not none is made, as that pins memory, which may
 * wait for it: if all are in use then, stream->it is NULL, and who waits for
 * the first copy waits for one to be free, too.
 */
struct rmaext_stream *rmx_stream_take(struct rmx_device *device, int64_t limit,
				      bool moves_mpi);
/* Returns whether work goes on in it, and no caller's memory is used by that.
 */
bool rmx_stream_give(struct rmaext_stream *stream);
/* Is there one with work, or that a caller has? */
bool rmx_streams_busy(struct rmx_device *device);

/*
 * Begins a copy, behind all that is in the stream: `there` is the device's
 * memory. What goes in was read, and what comes out is written, before
 * rmx_stream_finish() has returned 0; `here` is not used once the stream was
 * given back. Returns 0, an error with a record, or RMAEXT_PENDING: then call
 * resume, or finish. To be written there is memory to which no copy goes on
 * that was given up: -FI_ETIMEDOUT.
 */
int rmx_stream_move(struct rmaext_stream *stream, enum rmx_way way, void *there,
		    void *here, uint64_t len);
int rmx_stream_resume(struct rmaext_stream *stream);

/* The end of a put or get that is the host's: a put only reads it. */
static inline void *rmx_host_end(bool put, const void *operand, void *result)
{
	return put ? (void *)(uintptr_t)operand : result;
}

/* The same between two places in the memory of devices; it does not wait. */
int rmx_stream_across(struct rmaext_stream *stream, void *to, const void *from,
		      uint64_t len);

/*
 * Waits for all that was begun, unless `ret` is an error of that, which it
 * returns. Else 0, an error with a record, or RMAEXT_PENDING: call it again.
 */
int rmx_stream_finish(struct rmaext_stream *stream, int ret);

#endif
