/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Several ranks in one process and one thread, over a network of this test's
 * own: a seed says in which order what is on its way arrives, what the network
 * refuses at first, and which rank looks when. What the ranks do is drawn, too,
 * and compared with a model. A failure names its seed, and the same seed is the
 * same run.
 */
#include "check.h"
#include "am/am.h"

enum {
	RANKS = 5,	     /* at most */
	SUMS = 6,	     /* cells that all ranks add to */
	SWAPS = 2,	     /* and such that they count up by exchanges */
	PUTS = SUMS + SWAPS, /* and one that each rank alone puts to, */
	TOLD = PUTS + RANKS, /* and one that it puts to with a notification */
	LONG = 3000,	     /* cells of a long operation, of several parts */
	LONG_SUM = TOLD + RANKS,
	LONG_PUTS = LONG_SUM + LONG, /* so many for each rank */
	CELLS = LONG_PUTS + RANKS * LONG,
	OPEN = 5,    /* requests of a rank at a time */
	CALLS = 120, /* of a rank in one run */
	FLIGHTS = 4096
};

enum kind { MESSAGE, READ, WRITE };

/* What is on its way. */
struct flight {
	enum kind kind;
	int from, to;
	char *data; /* of a message: a copy */
	size_t len;
	void *buf; /* of a read or write: own memory */
	struct rmx_remote at;
	struct rmx_call *call; /* NULL: nobody hears of it */
};

enum what {
	ADD,
	SWAP,
	PUT,
	GET,
	NOTIFY,
	FLUSH,
	ADD_LONG,
	PUT_LONG,
	GET_LONG,
	WHATS
};

/* A request of a rank's, until it has ended. */
struct request {
	enum what what;
	int target, cell, ended;
	uint64_t operand, compare, result;
	int whose;     /* of a get: who puts there */
	uint64_t low;  /* and what was known to be there when it began */
	uint64_t *buf; /* of a long one */
	rmaext_op *op;
};

struct rank {
	rmaext_fabric *fabric;
	rmaext_window *window;
	rmaext_members *members;
	rmaext_blocks *blocks;
	void *block;
	uint64_t cells[CELLS];
	struct rmx_completion done[FLIGHTS];
	size_t done_count;
	struct {
		struct rmx_call *call;
		void *buf;
		size_t len;
	} receives[RMX_RECEIVE_BUFFERS];
	size_t receive_first, receive_count;
	struct request requests[OPEN];
	unsigned int calls;
	uint64_t asleep; /* until that step it neither looks nor goes on */
	/* values that it has put to each rank: begun, and known to be there */
	struct {
		uint64_t begun, done;
	} put[RANKS], put_long[RANKS];
	uint64_t told[RANKS]; /* notified puts to each rank */
};

static struct {
	struct rank rank[RANKS];
	int ranks;
	uint64_t draws, seed, history, steps;
	struct flight flights[FLIGHTS];
	size_t flight_count;
	bool stepping; /* what a step calls must not step itself */
	/* the model: each sum's previous values, as they were returned */
	bool returned[RANKS][SUMS][RANKS * CALLS];
	uint64_t added[RANKS][SUMS], swapped[RANKS][SWAPS], added_long[RANKS];
} world;

/* splitmix64 */
static uint64_t draw(uint64_t below)
{
	uint64_t z = world.draws += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % below;
}

/* The history is a hash of all that has happened, in its order. */
static void happened(uint64_t what, uint64_t more)
{
	world.history = (world.history ^ what) * 0x100000001b3;
	world.history = (world.history ^ more) * 0x100000001b3;
}

static void is(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "seed %llu: %s\n", (unsigned long long)world.seed,
		what);
	for (int i = 0; i < world.ranks; i++)
		fprintf(stderr, "\trank %d: %u calls, %zu completions\n", i,
			world.rank[i].calls, world.rank[i].done_count);
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < OPEN; k++)
			if (world.rank[i].requests[k].op)
				fprintf(stderr,
					"\trank %d: request %d to rank %d\n", i,
					world.rank[i].requests[k].what,
					world.rank[i].requests[k].target);
	for (size_t i = 0; i < world.flight_count; i++)
		fprintf(stderr, "\ton its way: %s of %zu bytes, %d to %d\n",
			world.flights[i].kind == MESSAGE ? "a message"
			: world.flights[i].kind == READ	 ? "a read"
							 : "a write",
			world.flights[i].len, world.flights[i].from,
			world.flights[i].to);
	_exit(1);
}

static int number_of(const struct rmaext_fabric *f)
{
	uint64_t n;

	memcpy(&n, f->address, sizeof(n));
	return (int)n;
}

/* -- the network */

static bool refuses(void)
{
	return !draw(8);
}

static void complete(int rank, struct rmx_call *call, size_t len)
{
	struct rank *r = &world.rank[rank];

	CHECK(r->done_count < FLIGHTS);
	r->done[r->done_count++] = (struct rmx_completion){call, len};
}

static int take_off(const struct flight *it)
{
	if (refuses())
		return -FI_EAGAIN;
	CHECK(world.flight_count < FLIGHTS);
	world.flights[world.flight_count++] = *it;
	return 0;
}

static int net_receive(struct rmaext_fabric *f, void *buf, size_t len,
		       void *desc, struct rmx_call *call)
{
	struct rank *r = &world.rank[number_of(f)];
	const size_t i =
		(r->receive_first + r->receive_count) % RMX_RECEIVE_BUFFERS;

	(void)desc;
	if (refuses())
		return -FI_EAGAIN;
	r->receives[i].call = call;
	r->receives[i].buf = buf;
	r->receives[i].len = len;
	r->receive_count++;
	return 0;
}

static int net_send(struct rmaext_fabric *f, uint64_t peer,
		    const struct iovec *iov, void **descs, size_t count,
		    struct rmx_call *call)
{
	struct flight it = {MESSAGE, .from = number_of(f), .to = (int)peer,
			    .call = call};
	int ret;

	(void)descs;
	for (size_t i = 0; i < count; i++)
		it.len += iov[i].iov_len;
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
	return take_off(&(struct flight){
		READ, .from = number_of(f), .to = (int)from->peer, .len = len,
		.buf = buf, .at = *from, .call = call});
}

static int net_write(struct rmaext_fabric *f, const struct rmx_remote *to,
		     void *buf, size_t len, void *desc, struct rmx_call *call)
{
	(void)desc;
	return take_off(&(struct flight){WRITE, .from = number_of(f),
					 .to = (int)to->peer, .len = len,
					 .buf = buf, .at = *to, .call = call});
}

/* Messages from one rank to another come in order; all else in any. */
static bool may_arrive(size_t i)
{
	const struct flight *it = &world.flights[i];

	if (it->kind != MESSAGE)
		return true;
	for (size_t k = 0; k < i; k++)
		if (world.flights[k].kind == MESSAGE &&
		    world.flights[k].from == it->from &&
		    world.flights[k].to == it->to)
			return false;
	return world.rank[it->to].receive_count;
}

static void arrive(size_t i)
{
	const struct flight it = world.flights[i];
	struct rank *r = &world.rank[it.to];
	char *there = (char *)r->cells + it.at.place;

	world.flight_count--;
	memmove(&world.flights[i], &world.flights[i + 1],
		(world.flight_count - i) * sizeof(it));
	happened((uint64_t)it.kind << 16 | (uint64_t)it.from << 8 |
			 (uint64_t)it.to,
		 it.len);
	if (it.kind == MESSAGE) {
		const size_t k = r->receive_first;

		CHECK(it.len <= r->receives[k].len);
		memcpy(r->receives[k].buf, it.data, it.len);
		free(it.data);
		r->receive_first = (k + 1) % RMX_RECEIVE_BUFFERS;
		r->receive_count--;
		complete(it.to, r->receives[k].call, it.len);
	} else {
		EQUAL(it.at.key, it.to + 1);
		CHECK(it.at.place + it.len <= sizeof(r->cells));
		memcpy(it.kind == READ ? it.buf : there,
		       it.kind == READ ? there : it.buf, it.len);
	}
	if (it.call)
		complete(it.from, it.call, 0);
}

/* Something arrives, or a rank looks: the seed says what. */
static void step(void)
{
	const size_t n = world.flight_count;
	struct rank *r;

	if (world.stepping)
		return;
	world.stepping = true;
	for (size_t tries = 0; n && tries < 4; tries++) {
		const size_t i = draw(n);

		if (may_arrive(i)) {
			arrive(i);
			break;
		}
	}
	r = &world.rank[draw((uint64_t)world.ranks)];
	if (!draw(3000))
		r->asleep = world.steps + draw(5000);
	if (draw(2) && r->asleep <= world.steps)
		rmx_look(r->fabric);
	world.steps++;
	world.stepping = false;
}

/* Completions of messages that came are in order; others in any. */
static int net_poll(struct rmaext_fabric *f, struct rmx_completion *done,
		    struct rmaext_error *failure)
{
	const int number = number_of(f);
	struct rank *r = &world.rank[number];
	int n = 0;

	(void)failure;
	step();
	while (n < RMX_POLL_MOST && r->done_count && draw(4)) {
		size_t i = draw(r->done_count);

		for (size_t k = 0; r->done[i].len && k < i; k++)
			if (r->done[k].len)
				i = k;
		done[n++] = r->done[i];
		r->done_count--;
		memmove(&r->done[i], &r->done[i + 1],
			(r->done_count - i) * sizeof(*done));
		happened(1 << 24 | (uint64_t)number, done[n - 1].len);
	}
	return n;
}

static int net_add(struct rmaext_fabric *f, const void *address, size_t len,
		   uint64_t *peer)
{
	(void)f, (void)len;
	memcpy(peer, address, sizeof(*peer));
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
	.poll = net_poll,
};

/* -- the ranks */

static void rank_open(int number)
{
	struct rank *r = &world.rank[number];
	rmaext_fabric *f = calloc(1, sizeof(*f));
	const uint64_t address = (uint64_t)number;

	CHECK(f);
	*f = (struct rmaext_fabric){
		.transport = &network,
		.hooks = &rmx_am_hooks,
		.transfers = calloc(1, sizeof(*f->transfers)),
		.am = calloc(1, sizeof(*f->am)),
		.limits = {.provider = "world",
			   .message = 1 << 30,
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
	r->fabric = f;
	OK(rmx_transfers_start(f));
	OK(rmx_am_start(f));
	OK(rmx_progress_start(f, 0, SECOND)); /* a wait looks on */
}

static void window_open(int number)
{
	struct rank *r = &world.rank[number];
	rmaext_peer *peers[RANKS];
	uint64_t size[RANKS], base[RANKS] = {0}, keys[RANKS], at = 0;
	uint8_t rights[RANKS], align[RANKS] = {0}, route = RMAEXT_FABRIC;
	void *map = r->cells;

	for (uint64_t k = 0; k < (uint64_t)world.ranks; k++) {
		OK(rmaext_peer_add(r->fabric, &k, sizeof(k), -1, &peers[k]));
		size[k] = sizeof(r->cells);
		keys[k] = k + 1;
		rights[k] = RMAEXT_READ | RMAEXT_WRITE;
	}
	r->block = aligned_alloc(64, rmaext_block_bytes(world.ranks));
	CHECK(r->block);
	memset(r->block, 0, rmaext_block_bytes(world.ranks));
	OK(rmaext_members_new(world.ranks, number, peers, NULL, NULL,
			      &r->members));
	OK(rmaext_blocks_new(r->members, &r->block, &r->blocks));
	OK(rmaext_window_create(
		r->fabric,
		&(struct rmaext_targets){
			.members = r->members,
			.token = (const uint8_t *)"a window's token",
			.size = size,
			.base = base,
			.access = rights,
			.align = align,
			.keys = (const uint8_t *)keys,
			.key_len = sizeof(*keys),
			.route = &route,
			.map = &map,
			.address = &at,
			.blocks = r->blocks,
		},
		60 * SECOND, &r->window));
}

static void rank_close(int number)
{
	struct rank *r = &world.rank[number];

	OK(rmaext_window_close(r->window));
	rmaext_window_free(r->window);
	rmaext_blocks_release(r->blocks);
	rmaext_members_release(r->members);
	free(r->block);
	OK(rmaext_fabric_close(&r->fabric));
}

/* -- what they do */

/* A put whose notification comes once it is there: a value for each. */
static void put_notified(int number)
{
	struct rank *r = &world.rank[number];
	const int target = (int)draw((uint64_t)world.ranks);
	const uint64_t value = r->told[target] + 1;
	const struct rmaext_call call = {.kind = RMAEXT_PUT,
					 .rank = target,
					 .offset =
						 8 * (TOLD + (uint64_t)number),
					 .operand = &value,
					 .count = sizeof(value),
					 .notify = 1 + number};
	rmaext_op *op;
	int ret = rmaext_start(r->window, &call, &op);

	r->told[target] = value;
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, TENTH);
	is(!ret, "a notified put fails");
	OK(rmaext_op_release(&op));
}

/* Who is notified finds what was put before. */
static void notifications_judge(void)
{
	for (int t = 0; t < world.ranks; t++) {
		const struct rank *r = &world.rank[t];
		const struct rmx_control_block *block = r->block;

		for (int from = 0; from < world.ranks; from++)
			is(r->cells[TOLD + from] >=
				   (uint64_t)block->notify[from],
			   "a notification came before its data");
	}
}

/* After a flush all that this rank has put is there, ended or not. */
static void flush_all(int number)
{
	struct rank *r = &world.rank[number];
	struct rmaext_wait wait = {.timeout = 60 * SECOND};
	int ret;

	do
		ret = rmaext_flush(r->window, -1, &wait);
	while (ret == RMAEXT_PENDING);
	is(!ret, "a flush fails");
	for (int t = 0; t < world.ranks; t++) {
		const struct rank *at = &world.rank[t];

		is(at->cells[PUTS + number] == r->put[t].begun &&
			   at->cells[TOLD + number] == r->told[t],
		   "a flush has ended, and a put is not there");
	}
}

static uint64_t *cells_new(uint64_t value)
{
	uint64_t *cells = malloc(LONG * sizeof(*cells));

	CHECK(cells);
	for (int i = 0; i < LONG; i++)
		cells[i] = value;
	return cells;
}

static void begin(int number, struct request *q)
{
	struct rank *r = &world.rank[number];
	struct rmaext_call call = {.kind = RMAEXT_UPDATE,
				   .op = RMAEXT_SUM,
				   .type = RMAEXT_UINT64,
				   .operand = &q->operand,
				   .result = &q->result,
				   .count = 1,
				   .ended = &q->ended};
	int ret;

	*q = (struct request){.what = (enum what)draw(WHATS),
			      .target = (int)draw((uint64_t)world.ranks),
			      .operand = 1};
	happened(2 << 24 | (uint64_t)number << 8 | q->what, r->calls);
	r->calls++;
	switch (q->what) {
	case NOTIFY:
		put_notified(number);
		return;
	case FLUSH:
		flush_all(number);
		return;
	case ADD:
		q->cell = (int)draw(SUMS);
		break;
	case SWAP:
		q->cell = SUMS + (int)draw(SWAPS);
		q->compare = world.swapped[q->target][q->cell - SUMS];
		q->operand = q->compare + 1;
		call.op = RMAEXT_CSWAP;
		call.compare = &q->compare;
		break;
	case PUT: /* one at a time, so that their order is known */
		if (r->put[q->target].begun != r->put[q->target].done)
			return;
		q->cell = PUTS + number;
		q->operand = ++r->put[q->target].begun;
		call.kind = RMAEXT_PUT;
		call.result = NULL;
		call.count = 8;
		break;
	case GET:
		q->whose = (int)draw((uint64_t)world.ranks);
		q->cell = PUTS + q->whose;
		q->low = world.rank[q->whose].put[q->target].done;
		call.kind = RMAEXT_GET;
		call.operand = NULL;
		call.count = 8;
		break;
	case ADD_LONG:
		q->cell = LONG_SUM;
		q->buf = cells_new(1);
		call.operand = q->buf;
		call.result = NULL;
		call.count = LONG;
		break;
	case PUT_LONG:
		if (r->put_long[q->target].begun != r->put_long[q->target].done)
			return;
		q->cell = LONG_PUTS + number * LONG;
		q->operand = ++r->put_long[q->target].begun;
		q->buf = cells_new(q->operand);
		call.kind = RMAEXT_PUT;
		call.operand = q->buf;
		call.result = NULL;
		call.count = 8 * LONG;
		break;
	default:
		q->whose = (int)draw((uint64_t)world.ranks);
		q->cell = LONG_PUTS + q->whose * LONG;
		q->low = world.rank[q->whose].put_long[q->target].done;
		q->buf = cells_new(0);
		call.kind = RMAEXT_GET;
		call.operand = NULL;
		call.result = q->buf;
		call.count = 8 * LONG;
	}
	call.rank = q->target;
	call.offset = 8 * (uint64_t)q->cell;
	ret = rmaext_start(r->window, &call, &q->op);
	is(ret == RMAEXT_PENDING && q->op, "a request does not begin");
}

/* It has ended: was it right? */
static void judge(int number, const struct request *q)
{
	struct rank *r = &world.rank[number];
	const uint64_t *there = &world.rank[q->target].cells[q->cell];
	const struct rank *putter = &world.rank[q->whose];

	switch (q->what) {
	case ADD:
		is(q->result < RANKS * CALLS, "a sum that nobody has made");
		is(!world.returned[q->target][q->cell][q->result],
		   "two additions got the same previous value");
		world.returned[q->target][q->cell][q->result] = true;
		world.added[q->target][q->cell]++;
		break;
	case SWAP:
		if (q->result != q->compare)
			break;
		is(world.swapped[q->target][q->cell - SUMS] == q->compare,
		   "two exchanges of one value");
		world.swapped[q->target][q->cell - SUMS]++;
		break;
	case PUT:
		is(*there == q->operand, "a put has ended, and is not there");
		r->put[q->target].done = q->operand;
		break;
	case PUT_LONG:
		for (int i = 0; i < LONG; i++)
			is(there[i] == q->operand,
			   "a long put has ended, and is not there");
		r->put_long[q->target].done = q->operand;
		break;
	case ADD_LONG:
		world.added_long[q->target]++;
		break;
	case GET_LONG:
		for (int i = 0; i < LONG; i++)
			is(q->buf[i] >= q->low &&
				   q->buf[i] <=
					   putter->put_long[q->target].begun,
			   "a long get of what was not there");
		break;
	default:
		is(q->result >= q->low, "a get of what was there before a put");
		is(q->result <= putter->put[q->target].begun,
		   "a get of what was never put");
	}
}

/* Goes on with a rank; false: it has nothing more to do. */
static bool go_on(int number)
{
	struct rank *r = &world.rank[number];
	struct request *q = &r->requests[draw(OPEN)];
	bool open = false;

	if (r->asleep > world.steps)
		return true;
	if (q->op && q->ended) {
		OK(rmaext_op_wait(q->op, 0));
		judge(number, q);
		OK(rmaext_op_release(&q->op));
		free(q->buf);
	} else if (!q->op && r->calls < CALLS) {
		begin(number, q);
	}
	notifications_judge();
	for (int i = 0; i < OPEN; i++)
		open = open || r->requests[i].op;
	return open || r->calls < CALLS;
}

/* Whatever was counted is back at its start. */
static void leftovers_judge(const struct rank *r)
{
	const rmaext_fabric *f = r->fabric;
	const struct rmx_am *am = f->am;

	is((atomic_load(&f->transfers->free_contexts) >> 16 & 0xffff) ==
		   RMX_CONTEXTS,
	   "a context was not given back");
	is(am->receiving == r->receive_count + am->queued,
	   "receives are counted wrongly");
	for (const rmaext_peer *p = f->peers; p; p = p->next) {
		is(!p->line->requests, "a credit was not given back");
		is(!p->line->queue, "something is in line");
		is(!atomic_load(&p->contexts),
		   "a peer's contexts stay counted");
	}
}

static uint64_t run(uint64_t seed)
{
	bool busy = true;

	memset(&world, 0, sizeof(world));
	world.seed = world.draws = seed;
	world.ranks = 2 + (int)draw(RANKS - 1);
	for (int i = 0; i < world.ranks; i++)
		rank_open(i);
	for (int i = 0; i < world.ranks; i++)
		window_open(i);
	for (uint64_t turns = 0; busy; turns++) {
		is(turns < 1000000, "it does not end");
		busy = false;
		for (int i = 0; i < world.ranks; i++)
			busy = go_on(i) || busy;
		step();
	}
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < SUMS; k++)
			is(world.rank[i].cells[k] == world.added[i][k],
			   "a sum is not what was added");
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < LONG; k++)
			is(world.rank[i].cells[LONG_SUM + k] ==
				   world.added_long[i],
			   "a long sum is not what was added");
	for (int i = 0; i < world.ranks; i++)
		flush_all(i);
	for (uint64_t quiet = 0; quiet < 1000; quiet++) {
		if (world.flight_count)
			quiet = 0;
		step();
	}
	for (int i = 0; i < world.ranks; i++)
		for (int t = 0; t < world.ranks; t++)
			is((uint64_t)((struct rmx_control_block *)world.rank[t]
					      .block)
					   ->notify[i] == world.rank[i].told[t],
			   "notifications were lost, or came twice");
	for (int i = 0; i < world.ranks; i++)
		leftovers_judge(&world.rank[i]);
	world.stepping = true; /* from now on each is alone */
	for (int i = 0; i < world.ranks; i++)
		rank_close(i);
	return world.history;
}

static void seeds(void)
{
	const char *one = getenv("SEED");
	const uint64_t first = one ? strtoull(one, NULL, 0) : 1;
	const char *count = getenv("SEEDS");
	const uint64_t usual = getenv("RMAEXT_EMULATED") ? 5 : 100;
	const uint64_t last =
		one ? first
		    : first + (count ? strtoull(count, NULL, 0) : usual) - 1;

	if (count)
		alarm(0); /* as long as it takes */
	for (uint64_t seed = first; seed <= last; seed++) {
		const uint64_t history = run(seed);

		if (one)
			printf("seed %s: %016llx\n", one,
			       (unsigned long long)history);
		if (seed % 10 == 0)
			is(run(seed) == history,
			   "the same seed is not the same run");
	}
}

const struct test tests[] = {
	{"seeds", seeds, NULL, NULL},
	{0},
};
