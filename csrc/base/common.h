/* SPDX-License-Identifier: BSD-3-Clause */
/* What all rooms share: errors, rundowns, time, copies. */
#ifndef RMAEXT_COMMON_H
#define RMAEXT_COMMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <sys/types.h>
#include <unistd.h>

#include <rdma/fi_errno.h>

#include "rmaext.h"

#define RMX_LINE 64		      /* bytes of a cache line */
#define RMX_SLICE (100 * 1000 * 1000) /* ns in C before Python looks up */
#define RMX_NO_RANK (-1)
#define RMX_TOKEN 16 /* bytes that name a window in a message */

/* Counts the threads inside calls on an object, so that close can wait. */
struct rmx_rundown {
	atomic_int users;
	atomic_bool closed;
};

/* What a waiter wants next. */
enum rmx_step {
	RMX_DONE,
	RMX_SLEEP, /* until a completion */
	RMX_RETRY, /* the provider said EAGAIN: soon, event or not */
};

/* error.c */
#define RMX_PRINTF(n) __attribute__((format(printf, n, n + 1)))
int rmx_fail(int code, int64_t rank, const char *call, const char *format, ...)
	RMX_PRINTF(4);
int rmx_fail_record(const struct rmaext_error *record);

/*
 * signals.c: around everything that may start a provider. inside: an address in
 * the libfabric that does, whose handlers go; NULL: there is none.
 */
struct rmx_signals *rmx_signals_hold(void);
void rmx_signals_give_back(struct rmx_signals *signals, const void *inside);
/* a function's address, as data: POSIX allows it */
#define RMX_ADDRESS(function) ((const void *)(uintptr_t)(function))

/* rundown.c */
int rmx_rundown_enter(struct rmx_rundown *rundown, const char *call,
		      const char *closed);
bool rmx_rundown_try(struct rmx_rundown *rundown); /* without an error record */
void rmx_rundown_leave(struct rmx_rundown *rundown);
int rmx_rundown_shut(struct rmx_rundown *rundown);

/* clock.c */
int64_t rmx_now(void); /* ns, CLOCK_MONOTONIC */
void rmx_futex_sleep(atomic_uint *word, unsigned int value, int64_t ns);
void rmx_futex_wake(atomic_uint *word);

/* The kernel's, which mmap and its kin work in: 4, 16 or 64 KiB. */
static inline uint64_t rmx_page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/*
 * Aligned elements in one piece; others may look at them, and change them,
 * meanwhile. Who gets one that tells of others finds those: acquire.
 */
#define RMX_COPY_AS(type)                                              \
	do {                                                           \
		type value;                                            \
                                                                       \
		if ((uintptr_t)to % sizeof(value))                     \
			break;                                         \
		if ((uintptr_t)from % sizeof(value))                   \
			memcpy(&value, from, sizeof(value));           \
		else                                                   \
			value = __atomic_load_n((const type *)from,    \
						__ATOMIC_ACQUIRE);     \
		__atomic_store_n((type *)to, value, __ATOMIC_RELAXED); \
		return;                                                \
	} while (0)

static inline void rmx_copy(void *to, const void *from, uint64_t len)
{
	switch (len) {
	case 0:
		return; /* and to may be NULL */
	case 1:
		RMX_COPY_AS(uint8_t);
		break;
	case 2:
		RMX_COPY_AS(uint16_t);
		break;
	case 4:
		RMX_COPY_AS(uint32_t);
		break;
	case 8:
		RMX_COPY_AS(uint64_t);
		break;
	}
	memmove(to, from, len);
}

static inline void rmx_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
