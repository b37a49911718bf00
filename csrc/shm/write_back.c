/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Files that window memory is mapped from. Whoever wants the file to have what
 * was put into the window asks for it in the window's control block. A thread
 * of the target's process, which sleeps on that process's doorbell, writes the
 * memory back and says so in the block. So this needs neither the target's
 * program nor the reader of its completion queue, which msync would hold up for
 * as long as the disk takes.
 */
#define _GNU_SOURCE
#include "shm/control_block.h"
#include "shm/neighbour.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * ns for which the thread naps after a ring that was not for it, as the
 * doorbell rings for other reasons, too. Without a doorbell the thread looks so
 * often.
 */
#define RMX_DEAF ((int64_t)1000 * 1000)

struct rmaext_file {
	struct rmx_storage_words *words;
	size_t count;
	struct rmaext_piece *pieces;
	bool busy;
	struct rmaext_file *next;
};

struct rmaext_storage {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t idle; /* a file is not busy any more */
	struct rmaext_file *files;
	struct rmx_doorbell *doorbell;
	struct rmx_doorbell silent; /* nobody rings it; without an arena */
	bool stop;
};

/* -- writing back */

int rmaext_storage_write(void *addr, uint64_t len)
{
	const uint64_t skip = (uintptr_t)addr % rmx_page();

	return msync((char *)addr - skip, len + skip, MS_SYNC) ? -errno : 0;
}

static int file_write_back(const struct rmaext_file *file)
{
	int ret = 0, one;

	for (size_t i = 0; i < file->count; i++) {
		one = rmaext_storage_write(file->pieces[i].addr,
					   file->pieces[i].len);
		ret = ret ? ret : one;
	}
	return ret;
}

static bool file_is_asked(const struct rmaext_file *file)
{
	return atomic_load(&file->words->asked) !=
	       atomic_load(&file->words->done);
}

/*
 * Serves all that was asked for before it begins. The caller does not hold the
 * lock, and has marked the file busy.
 */
static void file_serve(const struct rmaext_storage *s, struct rmaext_file *file)
{
	struct rmx_storage_words *words = file->words;
	const int64_t asked = atomic_load(&words->asked);
	const int ret = file_write_back(file);

	if (ret) {
		atomic_store(&words->error, ret);
		atomic_store(&words->failed, asked);
	}
	atomic_store(&words->done, asked);
	rmx_wake_waiters(s->doorbell);
}

static bool storage_serve_one(struct rmaext_storage *s)
{
	struct rmaext_file *file;

	for (file = s->files; file && !file_is_asked(file);)
		file = file->next;
	if (!file)
		return false;
	file->busy = true;
	pthread_mutex_unlock(&s->lock);
	file_serve(s, file);
	pthread_mutex_lock(&s->lock);
	file->busy = false;
	pthread_cond_broadcast(&s->idle);
	return true;
}

/* -- the thread that does so */

static void *storage_thread(void *arg)
{
	struct rmaext_storage *s = arg;
	const struct timespec second = {.tv_sec = 1};
	struct rmx_doorbell *doorbell = s->doorbell;

	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		const unsigned int rings = atomic_load(&doorbell->rings);

		atomic_store(&doorbell->listening, 1);
		atomic_thread_fence(memory_order_seq_cst);
		if (storage_serve_one(s))
			continue;
		pthread_mutex_unlock(&s->lock);
		if (doorbell != &s->silent)
			syscall(SYS_futex, &doorbell->rings, FUTEX_WAIT, rings,
				&second, NULL, 0);
		pthread_mutex_lock(&s->lock);
		if (s->stop || storage_serve_one(s))
			continue;
		pthread_mutex_unlock(&s->lock);
		rmx_sleep(RMX_DEAF);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void storage_wake(struct rmaext_storage *s)
{
	atomic_fetch_add(&s->doorbell->rings, 1);
	syscall(SYS_futex, &s->doorbell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL,
		0);
}

int rmaext_storage_open(rmaext_arena *arena, rmaext_storage **storage_p)
{
	struct rmaext_storage *s = calloc(1, sizeof(*s));
	struct rmx_signals *signals;
	int ret;

	if (!s)
		return rmx_no_memory("writing files back");
	s->doorbell = arena ? rmx_arena_doorbell(arena) : &s->silent;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->idle, NULL);
	/* signals are delivered to the program's threads only */
	signals = rmx_signals_hold();
	ret = -pthread_create(&s->thread, NULL, storage_thread, s);
	rmx_signals_give_back(signals, NULL);
	if (ret) {
		free(s);
		return rmx_fail(ret, RMX_NO_RANK, "pthread_create",
				"no thread to write files back: %s",
				strerror(-ret));
	}
	*storage_p = s;
	return 0;
}

void rmaext_storage_close(rmaext_storage **storage_p)
{
	struct rmaext_storage *s = *storage_p;

	if (!s)
		return;
	*storage_p = NULL;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_mutex_unlock(&s->lock);
	storage_wake(s);
	pthread_join(s->thread, NULL);
	while (s->files) {
		struct rmaext_file *file = s->files;

		s->files = file->next;
		free(file->pieces);
		free(file);
	}
	free(s);
}

int rmaext_storage_add(rmaext_storage *s, void *block,
		       const struct rmaext_piece *pieces, size_t count,
		       rmaext_file **file_p)
{
	struct rmaext_file *file = calloc(1, sizeof(*file));

	if (file)
		file->pieces = calloc(count, sizeof(*pieces));
	if (!file || !file->pieces) {
		free(file);
		return rmx_no_memory("a file of a window");
	}
	memcpy(file->pieces, pieces, count * sizeof(*pieces));
	file->count = count;
	file->words = &((struct rmx_control_block *)block)->storage;
	pthread_mutex_lock(&s->lock);
	file->next = s->files;
	s->files = file;
	pthread_mutex_unlock(&s->lock);
	storage_wake(s); /* a peer may have asked before */
	*file_p = file;
	return 0;
}

void rmaext_storage_remove(rmaext_storage *s, rmaext_file *file)
{
	struct rmaext_file **at;

	pthread_mutex_lock(&s->lock);
	while (file->busy)
		pthread_cond_wait(&s->idle, &s->lock);
	for (at = &s->files; *at && *at != file;)
		at = &(*at)->next;
	if (*at)
		*at = file->next;
	pthread_mutex_unlock(&s->lock);
	free(file->pieces);
	free(file);
}
