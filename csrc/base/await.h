/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a thread waits: the one loop (await.c), and MPI's progress within it
 * (mpi_progress.c).
 */
#ifndef RMAEXT_AWAIT_H
#define RMAEXT_AWAIT_H

#include "base/common.h"

struct rmaext_fabric;

/*
 * When a wait calls MPI next. A wait that has an MPI_Request tests that one. A
 * wait without a request probes for a message that nobody sends, which makes
 * MPI work on all that it has to do.
 */
struct rmx_pace {
	int64_t next;	  /* time of the next call */
	int64_t quiet;	  /* time since which MPI had nothing to do */
	int64_t yields;	  /* until then a wait for the network yields its core
			     instead of sleeping; 0 by default */
	int64_t awake;	  /* ns for which it does so after each request */
	void *request;	  /* an MPI_Request, or NULL */
	atomic_bool done; /* the request has completed */
};

/* What a wait is for, and how it sleeps. */
struct rmx_await {
	/* returns RMX_DONE once the wait is over */
	enum rmx_step (*look)(void *arg);
	/* sleeps for `ns` at most, or until woken; false after a signal */
	bool (*sleep)(void *arg, int64_t ns);
	void *arg;    /* of both functions */
	int64_t spin; /* ns for which the waiter stays awake first */
	int64_t nap;  /* ns between two looks at most */
};

/*
 * Waits until look() says RMX_DONE. Any thread may call it; it holds no lock
 * that another thread needs, as MPI may run functions of the program. `pace` is
 * the caller's, begun by rmx_pace_begin(), when the wait goes on over several
 * calls; NULL starts a fresh one. Returns 0, or RMAEXT_PENDING at the time
 * `until` or after a signal.
 */
int rmx_await(const struct rmx_await *wait, int64_t until,
	      struct rmx_pace *pace);

/* -- mpi_progress.c */

/*
 * Starts the pace of one wait. The caller owns `pace`, zeroed but for
 * `request`, and uses it in one thread.
 */
void rmx_pace_begin(struct rmx_pace *pace, int64_t now);

/* Says whether the caller is to call rmx_pace_turn() now. */
static inline bool rmx_pace_due(const struct rmx_pace *pace, int64_t now)
{
	return now >= pace->next;
}

/*
 * Calls MPI once, if this thread may, and sets the time of the next call. The
 * caller holds no lock that another thread could need: MPI may run functions
 * of the program.
 */
void rmx_pace_turn(struct rmx_pace *pace);

/*
 * Returns how many threads of this library, which never call MPI, are inside
 * the interpreter (rmaext_mpi_aside()). Any thread may call it.
 */
int rmx_mpi_aside(void);

/*
 * A function of the interpreter that is asked before each call of MPI: may
 * this thread leave the interpreter and, if `alone` is set, is it the only one
 * that could call MPI?
 */
typedef bool rmx_mpi_ask(bool alone);

/*
 * Says which function is to be asked; NULL means that there is no interpreter.
 * The module calls it once, before any thread waits.
 */
void rmx_mpi_asks(rmx_mpi_ask *ask);

#endif
