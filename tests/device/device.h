/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A libcuda for tests only: docs/contributing/device.md says what it promises.
 *
 * Device memory is a memfd that is mapped twice: without access at the address
 * that the caller gets, so that a CPU that looks there crashes, and with access
 * at `view`, where the streams' threads copy. A stream is a queue and a thread,
 * which waits a moment before each task; the seed says how long.
 *
 * DEVICE_COUNT: devices (1); DEVICE_MEMORY: bytes for each process and device
 * (1 GiB); DEVICE_SEED orders what happens (the process's number);
 * DEVICE_FAIL=name:k:error,... fails the kth call of a function.
 */
#ifndef DEVICE_H
#define DEVICE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "abi.h"

enum { DEVICES = 8 };

/* The primary context of a device: there are no others. */
struct context {
	CUdevice device;
	unsigned retained;
	CUresult broken; /* what has ended it, until it is reset */
	size_t used;	 /* bytes of device memory */
	struct stream *legacy;
};

/* From DEVICE on it is a device's. */
enum kind {
	PAGEABLE,
	PINNED,
	REGISTERED,
	DEVICE,
	IMPORTED,
	MAPPED, /* of a block, see blocks.c */
	POOLED,
	MANAGED, /* the host's, too */
};

struct allocation {
	struct allocation *next;
	enum kind kind;
	CUdeviceptr base;
	size_t len;
	char *view; /* where it can be touched */
	int fd;	    /* of DEVICE */
	uint64_t id;
	unsigned opened; /* IMPORTED: times */
	CUipcMemHandle handle;
	struct block *block; /* of MAPPED */
	bool access, exports;
	struct context *context;
};

enum need { NOTHING, DRIVER, CONTEXT };

/*
 * Every function begins with it: what the call needs is there and the call is
 * not to fail. It returns with the lock held, if with SUCCESS; `device_leave`
 * lets it go and returns what it is given.
 */
CUresult device_enter(const char *function, enum need need);
CUresult device_leave(CUresult result);

#define ENTER(need)                                               \
	do {                                                      \
		CUresult refused_ = device_enter(__func__, need); \
		if (refused_)                                     \
			return refused_;                          \
	} while (0)

/* All that follows is called with the lock held. */

extern __thread bool device_in_worker; /* this thread is a stream's */
struct context *device_current(void);
struct context *device_context(CUdevice device); /* NULL: no such device */
size_t device_limit(void);
uint64_t device_draw(uint64_t below);

/* Streams of a context; `close` lets them end when their work is done. */
CUresult device_streams_open(struct context *context);
void device_streams_close(struct context *context);

/* Wait, without the lock, until all work that was queued before is done. */
void device_drain(void);

/* Wait, without the lock, until something has changed. */
void device_wait(void);

/* The allocation that has an address; NULL: pageable memory, or nothing. */
struct allocation *device_find(CUdeviceptr address);
void device_memory_free(struct context *context);
/* New in the list; of the current context. Out of the list. */
struct allocation *device_allocation(enum kind kind, size_t len);
void device_forget(struct allocation *old);
/* Unmapped, and freed, once it is out of the list. */
void device_end(struct allocation *old);
/* What was reserved where a block is mapped. */
void device_reserved(CUdeviceptr address, CUdeviceptr *base, size_t *len);

#endif
