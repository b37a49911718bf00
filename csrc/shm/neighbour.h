/* SPDX-License-Identifier: BSD-3-Clause */
/* Other processes of this node, and the doorbells of those who wait. */
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

/* Bytes of the tail of each segment, whatever the size of a page is. */
#define RMX_TAIL ((uint64_t)4096)

/* The end of each segment, which says whose it is. */
struct rmx_segment_tail {
	uint8_t nonce[RMX_TOKEN];
	/* the rest is used in the first segment of a process only */
	atomic_int left;      /* the process takes no part any more */
	pthread_mutex_t life; /* robust, held by a thread while that lives */
	struct rmx_doorbell doorbell;
};

/* A process on the same node, reached without a network; see neighbour.c. */
struct rmaext_neighbour {
	pid_t pid;
	int pidfd;	  /* or -1 */
	uint64_t address; /* of the nonce, in that process */
	int reach;	  /* RMAEXT_CAN_MAP, RMAEXT_CAN_COPY */
	atomic_bool gone; /* it was found to have ended */
	/*
	 * The kernel has refused a copy although the process lives: it has made
	 * itself not dumpable, or changed its user. No copy is tried again, so
	 * that what goes by the network instead stays in order.
	 */
	atomic_bool refuses;
	uint8_t nonce[RMX_TOKEN];
	struct rmx_segment_tail *tail; /* NULL: cannot be mapped */
	pthread_mutex_t lock;	       /* guards mappings */
	struct rmx_mapping *mappings;
};

/* -- neighbour.c: any thread may call these, without a lock */

/* Asks the kernel whether the process has ended. */
bool rmx_neighbour_gone(struct rmaext_neighbour *neighbour);

/*
 * Does the kernel still allow copies to and from that process? Asked for each
 * window that is made.
 */
bool rmx_neighbour_copies(struct rmaext_neighbour *neighbour);

/*
 * Copy to or from an address in that process by a system call, and block as
 * long as that takes. `rank` is for the error record. Return 0, -FI_ENOTCONN if
 * the process has ended, or -errno; part of the bytes may have been copied
 * then. Where the kernel refuses, neighbour->refuses is set.
 */
int rmx_cma_write(struct rmaext_neighbour *neighbour, int64_t rank,
		  uint64_t address, const void *buf, uint64_t len);
int rmx_cma_read(struct rmaext_neighbour *neighbour, int64_t rank,
		 uint64_t address, void *buf, uint64_t len);

/*
 * Does the same for n pieces in that process, which buf holds one after
 * another. It changes `pieces`; their lengths add up to `len`.
 */
int rmx_cma_pieces(struct rmaext_neighbour *neighbour, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len);

/* Returns the doorbell of the arena's process; NULL if the arena is NULL. */
struct rmx_doorbell *rmx_arena_doorbell(struct rmaext_arena *arena);

/*
 * Says whether the process may have ended, so that rmx_neighbour_gone() is to
 * be asked. It takes two loads and no system call, as the kernel marks a robust
 * mutex when its holder is killed. Other C libraries than glibc have no mark to
 * look at, and learn of the end when the pidfd is next asked. Where the memory
 * of the process is not mapped, the answer is yes as long as it can be copied,
 * because only the pidfd says that the pid is still that process's.
 */
static inline bool
rmx_neighbour_doubtful(const struct rmaext_neighbour *neighbour)
{
	const struct rmx_segment_tail *tail =
		neighbour ? neighbour->tail : NULL;

	if (!tail)
		return neighbour && neighbour->reach;
#ifdef __GLIBC__
	if (__atomic_load_n(&tail->life.__data.__lock, __ATOMIC_RELAXED) &
	    FUTEX_OWNER_DIED)
		return true;
#endif
	return atomic_load_explicit(&tail->left, memory_order_relaxed) ||
	       atomic_load_explicit(&neighbour->gone, memory_order_relaxed);
}

/* -- doorbell.c */

/* Wakes all who listen; rmx_wake_waiters() calls it where somebody does. */
void rmx_doorbell_ring(struct rmx_doorbell *doorbell);

/*
 * Wakes those who wait for memory of the doorbell's process, after a change of
 * it. Between the change and this call there is a sequentially consistent
 * fence, unless the change itself was sequentially consistent. NULL does
 * nothing.
 */
static inline void rmx_wake_waiters(struct rmx_doorbell *doorbell)
{
	if (doorbell && atomic_load(&doorbell->listening))
		rmx_doorbell_ring(doorbell);
}

#endif
