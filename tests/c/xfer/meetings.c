/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Fences in a world: the ranks put, flush and meet by the network
 * (csrc/xfer/network_barrier.c). Some come with another step than the others,
 * connections lose what was put without a completion, ranks are away for long
 * once they have come, and one may die. Each rank may be in two meetings at a
 * time, of two communicators.
 *
 * What a rank does between the slices of its wait is LongWait of
 * rmaext/_comm/abandoned.py, and NetworkBarrier.ask(). `orders` tries all
 * orders of one fence and of two.
 */
#define WORLD_RANKS 8
#include "world_run.h"

#include "xfer/network_barrier.h"

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
	/* of all orders: how often it has gone on, and what it does next */
	int stage;
	enum { LOOKS, ASKS, GIVES_UP } next;
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
/* Of all orders: what has come to a rank, of which it may find something new.
 */
static int64_t news[RANKS];

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
	path_tell();
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

/* Until a rank has news, or it is decided that it asks or gives up. */
static void news_await(struct task *t)
{
	task_pause(t, INT64_MAX / 2, &news[t->rank], news[t->rank]);
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
		if (every.on) {
			news_await(t);
			if (c->next == GIVES_UP)
				break;
			if (c->next == ASKS)
				ask(t, c);
			continue;
		}
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
	for (const int64_t end = world.now + (every.on ? 0 : SETTLE);
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
	world_open(seed, COMMS * barrier_bytes / 8 + COMMS * RANKS, false, died,
		   tell);
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

/* -- all orders */

enum { FENCES = 3 };

/*
 * What three ranks do; or four, as three hear of each other at first hand.
 * Which of them brings the largest value, or another step, is all one, as each
 * has the same place in the circle.
 */
static const struct plan {
	const char *name;
	unsigned int fences;
	uint64_t steps[FENCES][4];
	int ranks;    /* 0: three */
	bool puts;    /* a word to the rank after it, before each fence */
	bool notices; /* of a death some time before a rank gives up */
	/* how many of each there may be in a run */
	int deaths, refusals, losses, parts, asks;
	bool all; /* with ALL=1 only */
} plans[] = {
	{"one fence", 1, {{1, 1, 1}}, .puts = true},
	{"one fence, refused", 1, {{1, 1, 1}}, .refusals = 2},
	{"two fences", 2, {{1, 1, 2}, {1, 1, 1}}, .puts = true},
	{"three fences", 3, {{1, 1, 2}, {2, 1, 1}, {1, 1, 1}}, .puts = true},
	{"two fences of four", 2, {{1, 2, 1, 1}, {1, 1, 1, 1}}, .ranks = 4},
	{"one fence in parts", 1, {{1, 1, 1}}, .parts = 3},
	{"one fence, lost", 1, {{1, 1, 2}}, .losses = 1, .asks = 1},
	{"one fence, death", 1, {{1, 1, 2}}, .deaths = 1, .parts = 1},
	{"two fences, death", 2, {{1, 1, 2}, {1, 1, 1}}, .deaths = 1},
	{"one fence, death that some notice early",
	 1,
	 {{1, 1, 2}},
	 .deaths = 1,
	 .parts = 1,
	 .notices = true,
	 .all = true},
	{"two fences, lost",
	 2,
	 {{1, 1, 2}, {1, 1, 1}},
	 .losses = 1,
	 .asks = 1,
	 .all = true},
	{"two fences, death in parts",
	 2,
	 {{1, 1, 2}, {1, 1, 1}},
	 .deaths = 1,
	 .parts = 2,
	 .all = true},
	{"three fences, death",
	 3,
	 {{1, 1, 2}, {1, 1, 1}, {2, 1, 1}},
	 .deaths = 1,
	 .all = true},
};

static const struct plan *plan;
static struct {
	int deaths, losses, parts, asks;
} budget;
static int64_t looked[RANKS]; /* at so much news */

/* The next thing that may happen. */
struct event {
	enum {
		GO_ON,
		ASK,
		GIVE_UP,
		LOOK,
		DIE,
		NOTICE,
		ARRIVE,
		PART,
		LOSE
	} kind;
	size_t which; /* rank or flight */
	int more;     /* whose death, or which part */
};

static struct {
	struct event of[256];
	size_t count;
} events;

static void event_add(int kind, size_t which, int more)
{
	CHECK(events.count < COUNT(events.of));
	events.of[events.count++] = (struct event){kind, which, more};
}

static void plan_put(struct task *t, struct comm *c, unsigned int fence)
{
	const int target = (t->rank + 1) % world.ranks;
	struct question *q = calloc(1, sizeof(*q));
	const struct rmaext_call call = {.kind = RMAEXT_PUT,
					 .rank = target,
					 .offset = 8 * cell_of(t->rank, 0),
					 .operand = q->words,
					 .count = 8,
					 .ended = &q->ended};
	int ret;

	CHECK(q);
	q->next = questions;
	questions = q;
	q->words[0] = fence + 1;
	c->stage++;
	ret = rmaext_start(world.node[t->rank].window, &call, &q->op);
	while (ret == RMAEXT_PENDING) {
		news_await(t);
		ret = rmaext_op_wait(q->op, 0);
	}
	is(!ret || world.node[target].dead, "a put fails");
	c->came[fence].put[target] = fence + 1;
	c->stage++;
}

static void plan_run(struct task *t)
{
	struct comm *c = &comms[t->rank][0];

	for (unsigned int i = 0; i < plan->fences && !c->over; i++) {
		if (i)
			memcpy(c->came[i].put, c->came[i - 1].put,
			       sizeof(c->came[i].put));
		c->came[i].step = plan->steps[i][t->rank];
		c->came[i].value = 1 + (unsigned int)(t->rank + 2 * (int)i) % 3;
		if (plan->puts)
			plan_put(t, c, i);
		c->over = !meet(t, 0);
		c->stage++;
		task_pause(t, 0, NULL, 0);
	}
}

static bool waits(int rank)
{
	return comms[rank][0].waits.number && !world.node[rank].dead;
}

static void events_of_rank(int i)
{
	const struct node *n = &world.node[i];
	const struct comm *c = &comms[i][0];
	uint64_t offset;

	if (n->dead)
		return;
	if (task_is_due(&tasks.task[i]) ||
	    (waits(i) &&
	     rmaext_network_barrier_awaits(c->barrier, &offset) < 0))
		event_add(GO_ON, (size_t)i, 0);
	if (looked[i] != news[i] || rmx_meetings_retry(n->fabric))
		event_add(LOOK, (size_t)i, 0);
	if (waits(i) && budget.asks)
		event_add(ASK, (size_t)i, 0);
	if (waits(i) && one_is_dead())
		event_add(GIVE_UP, (size_t)i, 0);
	if (budget.deaths && !tasks.task[i].over)
		event_add(DIE, (size_t)i, 0);
	for (int k = 0; plan->notices && k < world.ranks; k++)
		if (world.node[k].dead && !n->known[k])
			event_add(NOTICE, (size_t)i, k);
}

static void events_of_flight(size_t i)
{
	const struct flight *it = &world.flights[i];

	event_add(ARRIVE, i, 0);
	if (it->kind != WRITE || world.node[it->to].dead)
		return;
	/* where one may die its writes alone are cut */
	if (it->len > 8 && budget.parts &&
	    (!plan->deaths || world.node[it->from].dead))
		for (int behind = 0; behind < 2; behind++)
			event_add(PART, i, behind);
	if (world.node[it->from].dead || (!it->call && budget.losses))
		event_add(LOSE, i, 0);
}

static void event_happens(const struct event *e)
{
	const size_t i = e->which;
	const bool of_rank = e->kind < ARRIVE;
	const struct flight it =
		of_rank ? (struct flight){0} : world.flights[i];
	struct comm *c = &comms[of_rank ? i : 0][0];

	switch (e->kind) {
	case GO_ON:
	case ASK:
	case GIVE_UP:
		c->next = e->kind == ASK       ? ASKS
			  : e->kind == GIVE_UP ? GIVES_UP
					       : LOOKS;
		budget.asks -= e->kind == ASK && budget.asks;
		for (int k = 0; e->kind == GIVE_UP && k < world.ranks; k++)
			notice((int)i, k);
		looked[i] = news[i];
		task_go_on(&tasks.task[i]);
		return;
	case LOOK: /* the progress thread does */
		looked[i] = news[i];
		rmx_look(world.node[i].fabric);
		return;
	case DIE: /* what goes to it arrives nowhere, whenever that is */
		budget.deaths--;
		die((int)i);
		for (size_t k = world.flight_count; k--;)
			if (world.flights[k].to == (int)i &&
			    !world.flights[k].call)
				flight_lose(k);
		return;
	case NOTICE:
		notice((int)i, e->more);
		news[i]++;
		return;
	case ARRIVE:
		arrive(i);
		break;
	case PART:
		budget.parts--;
		arrive_in_part(&world.flights[i], 8, e->more);
		break;
	default:
		budget.losses -= !world.node[it.from].dead;
		flight_lose(i);
	}
	news[it.to]++;
	news[it.from] += it.call != NULL;
}

/* Of all that decides what may follow. What flies has no order. */
static uint64_t state_hash(void)
{
	uint64_t words[9], all = (uint64_t)budget.deaths |
				 (uint64_t)budget.losses << 8 |
				 (uint64_t)budget.parts << 16 |
				 (uint64_t)budget.asks << 24 |
				 (uint64_t)world.refusals << 32;

	for (int i = 0; i < world.ranks; i++) {
		const struct node *n = &world.node[i];
		const struct comm *c = &comms[i][0];

		all = state_mix(all, n->cells, barrier_bytes / 8);
		all = state_mix(all, &n->cells[cell_of(0, 0)], RANKS);
		words[0] = (uint64_t)c->stage << 8 | (uint64_t)c->number;
		words[1] = (uint64_t)n->dead | (uint64_t)c->over << 1 |
			   (uint64_t)(looked[i] != news[i]) << 2 |
			   (uint64_t)task_is_due(&tasks.task[i]) << 3 |
			   (uint64_t)rmx_meetings_retry(n->fabric) << 4;
		words[2] = rmaext_network_barrier_came(c->barrier);
		words[3] = 0;
		words[4] = (uint64_t)rmaext_network_barrier_awaits(c->barrier,
								   &words[3]);
		words[5] = (uint64_t)atomic_load(&n->fabric->meetings.inside);
		words[6] = c->asked ? 1 + (uint64_t)c->asked->ended +
					      2 * c->asked->offset
				    : 0;
		words[7] = 0;
		for (int k = 0; k < world.ranks; k++)
			words[7] |= (uint64_t)n->known[k] << k;
		words[8] = n->done_count;
		for (size_t k = 0; k < n->done_count; k++)
			words[8] += 16 * (uintptr_t)n->done[k].it.context +
				    n->done[k].failed;
		all = state_mix(all, words, COUNT(words));
	}
	for (size_t i = 0; i < world.flight_count; i++) {
		const struct flight *it = &world.flights[i];

		words[0] = (uint64_t)it->kind << 32 | (uint64_t)it->from << 16 |
			   (uint64_t)it->to << 8 | (it->call != NULL);
		words[1] = it->at.place;
		words[2] = it->len;
		words[3] = it->kind == WRITE
				   ? state_mix(0, it->buf, it->len / 8)
				   : 0;
		all += state_mix(1, words, 4);
	}
	return all;
}

/* Until nothing can happen any more; false: what follows was tried before. */
static bool plan_explore(void)
{
	while (!seen(state_hash)) {
		events.count = 0;
		for (int i = 0; i < world.ranks; i++)
			events_of_rank(i);
		for (size_t i = 0; i < world.flight_count; i++)
			events_of_flight(i);
		if (!events.count)
			return true;
		event_happens(&events.of[choose(events.count)]);
	}
	return false;
}

static bool all_over(void)
{
	for (int i = 0; i < world.ranks; i++)
		if (!tasks.task[i].over && !world.node[i].dead)
			return false;
	return true;
}

/* Time passes: who waits asks again and again, and gives up on the dead. */
static void plan_end(void)
{
	is(all_over() || one_is_dead() || budget.losses < plan->losses,
	   "nothing is lost, and a meeting does not end");
	every.ends = true;
	memset(&budget, 0, sizeof(budget));
	for (int turns = 0; !all_over(); turns++) {
		is(turns < 20, "a meeting does not end");
		for (int i = 0; i < world.ranks; i++) {
			const int kind = one_is_dead() ? GIVE_UP : ASK;

			if (waits(i))
				event_happens(
					&(struct event){kind, (size_t)i, 0});
		}
		plan_explore();
	}
}

static void plan_judge(void)
{
	for (int i = 0; i < world.ranks; i++) {
		const struct node *n = &world.node[i];

		is(one_is_dead() || comms[i][0].number == (int)plan->fences,
		   "a rank has met less often than others");
		is(n->dead || comms[i][0].over ||
			   !atomic_load(&n->fabric->meetings.inside),
		   "a meeting that is over stays counted");
	}
}

/* As at first, but for time. */
static void plan_begin(void)
{
	memset(comms, 0, sizeof(comms));
	memset(all_came, 0, sizeof(all_came));
	memset(news, 0, sizeof(news));
	memset(looked, 0, sizeof(looked));
	budget.deaths = plan->deaths;
	budget.losses = plan->losses;
	budget.parts = plan->parts;
	budget.asks = plan->asks;
	every.ends = false;
	tasks.count = 0;
	for (int i = 0; i < world.ranks; i++) {
		struct node *n = &world.node[i];

		node_renew(n);
		for (int k = 0; k < world.ranks; k++)
			atomic_store(&rmx_member_peer(n->members, k)->gone,
				     false);
		OK(rmaext_network_barrier_open(n->window, n->cells, 0, 0,
					       &comms[i][0].barrier));
		task_begin(i, plan_run);
	}
	world.refusals = plan->refusals;
}

/* What a run has left on its way is over, and the dead are as others. */
static void plan_clear(void)
{
	world.refusals = 0;
	while (world.flight_count)
		flight_lose(0);
	for (int i = 0; i < world.ranks; i++) {
		rmaext_network_barrier_close(comms[i][0].barrier);
		while (world.node[i].done_count)
			rmx_look(world.node[i].fabric);
	}
	while (questions) {
		struct question *q = questions;

		questions = q->next;
		OK(rmaext_op_release(&q->op));
		free(q);
	}
	for (int i = 0; i < world.ranks; i++)
		leftovers_judge(&world.node[i]);
}

/*
 * Three ranks, who meet once or more often. A state that was met before is not
 * gone on with, else it would be too many orders. ALL=1: larger programs, too.
 */
static void orders(void)
{
	const char *all = getenv("ALL");

	alarm(0); /* others take the cores meanwhile */
	if (!all)
		cpu_limit();
	knobs.without = "deaths";
	every.on = true;
	barrier_bytes = rmaext_network_barrier_bytes();
	for (plan = plans; plan < plans + COUNT(plans); plan++) {
		const uint64_t before = every.runs;

		if (plan->all && !all)
			continue;
		knobs.ranks = plan->ranks ? plan->ranks : 3;
		world_open(3, COMMS * barrier_bytes / 8 + COMMS * RANKS, false,
			   died, tell);
		CHECK(world.ranks == knobs.ranks);
		world.tells = false;
		world.stepping = true;
		every.length = every.at = 0;
		do {
			plan_begin();
			if (plan_explore()) {
				plan_end();
				plan_judge();
			}
			plan_clear();
			every.runs++;
		} while (path_next());
		printf("%s: %llu orders, %zu states\n", plan->name,
		       (unsigned long long)(every.runs - before),
		       every.seen_count);
		fflush(stdout);
		seen_forget();
		world_end();
		world_close();
	}
	every.on = false;
}

static void seeds(void)
{
	seeds_run(run);
}

const struct test tests[] = {
	{"seeds", seeds, NULL, NULL},
	{"orders", orders, NULL, NULL},
	{0},
};
