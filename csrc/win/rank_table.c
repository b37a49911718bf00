/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What windows know of each rank: the tables that all windows over one
 * communicator share, and the table of targets that each window has.
 */
#define _GNU_SOURCE
#include "win/window.h"

#include <stdlib.h>
#include <sys/mman.h>

/*
 * A table for so many ranks is mapped, so that a page takes no memory until it
 * is used. The memory of malloc() may have been used before.
 */
#define RMX_MANY 256

int rmaext_members_new(int64_t count, int64_t self, rmaext_peer *const *peers,
		       rmaext_neighbour *const *neighbours, rmaext_arena *arena,
		       rmaext_members **members_p)
{
	const size_t n = (size_t)count;
	struct rmaext_members *m = calloc(1, sizeof(*m) + n * sizeof(m->of[0]));

	if (m)
		m->here = malloc((n ? n : 1) * sizeof(*m->here));
	if (!m || !m->here) {
		free(m);
		return rmx_no_memory("the ranks of a communicator");
	}
	atomic_store(&m->users, 1);
	m->count = count;
	m->self = self;
	for (int64_t rank = 0; rank < count; rank++) {
		struct rmx_member *member = &m->of[rank];

		member->peer = peers ? peers[rank] : NULL;
		member->neighbour = neighbours ? neighbours[rank] : NULL;
		if (member->neighbour && member->neighbour->tail)
			member->doorbell = &member->neighbour->tail->doorbell;
		else if (rank == self)
			member->doorbell = rmx_arena_doorbell(arena);
		if (member->neighbour || rank == self)
			m->here[m->here_count++] = rank;
	}
	*members_p = m;
	return 0;
}

struct rmaext_members *rmx_members_hold(struct rmaext_members *m)
{
	atomic_fetch_add(&m->users, 1);
	return m;
}

void rmaext_members_release(rmaext_members *m)
{
	if (!m || atomic_fetch_sub(&m->users, 1) > 1)
		return;
	free(m->here);
	free(m);
}

int rmaext_blocks_new(const rmaext_members *m, void *const *first,
		      rmaext_blocks **blocks_p)
{
	struct rmaext_blocks *b =
		calloc(1, sizeof(*b) + (size_t)m->count * sizeof(b->first[0]));

	if (!b)
		return rmx_no_memory("control blocks");
	atomic_store(&b->users, 1);
	for (int64_t i = 0; i < m->here_count; i++)
		b->first[m->here[i]] = first[i];
	*blocks_p = b;
	return 0;
}

struct rmaext_blocks *rmx_blocks_hold(struct rmaext_blocks *b)
{
	if (b)
		atomic_fetch_add(&b->users, 1);
	return b;
}

void rmaext_blocks_release(rmaext_blocks *b)
{
	if (b && atomic_fetch_sub(&b->users, 1) == 1)
		free(b);
}

struct rmx_target *rmx_targets_new(int64_t count)
{
	const size_t bytes = (size_t)count * sizeof(struct rmx_target);
	void *at;

	if (count < RMX_MANY) {
		at = aligned_alloc(RMX_LINE, bytes ? bytes : RMX_LINE);
		return at ? memset(at, 0, bytes) : NULL;
	}
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	if (bytes >= RMX_HUGE_PAGE) /* one target would take 2 MiB */
		madvise(at, bytes, MADV_NOHUGEPAGE);
	return at;
}

void rmx_targets_free(struct rmx_target *targets, int64_t count)
{
	if (count < RMX_MANY)
		free(targets);
	else if (targets)
		munmap(targets, (size_t)count * sizeof(*targets));
}

/*
 * The rights are stored last, with release order, because readers of a target
 * load them first.
 */
void rmx_target_set(struct rmaext_window *w, int64_t rank,
		    const struct rmx_row *row)
{
	struct rmx_target *t = &w->targets[rank];

	t->member = &w->members->of[rank];
	t->base = row->base;
	t->size = row->size;
	t->key = row->key;
	t->align = row->align;
	t->route = RMAEXT_FABRIC;
	atomic_store_explicit(&t->access, row->access | RMX_FILLED,
			      memory_order_release);
}

void rmx_target_fill(const struct rmaext_window *window, int64_t rank)
{
	struct rmaext_window *w = (struct rmaext_window *)(uintptr_t)window;

	pthread_mutex_lock(&w->lock);
	if (!rmx_filled(&w->targets[rank]))
		rmx_target_set(w, rank, &w->row);
	pthread_mutex_unlock(&w->lock);
}
