/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Locks in a world. Each rank has two threads, which lock targets alone or
 * shared, several at once or all, with and without a time limit, and change
 * what the locks guard; ranks die as holders, as waiters and in between. Some
 * ranks share a node: they change each other's locks in memory, all others by
 * messages.
 *
 * The steps are those of csrc/shm/ticket_lock.c, and lock_judge.c says what to
 * do when one does not move. What lies between, the loops of
 * rmaext/_sync/entering.py and ticket_lock.py, is here once more, as tasks.
 */
#ifndef WORLD_RANKS
#define WORLD_RANKS 6
#endif
#include "world_scale.h"

#include "shm/ticket_lock.h"

enum {
	/* cells that a lock guards: what writers count up, what readers add to
	 */
	GUARDED = 2,
	CALLS = 8,	 /* of a task */
	MOST = RANKS + 4 /* words in a message */
};

/* As in rmaext/_sync/entering.py. */
#define MS (SECOND / 1000)
#define NAP (10 * MS)
#define FAR_STEP (20 * MS)
#define FAR_MOST (100 * MS)
#define FAR_JOINS (2 * MS)
#define LOOK_EVERY (10 * MS)
#define STUCK_AFTER SECOND
#define GIVE_WAY (MS / 10)
#define GIVE_WAY_MOST (10 * MS)
#define WINDOW_LIMIT (60 * SECOND)
/* An attempt without a limit takes longer only if nobody lets it in. */
#define STARVED (300 * SECOND)

enum outcome { GOT, LATE, LOST, STUCK };
static const char *const outcomes[] = {
	"has", "gives up, too late:", "finds lost", "is stuck at"};

/*
 * Of all orders: the ranks share a node, and a step of a lock is all or
 * nothing.
 */
static int64_t changes; /* of the words of locks: who waits goes on then */
static struct {
	int deaths, skips; /* that may come yet in this run */
} budget;

/* What is on its way for a task, or was when its rank died. */
struct message {
	struct message *next;
	int64_t rank, places[MOST], values[MOST], old[MOST];
	int ended;
	rmaext_op *op;
};

/* A rank's part in the lock of a target: _TargetLock. */
struct side {
	struct rmaext_lock lock;
	int64_t passed, pause; /* a turn that it passed, and gives way to */
	bool far, broken;
};

static struct side sides[RANKS][RANKS];
static struct message *messages;
static struct rmaext_places places;
static int node_of[RANKS];
static size_t data; /* where the cells begin that locks guard */
/* May it wait in a circle? Then each attempt has a limit. */
static enum { ASCENDING, SHARED_NEST, ANYHOW } style;

/* What each lock is about. */
static struct {
	int writer; /* a task, or -1 */
	int readers;
	unsigned int moves;	       /* how often one has come in, or gone */
	int64_t ticket, writer_ticket; /* the last ones that got in */
	uint64_t count, added, perhaps;
	unsigned int touched; /* a bit of each rank that died and held it, or
			       * was about to */
} model[RANKS];

/* Of each task. */
static struct {
	/* holds it, joins it, or takes a step of which others cannot know how
	 * far it came; who waits in the queue does nothing of it */
	bool touches[RANKS];
	int held;
	const char *does;
	int target;
	int64_t since;
	int adding; /* 1 + the target to whose sum it adds, or 0 */
} did[TASKS];

static void tell(void)
{
	for (int i = 0; i < tasks.count; i++)
		if (did[i].does && !tasks.task[i].over)
			fprintf(stderr,
				"\trank %d, thread %d: %s rank %d since %lld\n",
				tasks.task[i].rank, i, did[i].does,
				did[i].target, (long long)did[i].since);
	for (int t = 0; t < world.ranks; t++) {
		const int64_t *words = (int64_t *)world.node[t].cells;

		fprintf(stderr, "\tlock %d: next %lld, turn %lld, inside %llx;",
			t, (long long)words[places.lock],
			(long long)words[places.lock + 1],
			(unsigned long long)words[places.lock + 2]);
		for (int r = 0; r < world.ranks; r++)
			fprintf(stderr, " %llx",
				(unsigned long long)
					words[places.slots + (uint64_t)r]);
		fprintf(stderr, "\n");
	}
	path_tell();
}

static void does(const struct task *t, const char *what, int target)
{
	did[t->number].does = what;
	did[t->number].target = target;
	did[t->number].since = world.now;
	NOTE("does\t%d\t%d\t%s rank %d", t->rank, t->number, what, target);
}

static void died(int number)
{
	for (int i = 0; i < tasks.count; i++)
		for (int t = 0; tasks.task[i].rank == number && t < RANKS; t++)
			if (did[i].touches[t])
				model[t].touched |= 1u << number;
	for (int i = 0; i < tasks.count; i++)
		if (tasks.task[i].rank == number && did[i].adding)
			model[did[i].adding - 1].perhaps++;
}

static bool knows_dead(const struct task *t, int rank)
{
	return world.node[t->rank].known[rank];
}

/* -- messages */

static struct message *message_new(int target)
{
	struct message *m = calloc(1, sizeof(*m));

	CHECK(m);
	m->rank = target;
	m->next = messages;
	messages = m;
	return m;
}

/* Waits for a request: 0, or an error, which the target's death explains. */
static int message_wait(struct task *t, struct message *m, int ret)
{
	const struct node *target = &world.node[m->rank];

	while (ret == RMAEXT_PENDING) {
		if (m->ended || target->dead)
			ret = rmaext_op_wait(m->op, 0);
		if (ret == RMAEXT_PENDING)
			task_pause(t, 0, NULL, 0);
	}
	is(!ret || (target->dead &&
		    (ret == -FI_ENOTCONN || ret == -FI_ECONNRESET)),
	   "a message fails");
	rmaext_op_release(&m->op);
	return ret;
}

static int message_add(struct task *t, struct message *m, uint64_t count)
{
	const struct rmaext_places_call call = {
		.kind = RMAEXT_UPDATE,
		.op = RMAEXT_SUM,
		.type = RMAEXT_INT64,
		.ones = RMAEXT_ONE_RANK,
		.unit = 8,
		.scale = 8,
		.count = count,
		.elements = count,
		.ranks = &m->rank,
		.offsets = m->places,
		.values = m->values,
		.results = m->old,
		.ended = &m->ended,
	};
	int64_t bad;

	return message_wait(t, m,
			    rmaext_start_many(world.node[t->rank].window, &call,
					      &m->op, &bad));
}

static int message_start(struct task *t, struct message *m,
			 struct rmaext_call call)
{
	call.rank = m->rank;
	call.offset = 8 * (uint64_t)m->places[0];
	call.ended = &m->ended;
	return message_wait(
		t, m, rmaext_start(world.node[t->rank].window, &call, &m->op));
}

static int message_swap(struct task *t, struct message *m, int64_t to)
{
	m->values[1] = to;
	return message_start(t, m,
			     (struct rmaext_call){.kind = RMAEXT_UPDATE,
						  .op = RMAEXT_CSWAP,
						  .type = RMAEXT_INT64,
						  .compare = &m->values[0],
						  .operand = &m->values[1],
						  .result = m->old,
						  .count = 1});
}

/* -- ticket_lock.py: steps of a lock, in memory or by messages */

enum step { TAKE, JOIN, WAIT, LEAVE, UNDO, PASS };

struct step_of {
	enum step step;
	int exclusive;
	int64_t rank, slot; /* of PASS */
};

static int step_call(struct rmaext_lock *l, struct rmaext_exchange *e,
		     const struct task *t, const struct step_of *s)
{
	const uint64_t thread = (uint64_t)t->number + 1;

	switch (s->step) {
	case TAKE:
		return rmaext_lock_take(l, e, thread, s->exclusive);
	case JOIN:
		return rmaext_lock_join(l, e, thread);
	case WAIT:
		return rmaext_lock_wait(l, e, s->exclusive, 0, 0);
	case LEAVE:
		return rmaext_lock_leave(l, e, s->exclusive);
	case UNDO:
		return rmaext_lock_undo(l, e, thread, s->exclusive);
	default:
		return rmaext_lock_pass(l, e, s->rank, s->slot);
	}
}

static uint64_t words_hash(int target)
{
	const int64_t *words = (int64_t *)world.node[target].cells;

	return rmx_name(words + places.lock, 24) ^
	       3 * rmx_name(words + places.slots, 8 * (size_t)world.ranks);
}

static int step_near(struct task *t, struct side *side, const struct step_of *s)
{
	const uint64_t before =
		every.on ? words_hash((int)side->lock.target) : 0;
	const int ret = step_call(&side->lock, NULL, t, s);

	changes += every.on && words_hash((int)side->lock.target) != before;
	if (!every.on && (s->step > WAIT || (s->step != JOIN && ret == 1 &&
					     !s->exclusive))) /* NodeLock */
		rmaext_lock_tell(
			world.node[t->rank].window, side->lock.block, 0,
			s->exclusive && s->step != PASS && s->step != WAIT);
	return ret;
}

/* An error has broken the side: its state there is not known any more. */
static int step_far(struct task *t, struct side *side, int target,
		    const struct step_of *s)
{
	int64_t answers[64];
	struct rmaext_exchange e = {.answers = answers};
	int ret;

	while ((ret = step_call(&side->lock, &e, t, s)) == RMAEXT_PENDING) {
		struct message *m = message_new(target);

		for (uint64_t i = 0; i < e.count; i++) {
			m->places[i] = e.changes[i].place;
			m->values[i] = e.changes[i].value;
		}
		CHECK(e.answered + e.count <= COUNT(answers));
		ret = e.swap ? message_swap(t, m, e.to)
			     : message_add(t, m, e.count);
		if (ret) {
			side->broken = true;
			return ret;
		}
		memcpy(answers + e.answered, m->old, 8 * e.count);
		e.answered += e.count;
	}
	return ret;
}

static int step_do(struct task *t, struct side *side, struct step_of s)
{
	const int target = (int)side->lock.target;
	bool *touches = &did[t->number].touches[target];
	const bool held = *touches;
	int ret;

	*touches = true;
	ret = side->far ? step_far(t, side, target, &s)
			: step_near(t, side, &s);
	*touches = held || s.step == JOIN || (ret == 1 && s.step <= WAIT);
	return ret;
}

static bool look_far(struct task *t, struct side *side, int64_t *words)
{
	struct message *m = message_new((int)side->lock.target);
	const uint64_t n = (uint64_t)world.ranks;

	for (uint64_t i = 0; i < n + 4; i++)
		m->places[i] = (int64_t)(i < 2	     ? places.lock + 1 + i
					 : i < n + 2 ? places.slots + i - 2
						     : places.lock + i - n - 1);
	if (message_add(t, m, n + 4)) {
		side->broken = true;
		return false;
	}
	memcpy(words, m->old, 8 * (n + 2));
	return m->old[0] == m->old[n + 2] && m->old[1] == m->old[n + 3];
}

/* What there is to see, turn and inside first; false: it moves, or is lost. */
static bool look(struct task *t, struct side *side, int64_t *words)
{
	const int64_t *at = side->lock.block;

	if (side->far)
		return look_far(t, side, words);
	words[0] = at[places.lock + 1];
	words[1] = at[places.lock + 2];
	memcpy(words + 2, at + places.slots, 8 * (size_t)world.ranks);
	return true;
}

static int judge(const int64_t *words, int64_t ticket, int exclusive,
		 const uint8_t *gone, int64_t *rank_p)
{
	const struct rmaext_lock_look seen = {
		.ticket = ticket,
		.exclusive = exclusive,
		.turn = words[0],
		.inside = words[1],
		.count = world.ranks,
		.slots = words + 2,
		.gone = gone,
	};

	return rmaext_lock_judge(&seen, rank_p);
}

static bool gone_of(const struct task *t, uint8_t *gone)
{
	bool any = false;

	for (int i = 0; i < world.ranks; i++) {
		gone[i] = knows_dead(t, i);
		any = any || gone[i];
	}
	return any;
}

/* -- entering.py */

/* A rank is blamed: it is dead, and had to do with this lock. */
static enum outcome lost(const struct side *side, int64_t rank)
{
	const int target = (int)side->lock.target;

	is(world.node[rank].dead, "a rank that lives is said to be lost");
	is(rank == target || model[target].touched >> rank & 1,
	   "a lock is lost with a rank that had nothing to do with it");
	return LOST;
}

static void undo(struct task *t, struct side *side, int exclusive)
{
	struct rmaext_lock *l = &side->lock;

	if (l->owner != (uint64_t)t->number + 1)
		return;
	if (l->inside || !side->broken)
		step_do(t, side,
			(struct step_of){.step = UNDO, .exclusive = exclusive});
	if (side->broken)
		l->kind = l->inside = 0, l->owner = 0;
}

static enum outcome await_turn(struct task *t, struct side *side, int exclusive,
			       int64_t end)
{
	const int64_t *own = (int64_t *)world.node[t->rank].cells;
	const int64_t *wakeups = &own[places.wakeups];
	struct rmaext_lock *l = &side->lock;
	const bool joins = l->inside == RMAEXT_LOCK_JOINS;
	const int64_t ticket = joins ? -1 : l->ticket, begun = world.now;
	/* of all orders: a look may come at once */
	int64_t looked = every.on ? -SECOND : begun, told = -1, before = 1;
	int64_t turn = -1, since = world.now;

	for (;;) {
		int64_t pause = NAP, words[MOST], rank;
		uint8_t gone[RANKS];
		unsigned int moves;
		bool any, written;
		int ret;

		if (side->far && told >= 0) {
			pause = joins ? FAR_JOINS
				: before * FAR_STEP < FAR_MOST
					? before * FAR_STEP
					: FAR_MOST;
			if (end && world.now + pause > end)
				pause = end - world.now;
			task_pause(t, pause, wakeups, told);
		}
		told = *wakeups;
		ret = step_do(
			t, side,
			(struct step_of){.step = WAIT, .exclusive = exclusive});
		if (ret < 0)
			return lost(side, l->target);
		if (ret)
			return GOT;
		/* a futex wakes it, or it naps */
		if (every.on)
			task_pause(t, NAP, &changes, changes);
		else if (!side->far)
			task_pause(t, (int64_t)draw(NAP), NULL, 0);
		is(world.now < begun + STARVED, "a waiter is not let in");
		if (end && world.now >= end)
			return LATE;
		if (world.now < looked + LOOK_EVERY)
			continue;
		looked = world.now;
		any = gone_of(t, gone);
		written = model[l->target].writer >= 0;
		moves = model[l->target].moves;
		ret = look(t, side, words);
		if (side->broken)
			return lost(side, l->target);
		if (!ret || words[0] != turn) {
			turn = ret ? words[0] : -1;
			since = world.now;
		}
		if (!ret)
			continue;
		before = joins || ticket <= turn ? 1 : ticket - turn;
		if (gone[l->target])
			return lost(side, l->target);
		switch (judge(words, ticket, exclusive, gone, &rank)) {
		case RMAEXT_LOCK_PASS:
			NOTE("does\t%d\t%d\tpasses rank %d at rank %d", t->rank,
			     t->number, (int)rank, (int)l->target);
			if (step_do(t, side,
				    (struct step_of){.step = PASS,
						     .rank = rank,
						     .slot = words[2 + rank]}) <
			    0)
				return lost(side, l->target);
			looked = -SECOND;
			told = -1;
			break;
		case RMAEXT_LOCK_LOST:
			return lost(side, rank);
		case RMAEXT_LOCK_UNKNOWN:
			is(!written || moves != model[l->target].moves,
			   "nobody accounts for a lock that one has alone");
			if (any && world.now - since > WINDOW_LIMIT) {
				is(model[l->target].touched,
				   "a lock is lost with nobody");
				return LOST;
			}
			/* fall through */
		default:
			if (!exclusive && !joins &&
			    world.now - since > STUCK_AFTER &&
			    words[1] < RMX_LOCK_WRITER)
				return STUCK;
		}
	}
}

/* Enters in turn, or past the queue; the owner then, if it is exclusive. */
static enum outcome enter_lock(struct task *t, struct side *side, bool joins,
			       int exclusive, int64_t end)
{
	enum outcome out = GOT;
	int ret = side->broken ? -FI_ENOTCONN : -FI_EBUSY;

	while (ret == -FI_EBUSY) {
		ret = step_do(t, side,
			      (struct step_of){.step = joins ? JOIN : TAKE,
					       .exclusive = exclusive});
		if (ret != -FI_EBUSY)
			break;
		if (end && world.now >= end)
			return LATE;
		task_pause(t, MS, NULL, 0);
	}
	if (ret < 0)
		out = lost(side, side->lock.target);
	else if (!ret)
		out = await_turn(t, side, exclusive, end);
	if (out != GOT)
		undo(t, side, exclusive);
	else if (!exclusive)
		rmaext_lock_disown(&side->lock);
	return out;
}

static void give_way(struct task *t, struct side *side, int64_t end)
{
	int64_t until = world.now + side->pause, words[MOST], rank;

	if (end && until > end)
		until = end;
	while (world.now < until && !side->broken) {
		uint8_t gone[RANKS];
		int action;

		gone_of(t, gone);
		if (look(t, side, words)) {
			if (words[0] != side->passed)
				return;
			action = judge(words, side->passed + 1, 0, gone, &rank);
			if (action == RMAEXT_LOCK_PASS)
				step_do(t, side,
					(struct step_of){
						.step = PASS,
						.rank = rank,
						.slot = words[2 + rank]});
			if (action != RMAEXT_LOCK_WAIT)
				return;
		}
		task_pause(t, until - world.now < MS ? until - world.now : MS,
			   NULL, 0);
	}
}

static enum outcome join(struct task *t, struct side *side, int64_t end)
{
	struct side joiner = {.far = side->far};
	enum outcome out;

	give_way(t, side, end);
	joiner.broken = side->broken;
	joiner.lock = (struct rmaext_lock){.block = side->lock.block,
					   .words = side->lock.words,
					   .slots = side->lock.slots,
					   .rank = side->lock.rank,
					   .far = side->lock.far,
					   .target = side->lock.target};
	out = enter_lock(t, &joiner, true, 0, end);
	side->broken = side->broken || joiner.broken;
	if (out == GOT && joiner.lock.ticket >= 0) {
		side->pause = side->passed == joiner.lock.ticket
				      ? 2 * side->pause
				      : GIVE_WAY;
		if (side->pause > GIVE_WAY_MOST)
			side->pause = GIVE_WAY_MOST;
		side->passed = joiner.lock.ticket;
	}
	return out;
}

/* What entering a lock means, promise by promise. */
static void entered(const struct task *t, int target, int exclusive,
		    int64_t ticket)
{
	is(model[target].writer < 0, "two are inside, and one of them alone");
	is(!exclusive || !model[target].readers,
	   "a writer is inside beside readers");
	is(ticket < 0 || ticket > (exclusive ? model[target].ticket
					     : model[target].writer_ticket),
	   "a later ticket got in earlier");
	if (ticket > model[target].ticket)
		model[target].ticket = ticket;
	if (exclusive) {
		model[target].writer = t->number;
		model[target].writer_ticket = ticket;
	} else {
		model[target].readers++;
	}
	did[t->number].held++;
	model[target].moves++;
}

/* The words of a dead target stay as they are, for who does not know it yet. */
static void touches_no_more(const struct task *t, int target)
{
	if (!world.node[target].dead)
		did[t->number].touches[target] = false;
}

static enum outcome enter(struct task *t, int target, int exclusive,
			  int64_t limit)
{
	struct side *side = &sides[t->rank][target];
	const int64_t end = limit < 0 ? 0 : world.now + limit;
	bool joins = !exclusive && did[t->number].held;
	enum outcome out = STUCK;
	int64_t ticket = -1;

	does(t, exclusive ? "locks" : joins ? "joins" : "shares", target);
	if (!joins) {
		out = enter_lock(t, side, false, exclusive, end);
		ticket = side->lock.ticket;
	}
	if (out == STUCK) {
		ticket = -1;
		out = join(t, side, end);
	}
	is(out != LATE || (limit >= 0 && world.now >= end),
	   "an attempt ends before its time limit");
	does(t, outcomes[out], target);
	if (out == GOT)
		entered(t, target, exclusive, exclusive ? ticket : -1);
	else
		touches_no_more(t, target);
	return out;
}

static void leave(struct task *t, int target, int exclusive)
{
	struct side *side = &sides[t->rank][target];
	int ret;

	flush(t->rank, target);
	if (exclusive)
		model[target].writer = -1;
	else
		model[target].readers--;
	model[target].moves++;
	does(t, "leaves", target);
	ret = step_do(t, side,
		      (struct step_of){.step = LEAVE, .exclusive = exclusive});
	if (ret < 0 && exclusive)
		side->lock.kind = side->lock.inside = 0, side->lock.owner = 0;
	does(t, "has left", target);
	touches_no_more(t, target);
	did[t->number].held--;
}

/* -- what they do inside */

static int cell(struct task *t, int target, int kind, size_t which,
		int64_t *value)
{
	struct message *m = message_new(target);
	struct rmaext_call call = {.kind = kind, .count = 8};
	int ret;

	m->places[0] = (int64_t)(data + which);
	m->values[0] = *value;
	if (kind == RMAEXT_GET)
		call.result = m->old;
	else
		call.operand = m->values;
	if (kind == RMAEXT_UPDATE) {
		call.op = RMAEXT_SUM;
		call.type = RMAEXT_INT64;
		call.count = 1;
	}
	ret = message_start(t, m, call);
	*value = m->old[0];
	return ret;
}

static void hold(struct task *t, int target, int exclusive, int64_t ns)
{
	int64_t value = 0, one = 1;

	if (cell(t, target, RMAEXT_GET, 0, &value))
		return;
	is((uint64_t)value == model[target].count,
	   "what a lock guards is not what the last writer left");
	task_pause(t, ns, NULL, 0);
	if (!exclusive) {
		did[t->number].adding = 1 + target;
		if (!cell(t, target, RMAEXT_UPDATE, 1, &one))
			model[target].added++;
		did[t->number].adding = 0;
		return;
	}
	value++;
	if (cell(t, target, RMAEXT_PUT, 0, &value))
		return;
	model[target].count++;
}

/* Locks targets one after the other, holds them all, and lets them go. */
static void call_make(struct task *t)
{
	int target[RANKS], exclusive[RANKS], held = 0;
	int64_t ns[RANKS];
	const int count = pick(3) ? 1 + (int)pick(2) : world.ranks;
	const bool all = count == world.ranks || pick(4) == 0;
	const int64_t limits[] = {0, MS, 50 * MS, SECOND};
	const int64_t limit =
		style == ANYHOW || !pick(3) ? limits[pick(COUNT(limits))] : -1;
	int first = pick_rank();

	for (int i = 0; i < count; i++) {
		target[i] = (first + i) % world.ranks;
		ns[i] = (int64_t)pick(5) * (int64_t)pick(5) * MS;
		exclusive[i] =
			!all && pick(2) && (style != SHARED_NEST || count == 1);
	}
	for (int i = 0; style == ASCENDING && i + 1 < count; i++)
		if (target[i] > target[i + 1]) /* from 0 on */
			for (int k = 0; k < count; k++)
				target[k] = k;
	while (held < count &&
	       enter(t, target[held], exclusive[held], limit) == GOT)
		held++;
	for (int i = 0; i < held; i++)
		hold(t, target[i], exclusive[i], ns[i]);
	while (held--)
		leave(t, target[held], exclusive[held]);
}

static void program(struct task *t)
{
	for (unsigned int i = 0; i < CALLS; i++) {
		picks_begin(t->number, i);
		if (!is_chosen(t->number, i))
			continue;
		task_pause(t, (int64_t)pick(4) * MS, NULL, 0);
		picks_begin(t->number, i + CALLS);
		call_make(t);
	}
}

/* Then each rank asks for each lock once more, alone, and gets it. */
static void program_last(struct task *t)
{
	for (int i = 0; i < world.ranks; i++) {
		const enum outcome out = enter(t, i, 1, -1);

		is(out == GOT || world.node[i].dead || model[i].touched,
		   "a lock is lost though nobody had it");
		if (out == GOT)
			leave(t, i, 1);
	}
}

/* Whom no dead rank had to do with is as at first. */
static void lock_judge(int target)
{
	const int64_t *words = (int64_t *)world.node[target].cells;
	int64_t left = 0;

	/* a writer that died inside may have written once more */
	is((uint64_t)words[data] - model[target].count <=
		   (model[target].writer >= 0),
	   "what a lock guards is not what was written");
	is((uint64_t)words[data + 1] >= model[target].added &&
		   (uint64_t)words[data + 1] <=
			   model[target].added + model[target].perhaps,
	   "a sum is not what was added");
	if (model[target].touched)
		return;
	for (int r = 0; r < world.ranks; r++) /* nobody came after them */
		left += world.node[r].dead && words[places.slots + (uint64_t)r];
	is(words[places.lock] - words[places.lock + 1] <= left,
	   "a ticket is left in the queue");
	is(!words[places.lock + 2], "one is left inside");
	for (int r = 0; r < world.ranks; r++)
		is(!words[places.slots + (uint64_t)r] || world.node[r].dead,
		   "a slot is left");
}

static void side_open(int rank, int target)
{
	struct side *side = &sides[rank][target];

	side->far = node_of[rank] != node_of[target];
	side->passed = -1;
	side->lock = (struct rmaext_lock){
		.block = side->far ? NULL : (int64_t *)world.node[target].cells,
		.words = (int64_t)places.lock,
		.slots = (int64_t)places.slots,
		.rank = rank,
		.far = side->far ? RMAEXT_SLOT_FAR : 0,
		.target = target,
	};
}

/* Nobody has asked for a lock yet. */
static void locks_begin(void)
{
	memset(sides, 0, sizeof(sides));
	memset(model, 0, sizeof(model));
	memset(did, 0, sizeof(did));
	for (int i = 0; i < world.ranks; i++) {
		model[i].writer = -1;
		model[i].ticket = model[i].writer_ticket = -1;
		for (int t = 0; t < world.ranks; t++)
			side_open(i, t);
	}
}

static void locks_open(uint64_t seed)
{
	data = rmaext_block_bytes(RANKS) / 8;
	world_open(seed, data + GUARDED, false, died, tell);
	rmaext_block_places(world.ranks, &places);
	style = (int)pick(3);
	for (int i = 0; i < world.ranks; i++) {
		rmaext_window_controls(world.node[i].window, 1);
		node_of[i] = (int)pick(4) ? i : 0;
	}
	locks_begin();
}

static uint64_t run(uint64_t seed)
{
	locks_open(seed);
	tasks.count = 0;
	for (int i = 0; i < world.ranks; i++)
		for (int k = pick(2) ? 2 : 1; k; k--)
			task_begin(i, program);
	tasks_run();
	settle();
	tasks.count = 0;
	for (int i = 0; i < world.ranks; i++)
		task_begin(i, program_last);
	tasks_run();
	settle();
	for (int i = 0; i < world.ranks; i++)
		for (int t = 0; t < world.ranks && !world.node[i].dead; t++)
			flush(i, t);
	settle();
	for (int i = 0; i < world.ranks; i++)
		if (!world.node[i].dead) {
			lock_judge(i);
			leftovers_judge(&world.node[i]);
		}
	for (struct message *m = messages; m; m = m->next)
		rmaext_op_release(&m->op);
	world_end();
	while (messages) {
		struct message *m = messages;

		messages = m->next;
		OK(rmaext_op_release(&m->op));
		free(m);
	}
	world_close();
	return world.history;
}

/* -- all orders */

/* What a rank does: it takes these locks, one inside the other, and goes. */
struct plan {
	const char *name;
	int count, target[2], exclusive[2];
	int64_t limit;
};

static const struct plan plans[] = {
	{"X", 1, {0}, {1}, -1},		 {"S", 1, {0}, {0}, -1},
	{"X<", 1, {0}, {1}, MS},	 {"S<", 1, {0}, {0}, MS},
	{"X0X1", 2, {0, 1}, {1, 1}, -1}, {"S0S1", 2, {0, 1}, {0, 0}, -1},
	{"S1S0", 2, {1, 0}, {0, 0}, -1}, {"S0S1<", 2, {0, 1}, {0, 0}, MS},
};
enum { X0X1 = 4, S1S0 = 6 };

static const struct plan *plan_of[RANKS];

static void plan_run(struct task *t)
{
	const struct plan *p = plan_of[t->rank];
	int held = 0;

	while (held < p->count &&
	       enter(t, p->target[held], p->exclusive[held], p->limit) == GOT) {
		held++;
		task_pause(t, 0, NULL, 0);
	}
	while (held--) {
		leave(t, p->target[held], p->exclusive[held]);
		task_pause(t, 0, NULL, 0);
	}
}

static void rank_dies(int number)
{
	world.node[number].dead = true;
	for (int i = 0; i < world.ranks; i++)
		world.node[i].known[number] = true;
	died(number);
	changes++;
}

/* One of the tasks goes on, a rank dies, or time passes. */
static void plans_run(void)
{
	struct task *due[RANKS];

	for (int idle = 0;;) {
		size_t count = 0, living = 0, ways, way;

		for (int i = 0; i < tasks.count; i++) {
			struct task *t = &tasks.task[i];

			living += !t->over && !world.node[t->rank].dead;
			if (task_is_due(t))
				due[count++] = t;
		}
		if (!living)
			return;
		is(count || idle++ < 1000, "they wait for each other");
		if (!count) {
			time_skip();
			continue;
		}
		ways = count + (size_t)(budget.skips > 0 && count < living) +
		       (budget.deaths ? living : 0);
		way = choose(ways);
		if (way < count) {
			task_go_on(due[way]);
			continue;
		}
		way -= count;
		if (budget.skips > 0 && count < living && !way--) {
			budget.skips--;
			world.now += NAP;
			continue;
		}
		budget.deaths--;
		for (int i = 0; i < tasks.count; i++)
			if (!tasks.task[i].over &&
			    !world.node[tasks.task[i].rank].dead && !way--)
				rank_dies(tasks.task[i].rank);
	}
}

/* Each order of three ranks with such plans; so many of them may die. */
static void plans_explore(int deaths, int skips)
{
	every.length = every.at = 0;
	do {
		locks_begin();
		budget.deaths = deaths;
		budget.skips = skips;
		tasks.count = 0;
		for (int i = 0; i < world.ranks; i++) {
			node_renew(&world.node[i]);
			task_begin(i, plan_run);
		}
		every.ends = false;
		plans_run();
		every.ends = true;
		budget.deaths = budget.skips = tasks.count = 0;
		for (int i = 0; i < world.ranks; i++)
			task_begin(i, program_last);
		plans_run();
		for (int i = 0; i < world.ranks; i++)
			if (!world.node[i].dead)
				lock_judge(i);
		every.runs++;
	} while (path_next());
}

/* Has the program no circle of its own, and at most so many locks in all? */
static bool plans_fit(int most)
{
	bool up = false, down = false;
	int count = 0;

	for (int i = 0; i < 3; i++) {
		up = up || plan_of[i] == &plans[X0X1];
		down = down || plan_of[i] == &plans[S1S0];
		count += plan_of[i]->count;
	}
	return count <= most && !(up && down);
}

static void plans_try(bool all)
{
	const uint64_t before = every.runs;

	plans_explore(0, 0);
	plans_explore(1, 0);
	if (!all)
		return;
	plans_explore(0, 1);
	printf("%s %s %s: %llu\n", plan_of[0]->name, plan_of[1]->name,
	       plan_of[2]->name, (unsigned long long)(every.runs - before));
	fflush(stdout);
}

/*
 * Three ranks, each of which takes one lock; with ALL=1 one of them takes two,
 * and time may pass at any moment (some minutes).
 */
static void orders(void)
{
	const bool all = getenv("ALL");
	const size_t count = COUNT(plans);

	if (all)
		alarm(0);
	knobs.without = "deaths";
	knobs.ranks = 3;
	locks_open(3); /* a seed with as many */
	CHECK(world.ranks == 3);
	memset(node_of, 0, sizeof(node_of));
	world.stepping = every.on = true; /* nothing goes by the network */
	for (size_t i = 0; i < count * count * count; i++) {
		const size_t of[] = {i / count / count, i / count % count,
				     i % count};

		for (int k = 0; k < 3; k++)
			plan_of[k] = &plans[of[k]];
		if (of[0] <= of[1] && of[1] <= of[2] && plans_fit(3 + all))
			plans_try(all);
	}
	printf("%llu orders\n", (unsigned long long)every.runs);
	for (int i = 0; i < world.ranks; i++)
		world.node[i].dead = false;
	world.stepping = every.on = false;
	world_end();
	world_close();
}

/* -- what a crowd costs */

static void crowd_run(struct task *t)
{
	if (enter(t, 0, 1, -1) == GOT)
		leave(t, 0, 1);
}

static void all_run(struct task *t)
{
	for (int i = 0; i < world.ranks; i++)
		is(enter(t, i, 0, -1) == GOT, "a lock that is free");
	for (int i = world.ranks; i--;)
		leave(t, i, 0);
}

/* Each of RANKS=1024 locks one target alone; one locks all, shared. */
static void crowd(void)
{
	const char *text = getenv("RANKS");

	knobs.ranks = text ? atoi(text) : 0;
	if (text)
		alarm(0);
	data = rmaext_block_bytes(RANKS) / 8;
	knobs.without = "deaths";
	world_open(3, data + GUARDED, false, died, tell);
	rmaext_block_places(world.ranks, &places);
	for (int i = 0; i < world.ranks; i++) {
		rmaext_window_controls(world.node[i].window, 1);
		node_of[i] = i;
	}
	locks_begin();
	world.calm = true;
	measure();
	tasks.count = 0;
	for (int i = 0; i < world.ranks; i++)
		task_begin(i, crowd_run);
	tasks_run();
	/* no look at all slots, as the lock only changes hands */
	measured("contended lock", world.ranks, 14, 14 * 80);
	tasks.count = 0;
	task_begin(1, all_run);
	tasks_run();
	measured("lock_all", 1, 4 * world.ranks, 4 * 84 * world.ranks);
}

static void seeds(void)
{
	seeds_run(run);
}

const struct test tests[] = {
	{"seeds", seeds, NULL, NULL},
	{"orders", orders, NULL, NULL},
	{"crowd", crowd, NULL, NULL},
	{0},
};
