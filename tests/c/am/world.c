/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the ranks of a world do is drawn, and compared with a model: sums,
 * exchanges, puts, gets, flushes and notifications, of which some go to ranks
 * that die, or come of them. world_run.h says how seeds are tried.
 */
#include "world_run.h"
#include "xfer/siblings.h"

enum {
	SUMS = 6,	     /* cells that all ranks add to */
	SWAPS = 2,	     /* and such that they count up by exchanges */
	PUTS = SUMS + SWAPS, /* and one that each rank alone puts to, */
	TOLD = PUTS + RANKS, /* and one that it puts to with a notification */
	LONG = 4500,	     /* cells of a long operation, of several parts */
	LONG_SUM = TOLD + RANKS,
	LONG_PUTS = LONG_SUM + LONG,	   /* so many for each rank */
	STAMPS = LONG_PUTS + RANKS * LONG, /* the same, by updates */
	LONG_TOLD = STAMPS + RANKS * LONG, /* the same, with a notification */
	COUNTS = LONG_TOLD + RANKS * LONG, /* what many at a time add to */
	CELLS = COUNTS + SUMS,
	MANY = 40,
	OPEN = 5,   /* requests of a rank at a time */
	CALLS = 120 /* of a rank in one run */
};

enum what {
	ADD,
	SWAP,
	PUT,
	GET,
	NOTIFY,
	FLUSH,
	QUIT,
	STAMP,
	STAMP_LONG,
	NOTIFY_LONG,
	ADD_LONG,
	FETCH_LONG,
	ADD_MANY,
	BEGIN_MANY, /* the same, as a request */
	PUT_LONG,
	GET_LONG,
	WHATS
};

static const char *const what_names[WHATS] = {
	"adds",
	"exchanges",
	"puts",
	"gets",
	"puts and notifies",
	"flushes",
	"adds and quits",
	"replaces",
	"replaces much",
	"puts much and notifies",
	"adds much",
	"adds much and fetches",
	"adds to many places",
	"begins to add to many places",
	"puts much",
	"gets much",
};

/* A request of a rank's, until it has ended. */
struct request {
	enum what what;
	int target, cell, ended;
	uint64_t operand, compare, result;
	int whose;	     /* of a get: who puts there */
	uint64_t low;	     /* and what was known to be there when it began */
	uint64_t *buf, *old; /* of a long one */
	struct {
		int64_t count, rank[MANY], place[MANY];
		uint64_t result[MANY];
	} many;
	bool over; /* its owner has let go of it; C has not */
	rmaext_op *op;
};

struct rank {
	struct request requests[OPEN];
	unsigned int calls;
	/* values that it has put to each rank: begun, and known to be there */
	struct {
		uint64_t begun, done;
	} put[RANKS], put_long[RANKS];
	/* notified puts to each rank, short and long ones */
	uint64_t told[RANKS], told_long[RANKS], told_done[RANKS];
	/* of each cell that it stamps: the last stamp, and how many there are
	 */
	uint64_t stamp[RANKS][LONG], stamps[RANKS];
};

static struct rank ranks[RANKS];

/* Each sum's previous values, as they were returned, and what has changed. */
static struct {
	bool returned[RANKS][SUMS][RANKS * CALLS];
	uint64_t added[RANKS][SUMS], swapped[RANKS][SWAPS], added_long[RANKS];
	/* what those may have added who have died meanwhile */
	uint64_t perhaps[RANKS][SUMS], perhaps_long[RANKS];
	uint64_t counted[RANKS][SUMS], perhaps_counted[RANKS][SUMS];
	bool perhaps_swapped[RANKS][SWAPS];
} model;

static void tell(void)
{
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < OPEN; k++)
			if (ranks[i].requests[k].op)
				fprintf(stderr,
					"\trank %d: call %d of %u to rank %d\n",
					i, ranks[i].requests[k].what,
					ranks[i].calls,
					ranks[i].requests[k].target);
}

/* What many places have come to, or may have. */
static void count_many(const struct request *q, bool surely)
{
	for (int64_t i = 0; i < q->many.count; i++) {
		const int64_t rank = q->many.rank[i];
		const int64_t cell = q->many.place[i] - COUNTS;

		if (surely)
			model.counted[rank][cell]++;
		else
			model.perhaps_counted[rank][cell]++;
	}
}

/* Is one of those dead that it goes to? */
static bool is_hopeless(const struct request *q)
{
	for (int64_t i = 0; i < q->many.count; i++)
		if (world.node[q->many.rank[i]].dead)
			return true;
	return !q->many.count && world.node[q->target].dead;
}

/* A rank dies: nobody learns whether what it has begun is applied. */
static void died(int number)
{
	for (int k = 0; k < OPEN; k++) {
		const struct request *q = &ranks[number].requests[k];

		if (q->op && !q->over && q->what == ADD)
			model.perhaps[q->target][q->cell]++;
		if (q->op && !q->over && q->what == SWAP)
			model.perhaps_swapped[q->target][q->cell - SUMS] = true;
		if (q->op && !q->over &&
		    (q->what == ADD_LONG || q->what == FETCH_LONG))
			model.perhaps_long[q->target]++;
		if (q->op && !q->over && q->many.count)
			count_many(q, false);
	}
}

/* An error is due to a death, and to nothing else. */
static void may_fail(int code, const struct request *q, const char *what)
{
	is(!code || (is_hopeless(q) &&
		     (code == -FI_ENOTCONN || code == -FI_ECONNRESET)),
	   what);
}

static const uint64_t one = 1;

static uint64_t *cells_new(uint64_t value)
{
	uint64_t *cells = malloc(LONG * sizeof(*cells));

	CHECK(cells);
	for (int i = 0; i < LONG; i++)
		cells[i] = value;
	return cells;
}

static void request_free(struct request *q)
{
	free(q->buf);
	free(q->old);
	q->buf = q->old = NULL;
}

/* C may use the buffers until it has let go of it. */
static void request_release(int number, struct request *q)
{
	const int ret = rmaext_op_release(&q->op);

	is(!ret || (ret == RMAEXT_PENDING &&
		    (q->what == QUIT || is_hopeless(q))),
	   "a request has ended, and is not released");
	q->over = true;
	if (ret)
		return;
	happened(5 << 24, (uint64_t)number);
	request_free(q);
}

/* Is it a copy, or of a request of that rank's? */
static bool is_owned(int number, const struct rmx_op *op)
{
	const rmaext_op *owned;

	op = op && op->write ? op->write : op;
	if (!op || op->buffered)
		return true;
	if (rmx_is_nobodys(op)) /* a request goes on by itself */
		return rmx_op_is_request(op);
	owned = op->siblings ? &op->siblings->owned : &op->owned;
	for (int k = 0; k < OPEN; k++)
		if (ranks[number].requests[k].op == owned)
			return true;
	return false;
}

/* Of a call that has failed, or was ended, nothing goes on. */
static void given_up_judge(int number)
{
	const rmaext_peer *p = world.node[number].fabric->peers;
	bool owned = true;

	for (; p; p = p->next) {
		const struct rmx_send_buffer *buffer = p->line->send_buffers;
		const struct rmx_op *op = p->line->queue;

		for (; op; op = op->next)
			owned = owned && is_owned(number, op);
		for (; buffer; buffer = buffer->next)
			owned = owned && ((buffer->loaned && !buffer->sent) ||
					  is_owned(number, buffer->op));
	}
	is(owned, "a call is over, and some of it goes on");
}

/* Waits for what is no request, so long, and lets go of it. */
static int wait_for(int number, struct request *q, int ret, rmaext_op *op,
		    unsigned int slices)
{
	while (ret == RMAEXT_PENDING && slices--)
		ret = rmaext_op_wait(op, slices < 3 ? 1000 : TENTH);
	if (ret != RMAEXT_PENDING)
		may_fail(ret, q, "a call fails");
	else /* its owner lets go of it */
		q->what = QUIT;
	q->op = op; /* C may use its buffers yet */
	request_release(number, q);
	if (ret)
		given_up_judge(number);
	return ret;
}

/* A put whose notification comes once it is there: a value for each. */
static void put_notified(int number, struct request *q)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.rank = q->target,
		.offset = 8 * (TOLD + (uint64_t)number),
		.count = 8,
		.operand = &q->operand,
		.notify = 1 + number,
	};
	rmaext_op *op = NULL;
	int ret;

	q->operand = ++ranks[number].told[q->target];
	ret = rmaext_start(world.node[number].window, &call, &op);
	wait_for(number, q, ret, op, ~0u);
}

/*
 * The same of many cells: by a write, or by messages in any order. If its owner
 * does not wait for it there is no other after it.
 */
static void long_put_notified(int number, struct request *q)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.rank = q->target,
		.offset = 8 * (LONG_TOLD + (uint64_t)number * LONG),
		.count = 8 * LONG,
		.operand = q->buf,
		.notify = 1 + number + RANKS,
	};
	struct rank *r = &ranks[number];
	const int target = q->target;
	rmaext_op *op = NULL;
	int ret = rmaext_start(world.node[number].window, &call, &op);

	ret = wait_for(number, q, ret, op,
		       pick(4) ? ~0u : (unsigned int)pick(4));
	if (ret != RMAEXT_PENDING)
		r->told_done[target] = r->told_long[target];
}

/* The same as a request: by a write, or by short messages. */
static int begin_put_notified(int number, struct request *q)
{
	const int64_t rank = q->target, first = LONG_TOLD + number * LONG;
	const int64_t count = pick(2) ? LONG : LONG / 2;
	struct rmaext_places_call call = {
		.kind = RMAEXT_PUT,
		.ones = RMAEXT_ONE_RANK,
		.unit = 8,
		.scale = 8,
		.count = 1,
		.ranks = &rank,
		.offsets = &first,
		.counts = &count,
		.elements = (uint64_t)count,
		.notify = 1 + number + RANKS,
		.ended = &q->ended,
	};
	int64_t bad;

	call.values = q->buf;
	return rmaext_start_many(world.node[number].window, &call, &q->op,
				 &bad);
}

/* One addition, of which the owner lets go before it has ended. */
static void quit(int number, struct request *q)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_UPDATE,
		.op = RMAEXT_SUM,
		.type = RMAEXT_UINT64,
		.rank = q->target,
		.offset = 8 * (q->operand = pick(SUMS)),
		.operand = &one,
		.result = &q->result,
		.count = 1,
	};
	const uint64_t cell = q->operand;
	rmaext_op *op = NULL;
	int ret = rmaext_start(world.node[number].window, &call, &op);

	if (wait_for(number, q, ret, op, (unsigned int)pick(4)))
		model.perhaps[q->target][cell]++;
	else
		model.added[q->target][cell]++;
}

/* One addition to each of many cells, of several ranks. */
static int many(int number, struct request *q)
{
	struct rmaext_places_call call = {
		.kind = RMAEXT_UPDATE,
		.op = RMAEXT_SUM,
		.type = RMAEXT_UINT64,
		.ones = RMAEXT_ONE_VALUE,
		.unit = 8,
		.scale = 8,
		.ranks = q->many.rank,
		.offsets = q->many.place,
		.values = &one,
		.results = pick(2) ? q->many.result : NULL,
		.ended = q->what == BEGIN_MANY ? &q->ended : NULL,
	};
	int64_t bad;

	q->many.count = 1 + (int64_t)pick(MANY);
	call.count = call.elements = (uint64_t)q->many.count;
	for (int64_t i = 0; i < q->many.count; i++) {
		q->many.rank[i] = pick_rank();
		q->many.place[i] = COUNTS + (int64_t)pick(SUMS);
	}
	return rmaext_start_many(world.node[number].window, &call, &q->op,
				 &bad);
}

/* A request for many places has ended: each has got what was added. */
static void many_judge(const struct request *q)
{
	for (int64_t i = 0; i < q->many.count; i++) {
		const int64_t rank = q->many.rank[i], at = q->many.place[i];

		is(world.node[rank].cells[at] >
			   model.counted[rank][at - COUNTS],
		   "a request has ended, and some of it has not");
	}
}

static void add_many(int number, struct request *q)
{
	int ret = many(number, q);

	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(q->op, TENTH);
	may_fail(ret, q, "an operation on many places fails");
	count_many(q, !ret);
	if (q->op)
		request_release(number, q);
	if (ret)
		given_up_judge(number);
}

/* Who is notified finds what was put before. */
static void told_judge(int number)
{
	const struct node *n = &world.node[number];
	const uint64_t *told = n->cells + TOLD, *much = n->cells + LONG_TOLD;
	const atomic_int_fast64_t *notify = n->block->notify;

	for (int i = 0; i < world.ranks; i++)
		is(told[i] >= (uint64_t)notify[i] &&
			   much[i * LONG + (int)draw(LONG / 2)] >=
				   (uint64_t)notify[RANKS + i],
		   "a notification came before its data");
}

/* After a flush all that this rank has put is there, ended or not. */
static void flush_one(int number, int target)
{
	const struct node *there = &world.node[target];
	const struct rank *r = &ranks[number];
	const int ret = flush(number, target);

	is(ret || there->dead ||
		   (there->cells[PUTS + number] == r->put[target].begun &&
		    there->cells[TOLD + number] == r->told[target]),
	   "a flush has ended, and a put is not there");
}

static void flush_each(int number)
{
	for (int target = 0; target < world.ranks; target++)
		flush_one(number, target);
}

static void begin(int number, struct request *q)
{
	struct rank *r = &ranks[number];
	struct rmaext_call call = {.kind = RMAEXT_UPDATE,
				   .op = RMAEXT_SUM,
				   .type = RMAEXT_UINT64,
				   .operand = &q->operand,
				   .result = &q->result,
				   .count = 1,
				   .ended = &q->ended};
	int ret;

	picks_begin(number, r->calls);
	*q = (struct request){.what = (enum what)pick(WHATS),
			      .target = pick_rank(),
			      .operand = 1};
	if (!is_chosen(number, r->calls++))
		return;
	happened(2 << 24 | (uint64_t)number << 8 | q->what, r->calls);
	NOTE("does\t%d\t%u\t%s, rank %d", number, r->calls - 1,
	     what_names[q->what], q->target);
	switch (q->what) {
	case NOTIFY:
		put_notified(number, q);
		return;
	case NOTIFY_LONG: /* puts that overlap have no order */
		if (r->told_long[q->target] != r->told_done[q->target])
			return;
		q->operand = ++r->told_long[q->target];
		q->buf = cells_new(q->operand);
		if (pick(2)) {
			long_put_notified(number, q);
			return;
		}
		ret = begin_put_notified(number, q);
		if (ret != RMAEXT_PENDING)
			may_fail(ret, q, "a request does not begin");
		if (!q->op)
			request_free(q);
		return;
	case QUIT:
		quit(number, q);
		return;
	case ADD_MANY:
		add_many(number, q);
		return;
	case BEGIN_MANY:
		ret = many(number, q);
		is(ret != 0, "a request for many places is not one");
		if (ret != RMAEXT_PENDING)
			may_fail(ret, q, "a request does not begin");
		return;
	case FLUSH:
		flush_one(number, q->target);
		return;
	case ADD:
		q->cell = (int)pick(SUMS);
		break;
	case SWAP:
		q->cell = SUMS + (int)pick(SWAPS);
		q->compare = model.swapped[q->target][q->cell - SUMS];
		if (q->compare && !pick(4))
			q->compare--; /* which is not there any more */
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
		q->whose = pick_rank();
		q->cell = PUTS + q->whose;
		q->low = ranks[q->whose].put[q->target].done;
		call.kind = RMAEXT_GET;
		call.operand = NULL;
		call.count = 8;
		break;
	case STAMP:
	case STAMP_LONG: /* all that one rank stamps is in order */
		q->cell = STAMPS + number * LONG;
		q->operand = ++r->stamps[q->target];
		call.op = RMAEXT_REPLACE;
		call.result = NULL;
		if (q->what == STAMP_LONG) {
			q->buf = cells_new(q->operand);
			call.operand = q->buf;
			call.count = LONG;
			memcpy(r->stamp[q->target], q->buf, 8 * LONG);
		} else {
			const uint64_t k = pick(LONG);

			q->cell += (int)k;
			r->stamp[q->target][k] = q->operand;
		}
		break;
	case ADD_LONG:
	case FETCH_LONG:
		q->cell = LONG_SUM;
		q->buf = cells_new(1);
		call.operand = q->buf;
		call.result = NULL;
		call.count = LONG;
		if (q->what == FETCH_LONG) {
			q->old = cells_new(UINT64_MAX);
			call.result = q->old;
		}
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
		q->whose = pick_rank();
		q->cell = LONG_PUTS + q->whose * LONG;
		q->low = ranks[q->whose].put_long[q->target].done;
		q->buf = cells_new(0);
		call.kind = RMAEXT_GET;
		call.operand = NULL;
		call.result = q->buf;
		call.count = 8 * LONG;
	}
	call.rank = q->target;
	call.offset = 8 * (uint64_t)q->cell;
	ret = rmaext_start(world.node[number].window, &call, &q->op);
	is(ret == RMAEXT_PENDING || ret == -FI_ENOTCONN,
	   "a request does not begin");
	if (ret == RMAEXT_PENDING)
		return;
	may_fail(ret, q, "a request does not begin");
	request_free(q);
}

/* It has ended: was it right? */
static void judge(int number, const struct request *q)
{
	struct rank *r = &ranks[number];
	const struct node *n = &world.node[q->target];
	const uint64_t *there = &n->cells[q->cell];
	const struct rank *putter = &ranks[q->whose];

	switch (q->what) {
	case ADD:
		is(q->result < RANKS * CALLS, "a sum that nobody has made");
		is(!model.returned[q->target][q->cell][q->result],
		   "two additions got the same previous value");
		model.returned[q->target][q->cell][q->result] = true;
		model.added[q->target][q->cell]++;
		break;
	case SWAP:
		if (q->result != q->compare)
			break;
		is(model.swapped[q->target][q->cell - SUMS] == q->compare,
		   "two exchanges of one value");
		model.swapped[q->target][q->cell - SUMS]++;
		break;
	case PUT:
		is(n->dead || *there == q->operand,
		   "a put has ended, and is not there");
		r->put[q->target].done = q->operand;
		break;
	case PUT_LONG:
		for (int i = 0; i < LONG; i++)
			is(n->dead || there[i] == q->operand,
			   "a long put has ended, and is not there");
		r->put_long[q->target].done = q->operand;
		break;
	case NOTIFY_LONG:
		is(n->dead || (uint64_t)n->block->notify[RANKS + number] ==
				      q->operand,
		   "a long put has ended, and has not notified");
		r->told_done[q->target] = q->operand;
		break;
	case FETCH_LONG:
		for (int i = 0; i < LONG; i++)
			is(q->old[i] < RANKS * CALLS,
			   "a long addition to what was not there");
		model.added_long[q->target]++;
		break;
	case ADD_LONG:
		model.added_long[q->target]++;
		break;
	case STAMP:
	case STAMP_LONG:
		break;
	case BEGIN_MANY:
		count_many(q, true);
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

/* Looks at a request: it ends by success, or since its target is dead. */
static void request_look(int number, struct request *q)
{
	int ret = RMAEXT_PENDING;

	if (q->over) {
		request_release(number, q);
		return;
	}
	if (q->ended && q->what == BEGIN_MANY && !is_hopeless(q))
		many_judge(q);
	if (q->ended || is_hopeless(q))
		ret = rmaext_op_wait(q->op, 0);
	if (ret == RMAEXT_PENDING)
		return;
	may_fail(ret, q, "a request fails");
	if (!ret)
		judge(number, q);
	/* else it may have been applied, before that */
	else if (q->what == BEGIN_MANY)
		count_many(q, false);
	else if (q->what == PUT)
		ranks[number].put[q->target].done = q->operand;
	else if (q->what == PUT_LONG)
		ranks[number].put_long[q->target].done = q->operand;
	else if (q->what == NOTIFY_LONG)
		ranks[number].told_done[q->target] = q->operand;
	request_release(number, q);
}

/* Goes on with a rank; false: it has nothing more to do. */
static bool go_on(int number)
{
	struct rank *r = &ranks[number];
	struct request *q = &r->requests[draw(OPEN)];
	bool open = false;

	if (world.node[number].dead)
		return false;
	if (world.node[number].asleep > world.now)
		return true;
	world.active = number;
	if (q->op)
		request_look(number, q);
	else if (r->calls < CALLS)
		begin(number, q);
	world.active = -1;
	told_judge(number);
	for (int i = 0; i < OPEN; i++)
		open = open || r->requests[i].op;
	return open || r->calls < CALLS;
}

/* Of what one rank has stamped the last is there. */
static void stamps_judge(int t)
{
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; !world.node[i].dead && k < LONG; k++)
			is(world.node[t].cells[STAMPS + i * LONG + k] ==
				   ranks[i].stamp[t][k],
			   "an update was overtaken by an earlier one");
}

static void sums_judge(int t)
{
	const uint64_t *cells = world.node[t].cells;

	for (int k = 0; k < SUMS; k++)
		is(cells[k] >= model.added[t][k] &&
			   cells[k] <= model.added[t][k] + model.perhaps[t][k],
		   "a sum is not what was added");
	for (int k = 0; k < SWAPS; k++)
		is(cells[SUMS + k] == model.swapped[t][k] ||
			   (model.perhaps_swapped[t][k] &&
			    cells[SUMS + k] == model.swapped[t][k] + 1),
		   "an exchange has come to another value's place");
	for (int k = 0; k < SUMS; k++)
		is(cells[COUNTS + k] >= model.counted[t][k] &&
			   cells[COUNTS + k] <=
				   model.counted[t][k] +
					   model.perhaps_counted[t][k],
		   "a sum of many places is not what was added");
	for (int k = 0; k < LONG; k++)
		is(cells[LONG_SUM + k] >= model.added_long[t] &&
			   cells[LONG_SUM + k] <=
				   model.added_long[t] + model.perhaps_long[t],
		   "a long sum is not what was added");
}

static uint64_t run(uint64_t seed)
{
	bool busy = true;

	memset(ranks, 0, sizeof(ranks));
	memset(&model, 0, sizeof(model));
	world_open(seed, CELLS, true, died, tell);
	world.looked = told_judge;
	for (uint64_t turns = 0; busy; turns++) {
		is(turns < 1000000, "it does not end");
		busy = false;
		for (int i = 0; i < world.ranks; i++)
			busy = go_on(i) || busy;
		step();
	}
	settle();
	for (int i = 0; i < world.ranks; i++)
		if (!world.node[i].dead)
			flush_each(i);
	settle();
	for (int t = 0; t < world.ranks; t++) {
		const struct node *n = &world.node[t];

		if (n->dead)
			continue;
		sums_judge(t);
		stamps_judge(t);
		for (int i = 0; i < world.ranks; i++)
			is(world.node[i].dead ||
				   ((uint64_t)n->block->notify[i] ==
					    ranks[i].told[t] &&
				    (uint64_t)n->block->notify[RANKS + i] <=
					    ranks[i].told_long[t] &&
				    (uint64_t)n->block->notify[RANKS + i] >=
					    ranks[i].told_done[t]),
			   "notifications were lost, or came twice");
		leftovers_judge(n);
	}
	for (int i = 0; i < world.ranks; i++) /* of the dead */
		for (int k = 0; k < OPEN; k++)
			rmaext_op_release(&ranks[i].requests[k].op);
	world_end();
	for (int i = 0; i < world.ranks; i++)
		for (int k = 0; k < OPEN; k++) {
			OK(rmaext_op_release(&ranks[i].requests[k].op));
			request_free(&ranks[i].requests[k]);
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
