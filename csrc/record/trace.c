/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Traces: a thread writes all events to files, in the order of their numbers.
 * Where it falls behind by a whole ring, those who add events wait for it. Each
 * file begins with the record's header as it is at that moment, so each can be
 * read by itself.
 */
#define _GNU_SOURCE
#include "record/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE 4096
#define BATCH 256u			       /* events written at a time */
#define NAP ((int64_t)20 * 1000 * 1000)	       /* ns between looks */
#define PATIENCE ((int64_t)1000 * 1000 * 1000) /* ns */
#define PATH 4096

static struct {
	char path[PATH];
	uint64_t most; /* bytes of a file */
	int fd;
	unsigned int files; /* begun so far */
	uint64_t written;   /* bytes of this file */
	uint64_t kept;	    /* events in the file before this one */
	uint64_t here;	    /* events in this one */
	pthread_t thread;
	bool runs;
	atomic_bool stop;
	atomic_uint wake; /* futex on which the writer sleeps */
	atomic_int error; /* -errno of what could not be written; or 0 */
	atomic_uint_fast64_t taken;    /* events below this are not needed */
	atomic_uint_fast64_t given_up; /* `taken`, when somebody last gave up */
	atomic_uint_fast64_t dropped;  /* events of files that were removed */
} trace = {.fd = -1};

static int bytes_write(const void *data, size_t len)
{
	const char *at = data;

	while (len) {
		const ssize_t n = write(trace.fd, at, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -ENOSPC;
		at += n;
		len -= (size_t)n;
		trace.written += (uint64_t)n;
	}
	return 0;
}

static void file_name(char *name, unsigned int number)
{
	snprintf(name, PATH + 32, "%s.%u.events", trace.path, number);
}

/* Ends the file, removes the one before it, and begins the next. */
static int file_next(void)
{
	char name[PATH + 32], page[PAGE] = {0};
	const int fd = trace.fd;

	trace.fd = -1; /* a child forked now must not close another's */
	if (fd >= 0)
		close(fd);
	if (trace.files > 1) {
		file_name(name, trace.files - 2);
		if (!unlink(name))
			atomic_fetch_add(&trace.dropped, trace.kept);
	}
	trace.kept = trace.here;
	trace.here = 0;
	trace.written = 0;
	file_name(name, trace.files++);
	trace.fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (trace.fd < 0)
		return -errno;
	memcpy(page, rmx_record.header, sizeof(*rmx_record.header));
	return bytes_write(page, sizeof(page));
}

/*
 * Copies the events that are whole. One that is being written is waited for,
 * but not for ever: its thread may be suspended, or have dropped it.
 */
static unsigned int events_take(struct rmaext_record_event *to, uint64_t *at,
				int64_t *stuck)
{
	const uint64_t end =
		__atomic_load_n(&rmx_record.header->next, __ATOMIC_ACQUIRE);
	unsigned int n = 0;

	for (; n < BATCH && *at < end; (*at)++) {
		const struct rmaext_record_event *e =
			&rmx_record.events[*at % RMAEXT_RECORD_EVENTS];
		const uint64_t seq = 2 * (*at + 1);
		const uint64_t is = __atomic_load_n(&e->seq, __ATOMIC_ACQUIRE);

		if (is == seq) {
			to[n] = *e;
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			if (__atomic_load_n(&e->seq, __ATOMIC_RELAXED) == seq) {
				n++;
				*stuck = 0;
				continue;
			}
		} else if (is < seq) {
			const int64_t now = rmx_now();

			if (!*stuck)
				*stuck = now;
			if (now - *stuck < PATIENCE)
				break;
		}
		*stuck = 0;
		__atomic_fetch_add(&rmx_record.header->lost, 1,
				   __ATOMIC_RELAXED);
	}
	return n;
}

static int events_write(const struct rmaext_record_event *events,
			unsigned int n)
{
	int ret = trace.written + n * sizeof(*events) > trace.most ? file_next()
								   : 0;

	if (!ret)
		ret = bytes_write(events, n * sizeof(*events));
	if (!ret)
		trace.here += n;
	return ret;
}

/* The program goes on, with a word on stderr, as nobody may look at its logs.
 */
static void trace_fail(int error)
{
	atomic_store(&trace.error, error);
	dprintf(STDERR_FILENO,
		"rmaext: the trace %s cannot be written any more: %s\n",
		trace.path, strerror(-error));
}

static void *thread_main(void *arg)
{
	struct rmaext_record_event events[BATCH];
	uint64_t at = atomic_load(&trace.taken);
	int64_t stuck = 0;

	(void)arg;
	rmx_thread_named("rmaext-trace");
	for (;;) {
		const unsigned int wake = atomic_load(&trace.wake);
		const bool last = atomic_load(&trace.stop);
		const unsigned int n = events_take(events, &at, &stuck);

		atomic_store(&trace.taken, at);
		if (n && !atomic_load(&trace.error)) {
			const int ret = events_write(events, n);

			if (ret)
				trace_fail(ret);
		}
		if (n && atomic_load(&trace.error))
			__atomic_fetch_add(&rmx_record.header->lost, n,
					   __ATOMIC_RELAXED);
		if (n == BATCH)
			continue;
		if (last && !stuck)
			return NULL;
		rmx_futex_sleep(&trace.wake, wake, NAP);
	}
}

void rmx_trace_room(uint64_t number)
{
	const uint64_t half = RMAEXT_RECORD_EVENTS / 2;
	int64_t end = 0;
	uint64_t taken;

	if (number % half == 0)
		rmx_futex_wake(&trace.wake);
	for (;;) {
		taken = atomic_load(&trace.taken);
		if (number < taken || number - taken < RMAEXT_RECORD_EVENTS)
			return;
		if (!end)
			end = rmx_now() + PATIENCE;
		if (rmx_now() > end)
			atomic_store(&trace.given_up, taken);
		if (atomic_load(&trace.given_up) == taken || !trace.runs)
			return;
		rmx_futex_wake(&trace.wake);
		rmx_sleep(50 * 1000);
	}
}

/* In a forked child, which has no writer. */
static void trace_forked(void)
{
	trace.runs = false;
	if (trace.fd >= 0)
		close(trace.fd);
	trace.fd = -1;
}

static void fork_watch(void)
{
	pthread_atfork(NULL, NULL, trace_forked);
}

int rmaext_record_trace(const char *path, uint64_t most)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const size_t len = strlen(path);
	struct rmx_signals *signals;
	int ret;

	if (!rmx_record.header || trace.runs)
		return rmx_record.header ? 0 : -ENODEV;
	if (len >= PATH)
		return -ENAMETOOLONG;
	memcpy(trace.path, path, len + 1);
	trace.most = most / 2 > 2 * PAGE ? most / 2 : 2 * PAGE;
	atomic_store(&trace.taken, __atomic_load_n(&rmx_record.header->next,
						   __ATOMIC_ACQUIRE));
	atomic_store(&trace.given_up, UINT64_MAX);
	rmx_record.header->traced = 1;
	ret = file_next();
	if (ret)
		return ret;
	signals = rmx_signals_hold();
	ret = -pthread_create(&trace.thread, NULL, thread_main, NULL);
	rmx_signals_give_back(signals, NULL);
	if (ret)
		return ret;
	pthread_once(&once, fork_watch);
	trace.runs = true;
	rmx_record.traced = true;
	return 0;
}

int rmaext_record_traced(uint64_t *lost_p, uint64_t *dropped_p)
{
	*lost_p = rmx_record.header ? __atomic_load_n(&rmx_record.header->lost,
						      __ATOMIC_RELAXED)
				    : 0;
	*dropped_p = atomic_load(&trace.dropped);
	return atomic_load(&trace.error);
}

/* Writes the last events, and ends the writer. */
static void trace_end(void)
{
	if (!trace.runs)
		return;
	rmx_record.traced = false;
	atomic_store(&trace.stop, true);
	rmx_futex_wake(&trace.wake);
	pthread_join(trace.thread, NULL);
	trace.runs = false;
	close(trace.fd);
	trace.fd = -1;
}

void rmaext_record_leave(uint32_t state)
{
	if (!rmx_record.header)
		return;
	__atomic_store_n(&rmx_record.header->state, state, __ATOMIC_RELEASE);
	if (state == RMAEXT_ENDED)
		trace_end();
}
