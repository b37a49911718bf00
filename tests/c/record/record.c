/* SPDX-License-Identifier: BSD-3-Clause */
/* The record of this process: its counters, events, threads and traces. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "record/record.h"

enum { WRITERS = 4, ROUNDS = 100000, PAGE = 4096 };

static const struct rmaext_record_header *seen; /* as a reader maps it */

static void open_record(void)
{
	const struct rmaext_record_header facts = {.pid = getpid(), .rank = 3};

	OK(rmaext_record_open(&facts));
	seen = rmx_record.header;
	EQUAL(rmx_record.header->rank, 3);
	EQUAL(rmx_record.header->state, RMAEXT_RUNS);
}

static struct rmx_tally enter_window(int64_t ranks, uint64_t bytes)
{
	const struct rmaext_record_window facts = {
		.comm = 7,
		.number = 1,
		.ranks = ranks,
		.unit = 8,
		.bytes = bytes,
	};
	struct rmx_tally tally = {0};

	rmx_record_window(&tally, &facts);
	CHECK(tally.id);
	return tally;
}

/* -- counters */

static void test_counters(void)
{
	struct rmaext_record_counts *closed;
	struct rmx_tally a, b;
	uint64_t place;

	open_record();
	closed = &rmx_record.header->closed;
	a = enter_window(4, 80);
	rmx_count_direct(&a, 2, RMAEXT_DID_PUT, 0, 10, true);
	rmx_count_direct(&a, 2, RMAEXT_DID_PUT, 0, 5, false);
	rmx_count(&a, 3, RMAEXT_DID_FETCH, RMAEXT_MESSAGE, 2, 16);
	rmx_count_error(&a, 3, RMAEXT_DID_FETCH, RMAEXT_MESSAGE);
	rmx_count_direct(&a, RMX_SEVERAL, RMAEXT_DID_GET, 0, 64, false);
	EQUAL(rmx_counts(&a, 2)->plain[0].bytes, 10);
	EQUAL(rmx_counts(&a, 2)->shared[0][RMAEXT_DIRECT].bytes, 5);
	EQUAL(a.of[4].shared[1][RMAEXT_DIRECT].bytes, 64);
	place = a.entry->counts;
	EQUAL(a.entry->state, RMAEXT_WINDOW_OPEN);
	rmx_record_close(&a);
	CHECK(!a.of && !a.id);
	/* a closed window's sums stay, and its room is used again, as zeros */
	EQUAL(closed->plain[0].bytes, 10);
	EQUAL(closed->shared[3][RMAEXT_MESSAGE].calls, 2);
	EQUAL(closed->shared[3][RMAEXT_MESSAGE].errors, 1);
	EQUAL(closed->shared[1][RMAEXT_DIRECT].bytes, 64);
	b = enter_window(4, 80);
	EQUAL(b.entry->counts, place);
	for (int i = 0; i < 5; i++)
		EQUAL(b.of[i].plain[0].calls + b.of[i].shared[3][3].calls, 0);
}

/* Ranks beyond the table share the last entry that is a rank's. */
static void test_many_ranks(void)
{
	struct rmx_tally t;

	open_record();
	t = enter_window(1000000, 8);
	EQUAL(t.entry->targets, RMAEXT_RECORD_TARGETS + 1);
	rmx_count(&t, 999999, RMAEXT_DID_PUT, RMAEXT_FABRIC, 1, 8);
	rmx_count(&t, RMAEXT_RECORD_TARGETS, RMAEXT_DID_PUT, RMAEXT_FABRIC, 1,
		  8);
	EQUAL(t.of[RMAEXT_RECORD_TARGETS - 1].shared[0][RMAEXT_FABRIC].calls,
	      2);
	/* an array of ranks may have been changed since it was checked */
	rmx_count_direct(&t, -1, RMAEXT_DID_GET, 0, 8, false);
	rmx_count_direct(&t, INT64_MIN, RMAEXT_DID_GET, 0, 8, true);
	CHECK(rmx_counts(&t, -1) == &t.of[RMAEXT_RECORD_TARGETS - 1]);
	CHECK(rmx_counts(&t, INT64_MIN) == &t.of[RMAEXT_RECORD_TARGETS - 1]);
}

/* There is room for so many windows; others work, and are not counted. */
static void test_many_windows(void)
{
	static struct rmx_tally t[RMAEXT_RECORD_WINDOWS + 10];
	struct rmx_tally last = {0};

	open_record();
	for (size_t i = 0; i < COUNT(t); i++)
		rmx_record_window(&t[i],
				  &(struct rmaext_record_window){.ranks = 1});
	EQUAL(t[RMAEXT_RECORD_WINDOWS - 1].id, RMAEXT_RECORD_WINDOWS);
	EQUAL(t[RMAEXT_RECORD_WINDOWS].id, 0);
	EQUAL(rmx_record.header->uncounted, 10);
	rmx_count(&t[RMAEXT_RECORD_WINDOWS], 0, RMAEXT_DID_PUT, 0, 1, 1);
	rmx_record_close(&t[5]);
	rmx_record_window(&last, &(struct rmaext_record_window){.ranks = 1});
	CHECK(last.id && last.entry == &rmx_record.windows[5]);
}

/* -- events */

static atomic_bool stalled; /* a writer for a second, which is too long */

static void *write_events(void *arg)
{
	const uint32_t me = (uint32_t)(uintptr_t)arg;
	int64_t last = now(), next;

	for (int64_t i = 1; i <= ROUNDS; i++, last = next) {
		rmx_event_add(&(struct rmaext_record_event){
			.begin = i * me,
			.end = i * me,
			.offset = (uint64_t)(i * me),
			.bytes = (uint64_t)(i * me),
			.window = me,
			.kind = RMAEXT_DID_PUT,
		});
		next = now();
		if (next - last > SECOND * 8 / 10)
			atomic_store(&stalled, true);
	}
	return NULL;
}

/* Copies an event as a tool does; false: it is not there, or not whole. */
static bool read_event(uint64_t number, struct rmaext_record_event *to)
{
	const struct rmaext_record_event *e =
		(const void *)((const char *)seen + seen->events);
	const uint64_t seq = 2 * (number + 1);

	e += number % RMAEXT_RECORD_EVENTS;
	if (__atomic_load_n(&e->seq, __ATOMIC_ACQUIRE) != seq)
		return false;
	memcpy(to, e, sizeof(*to));
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&e->seq, __ATOMIC_RELAXED) == seq;
}

static void check_event(const struct rmaext_record_event *e)
{
	EQUAL(e->begin, e->end);
	EQUAL(e->offset, e->bytes);
	EQUAL(e->begin, (int64_t)e->offset);
	CHECK(e->window >= 1 && e->window <= WRITERS);
	EQUAL(e->begin % e->window, 0);
}

/*
 * A reader in another process, as tools are, sees whole events only. ThreadSan
 * does not see it, and has nothing to say against the lock that is none.
 */
static void read_while_they_write(int fd, uint64_t bytes)
{
	struct rmaext_record_event e;
	uint64_t found = 0, next;

	seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(seen != MAP_FAILED);

	/* longer if the writers, or this one, come later */
	for (int64_t end = now() + SECOND, last = end + 20 * SECOND;
	     now() < end || (!found && now() < last);) {
		next = __atomic_load_n(&seen->next, __ATOMIC_ACQUIRE);
		for (uint64_t n = next > 1000 ? next - 1000 : 0; n < next; n++)
			if (read_event(n, &e)) {
				check_event(&e);
				found++;
			}
	}
	_exit(found ? 0 : 1);
}

static void test_events(void)
{
	pthread_t threads[WRITERS];
	struct rmaext_record_event e;
	uint64_t bytes;
	int status, fd;
	pid_t pid;

	open_record();
	bytes = rmx_record.header->bytes;
	fd = dup(rmx_record.fd); /* a child has no record */
	pid = fork_child();
	if (!pid)
		read_while_they_write(fd, bytes);
	for (uintptr_t i = 0; i < WRITERS; i++)
		OK(pthread_create(&threads[i], NULL, write_events,
				  (void *)(i + 1)));
	for (int i = 0; i < WRITERS; i++)
		OK(pthread_join(threads[i], NULL));
	EQUAL(waitpid(pid, &status, 0), pid);
	EQUAL(status, 0);
	EQUAL(rmx_record.header->next, WRITERS * ROUNDS);
	/* the latest are there, but for those that were dropped */
	status = 0;
	for (uint64_t n = WRITERS * ROUNDS - RMAEXT_RECORD_EVENTS;
	     n < WRITERS * ROUNDS; n++)
		status += read_event(n, &e);
	CHECK((uint64_t)status + rmx_record.header->lost >=
	      RMAEXT_RECORD_EVENTS);
	CHECK(status > RMAEXT_RECORD_EVENTS - 100);
}

/* -- threads */

static struct rmaext_record_thread *own_entry(void)
{
	return &rmx_record.threads[rmx_thread_index()];
}

static void test_waits(void)
{
	struct rmaext_record_thread *t;
	struct rmaext_record_event e;
	int64_t since;

	open_record();
	rmx_now_in(RMAEXT_IN_FLUSH, 9, 1, 0, 0);
	t = own_entry();
	EQUAL(t->tid, gettid());
	EQUAL(t->kind, RMAEXT_IN_FLUSH);
	since = t->since;
	rmx_now_out(9, RMAEXT_PENDING, true);
	nap(0.01);
	rmaext_record_tell("/a/b.py:7", "flush: window 1");
	rmx_now_in(RMAEXT_IN_FLUSH, 9, 1, 0, 0); /* the next slice */
	EQUAL(t->since, since);
	CHECK(!strcmp(t->site, "/a/b.py:7"));
	/* a probe of a peer, between two slices, is no wait of its own */
	rmx_now_in(RMAEXT_DID_GET, 0, 2, 0, 1);
	rmx_now_out(0, 0, false);
	EQUAL(t->kind, RMAEXT_IN_FLUSH);
	EQUAL(t->since, since);
	rmx_now_out(9, 0, true);
	EQUAL(t->kind, 0);
	EQUAL(t->waits, 1);
	CHECK(t->waited >= SECOND / 100);
	CHECK(read_event(0, &e));
	EQUAL(e.kind, RMAEXT_IN_FLUSH);
	EQUAL(e.begin, since);
	EQUAL(t->seq % 2, 0);

	/* to find out why it has failed */
	CHECK(rmaext_record_again(1) >= SECOND / 100);
	EQUAL(t->kind, RMAEXT_IN_FLUSH);
	EQUAL(t->since, since);
	rmaext_record_again(0);
	EQUAL(t->kind, 0);
	EQUAL(t->waits, 1);

	/* the steps of a lock are part of it */
	rmx_now_enter(RMAEXT_IN_LOCK, 9, 2, 1);
	rmx_now_in(RMAEXT_DID_GET, 1, 2, 0, 8);
	rmx_now_out(1, 0, false);
	CHECK(rmaext_record_again(1) > 0); /* an error, but the wait goes on */
	rmaext_record_again(0);
	EQUAL(t->kind, RMAEXT_IN_LOCK);
	EQUAL(t->site[0], 0);
	rmx_now_leave(RMAEXT_IN_LOCK, 0);
	EQUAL(t->kind, 0);

	/* a wait that an exception ends */
	rmx_now_meets(NULL, 5, 77);
	EQUAL(t->kind, RMAEXT_IN_MEETING);
	EQUAL(t->offset, 77);
	rmaext_record_quit();
	EQUAL(t->kind, 0);
}

static void *take_entry(void *arg)
{
	rmx_now_in(RMAEXT_IN_FLUSH, 1, 1, 0, 0);
	*(struct rmaext_record_thread **)arg = own_entry();
	rmx_now_out(1, 0, false);
	return NULL;
}

/* Threads that end give their entries back; there may be too many at once. */
static void test_threads(void)
{
	struct rmaext_record_thread *entry;
	pthread_t thread;

	open_record();
	for (int i = 0; i < 2 * RMAEXT_RECORD_THREADS; i++) {
		OK(pthread_create(&thread, NULL, take_entry, &entry));
		OK(pthread_join(thread, NULL));
		CHECK(entry == rmx_record.threads);
		EQUAL(entry->tid, 0);
	}
	for (int i = 0; i < RMAEXT_RECORD_THREADS; i++)
		rmx_record.threads[i].tid = 1;
	OK(pthread_create(&thread, NULL, take_entry, &entry));
	OK(pthread_join(thread, NULL));
	CHECK(entry == &rmx_record.threads[RMAEXT_RECORD_THREADS - 1]);
	EQUAL(entry->kind, 0); /* it is of several, and says nothing */
}

static void test_locks(void)
{
	struct rmaext_record_event e;
	struct rmx_tally t;
	int64_t since;

	open_record();
	t = enter_window(2, 8);
	rmx_record_holds(t.id, 1, true, true);
	since = rmx_record.locks[0].since;
	rmx_record_holds(t.id, 0, false, true);
	EQUAL(rmx_record.locks[0].target, 1);
	EQUAL(rmx_record.locks[0].exclusive, 1);
	CHECK(rmx_record.locks[0].since);
	rmx_record_holds(t.id, 1, true, false);
	EQUAL(rmx_record.locks[0].window, 0);
	CHECK(read_event(1, &e));
	EQUAL(e.kind, RMAEXT_DID_UNLOCK);
	EQUAL(e.begin, since);
	EQUAL(rmx_record.locks[1].window, t.id);
	rmx_record_close(&t); /* what an error left */
	EQUAL(rmx_record.locks[1].window, 0);
}

/* A child's doings are not its parent's. */
static void test_fork(void)
{
	struct rmx_tally t;
	int status;
	pid_t pid;

	open_record();
	t = enter_window(2, 8);
	rmx_now_in(RMAEXT_IN_FLUSH, t.id, 1, 0, 0);
	pid = fork_child();
	if (!pid) {
		CHECK(!rmaext_record_own());
		rmx_count_direct(&t, 0, RMAEXT_DID_PUT, 0, 8, true);
		rmx_now_in(RMAEXT_IN_LOCK, t.id, 0, 0, 0);
		rmx_now_out(t.id, 0, true);
		rmx_record_close(&t);
		_exit(0);
	}
	EQUAL(waitpid(pid, &status, 0), pid);
	EQUAL(status, 0);
	EQUAL(own_entry()->kind, RMAEXT_IN_FLUSH);
	EQUAL(t.of[0].plain[0].calls, 0);
	EQUAL(rmx_record.header->next, 1); /* the window's creation */
	EQUAL(t.entry->state, RMAEXT_WINDOW_OPEN);
}

/* Without a record all of it does nothing. */
static void test_none(void)
{
	struct rmx_tally t = {0};

	rmx_record_window(&t, &(struct rmaext_record_window){.ranks = 1});
	rmx_count_direct(&t, 0, RMAEXT_DID_PUT, 0, 8, true);
	rmx_now_in(RMAEXT_IN_FLUSH, 1, 1, 0, 0);
	rmx_now_out(1, 0, true);
	rmx_now_meets(rmx_record_comm_find(1), 1, 1);
	rmx_now_met(NULL, 0);
	rmaext_record_tell("x", NULL);
	rmx_record_holds(1, 1, true, true);
	rmx_record_close(&t);
	rmaext_record_comm(1, 1, 0, 1);
	rmaext_record_leave(RMAEXT_ENDED);
	CHECK(!rmaext_record_own() && !t.id);
}

/* -- traces */

static char folder[] = "/tmp/rmaext-record-XXXXXX";

static void trace_path(char *path, size_t size, const char *name)
{
	snprintf(path, size, "%s/%s", folder, name);
}

static void begin_trace(uint64_t most)
{
	char path[PATH_MAX];

	CHECK(mkdtemp(folder));
	trace_path(path, sizeof(path), "rank");
	OK(rmaext_record_trace(path, most));
}

/* Reads a file of a trace from event `first` on; returns how many it has. */
static uint64_t check_file(unsigned int number, uint64_t *first)
{
	struct rmaext_record_header h;
	struct rmaext_record_event e;
	char path[PATH_MAX], name[32];
	uint64_t n = 0;
	int fd;

	snprintf(name, sizeof(name), "rank.%u.events", number);
	trace_path(path, sizeof(path), name);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	EQUAL(read(fd, &h, sizeof(h)), sizeof(h));
	CHECK(!memcmp(h.magic, "rmaextR", 8));
	EQUAL(h.rank, 3);
	EQUAL(lseek(fd, PAGE, SEEK_SET), PAGE);
	for (; read(fd, &e, sizeof(e)) == (ssize_t)sizeof(e); n++) {
		const uint64_t number = e.seq / 2 - 1;

		CHECK(number >= *first);
		*first = number + 1;
		check_event(&e);
	}
	close(fd);
	unlink(path);
	return n;
}

static void run_writers(void)
{
	pthread_t threads[WRITERS];

	for (uintptr_t i = 0; i < WRITERS; i++)
		OK(pthread_create(&threads[i], NULL, write_events,
				  (void *)(i + 1)));
	for (int i = 0; i < WRITERS; i++)
		OK(pthread_join(threads[i], NULL));
}

/* All events are in the file, in their order, however fast they come. */
static void test_trace(void)
{
	uint64_t first = 0, lost, dropped;

	open_record();
	begin_trace((uint64_t)1 << 30);
	run_writers();
	rmaext_record_leave(RMAEXT_ENDED);
	OK(rmaext_record_traced(&lost, &dropped));
	if (!atomic_load(&stalled)) /* nobody is waited for for ever */
		EQUAL(lost, 0);
	EQUAL(dropped, 0);
	EQUAL(check_file(0, &first) + lost, WRITERS * ROUNDS);
	rmdir(folder);
}

/* The latest two files are kept; what went is counted. */
static void test_rotation(void)
{
	const uint64_t most = (uint64_t)4 << 20;
	uint64_t first = 0, lost, dropped, kept = 0;
	unsigned int files = 0;
	char path[PATH_MAX], name[32];

	open_record();
	begin_trace(most);
	run_writers();
	rmaext_record_leave(RMAEXT_ENDED);
	OK(rmaext_record_traced(&lost, &dropped));
	for (unsigned int i = 0; i < 100; i++) {
		struct stat status;

		snprintf(name, sizeof(name), "rank.%u.events", i);
		trace_path(path, sizeof(path), name);
		if (stat(path, &status))
			continue;
		CHECK((uint64_t)status.st_size <= most / 2);
		kept += check_file(i, &first);
		files++;
	}
	EQUAL(files, 2);
	EQUAL(kept + dropped + lost, WRITERS * ROUNDS);
	CHECK(dropped > 0);
	rmdir(folder);
}

/* Where nothing can be written the program goes on, and is told. */
static void test_full(void)
{
	uint64_t first = 0, lost, dropped, kept;

	open_record();
	begin_trace((uint64_t)1 << 30);
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20});
	run_writers();
	rmaext_record_leave(RMAEXT_ENDED);
	EQUAL(rmaext_record_traced(&lost, &dropped), -EFBIG);
	CHECK(lost > 0);
	kept = check_file(0, &first);
	CHECK(kept > 0 && kept + lost >= WRITERS * ROUNDS);
	rmdir(folder);
}

const struct test tests[] = {
	{.name = "counters", .run = test_counters},
	{.name = "many_ranks", .run = test_many_ranks},
	{.name = "many_windows", .run = test_many_windows},
	{.name = "events", .run = test_events},
	{.name = "waits", .run = test_waits},
	{.name = "threads", .run = test_threads},
	{.name = "locks", .run = test_locks},
	{.name = "fork", .run = test_fork},
	{.name = "none", .run = test_none},
	{.name = "trace", .run = test_trace},
	{.name = "rotation", .run = test_rotation},
	{.name = "full", .run = test_full},
	{0},
};
