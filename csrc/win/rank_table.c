/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What windows know of each rank: the tables that all windows over one
 * communicator share, and the table of targets that each window has.
 */
#define _GNU_SOURCE
#include "win/window.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

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
	pthread_mutex_init(&m->lock, NULL);
	m->count = count;
	m->self = self;
	for (int64_t rank = 0; rank < count; rank++) {
		struct rmx_member *member = &m->of[rank];

		/* pages that nobody writes to take no memory */
		if (peers && peers[rank])
			member->peer = peers[rank];
		if (neighbours && neighbours[rank])
			member->neighbour = neighbours[rank];
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

/*
 * In a forked child the lock may be held by a thread that is not there: what
 * has addresses stays.
 */
void rmaext_members_release(rmaext_members *m)
{
	if (!m || atomic_fetch_sub(&m->users, 1) > 1)
		return;
	if (m->fabric) {
		if (m->owner != getpid())
			return;
		pthread_mutex_lock(&m->fabric->lock);
		*m->prev = m->next;
		if (m->next)
			m->next->prev = m->prev;
		pthread_mutex_unlock(&m->fabric->lock);
	}
	pthread_mutex_destroy(&m->lock);
	free(m->addresses);
	free(m->serves);
	free(m->pidfds);
	free(m->here);
	free(m);
}

static bool addresses_copy(struct rmaext_members *m,
			   const struct rmaext_addresses *from)
{
	const size_t n = (size_t)m->count, k = (size_t)from->pidfd_count;

	m->addresses = malloc(n * from->len);
	m->serves = malloc(n);
	m->pidfds = malloc((k ? k : 1) * sizeof(*m->pidfds));
	if (!m->addresses || !m->serves || !m->pidfds)
		return false;
	memcpy(m->addresses, from->address, n * from->len);
	memcpy(m->serves, from->serves, n);
	m->address_len = from->len;
	for (size_t i = 0; i < k; i++)
		m->pidfds[i] = (struct rmx_pidfd){
			.rank = from->ranks[i],
			.fd = from->pidfds[i],
		};
	m->pidfd_count = from->pidfd_count;
	return true;
}

int rmaext_members_connect(rmaext_members *m, rmaext_fabric *f,
			   const struct rmaext_addresses *from)
{
	int ret = rmx_fabric_enter(f, "rmaext_members_connect");

	if (ret)
		return ret;
	for (int64_t i = 0; i < m->count && !ret; i++)
		ret = rmx_address_check(
			f, from->address + i * (int64_t)from->len, from->len);
	if (!ret && !addresses_copy(m, from))
		ret = rmx_no_memory("the addresses of a communicator");
	if (!ret) /* before any rank connects: all meet after this */
		ret = rmx_admission_add(&f->admission, from->address, from->len,
					(size_t)m->count);
	if (!ret) {
		pthread_mutex_lock(&f->lock);
		m->owner = getpid();
		m->next = f->members;
		m->prev = &f->members;
		if (m->next)
			m->next->prev = &m->next;
		f->members = m;
		if (f->ranks < (uint64_t)m->count)
			f->ranks = (unsigned int)m->count;
		m->fabric = f;
		pthread_mutex_unlock(&f->lock);
	}
	rmx_fabric_leave(f);
	return ret;
}

/* Returns a descriptor that is the caller's; or -1, and whether that is due. */
static int member_pidfd(const struct rmaext_members *m, int64_t rank,
			bool *failed_p)
{
	int64_t low = 0, high = m->pidfd_count;
	int fd;

	while (low < high) {
		const int64_t middle = low + (high - low) / 2;

		if (m->pidfds[middle].rank < rank)
			low = middle + 1;
		else
			high = middle;
	}
	*failed_p = false;
	if (low == m->pidfd_count || m->pidfds[low].rank != rank)
		return -1;
	fd = fcntl(m->pidfds[low].fd, F_DUPFD_CLOEXEC, 0);
	*failed_p = fd < 0;
	return fd;
}

/* Communicators share the peers that are known to be alike. */
static struct rmaext_peer *member_add(const struct rmaext_members *m,
				      int64_t rank)
{
	const uint8_t *address = m->addresses + rank * (int64_t)m->address_len;
	struct rmaext_fabric *f = m->fabric;
	struct rmaext_peer *peer =
		rmx_peer_find(f, rmx_name(address, m->address_len), false);
	bool failed;
	const int fd = member_pidfd(m, rank, &failed);

	if (failed) {
		rmx_fail(-errno, rank, "fcntl",
			 "no descriptor is free to watch its process");
		return NULL;
	}
	if (peer && !atomic_load(&peer->gone) &&
	    (peer->pidfd >= 0) == (fd >= 0)) {
		if (fd >= 0)
			close(fd);
		return peer;
	}
	if (f->hooks->add_peer(f, address, m->address_len, fd, false, &peer)) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if (m->serves[rank])
		atomic_store(&peer->serves, true);
	return peer;
}

struct rmaext_peer *rmx_member_peer(struct rmaext_members *m, int64_t rank)
{
	struct rmx_member *member = &m->of[rank];
	struct rmaext_peer *peer;

	if (!m->fabric)
		return member->peer;
	pthread_mutex_lock(&m->lock);
	if (!member->peer && atomic_load(&m->fabric->rundown.closed))
		rmx_fail(-FI_ESHUTDOWN, rank, "rmaext_peer_add",
			 "the fabric is closed");
	else if (!member->peer)
		member->peer = member_add(m, rank);
	peer = member->peer;
	pthread_mutex_unlock(&m->lock);
	return peer;
}

int rmx_peer_missing(const struct rmaext_members *m, int64_t rank,
		     const char *call)
{
	struct rmaext_error why;

	if (!m->fabric)
		return rmx_fail(-FI_EOPNOTSUPP, rank, call,
				"no route leads there: that rank has no "
				"network");
	rmaext_error_last(&why);
	return rmx_fail(why.code, rank, call,
			"that rank's address could not be added: %s: %s",
			why.call, why.detail);
}

/* An origin that was not used yet has made a window before this rank has. */
struct rmaext_peer *rmx_origin_find(struct rmaext_fabric *f, uint64_t name,
				    int64_t rank)
{
	struct rmaext_peer *peer = rmx_peer_find(f, name, true);
	struct rmaext_members *m;
	int users = 0;

	if (peer)
		return peer;
	pthread_mutex_lock(&f->lock);
	for (m = f->members; m && !users; m = users ? m : m->next) {
		if (rank >= m->count ||
		    rmx_name(m->addresses + rank * (int64_t)m->address_len,
			     m->address_len) != name)
			continue;
		users = atomic_load(&m->users);
		while (users && !atomic_compare_exchange_weak(&m->users, &users,
							      users + 1))
			;
	}
	pthread_mutex_unlock(&f->lock);
	if (!m)
		return NULL;
	peer = rmx_member_peer(m, rank);
	rmaext_members_release(m);
	return peer;
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

static void target_write(struct rmaext_window *w, int64_t rank,
			 const struct rmx_row *row, int filled)
{
	struct rmx_target *t = &w->targets[rank];

	t->member = &w->members->of[rank];
	t->base = row->base;
	t->size = row->size;
	t->key = row->key;
	t->align = row->align;
	t->route = RMAEXT_FABRIC;
	/* last, as readers of a target load it first */
	atomic_store_explicit(&t->access, row->access | filled,
			      memory_order_release);
}

void rmx_target_set(struct rmaext_window *w, int64_t rank,
		    const struct rmx_row *row)
{
	const bool here = rank == w->self || w->members->of[rank].neighbour;

	if (here)
		rmx_member_peer(w->members, rank);
	target_write(w, rank, row,
		     here || !w->members->fabric ? RMX_FILLED : 0);
}

struct rmx_row rmx_target_row(const struct rmaext_window *w, int64_t rank)
{
	const struct rmx_target *t = &w->targets[rank];
	const int access = atomic_load(&t->access);

	if (!w->uneven && !(access & RMX_FILLED))
		return w->row;
	return (struct rmx_row){
		.size = t->size,
		.access = access & (RMAEXT_READ | RMAEXT_WRITE | RMAEXT_DEVICE),
		.align = t->align,
	};
}

void rmx_target_fill(const struct rmaext_window *window, int64_t rank)
{
	struct rmaext_window *w = (struct rmaext_window *)(uintptr_t)window;
	struct rmx_target *t = &w->targets[rank];

	pthread_mutex_lock(&w->lock);
	if (!rmx_filled(t)) {
		if (!w->uneven && !t->member)
			target_write(w, rank, &w->row, 0);
		/* a peer that cannot be added is tried again on next use */
		if (rmx_member_peer(w->members, rank) || !w->members->fabric)
			atomic_fetch_or_explicit(&t->access, RMX_FILLED,
						 memory_order_release);
	}
	pthread_mutex_unlock(&w->lock);
}
