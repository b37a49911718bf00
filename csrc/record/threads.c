/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The threads of this process: their entries in the record. A thread takes one
 * when it first waits or adds an event, and gives it back when it ends. The
 * last entry is shared by all that find none, and says nothing.
 */
#define _GNU_SOURCE
#include "record/record.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

#define LAST (RMAEXT_RECORD_THREADS - 1)

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The entry is this thread's while the record is the one that it is in. */
static _Thread_local struct rmaext_record_thread *own;
static _Thread_local struct rmaext_record_header *own_of;
static _Thread_local int32_t tid;

int32_t rmx_thread_tid(void)
{
	if (!tid)
		tid = (int32_t)syscall(SYS_gettid);
	return tid;
}

static void thread_gone(void *entry)
{
	struct rmaext_record_thread *t = entry;

	if (own_of == rmx_record.header && own == t) {
		own = NULL;
		own_of = NULL;
		__atomic_store_n(&t->kind, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&t->tid, 0, __ATOMIC_RELEASE);
	}
}

static void key_make(void)
{
	pthread_key_create(&key, thread_gone);
}

/* Takes a free entry; the last one is of all threads that find none. */
static struct rmaext_record_thread *thread_enter(void)
{
	struct rmaext_record_thread *t = rmx_record.threads;
	int32_t nobody;

	pthread_once(&once, key_make);
	for (int i = 0; i < LAST; i++, t++) {
		nobody = 0;
		if (!__atomic_compare_exchange_n(
			    &t->tid, &nobody, rmx_thread_tid(), false,
			    __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			continue;
		rmx_entry_begin(&t->seq);
		t->waited = 0;
		t->waits = 0;
		prctl(PR_GET_NAME, t->name);
		rmx_entry_end(&t->seq);
		pthread_setspecific(key, t);
		break;
	}
	own = t;
	own_of = rmx_record.header;
	return t;
}

/* NULL: there is no record. */
static struct rmaext_record_thread *thread_find(void)
{
	if (own_of == rmx_record.header)
		return own; /* both are NULL without a record */
	return rmx_record.header ? thread_enter() : NULL;
}

struct rmaext_record_thread *rmx_thread_entry(void)
{
	struct rmaext_record_thread *t = thread_find();

	return t && t == rmx_record.threads + LAST ? NULL : t;
}

void rmx_thread_named(const char *name)
{
	prctl(PR_SET_NAME, name);
	thread_find();
}

uint16_t rmx_thread_index(void)
{
	struct rmaext_record_thread *t = thread_find();

	return t ? (uint16_t)(t - rmx_record.threads) : LAST;
}
