/* SPDX-License-Identifier: BSD-3-Clause */
/* What all rooms share: error records, rundowns, signals, time, copies. */
#ifndef RMAEXT_COMMON_H
#define RMAEXT_COMMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <sys/types.h>
#include <unistd.h>

#include <rdma/fi_errno.h>

#include "rmaext.h"

#define RMX_LINE 64			  /* bytes of a cache line */
#define RMX_HUGE_PAGE ((uint64_t)2 << 20) /* bytes of the kernel's */
#define RMX_SLICE RMAEXT_SLICE
#define RMX_NO_RANK (-1)
#define RMX_TOKEN 16 /* secret bytes that name a window in a message */

/*
 * Counts the threads that are inside calls on an object, so that whoever closes
 * the object can wait for them. All zeros is a rundown that is open.
 */
struct rmx_rundown {
	atomic_int users;
	atomic_bool closed;
};

/* What a waiter wants next. */
enum rmx_step {
	RMX_DONE,
	RMX_SLEEP, /* nothing before a completion, or until it is woken */
	RMX_RETRY, /* a try soon: the provider said EAGAIN; no event may come */
};

/* -- error.c */

/*
 * Records a failure for rmaext_error_last() of the same thread. `rank` is the
 * target's or RMX_NO_RANK, `call` the function that failed. Any thread may call
 * it, with any lock held; all texts are copied. Returns `code`.
 */
#define RMX_PRINTF(n) __attribute__((format(printf, n, n + 1)))
int rmx_fail(int code, int64_t rank, const char *call, const char *format, ...)
	RMX_PRINTF(4);
/* The same for a record that another thread has filled in; returns its code. */
int rmx_fail_record(const struct rmaext_error *record);

/* The same where memory is short for `what`; returns -FI_ENOMEM. */
int rmx_no_memory(const char *what);

/* -- text.c: lines of text in a buffer of the caller */

struct rmx_text {
	char *buf;
	size_t size; /* of buf */
	size_t used; /* bytes of all lines, even if they did not fit */
};

/* Appends to the text what fits, as snprintf does. */
void rmx_text_add(struct rmx_text *text, const char *format, ...) RMX_PRINTF(2);

/*
 * Ends the text and sets *len_p to its bytes with the final zero. Returns 0, or
 * -FI_ETOOSMALL with a record of `call` if the buffer has fewer.
 */
int rmx_text_end(struct rmx_text *text, const char *call, size_t *len_p);

/* -- signals.c: around all that may start a provider, or a thread of ours */

/*
 * Blocks the signals of this thread, so that threads which start meanwhile
 * inherit that, and notes the handlers. Any thread may call it. The caller owns
 * what it returns until rmx_signals_give_back(); NULL, when memory is short,
 * is to be given back as well.
 */
struct rmx_signals *rmx_signals_hold(void);

/*
 * Sets this thread's mask as it was and frees `signals`. Handlers that have
 * changed meanwhile are set back if they belong to the libfabric that has the
 * address `inside`, or to what it loaded. NULL leaves all handlers.
 */
void rmx_signals_give_back(struct rmx_signals *signals, const void *inside);

/* A function's address as a pointer to data, which POSIX allows. */
#define RMX_ADDRESS(function) ((const void *)(uintptr_t)(function))

/* -- rundown.c: any thread may call these, without a lock */

/*
 * Enters a call on the object. Returns 0, and rmx_rundown_leave() is due, or
 * -FI_ESHUTDOWN with a record of `call` and the words `closed`.
 */
int rmx_rundown_enter(struct rmx_rundown *rundown, const char *call,
		      const char *closed);

/* The same without an error record; false: the object is closed. */
bool rmx_rundown_try(struct rmx_rundown *rundown);

/* Ends what rmx_rundown_enter() or rmx_rundown_try() began. */
void rmx_rundown_leave(struct rmx_rundown *rundown);

/*
 * Refuses new calls and waits for those inside, which return within a slice.
 * The caller is not inside itself. Returns 0, or -FI_EBUSY after 2 s: the
 * object stays closed to new calls, and may not be freed.
 */
int rmx_rundown_shut(struct rmx_rundown *rundown);

/* -- clock.c */

/* Returns the time in ns, of CLOCK_MONOTONIC. */
int64_t rmx_now(void);
/* The same, as of the clock's last tick, some ms ago: cheaper. */
int64_t rmx_now_about(void);

/* Sleeps for so long; false: a signal has ended that. */
bool rmx_sleep(int64_t ns);
/* Waits for the end of a thread, and joins it; false: not in time. */
bool rmx_thread_join(pthread_t thread, int64_t ns);

/* Converts ns; those below 0 are 0. */
static inline struct timespec rmx_timespec(int64_t ns)
{
	if (ns < 0)
		ns = 0;
	return (struct timespec){
		.tv_sec = (time_t)(ns / 1000000000),
		.tv_nsec = (long)(ns % 1000000000),
	};
}

/*
 * Sleeps while the word has that value, for `ns` at most; returns early after a
 * signal, or for no reason. The word is of this process alone.
 */
void rmx_futex_sleep(atomic_uint *word, unsigned int value, int64_t ns);

/* Counts the word up, and wakes all who sleep on it. */
void rmx_futex_wake(atomic_uint *word);

/*
 * Returns the bytes of the kernel's page, in which mmap and its kin count: 4,
 * 16 or 64 KiB.
 */
static inline uint64_t rmx_page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* copy.c: as memmove(), of RMX_LONG_COPY bytes or more. */
#define RMX_LONG_COPY ((uint64_t)2 << 10)
void rmx_copy_long(void *to, const void *from, uint64_t len);

/* As memmove(), without its slow places. */
static inline void rmx_move(void *to, const void *from, uint64_t len)
{
	if (len < RMX_LONG_COPY)
		memmove(to, from, len);
	else
		rmx_copy_long(to, from, len);
}

/*
 * Copies `len` bytes, which may overlap; nobody needs to hold a lock. An
 * aligned element of 1, 2, 4 or 8 bytes is read and written in one piece, as
 * other threads and ranks may use it meanwhile. It is read with acquire order:
 * whoever reads a flag sees what was written before the flag.
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
		return; /* both pointers may be NULL */
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
	rmx_move(to, from, len);
}

/* Tells the CPU that the thread is in a loop that waits. */
static inline void rmx_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
