/* SPDX-License-Identifier: BSD-3-Clause */
/* Processes of this node, and those who wait for memory. */
#ifndef RMAEXT_NEIGHBOUR_H
#define RMAEXT_NEIGHBOUR_H

#include <linux/futex.h>
#include <sys/uio.h>

#include "base/common.h"

/* Wakes those who wait for words in the memory of a process; see doorbell.c. */
struct rmx_doorbell {
	_Alignas(RMX_LINE) atomic_uint listening; /* somebody may sleep */
	_Alignas(RMX_LINE) atomic_uint rings;	  /* futex */
};

/* Bytes at the end of each segment: a unit of ours, pages may be larger. */
#define RMX_TAIL ((uint64_t)4096)

/* There. */
struct rmx_segment_tail {
	uint8_t nonce[RMX_TOKEN];
	/* of the first segment only: */
	atomic_int left;      /* its process takes no part any more */
	pthread_mutex_t life; /* robust, and held: its process lives */
	struct rmx_doorbell doorbell;
};

/* A process on the same node, reached without a network; see neighbour.c. */
struct rmaext_near {
	pid_t pid;
	int pidfd;	  /* or -1 */
	uint64_t address; /* of the nonce, there */
	int reach;
	atomic_bool gone;
	uint8_t nonce[RMX_TOKEN];
	struct rmx_segment_tail *tail; /* NULL: cannot be mapped */
	pthread_mutex_t lock;	       /* guards mappings */
	struct rmx_mapping *mappings;
};

/* neighbour.c */
bool rmx_near_gone(struct rmaext_near *near);
/*
 * Copy by system call, to and from an address there; rank: for the words of an
 * error. -FI_ENOTCONN once the process is gone.
 */
int rmx_cma_write(struct rmaext_near *near, int64_t rank, uint64_t address,
		  const void *buf, uint64_t len);
int rmx_cma_read(struct rmaext_near *near, int64_t rank, uint64_t address,
		 void *buf, uint64_t len);
/* the same, of n pieces there; buf has them one after another */
int rmx_cma_pieces(struct rmaext_near *near, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len);

/* arena.c: NULL of NULL */
struct rmx_doorbell *rmx_arena_doorbell(struct rmaext_arena *arena);

/*
 * May it be gone? Two loads, no call: the kernel marks a robust mutex when
 * its holder is killed. (Elsewhere than in glibc: when its pidfd is next
 * asked.) Without its memory, only the pidfd tells that the pid is still its.
 */
static inline bool rmx_near_doubtful(const struct rmaext_near *near)
{
	const struct rmx_segment_tail *tail = near ? near->tail : NULL;

	if (!tail)
		return near && near->reach;
#ifdef __GLIBC__
	if (__atomic_load_n(&tail->life.__data.__lock, __ATOMIC_RELAXED) &
	    FUTEX_OWNER_DIED)
		return true;
#endif
	return atomic_load_explicit(&tail->left, memory_order_relaxed) ||
	       atomic_load_explicit(&near->gone, memory_order_relaxed);
}

/* doorbell.c */
void rmx_doorbell_ring(struct rmx_doorbell *doorbell);

/*
 * Memory there has changed, for those who wait for that. Behind a seq_cst
 * fence, or a seq_cst change.
 */
static inline void rmx_wake_waiters(struct rmx_doorbell *doorbell)
{
	if (doorbell && atomic_load(&doorbell->listening))
		rmx_doorbell_ring(doorbell);
}

#endif
