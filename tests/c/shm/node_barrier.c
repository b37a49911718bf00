/* SPDX-License-Identifier: BSD-3-Clause */
/* Barriers of the ranks of a node: members that are killed, that give up. */
#include "arena.h"
#include "am/am.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

/* -- teams */

struct member {
	void *board;
	int64_t rank, size, spin;
	unsigned int rounds;
};

static unsigned int value_of(unsigned int round, int64_t rank)
{
	return (round * 7 + (unsigned int)rank * 5) % 11;
}

static void *meets(void *arg)
{
	const struct member *m = arg;
	rmaext_node_barrier *team = NULL;
	uint8_t *data = calloc((size_t)m->size, RMAEXT_BARRIER_SLOT);
	int32_t *lengths = malloc((size_t)m->size * sizeof(*lengths));
	unsigned int sent[2];

	CHECK(data && lengths);
	OK(rmaext_node_barrier_open(m->board, m->rank, m->size, m->spin,
				    &team));
	EQUAL(rmaext_node_barrier_write(team, data, RMAEXT_BARRIER_SLOT - 1),
	      -FI_EMSGSIZE);
	OK(rmaext_node_barrier_write(team, data, RMAEXT_BARRIER_SLOT - 2));
	for (unsigned int round = 0; round < m->rounds; round++) {
		struct rmaext_met met = {.worst = 99, .differ = 99};
		/* in some rounds one rank takes it for another step */
		const bool odd = round % 5 == 3;
		unsigned int wanted = 0;
		const uint8_t *at = data;
		int ret;

		/* of two lengths, by turns */
		sent[0] = sent[1] = round;
		OK(rmaext_node_barrier_write(
			team, (uint8_t *)sent,
			(round + (unsigned int)m->rank) % 2 ? 4 : 8));
		do
			ret = rmaext_node_barrier_meet(
				team, round + (odd && !m->rank),
				value_of(round, m->rank), RMX_SLICE, &met);
		while (ret == RMAEXT_PENDING);
		OK(ret);
		rmaext_node_barrier_read(team, data, lengths);
		for (int64_t rank = 0; rank < m->size; rank++) {
			unsigned int theirs;

			EQUAL(lengths[rank],
			      (round + (unsigned int)rank) % 2 ? 4 : 8);
			memcpy(&theirs, at, sizeof(theirs));
			EQUAL(theirs, round);
			at += lengths[rank];
			if (value_of(round, rank) > wanted)
				wanted = value_of(round, rank);
		}
		EQUAL(met.worst, wanted);
		EQUAL(!!met.differ, odd && m->size > 1);
	}
	CHECK(!rmaext_node_barrier_deserted(m->board, m->size));
	rmaext_node_barrier_close(team);
	free(data);
	free(lengths);
	return NULL;
}

static void *board_new(int64_t size)
{
	void *board =
		mmap(NULL, rmaext_node_barrier_bytes(size),
		     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(board != MAP_FAILED);
	return board;
}

static void team_threads(void)
{
	enum { MEMBERS = 3 };
	static struct member members[MEMBERS];
	pthread_t threads[MEMBERS];
	void *board = board_new(MEMBERS);

	for (int i = 0; i < MEMBERS; i++) {
		members[i] =
			(struct member){board, i, MEMBERS, i * 5000, 10000};
		OK(pthread_create(&threads[i], NULL, meets, &members[i]));
	}
	for (int i = 0; i < MEMBERS; i++)
		OK(pthread_join(threads[i], NULL));
	CHECK(rmaext_node_barrier_deserted(board, MEMBERS));
}

static void team_processes(void)
{
	enum { MEMBERS = 4 };
	void *board = board_new(MEMBERS);
	pid_t pids[MEMBERS];
	int status;

	for (int i = 0; i < MEMBERS; i++) {
		pids[i] = fork_child();
		if (!pids[i]) {
			struct member m = {board, i, MEMBERS, 0, 2000};

			alarm(LIMIT);
			meets(&m);
			_exit(0);
		}
	}
	for (int i = 0; i < MEMBERS; i++) {
		EQUAL(waitpid(pids[i], &status, 0), pids[i]);
		EQUAL(status, 0);
	}
	CHECK(rmaext_node_barrier_deserted(board, MEMBERS));
}

static void team_of_one(void)
{
	struct member m = {board_new(1), 0, 1, 50000, 1000};

	meets(&m);
	CHECK(rmaext_node_barrier_deserted(m.board, 1));
}

/* Killed in a meeting, and before it comes. */
static void team_killed(void)
{
	enum { MEMBERS = 3 };

	for (int inside = 0; inside < 2; inside++) {
		void *board = board_new(MEMBERS);
		rmaext_node_barrier *team = NULL;
		struct rmaext_met met = {.worst = 99};
		int64_t start;
		int end[2];
		char byte;
		pid_t pid;

		OK(pipe(end));
		pid = fork_child();
		if (!pid) {
			OK(rmaext_node_barrier_open(board, 1, MEMBERS, 0,
						    &team));
			if (inside) /* it has come */
				rmaext_node_barrier_meet(team, 1, 1, 0, &met);
			EQUAL(write(end[1], "", 1), 1);
			while (inside)
				rmaext_node_barrier_meet(team, 1, 1, RMX_SLICE,
							 &met);
			for (;;)
				pause();
		}
		EQUAL(read(end[0], &byte, 1), 1);
		nap(0.05);
		kill(pid, SIGKILL);
		EQUAL(waitpid(pid, NULL, 0), pid);
		close(end[0]);
		close(end[1]);
		OK(rmaext_node_barrier_open(board, 0, MEMBERS, 1000, &team));
		start = now();
		for (int i = 0; i < 5; i++)
			EQUAL(rmaext_node_barrier_meet(team, 1, 0, RMX_SLICE,
						       &met),
			      RMAEXT_PENDING);
		CHECK(now() - start > SECOND / 4);
		EQUAL(met.worst, 99);
		EQUAL(rmaext_node_barrier_awaits(team, 1), !inside);
		EQUAL(rmaext_node_barrier_awaits(team, 2), 1);
		rmaext_node_barrier_close(team);
		CHECK(!rmaext_node_barrier_deserted(board, MEMBERS));
	}
}

/* -- one gives up, at any moment: each meeting takes place for all or for none
 */

struct quitter {
	void *board;
	int64_t rank, size;
	int64_t after; /* ns until it gives up; or 0 */
	int met;       /* meetings that took place */
};

static void *meets_or_quits(void *arg)
{
	struct quitter *q = arg;
	struct rmaext_met met;
	rmaext_node_barrier *team = NULL;
	int64_t end = rmx_now() + q->after;
	uint8_t why[RMAEXT_BARRIER_SLOT];
	int ret;

	OK(rmaext_node_barrier_open(q->board, q->rank, q->size, 1000, &team));
	for (;;) {
		do {
			ret = rmaext_node_barrier_meet(team, 7, 0, 100000,
						       &met);
			if (q->after && rmx_now() > end) {
				if (!ret)
					q->met++;
				rmaext_node_barrier_explain(
					team, (uint8_t *)"why", 3);
				rmaext_node_barrier_give_up(team);
				rmaext_node_barrier_close(team);
				return NULL;
			}
		} while (ret == RMAEXT_PENDING);
		if (ret)
			break;
		q->met++;
	}
	EQUAL(ret, -FI_ECANCELED);
	EQUAL(rmaext_node_barrier_given_up(team), q->size - 1);
	EQUAL(rmaext_node_barrier_reason(team, q->size - 1, why), 3);
	CHECK(!memcmp(why, "why", 3));
	/* for ever */
	EQUAL(rmaext_node_barrier_meet(team, 7, 0, 100000, &met),
	      -FI_ECANCELED);
	rmaext_node_barrier_close(team);
	return NULL;
}

static void team_given_up(void)
{
	enum { MEMBERS = 4, TRIES = 300 };

	for (int i = 0; i < TRIES; i++) {
		static struct quitter q[MEMBERS];
		pthread_t threads[MEMBERS];
		void *board = board_new(MEMBERS);

		for (int k = 0; k < MEMBERS; k++) {
			const bool quits = k == MEMBERS - 1;

			q[k] = (struct quitter){board, k, MEMBERS,
						quits ? 1000 + i * 1000 : 0, 0};
			OK(pthread_create(&threads[k], NULL, meets_or_quits,
					  &q[k]));
		}
		for (int k = 0; k < MEMBERS; k++)
			OK(pthread_join(threads[k], NULL));
		for (int k = 1; k < MEMBERS - 1; k++)
			EQUAL(q[k].met, q[0].met);
		/* it may have come to one that took place, and not looked */
		CHECK(q[MEMBERS - 1].met == q[0].met ||
		      q[MEMBERS - 1].met == q[0].met - 1);
		munmap(board, rmaext_node_barrier_bytes(MEMBERS));
	}
}

static volatile sig_atomic_t alarms;

static void count_alarm(int number)
{
	(void)number;
	alarms++;
}

static void team_signals(void)
{
	struct sigaction action = {.sa_handler = count_alarm,
				   .sa_flags = SA_RESTART};
	struct itimerspec often = {.it_interval.tv_nsec = 5 * 1000 * 1000,
				   .it_value.tv_nsec = 5 * 1000 * 1000};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL,
				 .sigev_signo = SIGUSR1};
	struct member m = {board_new(2), 0, 2, 0, 0};
	int64_t start, shortest = SECOND;
	rmaext_node_barrier *team = NULL;
	struct rmaext_met met;
	timer_t timer;

	OK(sigaction(SIGUSR1, &action, NULL));
	OK(timer_create(CLOCK_MONOTONIC, &event, &timer));
	OK(rmaext_node_barrier_open(m.board, m.rank, m.size, 0, &team));
	OK(timer_settime(timer, 0, &often, NULL));
	for (int i = 0; i < 20; i++) {
		start = now();
		EQUAL(rmaext_node_barrier_meet(team, 1, 0, RMX_SLICE, &met),
		      RMAEXT_PENDING);
		if (now() - start < shortest)
			shortest = now() - start;
	}
	CHECK(shortest < SECOND / 20); /* it would sleep twice as long */
	CHECK(alarms);
	OK(timer_delete(timer));
	rmaext_node_barrier_close(team);
}

const struct test tests[] = {
	{"team_threads", team_threads, NULL, NULL},
	{"team_processes", team_processes, NULL, NULL},
	{"team_of_one", team_of_one, NULL, NULL},
	{"team_killed", team_killed, NULL, NULL},
	{"team_given_up", team_given_up, NULL, NULL},
	{"team_signals", team_signals, NULL, NULL},
	{0},
};
