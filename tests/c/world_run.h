/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a program runs in a world (world.h): its tasks, what is to be so in the
 * end, and which seeds are tried. SEED=17 is that one alone, and the hash of
 * its history; with ORDERS=100 it is the same program in so many orders.
 * MINUTES=1 tries other seeds each time; SEEDS=1000 so many from the first on,
 * 100 by itself.
 */
#ifndef RMAEXT_WORLD_RUN_H
#define RMAEXT_WORLD_RUN_H

#include "world.h"

#include <sys/time.h>
#include <ucontext.h>

/* -- tasks: what ranks do, one after another, until they pause */

enum { TASKS = 2 * RANKS, TASK_STACK = 256 << 10, IDLE = 200 };

struct task {
	ucontext_t context;
	void *stack;
	int number, rank;
	void (*run)(struct task *t);
	bool over;
	/* it goes on at that time, or once a word is not `seen` any more */
	int64_t wakes;
	const int64_t *word;
	int64_t seen;
};

static struct {
	struct task task[TASKS];
	int count;
	struct task *running;
	ucontext_t loop;
} tasks;

static inline void task_main(void)
{
	struct task *t = tasks.running;

	t->run(t);
	t->over = true;
	swapcontext(&t->context, &tasks.loop);
}

static inline void task_begin(int rank, void (*run)(struct task *t))
{
	struct task *t = &tasks.task[tasks.count];

	CHECK(tasks.count < TASKS);
	*t = (struct task){.stack = t->stack,
			   .number = tasks.count++,
			   .rank = rank,
			   .run = run};
	if (!t->stack)
		t->stack = malloc(TASK_STACK);
	CHECK(t->stack && !getcontext(&t->context));
	t->context.uc_stack.ss_sp = t->stack;
	t->context.uc_stack.ss_size = TASK_STACK;
	makecontext(&t->context, task_main, 0);
}

/* The task goes on after so long, or once the word has changed, or if NULL. */
static inline void task_pause(struct task *t, int64_t ns, const int64_t *word,
			      int64_t seen)
{
	t->wakes = world.now + (ns > 0 ? ns : 0);
	t->word = word;
	t->seen = seen;
	world.active = -1;
	swapcontext(&t->context, &tasks.loop);
	world.active = t->rank;
}

static inline bool task_is_due(const struct task *t)
{
	const struct node *n = &world.node[t->rank];

	return !t->over && !n->dead && n->asleep <= world.now &&
	       (t->wakes <= world.now || (t->word && *t->word != t->seen));
}

/* Until it pauses, or is over. */
static inline void task_go_on(struct task *t)
{
	tasks.running = t;
	world.active = t->rank;
	swapcontext(&tasks.loop, &t->context);
	world.active = -1;
}

/* Nothing is on its way, and nobody goes on for now: time passes. */
static inline void time_skip(void)
{
	int64_t next = INT64_MAX;

	for (int i = 0; i < tasks.count; i++) {
		const struct task *t = &tasks.task[i];
		const struct node *n = &world.node[t->rank];

		if (t->over || n->dead)
			continue;
		next = t->wakes < next ? t->wakes : next;
		next = n->asleep > next ? n->asleep : next;
	}
	if (next > world.now && next < INT64_MAX)
		world.now = next;
}

/* Until all have ended, or are dead. */
static inline void tasks_run(void)
{
	bool busy = true;

	for (uint64_t turns = 0, idle = 0; busy; turns++) {
		const uint64_t count = (uint64_t)tasks.count;
		struct task *t =
			&tasks.task[world.calm ? turns % count : draw(count)];

		is(turns < 20000000, "it does not end");
		if (task_is_due(t)) {
			idle = 0;
			task_go_on(t);
		} else if (idle++ > (world.calm ? count : IDLE) &&
			   !world.flight_count) {
			idle = 0;
			time_skip();
		}
		step();
		busy = false;
		for (int i = 0; i < tasks.count; i++)
			busy = busy || (!tasks.task[i].over &&
					!world.node[tasks.task[i].rank].dead);
	}
}

/* -- the end of a run */

/* Runs until nothing is on its way, all are awake, and know who is dead. */
static void settle(void)
{
	world.deaths = false;
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < world.ranks; k++)
			notice(i, k);
	for (uint64_t quiet = 0; quiet < 2000; quiet++) {
		for (int i = 0; i < world.ranks; i++) {
			struct node *n = &world.node[i];

			n->asleep = 0;
			if (world.flight_count || (!n->dead && n->done_count))
				quiet = 0;
		}
		step();
	}
}

/* A flush, of which the target's death alone makes an error. */
static int flush(int number, int target)
{
	struct rmaext_wait wait = {.timeout = 60 * SECOND};
	int ret;

	do
		ret = rmaext_flush(world.node[number].window, target, &wait);
	while (ret == RMAEXT_PENDING);
	is(!ret || (world.node[target].dead &&
		    (ret == -FI_ENOTCONN || ret == -FI_ECONNRESET)),
	   "a flush fails");
	return ret;
}

/* Whatever was counted is back at its start (see counts_judge(), too). */
static void leftovers_judge(const struct node *n)
{
	const rmaext_fabric *f = n->fabric;
	const struct rmx_am *am = f->am;

	is((atomic_load(&f->transfers->free_contexts) >> 16 & 0xffff) ==
		   RMX_CONTEXTS,
	   "a context was not given back");
	is(am->incoming == am->receiving, "a receive's buffer was lost");
	for (int i = 0; i < world.ranks; i++)
		is(!rmx_counted(atomic_load(&n->window->targets[i].pending)),
		   "what has ended counts as under way");
	for (const rmaext_peer *p = f->peers; p; p = p->next) {
		is(!p->line->requests && !p->line->bulks,
		   "a credit was not given back");
		is(!p->line->replies, "replies are counted wrongly");
		is(!p->line->queue, "something is in line");
		is(!atomic_load(&p->contexts),
		   "a peer's contexts stay counted");
	}
}

/* -- seeds */

/* Runs a seed, and returns the hash of its history. */
typedef uint64_t run_of(uint64_t seed);

/* The library goes round in a circle, without asking the network. */
static void looped(int number)
{
	char text[80];
	const int length = snprintf(
		text, sizeof(text), "seed %llu, order %llu, %lld ns: a loop\n",
		(unsigned long long)world.seed, (unsigned long long)world.order,
		(long long)world.now);

	(void)number;
	_exit(write(STDERR_FILENO, text, (size_t)length) != length ? 2 : 1);
}

/* From now on a run may take so much of the CPU, a hundred times as much as one
 * does. */
static void watch_begin(void)
{
	const struct itimerval most = {.it_value.tv_sec = 5};

	signal(SIGVTALRM, looped);
	OK(setitimer(ITIMER_VIRTUAL, &most, NULL));
}

static uint64_t run_checked(run_of *run, uint64_t seed)
{
	uint64_t history;

	watch_begin();
	history = run(seed);
	is(seed % 10 || run(seed) == history,
	   "the same seed is not the same run");
	return history;
}

static void seed_tell(uint64_t events, uint64_t seed, uint64_t history)
{
	printf("%llu events, up to seed %llu: %016llx\n",
	       (unsigned long long)events, (unsigned long long)seed,
	       (unsigned long long)history);
}

/*
 * New seeds each time. A process for each thousand: the library keeps a little
 * of each endpoint that it has closed.
 */
static void seeds_until(run_of *run, time_t end)
{
	struct {
		uint64_t seed, events, history;
	} *all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status = 0;

	CHECK(all != MAP_FAILED);
	all->seed = (uint64_t)end << 20;
	while (time(NULL) < end && !status) {
		const pid_t pid = fork_child();

		for (int n = 0; !pid && n < 1000 && time(NULL) < end; n++) {
			all->history = run_checked(run, all->seed++);
			all->events += world.events;
		}
		if (!pid)
			_exit(0);
		waitpid(pid, &status, 0);
	}
	if (status)
		_exit(1);
	seed_tell(all->events, all->seed - 1, all->history);
}

static void seed_run(run_of *run, uint64_t seed)
{
	const char *text = getenv("ORDERS");
	const uint64_t orders = text ? strtoull(text, NULL, 0) : 0;
	uint64_t history = 0;

	watch_begin();
	if (!orders)
		history = run(seed);
	for (uint64_t i = 1; i <= orders; i++) {
		watch_begin();
		knobs.order = i;
		history = run(seed);
	}
	seed_tell(world.events, seed, history);
}

static void seeds_run(run_of *run)
{
	const char *minutes = getenv("MINUTES"), *seed = getenv("SEED");
	const char *count = getenv("SEEDS");
	const uint64_t usual = getenv("RMAEXT_EMULATED") ? 5 : 100;
	const uint64_t last = count ? strtoull(count, NULL, 0) : usual;

	knobs_read();
	if (count || minutes)
		alarm(0); /* as long as it takes */
	if (seed)
		seed_run(run, strtoull(seed, NULL, 0));
	else if (minutes)
		seeds_until(run, time(NULL) + (time_t)(60 * atof(minutes)));
	for (uint64_t i = 1; !seed && !minutes && i <= last; i++)
		run_checked(run, i);
}

#endif
