/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where the ranks of a communicator that share a node meet: a counter, a
 * generation to sleep on, and a slot a rank for short records. A rank that
 * waits sleeps, so that 64 of them on two cores cost no more than 64 switches.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE 64

/* Shared by all ranks; zeros at first. */
struct rmx_board {
	_Alignas(LINE) atomic_uint arrived;
	atomic_uint worst[2]; /* largest value of a generation; by parity */
	_Alignas(LINE) atomic_uint generation; /* futex */
	atomic_uint sleepers;
	atomic_uint closed; /* by so many ranks */
	_Alignas(LINE) char slots[];
};

struct rmaext_team {
	struct rmx_board *board;
	unsigned int size;
	int64_t spin;
	unsigned int generation;
	bool inside; /* has arrived, not left */
};

/* Two slots a rank, by parity: who is ahead writes while others still read. */
uint64_t rmaext_team_bytes(int64_t size)
{
	return sizeof(struct rmx_board) + 2 * (uint64_t)size * RMAEXT_TEAM_SLOT;
}

int rmaext_team_open(void *board, int64_t size, int64_t spin,
		     rmaext_team **team_p)
{
	struct rmaext_team *team = calloc(1, sizeof(*team));

	if (!team)
		return rmx_fail(-ENOMEM, RMX_NO_RANK, "calloc", "team");
	team->board = board;
	team->size = (unsigned int)size;
	team->spin = spin;
	*team_p = team;
	return 0;
}

void rmaext_team_close(rmaext_team *team)
{
	atomic_fetch_add(&team->board->closed, 1);
	free(team);
}

int rmaext_team_deserted(const void *board, int64_t size)
{
	const struct rmx_board *b = board;

	return atomic_load(&b->closed) == (unsigned int)size;
}

#define MOST (RMAEXT_TEAM_SLOT - sizeof(uint16_t)) /* bytes of a record */

static char *slot_of(const struct rmaext_team *team, uint64_t rank,
		     unsigned int parity)
{
	return team->board->slots + (2 * rank + parity) * RMAEXT_TEAM_SLOT;
}

/* The generation does not move on before this rank has come. */
int rmaext_team_write(rmaext_team *team, int64_t rank, const uint8_t *record,
		      uint64_t len)
{
	const unsigned int turn = atomic_load(&team->board->generation) & 1;
	char *slot = slot_of(team, (uint64_t)rank, turn);
	const uint16_t n = (uint16_t)len;

	if (len > MOST)
		return -FI_EMSGSIZE;
	memcpy(slot, &n, sizeof(n));
	memcpy(slot + sizeof(n), record, len);
	return 0;
}

uint64_t rmaext_team_read(const rmaext_team *team, uint8_t *data,
			  int32_t *lengths)
{
	const unsigned int turn = atomic_load(&team->board->generation) & 1;
	uint64_t at = 0;

	for (unsigned int rank = 0; rank < team->size; rank++) {
		const char *slot = slot_of(team, rank, !turn);
		uint16_t n;

		memcpy(&n, slot, sizeof(n));
		if (n > MOST) /* no rank of ours */
			n = MOST;
		memcpy(data + at, slot + sizeof(n), n);
		lengths[rank] = n;
		at += n;
	}
	return at;
}

static void arrive(struct rmaext_team *team, unsigned int value)
{
	struct rmx_board *b = team->board;
	unsigned int g = atomic_load(&b->generation);
	unsigned int worst = atomic_load(&b->worst[g & 1]);

	team->generation = g;
	team->inside = true;
	while (value > worst &&
	       !atomic_compare_exchange_weak(&b->worst[g & 1], &worst, value))
		;
	if (atomic_fetch_add(&b->arrived, 1) + 1 < team->size)
		return;
	/* the last: nobody reads the other parity's value any more */
	atomic_store(&b->worst[(g + 1) & 1], 0);
	atomic_store(&b->arrived, 0);
	atomic_store(&b->generation, g + 1);
	if (atomic_load(&b->sleepers))
		syscall(SYS_futex, &b->generation, FUTEX_WAKE, INT_MAX, NULL,
			NULL, 0);
}

static bool over(const struct rmaext_team *team)
{
	return atomic_load(&team->board->generation) != team->generation;
}

int rmaext_team_meet(rmaext_team *team, unsigned int value,
		     unsigned int *worst_p)
{
	struct rmx_board *b = team->board;
	struct timespec slice = {.tv_nsec = RMX_SLICE - 1};

	if (!team->inside)
		arrive(team, value);
	if (!over(team) && team->spin) {
		int64_t until = rmx_now() + team->spin;

		while (!over(team) && rmx_now() < until)
			rmx_relax();
	}
	if (!over(team)) {
		atomic_fetch_add(&b->sleepers, 1);
		syscall(SYS_futex, &b->generation, FUTEX_WAIT, team->generation,
			&slice, NULL, 0);
		atomic_fetch_sub(&b->sleepers, 1);
	}
	if (!over(team))
		return RMAEXT_PENDING; /* the time, or a signal */
	team->inside = false;
	*worst_p = atomic_load(&b->worst[team->generation & 1]);
	return 0;
}
