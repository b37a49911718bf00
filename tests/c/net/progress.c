/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One thread at a time reads the completion queue: the progress thread, or who
 * takes the queue from it.
 */
#include "rig.h"
#include "am/am.h"

#include <pthread.h>
#include <sys/eventfd.h>

enum { WAITERS = 3, WAITS = 400 };

static const struct rmx_hooks *usual;
static atomic_int inside;
static _Thread_local uint64_t reads;

/* Comes before each read of the queue, which is this thread's. */
static void look_for_others(struct rmaext_fabric *f)
{
	EQUAL(atomic_fetch_add(&inside, 1), 0);
	reads++;
	usual->before_read(f);
	for (int i = 0; i < 50; i++)
		rmx_relax();
	atomic_fetch_sub(&inside, 1);
}

/* Opens a fabric whose readers are watched. */
static rmaext_fabric *watched_open(struct rmx_hooks *hooks)
{
	rmaext_fabric *f = fabric_open(false, false);

	usual = f->hooks;
	*hooks = *usual;
	hooks->before_read = look_for_others;
	f->hooks = hooks;
	close(f->progress.wake_fd);
	OK(rmx_progress_start(f, 1, 20000));
	return f;
}

static void await_sleep(struct rmaext_fabric *f, int state)
{
	for (int64_t end = now() + 20 * SECOND;
	     atomic_load(&f->progress.sleep) != state; nap(1e-4))
		CHECK(now() < end);
}

/* The state of the progress thread, as the kernel has it. */
static char thread_state(void)
{
	char path[300], line[300] = "", state = '?';
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *d;

	CHECK(tasks);
	while (state == '?' && (d = readdir(tasks))) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/stat",
			 d->d_name);
		file = fopen(path, "r");
		if (file && fgets(line, sizeof(line), file))
			sscanf(line, "%*d (rmaext-progress) %c", &state);
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return state;
}

/* Nothing wakes the thread, and yet there is a reader. */
static void taken_from_a_sleeper(void)
{
	struct rmx_hooks hooks;
	rmaext_fabric *f = watched_open(&hooks);
	const int fd = f->progress.wake_fd, asleep_on = dup(fd);
	const int other = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	const uint64_t one = 1, before = reads;

	CHECK(asleep_on >= 0 && other >= 0);
	await_sleep(f, RMX_ASLEEP);
	for (int64_t end = now() + 20 * SECOND; thread_state() != 'S';
	     nap(1e-4))
		CHECK(now() < end);
	EQUAL(dup2(other, fd), fd);
	rmaext_fabric_progress(f, 1000000);
	CHECK(reads > before);
	EQUAL(atomic_load(&f->progress.sleep), RMX_TAKEN_FROM);
	/* it is free, for the next who waits */
	CHECK(!atomic_load(&f->progress.reader));
	rmaext_fabric_progress(f, 1000000);
	EQUAL(atomic_load(&f->progress.sleep), RMX_TAKEN_FROM);
	EQUAL(write(asleep_on, &one, sizeof(one)), sizeof(one));
	await_sleep(f, RMX_ASLEEP);
	CHECK(atomic_load(&f->progress.reader));
	/* who leaves wakes it: it is the reader again, without being asked */
	rmaext_fabric_progress(f, 1000000);
	await_sleep(f, RMX_ASLEEP);
	CHECK(atomic_load(&f->progress.reader));
	close(asleep_on);
	close(other);
	OK(rmaext_fabric_close(&f));
}

/* It is handed over to a thread that has not seen yet that it lost it. */
static void handed_over_to_a_sleeper(void)
{
	struct rmx_hooks hooks;
	rmaext_fabric *f = watched_open(&hooks);

	for (int i = 0; i < 20; i++) {
		await_sleep(f, RMX_ASLEEP);
		rmaext_fabric_progress(f, 10000);
		rmx_progress_hand_over(f);
	}
	await_sleep(f, RMX_ASLEEP);
	OK(rmaext_fabric_close(&f));
}

static void *wait_often(void *arg)
{
	struct rmaext_fabric *f = arg;

	for (int i = 0; i < WAITS; i++) {
		rmaext_fabric_progress(f, i % 7 * 10000);
		if (i % 5 == 0)
			rmx_look(f);
		if (i % 11 == 0)
			rmx_progress_hand_over(f);
		nap(i % 13 ? i % 10 * 1e-5 : 1e-3);
	}
	return NULL;
}

static void one_reader(void)
{
	struct rmx_hooks hooks;
	rmaext_fabric *f = watched_open(&hooks);
	pthread_t threads[WAITERS];

	for (int i = 0; i < WAITERS; i++)
		EQUAL(pthread_create(&threads[i], NULL, wait_often, f), 0);
	for (int i = 0; i < WAITERS; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
	await_sleep(f, RMX_ASLEEP);
	OK(rmaext_fabric_close(&f));
}

const struct test tests[] = {
	{"taken_from_a_sleeper", taken_from_a_sleeper, NULL, NULL},
	{"handed_over_to_a_sleeper", handed_over_to_a_sleeper, NULL, NULL},
	{"one_reader", one_reader, NULL, NULL},
	{0},
};
