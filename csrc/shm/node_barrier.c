/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The barrier of those ranks of a communicator that share a node, a team. Their
 * common memory, the board, has a counter, a generation to sleep on, and slots
 * for short records. A rank that waits sleeps, so that 64 ranks on two cores
 * cost no more than 64 context switches a meeting.
 *
 * One word holds the counter, the generation and whether a rank has given up,
 * so that a meeting takes place for all ranks or for none. The rank that comes
 * last ends the meeting by one exchange of that word, which fails if a rank has
 * given up meanwhile.
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
#include "record/record.h"

/* In the word, the count of ranks lies below, and the generation above. */
#define GIVEN_UP (UINT64_C(1) << 32)
#define GENERATION (UINT64_C(1) << 33)
/* bytes of a record at most */
#define SLOT_MOST (RMAEXT_BARRIER_SLOT - sizeof(uint16_t))

/* What the ranks have brought to a meeting. There are two, used by turns. */
struct rmx_brought {
	atomic_uint worst;
	/* the largest of the steps, and of the complements of the steps */
	atomic_uint_fast64_t most, least;
};

struct rmx_board_entry {
	/* two, as a rank that is ahead writes while others still read */
	char slots[2][RMAEXT_BARRIER_SLOT];
	char reason[RMAEXT_BARRIER_SLOT]; /* why it has given up */
	atomic_uint came;  /* number of meetings it came to, for messages */
	atomic_uint ended; /* its program has come to its end */
};

/* The memory that all ranks share; zeros at first. */
struct rmx_board {
	_Alignas(RMX_LINE) atomic_uint_fast64_t word; /* upper half: futex */
	atomic_uint sleepers;
	_Alignas(RMX_LINE) struct rmx_brought brought[2];
	atomic_uint closed;   /* number of ranks that have closed it */
	atomic_uint given_up; /* 1 + the first rank that did */
	atomic_uint said;     /* how often a rank gave a reason */
	_Alignas(RMX_LINE) struct rmx_board_entry entries[];
};

struct rmaext_node_barrier {
	struct rmx_board *board;
	unsigned int rank, size;
	int64_t spin;
	uint64_t id; /* of the communicator, in records; or 0 */
	struct rmaext_record_comm *comm; /* its entry; or NULL */
	unsigned int generation; /* of the meeting that it came to last */
	bool inside;		 /* it has arrived there, and not left */
};

static unsigned int word_generation(uint64_t word)
{
	return (unsigned int)(word / GENERATION);
}

static unsigned int board_generation(const struct rmx_board *b)
{
	return word_generation(atomic_load(&b->word));
}

/* The half that changes when a meeting ends, or a rank gives up. */
static const uint32_t *board_futex(const struct rmx_board *b)
{
	return (const uint32_t *)&b->word +
	       (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 1 : 0);
}

uint64_t rmaext_node_barrier_bytes(int64_t size)
{
	return sizeof(struct rmx_board) +
	       (uint64_t)size * sizeof(struct rmx_board_entry);
}

int rmaext_node_barrier_open(void *board, int64_t rank, int64_t size,
			     int64_t spin, rmaext_node_barrier **team_p)
{
	struct rmaext_node_barrier *team = calloc(1, sizeof(*team));

	if (!team)
		return rmx_no_memory("the ranks of a node");
	team->board = board;
	team->rank = (unsigned int)rank;
	team->size = (unsigned int)size;
	team->spin = spin;
	*team_p = team;
	return 0;
}

void rmaext_node_barrier_name(rmaext_node_barrier *team, uint64_t id)
{
	team->id = id;
	team->comm = rmx_record_comm_find(id);
}

void rmaext_node_barrier_close(rmaext_node_barrier *team)
{
	atomic_fetch_add(&team->board->closed, 1);
	free(team);
}

int rmaext_node_barrier_deserted(const void *board, int64_t size)
{
	const struct rmx_board *b = board;

	return atomic_load(&b->closed) == (unsigned int)size;
}

static void slot_write(char *slot, const void *record, size_t len)
{
	const uint16_t n = (uint16_t)len;

	memcpy(slot, &n, sizeof(n));
	memcpy(slot + sizeof(n), record, len);
}

static uint16_t slot_read(const char *slot, void *record)
{
	uint16_t n;

	memcpy(&n, slot, sizeof(n));
	if (n > SLOT_MOST) /* no rank of ours has written that */
		n = SLOT_MOST;
	memcpy(record, slot + sizeof(n), n);
	return n;
}

/* The generation stays as it is until this rank has come to the meeting. */
int rmaext_node_barrier_write(rmaext_node_barrier *team, const uint8_t *record,
			      uint64_t len)
{
	const unsigned int turn = board_generation(team->board) & 1;

	if (len > SLOT_MOST)
		return -FI_EMSGSIZE;
	slot_write(team->board->entries[team->rank].slots[turn], record, len);
	return 0;
}

uint64_t rmaext_node_barrier_read(const rmaext_node_barrier *team,
				  uint8_t *data, int32_t *lengths)
{
	const unsigned int turn = !(board_generation(team->board) & 1);
	uint64_t at = 0;

	for (unsigned int rank = 0; rank < team->size; rank++) {
		const uint16_t n = slot_read(
			team->board->entries[rank].slots[turn], data + at);

		lengths[rank] = n;
		at += n;
	}
	return at;
}

static void word_raise(atomic_uint_fast64_t *word, uint64_t value)
{
	uint64_t now = atomic_load(word);

	while (value > now && !atomic_compare_exchange_weak(word, &now, value))
		;
}

static void board_wake(struct rmx_board *b)
{
	if (atomic_load(&b->sleepers))
		syscall(SYS_futex, board_futex(b), FUTEX_WAKE, INT_MAX, NULL,
			NULL, 0);
}

static void team_arrive(struct rmaext_node_barrier *team, uint64_t step,
			unsigned int value)
{
	struct rmx_board *b = team->board;
	const unsigned int g = board_generation(b);
	struct rmx_brought *brought = &b->brought[g & 1],
			   *next = &b->brought[!(g & 1)];
	unsigned int worst = atomic_load(&brought->worst);
	uint64_t word;

	team->generation = g;
	team->inside = true;
	while (value > worst &&
	       !atomic_compare_exchange_weak(&brought->worst, &worst, value))
		;
	word_raise(&brought->most, step);
	word_raise(&brought->least, ~step);
	atomic_store(&b->entries[team->rank].came, g + 1);
	word = atomic_fetch_add(&b->word, 1) + 1;
	if (word % GENERATION != team->size)
		return;
	/* the last to come: nobody reads what the meeting before was brought */
	atomic_store(&next->worst, 0);
	atomic_store(&next->most, 0);
	atomic_store(&next->least, 0);
	if (atomic_compare_exchange_strong(&b->word, &word,
					   word - team->size + GENERATION))
		board_wake(b);
}

static bool meeting_is_over(const struct rmaext_node_barrier *team,
			    uint64_t word)
{
	return word_generation(word) != team->generation;
}

static enum rmx_step meeting_look(void *arg)
{
	const struct rmaext_node_barrier *team = arg;
	const uint64_t word = atomic_load(&team->board->word);

	return meeting_is_over(team, word) || word & GIVEN_UP ? RMX_DONE
							      : RMX_SLEEP;
}

static bool board_sleep(void *arg, int64_t ns)
{
	const struct rmaext_node_barrier *team = arg;
	const struct timespec t = {.tv_nsec = (long)ns};
	struct rmx_board *b = team->board;
	bool slept;

	atomic_fetch_add(&b->sleepers, 1);
	slept = !syscall(SYS_futex, board_futex(b), FUTEX_WAIT,
			 (uint32_t)(team->generation * (GENERATION >> 32)), &t,
			 NULL, 0) ||
		errno != EINTR;
	atomic_fetch_sub(&b->sleepers, 1);
	return slept;
}

int rmaext_node_barrier_meet(rmaext_node_barrier *team, uint64_t step,
			     unsigned int value, int64_t slice,
			     struct rmaext_met *met_p)
{
	const struct rmx_await wait = {
		.look = meeting_look,
		.sleep = board_sleep,
		.arg = team,
		.spin = team->spin,
		.nap = RMX_SLICE - 1,
	};
	const struct rmx_brought *brought;

	rmx_now_meets(team->comm, team->id, step); /* again, if interrupted */
	if (!team->inside)
		team_arrive(team, step, value);
	if (slice > RMX_SLICE)
		slice = RMX_SLICE;
	if (meeting_look(team) != RMX_DONE &&
	    rmx_await(&wait, rmx_now() + slice, NULL))
		return RMAEXT_PENDING; /* the slice is over, or a signal came */
	if (!meeting_is_over(team, atomic_load(&team->board->word))) {
		rmx_now_met(team->comm, -FI_ECANCELED);
		return -FI_ECANCELED;
	}
	team->inside = false;
	rmx_now_met(team->comm, 0);
	brought = &team->board->brought[team->generation & 1];
	met_p->worst = atomic_load(&brought->worst);
	met_p->differ =
		atomic_load(&brought->most) != ~atomic_load(&brought->least);
	return 0;
}

int rmaext_node_barrier_awaits(const rmaext_node_barrier *team, int64_t rank)
{
	return atomic_load(&team->board->entries[rank].came) !=
	       team->generation + 1;
}

void rmaext_node_barrier_end(rmaext_node_barrier *team)
{
	atomic_store(&team->board->entries[team->rank].ended, 1);
}

int rmaext_node_barrier_ended(const rmaext_node_barrier *team, int64_t rank)
{
	return atomic_load(&team->board->entries[rank].ended) != 0;
}

void rmaext_node_barrier_explain(rmaext_node_barrier *team, const uint8_t *why,
				 uint64_t len)
{
	slot_write(team->board->entries[team->rank].reason, why,
		   len < SLOT_MOST ? len : SLOT_MOST);
	atomic_fetch_add(&team->board->said, 1);
}

unsigned int rmaext_node_barrier_said(const rmaext_node_barrier *team)
{
	return atomic_load(&team->board->said);
}

uint64_t rmaext_node_barrier_reason(const rmaext_node_barrier *team,
				    int64_t rank, uint8_t *why)
{
	return slot_read(team->board->entries[rank].reason, why);
}

void rmaext_node_barrier_give_up(rmaext_node_barrier *team)
{
	struct rmx_board *b = team->board;
	unsigned int nobody = 0;

	atomic_compare_exchange_strong(&b->given_up, &nobody, team->rank + 1);
	atomic_fetch_or(&b->word, GIVEN_UP);
	board_wake(b);
}

int64_t rmaext_node_barrier_given_up(const rmaext_node_barrier *team)
{
	const struct rmx_board *b = team->board;
	unsigned int rank;

	if (!(atomic_load(&b->word) & GIVEN_UP))
		return -1;
	rank = atomic_load(&b->given_up) - 1;
	return rank < team->size ? rank : 0; /* as no rank of ours writes */
}
