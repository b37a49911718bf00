/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Fences in a world: the ranks put, flush and meet by the network
 * (csrc/xfer/network_barrier.c). Some come with another step than the others,
 * connections lose what was put without a completion, ranks are away for long
 * once they have come, and one may die. Each rank may be in two meetings at a
 * time, of two communicators.
 *
 * What a rank does between the slices of its wait is LongWait of
 * rmaext/_comm/abandoned.py, and NetworkBarrier.ask().
 */
#define WORLD_RANKS 8
#include "world_run.h"

enum {
	COMMS = 2,
	CALLS = 12 /* of a rank in each */
};

#define MS (SECOND / 1000)
#define GRACE SECOND /* that words of the dead may take yet */
#define ASK_MOST SECOND
#define SETTLE (50 * MS)
#define AWAY (4 * SECOND)
/* Once all have come, it takes longer only if it does not take place. */
#define ENDLESS ((world.breaks ? 60 : 2) * SECOND)

/* A question for words that may have been lost. */
struct question {
	struct question *next;
	uint64_t offset, words[2];
	int ended;
	rmaext_op *op;
};

struct come {
	uint64_t step;
	unsigned int value;
	uint64_t put[RANKS]; /* the last value to each rank before it */
};

struct comm {
	rmaext_network_barrier *barrier;
	struct question *asked; /* the last one, until its answer was taken */
	int number;		/* of meetings that it has come to */
	struct come came[CALLS];
	bool over; /* no meeting can take place any more */
	struct {
		int number;
		int64_t since;
	} waits;
};

static struct comm comms[RANKS][COMMS];
static int64_t all_came[COMMS][CALLS]; /* the time, or 0 */
static struct question *questions;
static uint64_t barrier_bytes;
static unsigned int meetings; /* of each communicator */

static void tell(void)
{
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < COMMS; k++)
			if (comms[i][k].waits.number)
				fprintf(stderr,
					"\trank %d: in meeting %d of "
					"communicator %d since %lld\n",
					i, comms[i][k].waits.number, k,
					(long long)comms[i][k].waits.since);
}

static void died(int number)
{
	(void)number;
}

static bool one_is_dead(void)
{
	for (int i = 0; i < world.ranks; i++)
		if (world.node[i].dead)
			return true;
	return false;
}

static bool knows_of_dead(int rank)
{
	for (int i = 0; i < world.ranks; i++)
		if (world.node[rank].known[i])
			return true;
	return false;
}

static uint64_t cell_of(int from, int k)
{
	return COMMS * barrier_bytes / 8 + (uint64_t)k * RANKS + (uint64_t)from;
}

/* Tells others what this rank knows, as a fence promises. */
static void put(struct task *t, int k, int target, uint64_t value)
{
	const struct rmaext_call call = {.kind = RMAEXT_PUT,
					 .rank = target,
					 .offset = 8 * cell_of(t->rank, k),
					 .operand = &value,
					 .count = 8};
	rmaext_op *op = NULL;
	int ret = rmaext_start(world.node[t->rank].window, &call, &op);

	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, TENTH);
	is(!ret || world.node[target].dead, "a put fails");
	if (rmaext_op_release(&op))
		is(world.node[target].dead, "a put is not released");
}

/* Takes the answer to the last question, if there is one. */
static bool answered(struct comm *c)
{
	struct question *q = c->asked;

	if (!q ||
	    (q->op && !q->ended && rmaext_op_wait(q->op, 0) == RMAEXT_PENDING))
		return !q;
	if (q->op && !rmaext_op_wait(q->op, 0))
		rmaext_network_barrier_heard(c->barrier, q->offset, q->words);
	rmaext_op_release(&q->op);
	c->asked = NULL;
	return true;
}

static void ask(struct task *t, struct comm *c)
{
	struct rmaext_call call = {.kind = RMAEXT_GET, .count = 16};
	struct question *q;
	uint64_t offset;
	int64_t rank;

	if (!answered(c))
		return;
	rank = rmaext_network_barrier_awaits(c->barrier, &offset);
	if (rank < 0)
		return;
	NOTE("does\t%d\t%d\tasks rank %d", t->rank, t->number, (int)rank);
	q = calloc(1, sizeof(*q));
	CHECK(q);
	q->next = questions;
	questions = q;
	q->offset = call.offset = offset;
	call.rank = rank;
	call.result = q->words;
	call.ended = &q->ended;
	if (rmaext_start(world.node[t->rank].window, &call, &q->op) ==
	    RMAEXT_PENDING)
		c->asked = q;
}

/* Meeting n has taken place for a rank: was it right? */
static void met_judge(const struct task *t, int k, int n,
		      const struct rmaext_met *met)
{
	unsigned int worst = 0;
	bool differ = false;

	for (int i = 0; i < world.ranks; i++) {
		const struct comm *c = &comms[i][k];

		is(c->number >= n, "one leaves a meeting before all have come");
		worst = c->came[n - 1].value > worst ? c->came[n - 1].value
						     : worst;
		differ = differ ||
			 c->came[n - 1].step != comms[0][k].came[n - 1].step;
	}
	is(met->worst == worst, "the largest value is another one");
	is(!met->differ == !differ, differ ? "different steps have met"
					   : "equal steps are said to differ");
	for (int i = 0; i < world.ranks; i++)
		is(world.node[t->rank].cells[cell_of(i, k)] >=
			   comms[i][k].came[n - 1].put[t->rank],
		   "a fence is over, and a put before it is not there");
}

/* Waits as LongWait does; false: a rank is lost, and it goes on no more. */
static bool meet(struct task *t, int k)
{
	struct comm *c = &comms[t->rank][k];
	const struct come *came = &c->came[c->number];
	const int64_t begun = world.now;
	int64_t next_ask = begun, gone = 0;
	struct rmaext_met met = {0};
	bool all = true, first = true;
	const int n = c->number + 1;
	int ret;

	NOTE("does\t%d\t%d\tcomes to meeting %d", t->rank, t->number, n);
	c->number = c->waits.number = n;
	c->waits.since = begun;
	for (int i = 0; i < world.ranks; i++)
		all = all && comms[i][k].number >= n;
	if (all)
		all_came[k][n - 1] = begun;
	while ((ret = rmaext_network_barrier_meet(c->barrier, came->step,
						  came->value, draw(2) ? 0 : MS,
						  &met)) == RMAEXT_PENDING) {
		is(one_is_dead() || !all_came[k][n - 1] ||
			   world.now < all_came[k][n - 1] + ENDLESS,
		   "all have come, and a meeting does not end");
		if (!gone && knows_of_dead(t->rank))
			gone = world.now + GRACE;
		if (gone && world.now > gone)
			break;
		if (!gone && world.now > next_ask) {
			const int64_t since = world.now - begun;

			next_ask = world.now +
				   (since < ASK_MOST ? since : ASK_MOST);
			ask(t, c);
		}
		/* once it has come it is needed no more, and may be away */
		if (first && has("away") && !draw(30))
			task_pause(t, AWAY, NULL, 0);
		first = false;
		task_pause(t,
			   (int64_t)draw(20000 +
					 (uint64_t)(world.now - begun) / 4),
			   NULL, 0);
	}
	c->waits.number = 0;
	is(!ret || ret == RMAEXT_PENDING, "a meeting fails");
	is(!ret || one_is_dead(), "a meeting is given up though all live");
	NOTE("does\t%d\t%d\t%s meeting %d", t->rank, t->number,
	     ret ? "gives up" : "leaves", n);
	if (ret)
		return false;
	met_judge(t, k, n, &met);
	for (const int64_t end = world.now + SETTLE;
	     world.now < end && !answered(c);)
		task_pause(t, MS, NULL, 0);
	return true;
}

static void program_of(struct task *t, int k)
{
	struct comm *c = &comms[t->rank][k];

	for (unsigned int i = 0; i < meetings && !c->over; i++) {
		int64_t pause;
		int puts;

		picks_begin(t->number, i);
		if (i)
			memcpy(c->came[i].put, c->came[i - 1].put,
			       sizeof(c->came[i].put));
		c->came[i].step = pick(24) ? i + 1 : 1000 + pick(2);
		c->came[i].value = (unsigned int)pick(1000);
		pause = (int64_t)pick(3) * (int64_t)pick(10) * MS;
		puts = is_chosen(t->number, i) ? (int)pick(3) : 0;
		while (puts--) {
			const int target = pick_rank();

			put(t, k, target, i + 1);
			c->came[i].put[target] = i + 1;
		}
		task_pause(t, pause, NULL, 0);
		for (int r = 0; r < world.ranks; r++)
			flush(t->rank, r);
		c->over = !meet(t, k);
	}
}

static void program_first(struct task *t)
{
	program_of(t, 0);
}

static void program_second(struct task *t)
{
	program_of(t, 1);
}

static uint64_t run(uint64_t seed)
{
	int used;

	memset(comms, 0, sizeof(comms));
	memset(all_came, 0, sizeof(all_came));
	barrier_bytes = rmaext_network_barrier_bytes();
	world_open(seed, COMMS * barrier_bytes / 8 + COMMS * RANKS, died, tell);
	world.breaks = has("breaks") && pick(2);
	meetings = knobs.calls && knobs.calls < CALLS ? knobs.calls : CALLS;
	used = 1 + (int)pick(2);
	tasks.count = 0;
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < used; k++) {
			OK(rmaext_network_barrier_open(
				world.node[i].window,
				(char *)world.node[i].cells +
					(uint64_t)k * barrier_bytes,
				(uint64_t)k * barrier_bytes, 0,
				&comms[i][k].barrier));
			task_begin(i, k ? program_second : program_first);
		}
	tasks_run();
	settle();
	for (int i = 0; i < world.ranks; i++)
		for (int t = 0; t < world.ranks && !world.node[i].dead; t++)
			flush(i, t);
	settle();
	for (int i = 0; i < world.ranks; i++) {
		const struct node *n = &world.node[i];

		for (int k = 0; k < used; k++) {
			is(n->dead || one_is_dead() ||
				   comms[i][k].number == (int)meetings,
			   "a rank has met less often than others");
			rmaext_network_barrier_close(comms[i][k].barrier);
		}
		is(n->dead || !atomic_load(&n->fabric->meetings.inside),
		   "a meeting that is over stays counted");
		if (!n->dead)
			leftovers_judge(n);
	}
	for (struct question *q = questions; q; q = q->next)
		rmaext_op_release(&q->op);
	world_end();
	while (questions) {
		struct question *q = questions;

		questions = q->next;
		OK(rmaext_op_release(&q->op));
		free(q);
	}
	world_close();
	return world.history;
}

static void seeds(void)
{
	seeds_run(run);
}

const struct test tests[] = {
	{"seeds", seeds, NULL, NULL},
	{0},
};
