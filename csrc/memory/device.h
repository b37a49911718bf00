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

/*
 * A device copies between its memory and pinned memory of the host, which this
 * library keeps for ever: the memory of callers is never the device's, also if
 * a copy does not end. There are two halves, each of which is filled while the
 * other is copied.
 */
#define RMX_HALF ((size_t)256 << 10) /* bytes */
#define RMX_LANDINGS 256	     /* pieces of a half, of copies out */

/* Bytes of a half that are copied to `to` once they are there. */
struct rmx_landing {
	char *to;
	size_t len;
};

struct rmx_half {
	char *at;
	size_t used; /* bytes */
	void *event; /* the library's */
	bool marked; /* the event comes behind its copies */
	unsigned int count;
	struct rmx_landing of[RMX_LANDINGS]; /* one after another */
};

/* A queue of a device's copies, which one caller has at a time. */
struct rmaext_stream {
	struct rmx_device *device;
	void *it;	     /* the library's, and not its default one */
	int64_t limit;	     /* ns for which one wait waits */
	bool moves_mpi;	     /* waits call MPI */
	bool lent;	     /* others may have put work of theirs into it */
	bool late;	     /* a wait has ended, perhaps before the work has */
	bool overdue;	     /* so has one for its time, and only for ours */
	unsigned int filled; /* the half that is being filled */
	struct rmx_half half[2];
	struct rmaext_stream *next;
};

/* A device that an array was found on; it stays until the process ends. */
struct rmx_device {
	const struct rmx_memory_kind *kind;
	int number;
	void *context;
	pthread_mutex_t lock; /* guards these two */
	struct rmaext_stream *free;
	struct rmaext_stream *late; /* may become free */
};

enum rmx_way { RMX_IN, RMX_OUT, RMX_ACROSS }; /* to the device, from it */

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
	/* Fills in context, if the application has made one there. */
	int (*open)(const char *library, struct rmx_device *device);
	/* Fills in `it`, and of each half `at` and `event`. */
	int (*stream)(struct rmaext_stream *stream);
	/* What other processes of this node can map those bytes by. */
	int (*export)(const void *address, const struct rmx_device *device,
		      struct rmaext_export *export_p);
	/*
	 * Which device of this process is that? The library is not opened for
	 * it, nor is there one where the application has made no context.
	 */
	int (*seek)(const char *library, const struct rmaext_export *export,
		    int *number_p);
	/* Maps what is exported, once; and ends that. */
	int (*import)(const struct rmx_device *device,
		      const struct rmaext_export *export, char **base_p);
	void (*close)(const struct rmx_device *device, char *base);
	/*
	 * Queue a copy, and an event: the memory stays as it is until idle()
	 * or passed() has returned 0. The host's is pinned.
	 */
	int (*copy)(const struct rmaext_stream *stream, enum rmx_way way,
		    void *to, const void *from, uint64_t len);
	int (*mark)(const struct rmaext_stream *stream, void *event);
	/* Has a stream nothing left to do; has an event come? */
	int (*idle)(const struct rmx_device *device, void *it);
	int (*passed)(const struct rmx_device *device, void *event);
	/* Of undefined contents. free fails silently, as in a forked child. */
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
/* Only what was given up is under way yet. NULL does nothing. */
void rmx_import_close(struct rmx_import *import);

/* cuda.c */
extern const struct rmx_memory_kind rmx_cuda;

/*
 * Returns a stream that nobody else has until it is given back; a wait for it
 * ends after `limit` ns, and calls MPI meanwhile if the caller holds no lock.
 * NULL: there is a record. As long as a copy has not ended in time no other is
 * begun on that device.
 */
struct rmaext_stream *rmx_stream_take(struct rmx_device *device, int64_t limit,
				      bool moves_mpi);
void rmx_stream_give(struct rmaext_stream *stream);

/*
 * Begins a copy, behind all that is in the stream: `way` is in or out, `there`
 * the device's memory. What goes in is read before it returns, and what comes
 * out is written before rmx_stream_finish() has. Blocks if it is long. Returns
 * 0, or an error with a record.
 */
int rmx_stream_move(struct rmaext_stream *stream, enum rmx_way way, void *there,
		    void *here, uint64_t len);

/* The same between two places in the memory of devices. */
int rmx_stream_across(struct rmaext_stream *stream, void *to, const void *from,
		      uint64_t len);

/*
 * Waits for all that was begun, after `ret` too, which was an error of that.
 * Returns it, or an error with a record; -FI_ETIMEDOUT: the device goes on some
 * time, or never. What came out has landed only if it returns 0.
 */
int rmx_stream_finish(struct rmaext_stream *stream, int ret);

#endif
