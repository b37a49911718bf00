/* SPDX-License-Identifier: BSD-3-Clause */
/* Waiting: the one loop, and MPI's progress in it. See await.c and
 * mpi_progress.c. */
#ifndef RMAEXT_AWAIT_H
#define RMAEXT_AWAIT_H

#include "base/common.h"

struct rmaext_fabric;

/*
 * When a wait calls MPI next. A wait without a request looks for a message that
 * never comes, which moves all that MPI has to do; one for a request tests it.
 */
struct rmx_pace {
	int64_t next;
	int64_t quiet;	  /* since when MPI had nothing to do */
	void *request;	  /* an MPI_Request, or NULL */
	atomic_bool done; /* the request is */
};

/* What a wait is for, and how it sleeps. */
struct rmx_await {
	enum rmx_step (*look)(void *arg);
	/* until it is woken, or for so many ns; false after a signal */
	bool (*sleep)(void *arg, int64_t ns);
	void *arg;
	int64_t spin; /* ns awake before it sleeps */
	int64_t nap;  /* ns between looks at most */
};

/* 0, or RMAEXT_PENDING at `until` or after a signal. */
int rmx_await(const struct rmx_await *wait, int64_t until,
	      struct rmx_pace *pace);

/* mpi_progress.c */
void rmx_pace_begin(struct rmx_pace *pace, int64_t now);
static inline bool rmx_pace_due(const struct rmx_pace *pace, int64_t now)
{
	return now >= pace->next;
}
/*
 * Calls MPI once, if this thread may. The caller holds nothing that another
 * thread could need: MPI may run functions of the program.
 */
void rmx_pace_turn(struct rmx_pace *pace);
int rmx_mpi_aside(void); /* threads of Python that are none of the program's */

/*
 * Asked before each call of MPI: may this thread leave the interpreter, and, if
 * `alone` is set, is it the only one that could call MPI? NULL: there is no
 * interpreter.
 */
typedef bool rmx_mpi_ask(bool alone);
void rmx_mpi_asks(rmx_mpi_ask *ask);

#endif
