/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A world of several ranks in one process and one thread: their network, their
 * clock and their deaths. A seed says in which order what is on its way
 * arrives, what the network refuses at first, which rank looks when, which one
 * dies and what of its messages is lost. The same seed is the same history.
 *
 * Time passes only here: clock_gettime() and ppoll() are this world's.
 */
#ifndef RMAEXT_WORLD_H
#define RMAEXT_WORLD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <poll.h>

#include "world_orders.h"
#include "am/am.h"

#ifndef WORLD_RANKS
#define WORLD_RANKS 5
#endif
enum {
	RANKS = WORLD_RANKS, /* at most */
	SEEDED = 32,	     /* more ranks than that have no seeds */
	FLIGHTS = RANKS > SEEDED ? 1 << 20 : 4096,
	DONE = RANKS > SEEDED ? 512 : FLIGHTS,
	CALM = 2000 /* ns for which all are on their way in a calm world */
};

/* A call ends before so many steps, be it by the time limit of its window. */
#define CALL_STEPS 1000000

enum kind { MESSAGE, READ, WRITE };

/* What is on its way. */
struct flight {
	uint64_t id;   /* in the trace */
	int64_t begun; /* time */
	enum kind kind;
	int from, to;
	char *data; /* of a message, or of a write without a call: a copy */
	size_t len;
	void *buf; /* of a read or write: own memory */
	struct rmx_remote at;
	struct rmx_call *call; /* NULL: nobody hears of it */
};

typedef uint16_t address; /* of a rank's endpoint */

struct node {
	rmaext_fabric *fabric;
	rmaext_window *window;
	rmaext_members *members;
	rmaext_blocks *blocks;
	struct rmx_control_block *block;
	uint64_t *cells; /* the memory of its window */
	struct {
		struct rmx_completion it;
		bool failed;
	} done[DONE];
	size_t done_count;
	struct {
		struct rmx_call *call;
		void *buf;
		size_t len;
	} receives[RMX_RECEIVE_BUFFERS];
	size_t receive_first, receive_count;
	int64_t asleep; /* until then it neither looks nor goes on */
	bool dead;
	bool known[RANKS]; /* it has been told that these are dead */
	bool losses;	   /* it is to be told of lost connections */
};

static struct {
	struct node node[RANKS];
	int ranks, active; /* active: whose call this thread is in, or -1 */
	size_t cells;	   /* of each rank */
	uint64_t draws, picks, seed, order, history, events;
	int64_t now;	/* ns */
	uint64_t steps; /* since a rank was last in none of our calls */
	struct flight store[FLIGHTS], *flights; /* in it, the oldest first */
	size_t flight_count;
	struct {
		uint64_t count, bytes;
	} sent[3]; /* of each kind */
	uint64_t flight_ids;
	bool stepping;		  /* what a step calls must not step itself */
	bool over;		  /* the network takes nothing any more */
	bool deaths;		  /* there may be one yet */
	bool breaks;		  /* connections break, and are made anew */
	bool tells;		  /* the network tells of lost connections */
	uint64_t devices;	  /* ranks, as bits, whose cells lie on one */
	bool calm;		  /* it hands on, in order, what it has */
	int refusals;		  /* that may come yet, of all orders */
	void (*died)(int number); /* tells the model */
	void (*looked)(int rank); /* and that a rank may have served others */
	void (*tell)(void);	  /* what else is to be known of a failure */
} world;

/*
 * What a run does without, so that a failure can be told with less: ranks,
 * calls of the program, kinds of faults (tests/world/shrink.py).
 */
static struct {
	uint64_t order; /* of events; 0: the seed says that, too */
	/* at most; 0: as many as there may be */
	int ranks;
	unsigned int calls;
	const char *without, *only;
	FILE *trace;
} knobs;

static void knobs_read(void)
{
	const char *text = getenv("TRACE"), *number = getenv("ORDER");

	knobs.order = number ? strtoull(number, NULL, 0) : 0;
	number = getenv("RANKS");
	knobs.ranks = number ? atoi(number) : 0;
	number = getenv("CALLS");
	knobs.calls = number ? (unsigned int)atoi(number) : 0;
	knobs.without = getenv("WITHOUT");
	knobs.only = getenv("ONLY");
	knobs.trace = text ? fopen(text, "w") : NULL;
	CHECK(!text || knobs.trace);
	if (text)
		setvbuf(knobs.trace, NULL, _IOLBF, 0);
}

/* Are there faults of that kind? */
static bool has(const char *kind)
{
	return !knobs.without || !strstr(knobs.without, kind);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
	world.now += 50;
	*t = (struct timespec){.tv_sec = 1000 + world.now / SECOND,
			       .tv_nsec = world.now % SECOND};
	return 0;
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *t,
	  const sigset_t *mask)
{
	(void)fds, (void)count, (void)mask;
	world.now += t->tv_sec * SECOND + t->tv_nsec;
	return 0;
}

/* splitmix64 */
static uint64_t number_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/*
 * Says in which order things happen. Where all orders are tried, and in a calm
 * world, it is what is usual: the network does not refuse, split or forget
 * anything by itself.
 */
static uint64_t draw(uint64_t below)
{
	return every.on || world.calm ? below - 1
				      : number_next(&world.draws) % below;
}

static int draw_rank(void)
{
	return (int)draw((uint64_t)world.ranks);
}

/* Says what the program is: a call is the same one, whatever has happened. */
static uint64_t pick(uint64_t below)
{
	return number_next(&world.picks) % below;
}

static int pick_rank(void)
{
	return (int)pick((uint64_t)world.ranks);
}

static void picks_begin(int rank, unsigned int call)
{
	world.picks = world.seed ^ ((uint64_t)rank + 1) << 56 ^
		      ((uint64_t)call + 1) << 40;
	number_next(&world.picks);
	world.picks ^= number_next(&world.picks);
}

/* A line of the trace: when, what, and to whom it happens. */
#define NOTE(...)                                                             \
	do {                                                                  \
		if (knobs.trace) {                                            \
			fprintf(knobs.trace, "%lld\t", (long long)world.now); \
			fprintf(knobs.trace, __VA_ARGS__);                    \
			fputc('\n', knobs.trace);                             \
		}                                                             \
	} while (0)

/* Is that call of the program to be made? */
static bool is_chosen(int rank, unsigned int call)
{
	char name[32];

	snprintf(name, sizeof(name), " %d.%u ", rank, call);
	if ((knobs.calls && call >= knobs.calls) ||
	    (knobs.only && !strstr(knobs.only, name)))
		return false;
	NOTE("call\t%d\t%u", rank, call);
	return true;
}

/* The history is a hash of all that has happened, in its order. */
static void happened(uint64_t what, uint64_t more)
{
	world.events++;
	world.history = (world.history ^ what) * 0x100000001b3;
	world.history = (world.history ^ more) * 0x100000001b3;
}

static const char *const kind_names[] = {"message", "read", "write"};

static void world_tell(void)
{
	for (int i = 0; i < world.ranks; i++)
		fprintf(stderr, "\trank %d: %s%zu completions\n", i,
			world.node[i].dead ? "dead, " : "",
			world.node[i].done_count);
	for (size_t i = 0; i < world.flight_count; i++)
		fprintf(stderr, "\ton its way: a %s of %zu bytes, %d to %d\n",
			kind_names[world.flights[i].kind], world.flights[i].len,
			world.flights[i].from, world.flights[i].to);
}

static void is(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "seed %llu, order %llu, %lld ns: %s\n",
		(unsigned long long)world.seed, (unsigned long long)world.order,
		(long long)world.now, what);
	NOTE("broken\t%s", what);
	if (knobs.trace)
		fclose(knobs.trace);
	world.tell();
	world_tell();
	_exit(1);
}

static int number_of(const struct rmaext_fabric *f)
{
	address n;

	memcpy(&n, f->address, sizeof(n));
	return n;
}

/* -- the network */

/* Many ranks have one key, as their windows are all alike. */
static uint64_t key_of(int rank)
{
	return RANKS > SEEDED ? 1 : (uint64_t)rank + 1;
}

static bool refuses(void)
{
	if (every.on)
		return world.refusals > 0 && choose(2) && world.refusals--;
	return !world.calm && has("refusals") && !draw(8);
}

static void complete(int rank, struct rmx_call *call, size_t len, bool failed)
{
	struct node *n = &world.node[rank];

	if (!call)
		return;
	CHECK(n->done_count < DONE);
	n->done[n->done_count].it = (struct rmx_completion){call, len};
	n->done[n->done_count++].failed = failed;
}

static int take_off(const struct flight *it)
{
	if (world.over || refuses())
		return -FI_EAGAIN;
	CHECK(world.flight_count < FLIGHTS);
	if (world.flights + world.flight_count == world.store + FLIGHTS) {
		memmove(world.store, world.flights,
			world.flight_count * sizeof(*it));
		world.flights = world.store;
	}
	world.sent[it->kind].count++;
	world.sent[it->kind].bytes += it->len;
	world.flights[world.flight_count] = *it;
	world.flights[world.flight_count].begun = world.now;
	world.flights[world.flight_count++].id = ++world.flight_ids;
	NOTE("send\t%llu\t%d\t%d\t%s\t%zu",
	     (unsigned long long)world.flight_ids, it->from, it->to,
	     kind_names[it->kind], it->len);
	return 0;
}

static int net_receive(struct rmaext_fabric *f, void *buf, size_t len,
		       void *desc, struct rmx_call *call)
{
	struct node *n = &world.node[number_of(f)];
	const size_t i =
		(n->receive_first + n->receive_count) % RMX_RECEIVE_BUFFERS;

	(void)desc;
	if (refuses())
		return -FI_EAGAIN;
	n->receives[i].call = call;
	n->receives[i].buf = buf;
	n->receives[i].len = len;
	n->receive_count++;
	return 0;
}

static int net_send(struct rmaext_fabric *f, uint64_t peer,
		    const struct iovec *iov, void **descs, size_t count,
		    struct rmx_call *call)
{
	struct flight it = {.kind = MESSAGE,
			    .from = number_of(f),
			    .to = (int)peer,
			    .call = call};
	int ret;

	(void)descs;
	for (size_t i = 0; i < count; i++)
		it.len += iov[i].iov_len;
	if (call)
		call->of_transport[0] = (void *)(intptr_t)peer;
	it.data = malloc(it.len);
	CHECK(it.data);
	for (size_t i = 0, at = 0; i < count; at += iov[i++].iov_len)
		memcpy(it.data + at, iov[i].iov_base, iov[i].iov_len);
	ret = take_off(&it);
	if (ret)
		free(it.data);
	return ret;
}

static int net_inject(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		      size_t len)
{
	const struct iovec iov = {(void *)(uintptr_t)buf, len};

	return net_send(f, peer, &iov, NULL, 1, NULL);
}

static int net_read(struct rmaext_fabric *f, const struct rmx_remote *from,
		    void *buf, size_t len, void *desc, struct rmx_call *call)
{
	(void)desc;
	return take_off(&(struct flight){.kind = READ,
					 .from = number_of(f),
					 .to = (int)from->peer,
					 .len = len,
					 .buf = buf,
					 .at = *from,
					 .call = call});
}

static int net_write(struct rmaext_fabric *f, const struct rmx_remote *to,
		     void *buf, size_t len, void *desc, struct rmx_call *call)
{
	(void)desc;
	return take_off(&(struct flight){.kind = WRITE,
					 .from = number_of(f),
					 .to = (int)to->peer,
					 .len = len,
					 .buf = buf,
					 .at = *to,
					 .call = call});
}

static int net_put_copy(struct rmaext_fabric *f, const struct rmx_remote *to,
			const void *buf, size_t len)
{
	struct flight it = {.kind = WRITE,
			    .from = number_of(f),
			    .to = (int)to->peer,
			    .len = len,
			    .at = *to};
	int ret;

	CHECK(len <= f->limits.copied);
	it.data = malloc(len);
	CHECK(it.data);
	memcpy(it.data, buf, len);
	it.buf = it.data;
	ret = take_off(&it);
	if (ret)
		free(it.data);
	return ret;
}

/*
 * Short messages from one rank to another come in order; all else in any: a
 * long one may be fetched while others come.
 */
static bool may_arrive(size_t i)
{
	const struct flight *it = &world.flights[i];

	if (it->kind != MESSAGE)
		return true;
	for (size_t k = 0; k < i && it->len <= RMX_MESSAGE; k++)
		if (world.flights[k].kind == MESSAGE &&
		    world.flights[k].len <= RMX_MESSAGE &&
		    world.flights[k].from == it->from &&
		    world.flights[k].to == it->to)
			return false;
	return world.node[it->to].dead || world.node[it->to].receive_count;
}

static struct flight flight_take(size_t i)
{
	const struct flight it = world.flights[i];

	world.flight_count--;
	memmove(world.flights + 1, world.flights, i * sizeof(it));
	world.flights++;
	happened((uint64_t)it.kind << 16 | (uint64_t)it.from << 8 |
			 (uint64_t)it.to,
		 it.len);
	return it;
}

/*
 * It arrives nowhere; the origin of a message may not hear of that, unless it
 * was told that the connection is lost.
 */
static void flight_lose(size_t i)
{
	const struct flight it = flight_take(i);
	const bool told = world.tells && !world.node[it.from].losses;

	NOTE("lose\t%llu", (unsigned long long)it.id);
	free(it.data);
	complete(it.from, it.call, 0, it.kind != MESSAGE || told || draw(2));
}

/* Some words of a write are there before others: these, or those behind. */
static void arrive_in_part(struct flight *it, size_t cut, bool behind)
{
	char *there = (char *)world.node[it->to].cells + it->at.place;
	char *from = it->buf;

	if (behind) {
		memcpy(there + cut, from + cut, it->len - cut);
		it->len = cut;
		return;
	}
	memcpy(there, from, cut);
	it->buf = from + cut;
	it->at.place += cut;
	it->len -= cut;
}

/* A reply: is it to a request of its receiver's, which has gone there? */
static void answer_judge(const struct flight *it)
{
	const struct rmx_am *am = world.node[it->to].fabric->am;
	const struct rmx_send_buffer *buffer;
	struct rmx_reply_header reply;

	if (it->len < sizeof(reply))
		return;
	memcpy(&reply, it->data, sizeof(reply));
	if (reply.magic != RMX_REPLY)
		return;
	buffer = &am->send_buffers[(uint32_t)reply.id];
	is((uint32_t)reply.id < am->sends_made &&
		   buffer->generation >= reply.id >> 32 &&
		   (buffer->generation > reply.id >> 32 || !buffer->peer ||
		    buffer->peer->addr == (uint64_t)it->from),
	   "an answer comes to one who has not asked");
}

static void arrive(size_t i)
{
	struct flight it = world.flights[i];
	struct node *n = &world.node[it.to];
	char *there = (char *)n->cells + it.at.place;

	if (n->dead) {
		flight_lose(i);
		return;
	}
	if (it.kind == WRITE && it.len > 8 && has("parts") && !draw(8)) {
		const size_t cut = 8 * (1 + draw((it.len - 1) / 8));

		arrive_in_part(&world.flights[i], cut, draw(2));
		return;
	}
	flight_take(i);
	NOTE("arrive\t%llu", (unsigned long long)it.id);
	if (it.kind == MESSAGE) {
		const size_t k = n->receive_first;

		CHECK(it.len <= n->receives[k].len);
		answer_judge(&it);
		memcpy(n->receives[k].buf, it.data, it.len);
		free(it.data);
		n->receive_first = (k + 1) % RMX_RECEIVE_BUFFERS;
		n->receive_count--;
		complete(it.to, n->receives[k].call, it.len, false);
	} else {
		EQUAL(it.at.key, key_of(it.to));
		CHECK(it.at.place + it.len <= world.cells * 8);
		memcpy(it.kind == READ ? it.buf : there,
		       it.kind == READ ? there : it.buf, it.len);
		free(it.data);
	}
	complete(it.from, it.call, 0, false);
}

/*
 * A rank dies: of what it has sent some arrives yet, of one write perhaps a
 * part. A receive of somebody's fails, as ofi_rxm lets it.
 */
static void die(int number)
{
	struct node *n = &world.node[number];
	bool lost[RANKS] = {false};

	n->dead = true;
	NOTE("die\t%d", number);
	happened(3 << 24, (uint64_t)number);
	for (size_t i = 0; i < world.flight_count;) {
		struct flight *it = &world.flights[i];

		if (it->from != number) {
			i++;
			continue;
		}
		lost[it->to] |= it->kind == MESSAGE && !draw(3);
		if (it->kind == WRITE)
			it->len = 8 * draw(it->len / 8 + 1);
		if (it->kind == READ || (it->kind == MESSAGE && lost[it->to]))
			flight_lose(i);
		else
			i++;
	}
	for (int k = 0; k < world.ranks; k++) {
		struct node *other = &world.node[k];

		other->losses = world.tells;
		if (k == number || !other->receive_count || !has("receives") ||
		    draw(4))
			continue;
		complete(k, other->receives[other->receive_first].call, 0,
			 true);
		other->receive_first =
			(other->receive_first + 1) % RMX_RECEIVE_BUFFERS;
		other->receive_count--;
	}
	world.died(number);
}

/* A rank learns that another one is dead, as of a pidfd or a refused
 * connection. */
static void notice(int number, int other)
{
	struct node *n = &world.node[number];

	if (!world.node[other].dead || n->known[other])
		return;
	n->known[other] = true;
	happened(4 << 24 | (uint64_t)number, (uint64_t)other);
	NOTE("notice\t%d\t%d", number, other);
	atomic_store(&rmx_member_peer(n->members, other)->gone, true);
}

/* What nobody was to hear of is lost; all else would have an error. */
static void connection_break(int from, int to)
{
	for (size_t i = 0; i < world.flight_count;) {
		const struct flight *it = &world.flights[i];

		if (it->kind == WRITE && !it->call && it->from == from &&
		    it->to == to)
			flight_lose(i);
		else
			i++;
	}
}

/* The oldest arrives that can; both ranks look. */
static void step_calm(void)
{
	for (size_t i = 0; i < world.flight_count; i++) {
		const struct flight it = world.flights[i];

		if (!may_arrive(i)) /* it posts a receive */
			rmx_look(world.node[it.to].fabric);
		if (!may_arrive(i))
			continue;
		if (world.now < it.begun + CALM)
			world.now = it.begun + CALM;
		arrive(i);
		rmx_look(world.node[it.to].fabric);
		rmx_look(world.node[it.from].fabric);
		return;
	}
}

static bool is_within(const void *it, const void *first, size_t len)
{
	return (uintptr_t)it - (uintptr_t)first < len;
}

/* Of a rank that is in no call: what is counted is what there is. */
static void counts_judge(const struct node *n)
{
	const struct rmx_am *am = n->fabric->am;
	const size_t sends = am->sends_made * sizeof(*am->send_buffers);
	const size_t receives =
		RMX_RECEIVE_BUFFERS * sizeof(*am->receive_buffers);
	unsigned int unsent = 0, away = 0, receiving = 0;

	for (const rmaext_peer *p = n->fabric->peers; p; p = p->next) {
		const struct rmx_send_buffer *buffer = p->line->send_buffers;
		unsigned int requests = 0, bulks = 0;

		for (; buffer; buffer = buffer->next) {
			requests++;
			bulks += buffer->bulk;
		}
		is(requests == p->line->requests && bulks == p->line->bulks,
		   "credits are counted wrongly");
	}
	for (unsigned int i = 0; i < am->sends_made; i++)
		unsent += am->send_buffers[i].state == RMX_ASKING &&
			  !am->send_buffers[i].sent;
	for (size_t i = 0; i < world.flight_count; i++)
		away += world.flights[i].kind == MESSAGE &&
			is_within(world.flights[i].call, am->send_buffers,
				  sends);
	receiving = (unsigned int)n->receive_count;
	for (size_t i = 0; i < n->done_count; i++) {
		const struct rmx_call *call = n->done[i].it.context;
		const struct rmx_receive_buffer *message = (const void *)call;

		away += is_within(call, am->send_buffers, sends);
		receiving += is_within(call, am->receive_buffers, receives) &&
			     message->state == RMX_RECEIVING;
	}
	for (const struct rmx_receive_buffer *it = am->queue; it; it = it->next)
		receiving += it->state == RMX_RECEIVING;
	is(unsent <= away, "a message counts as sent, and was not");
	is(unsent >= away, "a buffer is free, and its message is not sent");
	is(receiving == am->receiving, "a receive counts, and is not posted");
}

/* Something arrives, a rank looks, sleeps or dies: the seed says what. */
static void step(void)
{
	const size_t count = world.flight_count;
	int number;
	struct node *n;

	if (world.stepping)
		return;
	world.stepping = true;
	if (world.calm) {
		step_calm();
		world.stepping = false;
		return;
	}
	world.steps = world.active < 0 ? 0 : world.steps + 1;
	is(world.steps < CALL_STEPS, "a call does not end");
	world.now += (int64_t)draw(count ? 20000 : 200000);
	for (size_t tries = 0; count && tries < 4; tries++) {
		const size_t i = draw(count);

		if (may_arrive(i)) {
			arrive(i);
			break;
		}
	}
	number = draw_rank();
	n = &world.node[number];
	if (has("sleep") && !draw(3000)) {
		n->asleep = world.now + (int64_t)draw(100) * SECOND / 1000;
		NOTE("sleep\t%d\t%lld", number, (long long)n->asleep);
	}
	if (world.breaks && !draw(200))
		connection_break(draw_rank(), number);
	if (world.deaths && number != world.active && !draw(4000)) {
		world.deaths = draw(3) > 0;
		die(number);
	}
	if (!n->dead) {
		if (!draw(16))
			notice(number, draw_rank());
		if (draw(2) && n->asleep <= world.now)
			rmx_look(n->fabric);
	}
	if (!n->dead && number != world.active)
		counts_judge(n);
	if (world.looked && !n->dead)
		world.looked(number);
	if (world.looked && world.active >= 0)
		world.looked(world.active);
	world.stepping = false;
}

/* Completions of messages that came are in order; others in any. */
static int net_poll(struct rmaext_fabric *f, struct rmx_completion *done,
		    struct rmaext_error *failure)
{
	const int number = number_of(f);
	struct node *n = &world.node[number];
	int count = 0;

	step();
	while (count < RMX_POLL_MOST && n->done_count && draw(4)) {
		size_t i = draw(n->done_count);
		bool failed;

		for (size_t k = 0; n->done[i].it.len && k < i; k++)
			if (n->done[k].it.len)
				i = k;
		done[count++] = n->done[i].it;
		failed = n->done[i].failed;
		n->done_count--;
		memmove(&n->done[i], &n->done[i + 1],
			(n->done_count - i) * sizeof(*n->done));
		happened(1 << 24 | (uint64_t)number, done[count - 1].len);
		if (failed) {
			failure->code = -FI_ECONNRESET;
			return count;
		}
	}
	if (n->losses && !n->done_count && count < RMX_POLL_MOST) {
		n->losses = false;
		done[count++] = (struct rmx_completion){NULL, 0};
		failure->code = -FI_ECONNRESET;
	}
	return count;
}

static bool net_lost(struct rmaext_fabric *f, const struct rmx_call *call,
		     struct rmaext_error *failure)
{
	const int to = (int)(intptr_t)call->of_transport[0];

	(void)f;
	failure->code = -FI_ECONNRESET;
	return world.node[to].dead;
}

static int net_add(struct rmaext_fabric *f, const void *address, size_t len,
		   uint64_t *peer)
{
	uint16_t number;

	(void)f;
	CHECK(len == sizeof(number));
	memcpy(&number, address, len);
	*peer = number;
	return 0;
}

static void net_close(struct rmaext_fabric *f, int *ret)
{
	(void)f, (void)ret;
}

static void net_end(struct rmaext_fabric *f, bool stays, int *ret)
{
	(void)f, (void)stays, (void)ret;
}

static const char *net_words(const struct rmaext_fabric *f, int code)
{
	(void)f, (void)code;
	return "an error";
}

static const struct rmx_transport network = {
	.close = net_close,
	.end = net_end,
	.words = net_words,
	.add = net_add,
	.receive = net_receive,
	.send = net_send,
	.inject = net_inject,
	.read = net_read,
	.write = net_write,
	.put_copy = net_put_copy,
	.poll = net_poll,
	.lost = net_lost,
};

/* -- the ranks */

/* It lives, knows of no death, and its cells are zeros, as at first. */
static inline void node_renew(struct node *n)
{
	memset(n->cells, 0, 8 * world.cells);
	n->dead = false;
	memset(n->known, 0, sizeof(n->known));
}

static void node_open(int number)
{
	struct node *n = &world.node[number];
	rmaext_fabric *f = calloc(1, sizeof(*f));
	const address address = (uint16_t)number;

	CHECK(f);
	*f = (struct rmaext_fabric){
		.transport = &network,
		.hooks = &rmx_am_hooks,
		.transfers = calloc(1, sizeof(*f->transfers)),
		.am = calloc(1, sizeof(*f->am)),
		.limits = {.provider = "world",
			   .message = 17000, /* a long one goes in parts */
			   .chunk = 4096, /* of long ones there are several */
			   .least = 1,
			   .copied = 64,
			   .pieces = 4,
			   .region_pieces = 1,
			   .keys = UINT64_MAX,
			   .in_order = true,
			   .addressed = true},
		.address_len = sizeof(address),
		.progress = {.cq_fd = -1, .wake_fd = -1},
	};
	memcpy(f->address, &address, sizeof(address));
	pthread_mutex_init(&f->lock, NULL);
	pthread_mutex_init(&f->meetings.lock, NULL);
	pthread_mutex_init(&f->transfers->backlog.lock, NULL);
	pthread_mutex_init(&f->cache.lock, NULL);
	pthread_mutex_init(&f->cache.bounce_lock, NULL);
	n->fabric = f;
	OK(rmx_transfers_start(f));
	OK(rmx_am_start(f));
	OK(rmx_progress_start(f, 0, SECOND)); /* a wait looks on */
}

/* Peers are added on first use, as in a large job. */
static void members_open(int number)
{
	static address addresses[RANKS];
	static uint8_t serves[RANKS];
	struct node *n = &world.node[number];

	for (int k = 0; k < world.ranks; k++)
		addresses[k] = (address)k;
	OK(rmaext_members_new(world.ranks, number, NULL, NULL, NULL,
			      &n->members));
	OK(rmaext_members_connect(n->members, n->fabric,
				  &(struct rmaext_addresses){
					  .address = (uint8_t *)addresses,
					  .len = sizeof(address),
					  .serves = serves,
				  }));
}

/* What lies on a device is reached by messages only. */
static rmaext_window *window_make(int number, const char *token)
{
	static uint64_t size[RANKS], base[RANKS], keys[RANKS];
	static uint8_t rights[RANKS], align[RANKS];
	struct node *n = &world.node[number];
	const uint8_t route = RMAEXT_FABRIC;
	const uint64_t at = 0;
	void *map = n->cells;
	rmaext_window *w;

	for (int k = 0; k < world.ranks; k++) {
		size[k] = 8 * world.cells;
		keys[k] = key_of(k);
		rights[k] = RMAEXT_READ | RMAEXT_WRITE;
		if (world.devices >> k % SEEDED & 1)
			rights[k] |= RMAEXT_DEVICE;
	}
	OK(rmaext_window_create(
		n->fabric,
		&(struct rmaext_targets){
			.members = n->members,
			.token = (const uint8_t *)token,
			.size = size,
			.base = base,
			.access = rights,
			.align = align,
			.keys = (const uint8_t *)keys,
			.key_len = sizeof(*keys),
			.route = &route,
			.map = &map,
			.address = &at,
			.blocks = n->blocks,
			.same = RANKS > SEEDED ? RMAEXT_SAME : 0,
		},
		60 * SECOND, &w));
	return w;
}

static void window_open(int number)
{
	struct node *n = &world.node[number];
	void *block;

	members_open(number);
	n->cells = calloc(world.cells, 8);
	block = n->block = aligned_alloc(64, rmaext_block_bytes(world.ranks));
	CHECK(n->cells && block);
	memset(block, 0, rmaext_block_bytes(world.ranks));
	OK(rmaext_blocks_new(n->members, &block, &n->blocks));
	n->window = window_make(number, "a window's token");
}

static void node_close(int number)
{
	struct node *n = &world.node[number];

	OK(rmaext_window_close(n->window));
	rmaext_window_free(n->window);
	rmaext_blocks_release(n->blocks);
	rmaext_members_release(n->members);
	free(n->block);
	OK(rmaext_fabric_close(&n->fabric));
	free(n->cells);
}

static void world_open(uint64_t seed, size_t cells, bool devices,
		       void (*died)(int number), void (*tell)(void))
{
	memset(&world, 0, sizeof(world));
	world.flights = world.store;
	world.seed = world.draws = world.picks = seed;
	world.order = knobs.order ? knobs.order : seed;
	if (knobs.order)
		world.draws = seed ^ knobs.order << 20;
	world.ranks = RANKS > SEEDED ? RANKS : 2 + (int)pick(RANKS - 1);
	if (knobs.ranks && world.ranks > knobs.ranks)
		world.ranks = knobs.ranks;
	world.cells = cells;
	world.active = -1;
	world.died = died;
	world.tell = tell;
	if (devices) /* those of half of the seeds */
		world.devices = pick(2ull << SEEDED);
	if (world.devices >> SEEDED || !has("devices"))
		world.devices = 0;
	for (int i = 0; i < world.ranks; i++)
		node_open(i);
	for (int i = 0; i < world.ranks; i++)
		window_open(i);
	world.deaths = has("deaths") && pick(2);
	world.tells = pick(2);
}

/*
 * From now on nothing is on its way, and each is alone. What a dead one was
 * about to do ends with its endpoint.
 */
static void world_end(void)
{
	world.stepping = world.over = true;
	while (world.flight_count)
		flight_lose(0);
	for (int i = 0; i < world.ranks; i++) {
		struct node *n = &world.node[i];

		while (n->dead && n->done_count)
			rmx_look(n->fabric);
		if (n->dead)
			OK(rmaext_fabric_close(&n->fabric));
	}
}

static void world_close(void)
{
	for (int i = 0; i < world.ranks; i++)
		node_close(i);
}

#endif
