/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where the ranks of a communicator that share a node meet: a counter, a
 * generation to sleep on, and places for short records. A rank that waits
 * sleeps, so that 64 of them on two cores cost no more than 64 switches.
 *
 * Counter, generation and whether a rank has given up are one word, so that a
 * meeting takes place for all or for none: the last who comes ends it by one
 * exchange, which fails if somebody has given up meanwhile.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/await.h"

#define LINE 64
/* In the word: the count of those who came below, the generation above. */
#define GIVEN_UP (UINT64_C(1) << 32)
#define GENERATION (UINT64_C(1) << 33)
#define MOST (RMAEXT_TEAM_SLOT - sizeof(uint16_t)) /* bytes of a record */

/* What those of a generation have brought; by its parity. */
struct rmx_brought {
	atomic_uint worst;
	/* largest of the steps, and of their complements */
	atomic_uint_fast64_t most, least;
};

struct rmx_place {
	char slots[2][RMAEXT_TEAM_SLOT]; /* who is ahead writes, others read */
	char reason[RMAEXT_TEAM_SLOT];	 /* of giving up */
	atomic_uint came;		 /* how often; a hint for the others */
	atomic_uint ended;		 /* its program has come to its end */
};

/* Shared by all ranks; zeros at first. */
struct rmx_board {
	_Alignas(LINE) atomic_uint_fast64_t word; /* upper half: futex */
	atomic_uint sleepers;
	_Alignas(LINE) struct rmx_brought brought[2];
	atomic_uint closed;   /* by so many ranks */
	atomic_uint given_up; /* 1 + the first rank that did */
	atomic_uint said;     /* how often a rank had something to say */
	_Alignas(LINE) struct rmx_place places[];
};

struct rmaext_team {
	struct rmx_board *board;
	unsigned int rank, size;
	int64_t spin;
	unsigned int generation; /* that it has come to */
	bool inside;		 /* has arrived, not left */
};

static unsigned int generation_of(uint64_t word)
{
	return (unsigned int)(word / GENERATION);
}

static unsigned int generation(const struct rmx_board *b)
{
	return generation_of(atomic_load(&b->word));
}

/* What changes when a meeting is over, or is not to be. */
static const uint32_t *upper_half(const struct rmx_board *b)
{
	return (const uint32_t *)&b->word +
	       (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 1 : 0);
}

uint64_t rmaext_team_bytes(int64_t size)
{
	return sizeof(struct rmx_board) +
	       (uint64_t)size * sizeof(struct rmx_place);
}

int rmaext_team_open(void *board, int64_t rank, int64_t size, int64_t spin,
		     rmaext_team **team_p)
{
	struct rmaext_team *team = calloc(1, sizeof(*team));

	if (!team)
		return rmx_fail(-ENOMEM, RMX_NO_RANK, "calloc", "team");
	team->board = board;
	team->rank = (unsigned int)rank;
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

static void write_slot(char *slot, const void *record, size_t len)
{
	const uint16_t n = (uint16_t)len;

	memcpy(slot, &n, sizeof(n));
	memcpy(slot + sizeof(n), record, len);
}

static uint16_t read_slot(const char *slot, void *record)
{
	uint16_t n;

	memcpy(&n, slot, sizeof(n));
	if (n > MOST) /* no rank of ours */
		n = MOST;
	memcpy(record, slot + sizeof(n), n);
	return n;
}

/* The generation does not move on before this rank has come. */
int rmaext_team_write(rmaext_team *team, const uint8_t *record, uint64_t len)
{
	const unsigned int turn = generation(team->board) & 1;

	if (len > MOST)
		return -FI_EMSGSIZE;
	write_slot(team->board->places[team->rank].slots[turn], record, len);
	return 0;
}

uint64_t rmaext_team_read(const rmaext_team *team, uint8_t *data,
			  int32_t *lengths)
{
	const unsigned int turn = !(generation(team->board) & 1);
	uint64_t at = 0;

	for (unsigned int rank = 0; rank < team->size; rank++) {
		const uint16_t n = read_slot(
			team->board->places[rank].slots[turn], data + at);

		lengths[rank] = n;
		at += n;
	}
	return at;
}

static void raise_to(atomic_uint_fast64_t *word, uint64_t value)
{
	uint64_t now = atomic_load(word);

	while (value > now && !atomic_compare_exchange_weak(word, &now, value))
		;
}

static void wake(struct rmx_board *b)
{
	if (atomic_load(&b->sleepers))
		syscall(SYS_futex, upper_half(b), FUTEX_WAKE, INT_MAX, NULL,
			NULL, 0);
}

static void arrive(struct rmaext_team *team, uint64_t step, unsigned int value)
{
	struct rmx_board *b = team->board;
	const unsigned int g = generation(b);
	struct rmx_brought *brought = &b->brought[g & 1],
			   *next = &b->brought[!(g & 1)];
	unsigned int worst = atomic_load(&brought->worst);
	uint64_t word;

	team->generation = g;
	team->inside = true;
	while (value > worst &&
	       !atomic_compare_exchange_weak(&brought->worst, &worst, value))
		;
	raise_to(&brought->most, step);
	raise_to(&brought->least, ~step);
	atomic_store(&b->places[team->rank].came, g + 1);
	word = atomic_fetch_add(&b->word, 1) + 1;
	if (word % GENERATION != team->size)
		return;
	/* the last: nobody reads what the generation before has brought */
	atomic_store(&next->worst, 0);
	atomic_store(&next->most, 0);
	atomic_store(&next->least, 0);
	if (atomic_compare_exchange_strong(&b->word, &word,
					   word - team->size + GENERATION))
		wake(b);
}

static bool is_over(const struct rmaext_team *team, uint64_t word)
{
	return generation_of(word) != team->generation;
}

static enum rmx_step look(void *arg)
{
	const struct rmaext_team *team = arg;
	const uint64_t word = atomic_load(&team->board->word);

	return is_over(team, word) || word & GIVEN_UP ? RMX_DONE : RMX_SLEEP;
}

static bool sleep_on(void *arg, int64_t ns)
{
	const struct rmaext_team *team = arg;
	const struct timespec t = {.tv_nsec = (long)ns};
	struct rmx_board *b = team->board;
	bool slept;

	atomic_fetch_add(&b->sleepers, 1);
	slept = !syscall(SYS_futex, upper_half(b), FUTEX_WAIT,
			 (uint32_t)(team->generation * (GENERATION >> 32)), &t,
			 NULL, 0) ||
		errno != EINTR;
	atomic_fetch_sub(&b->sleepers, 1);
	return slept;
}

int rmaext_team_meet(rmaext_team *team, uint64_t step, unsigned int value,
		     int64_t slice, struct rmaext_met *met_p)
{
	const struct rmx_await wait = {
		.look = look,
		.sleep = sleep_on,
		.arg = team,
		.spin = team->spin,
		.nap = RMX_SLICE - 1,
	};
	const struct rmx_brought *brought;

	if (!team->inside)
		arrive(team, step, value);
	if (slice > RMX_SLICE)
		slice = RMX_SLICE;
	if (look(team) != RMX_DONE && rmx_await(&wait, rmx_now() + slice, NULL))
		return RMAEXT_PENDING; /* the time, or a signal */
	if (!is_over(team, atomic_load(&team->board->word)))
		return -FI_ECANCELED;
	team->inside = false;
	brought = &team->board->brought[team->generation & 1];
	met_p->worst = atomic_load(&brought->worst);
	met_p->differ =
		atomic_load(&brought->most) != ~atomic_load(&brought->least);
	return 0;
}

int rmaext_team_awaits(const rmaext_team *team, int64_t rank)
{
	return atomic_load(&team->board->places[rank].came) !=
	       team->generation + 1;
}

void rmaext_team_end(rmaext_team *team)
{
	atomic_store(&team->board->places[team->rank].ended, 1);
}

int rmaext_team_ended(const rmaext_team *team, int64_t rank)
{
	return atomic_load(&team->board->places[rank].ended) != 0;
}

void rmaext_team_explain(rmaext_team *team, const uint8_t *why, uint64_t len)
{
	write_slot(team->board->places[team->rank].reason, why,
		   len < MOST ? len : MOST);
	atomic_fetch_add(&team->board->said, 1);
}

unsigned int rmaext_team_said(const rmaext_team *team)
{
	return atomic_load(&team->board->said);
}

uint64_t rmaext_team_reason(const rmaext_team *team, int64_t rank, uint8_t *why)
{
	return read_slot(team->board->places[rank].reason, why);
}

void rmaext_team_give_up(rmaext_team *team)
{
	struct rmx_board *b = team->board;
	unsigned int nobody = 0;

	atomic_compare_exchange_strong(&b->given_up, &nobody, team->rank + 1);
	atomic_fetch_or(&b->word, GIVEN_UP);
	wake(b);
}

int64_t rmaext_team_given_up(const rmaext_team *team)
{
	const struct rmx_board *b = team->board;
	unsigned int rank;

	if (!(atomic_load(&b->word) & GIVEN_UP))
		return -1;
	rank = atomic_load(&b->given_up) - 1;
	return rank < team->size ? rank : 0; /* else: no rank of ours */
}
