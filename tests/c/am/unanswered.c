/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that nobody answers: late, given up, senders and targets that die.
 */
#include "pair.h"
#include "net/libfabric/libfabric.h"

#include <sys/syscall.h>
/* -- endings */

/* Nothing is written after the release; then all works again. */
static void late(void)
{
	enum { MANY = 4000 };
	static int64_t offsets[MANY];
	static uint64_t values[MANY], results[MANY];
	const int64_t rank = 0;
	struct many_state state;
	rmaext_window *patient;
	struct pair p;
	int ret;

	pair_open(&p,
		  (struct rig_options){.no_progress = true, .timeout = 0.3});
	patient = here(&p, (struct lie){0});
	serve_start(&p);
	OK(add(patient, 0, 0));
	serve_stop(&p);
	memset(results, 0x77, sizeof(results));
	for (int i = 0; i < 5; i++) {
		ret = many_begin(i % 2 ? patient : p.r.window, RMAEXT_UPDATE,
				 RMAEXT_SUM, RMAEXT_UINT64, 8, MANY,
				 RMAEXT_ONE_RANK, &rank, offsets, values,
				 results, &state);
		if (i % 2) { /* given up */
			EQUAL(ret, RMAEXT_PENDING);
		} else {
			while (ret == RMAEXT_PENDING)
				ret = many_wait(&state);
			EQUAL(ret, -FI_ETIMEDOUT);
		}
		many_release(&state);
	}
	serve_start(&p);
	for (int i = 0; i < 30; i++) {
		rmaext_fabric_progress(p.r.origin, 3000000);
		for (int k = 0; k < MANY; k++)
			EQUAL(results[k], 0x7777777777777777);
	}
	for (int i = 0; i < 50; i++)
		OK(add(patient, 1, 2));
	serve_stop(&p);
	drop_window(patient);
	EQUAL(((uint64_t *)p.r.window_memory)[1], 100);
	pair_close(&p);
}

/* The owner gives up while answers come. */
static void give_up(void)
{
	enum { MANY = 3000 };
	static int64_t offsets[MANY];
	const int64_t rank = 0;
	struct many_state state;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	for (int i = 0; i < 300; i++) {
		rmaext_window *w =
			here(&p, (struct lie){.timeout = 2e-6 * (i % 60 + 1)});
		uint64_t *values = calloc(MANY, 8), *results = calloc(MANY, 8);
		int ret;

		CHECK(values && results);
		ret = many_begin(w, i % 3, RMAEXT_SUM, RMAEXT_UINT64, 8, MANY,
				 RMAEXT_ONE_RANK, &rank, offsets, values,
				 results, &state);
		CHECK(!ret || ret == RMAEXT_PENDING || ret == -FI_ETIMEDOUT);
		many_release(&state);
		free(values);
		free(results);
		drop_window(w);
	}
	OK(add(p.r.window, 0, 1));
	serve_stop(&p);
	pair_close(&p);
}

/* Boxes that are not used: they keep others from the peer. */
static void take_boxes(struct pair *p, struct rmx_send_buffer **boxes, int n)
{
	struct rmx_am *ex = p->r.origin->am;

	pthread_mutex_lock(&ex->lock);
	for (int i = 0; i < n; i++) {
		boxes[i] = rmx_message_new(p->r.origin, p->r.peer, p->r.window);
		CHECK(boxes[i]);
	}
	pthread_mutex_unlock(&ex->lock);
}

/* The last ones are taken next, for what is in line. */
static void drop_boxes(struct pair *p, struct rmx_send_buffer **boxes, int n)
{
	struct rmx_am *ex = p->r.origin->am;

	pthread_mutex_lock(&ex->lock);
	for (int i = 0; i < n; i++)
		rmx_message_drop(ex, boxes[i]);
	rmx_message_pump(p->r.origin, p->r.peer);
	pthread_mutex_unlock(&ex->lock);
}

/*
 * Copies that nobody answers are given up, many in a message, in time however
 * many messages there once were: cpu_limit() tells otherwise.
 */
static void forgotten(void)
{
	enum { MADE = 4000, COPIES = 2500, ROUNDS = 300 };
	static struct rmx_send_buffer *boxes[MADE];
	static const uint64_t one = 1;
	rmaext_window *patient;
	rmaext_op *op;
	struct pair p;

	cpu_limit();
	pair_open(&p, (struct rig_options){.no_progress = true});
	patient = here(&p, (struct lie){0});
	take_boxes(&p, boxes, MADE);
	drop_boxes(&p, boxes, MADE);
	for (int i = 0; i < ROUNDS; i++) {
		serve_start(&p);
		OK(add(patient, 0, 0));
		serve_stop(&p);
		take_boxes(&p, boxes, RMX_CREDITS);
		for (int k = 0; k < COPIES; k++)
			OK(update_begin(p.r.window, 0, 8, RMAEXT_SUM,
					RMAEXT_UINT64, &one, NULL, NULL, 1,
					&op));
		drop_boxes(&p, boxes, RMX_CREDITS);
		EQUAL(flush_for(p.r.window, 0, 1e-3), -FI_ETIMEDOUT);
	}
	drop_window(patient);
	pair_close(&p);
}

/* What is in line behind an operation on many goes when that is given up. */
static void behind_given_up(void)
{
	enum { MANY = 8000 }; /* more than there are credits for */
	static int64_t offsets[MANY];
	static uint64_t values[MANY], results[MANY];
	const int64_t rank = 0;
	struct many_state state;
	const uint64_t one = 1;
	rmaext_op *op;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	OK(add(p.r.window, 0, 0));
	serve_stop(&p);
	EQUAL(many_begin(p.r.window, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_UINT64,
			 8, MANY, RMAEXT_ONE_RANK, &rank, offsets, values,
			 results, &state),
	      RMAEXT_PENDING);
	OK(update_begin(p.r.window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL,
			NULL, 1, &op));
	many_release(&state);
	serve_start(&p);
	OK(flush(p.r.window));
	serve_stop(&p);
	EQUAL(((uint64_t *)p.r.window_memory)[1], 1);
	pair_close(&p);
}

/* The fabric closes with requests on their way. */
static void close_fabric(void)
{
	static int64_t offsets[N];
	static uint64_t values[N];
	const int64_t rank = 0;
	struct many_state state;
	struct pair p;

	for (int i = 0; i < 2; i++) {
		pair_open(&p, (struct rig_options){.no_progress = true});
		EQUAL(many_begin(p.r.window, RMAEXT_UPDATE, RMAEXT_SUM,
				 RMAEXT_UINT64, 8, N, RMAEXT_ONE_RANK, &rank,
				 offsets, values, NULL, &state),
		      RMAEXT_PENDING);
		OK(rmaext_fabric_close(&p.r.origin));
		if (i)
			EQUAL(many_wait(&state), -FI_ESHUTDOWN);
		many_release(&state);
		rmaext_window_free(p.r.window);
		drop_window(p.there);
		OK(rmaext_memory_close(&p.r.memory));
		OK(rmaext_fabric_close(&p.r.target));
		rig_guards(&p.r);
		free(p.r.block);
	}
}

/* Nobody answers: short ones, a long one, one behind it. */
static void unanswered(void)
{
	enum { LONG = 200000 };
	uint64_t *values = calloc(LONG, 8), *old = calloc(LONG, 8), one = 1;
	rmaext_op *ops[3], *none;
	rmaext_window *patient;
	struct pair p;

	CHECK(values && old);
	pair_open(&p, (struct rig_options){.no_progress = true,
					   .size = LONG * 8 + 8});
	patient = here(&p, (struct lie){0});
	serve_start(&p);
	OK(add(patient, 0, 0));
	serve_stop(&p);
	for (int i = 0; i < 20; i++)
		OK(update_begin(p.r.window, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				&one, NULL, NULL, 1, &none));
	for (int i = 0; i < 3; i++) {
		memset(old, 0x77, 8 * LONG);
		EQUAL(update_begin(p.r.window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64,
				   values, NULL, old, i == 1 ? LONG : 1,
				   &ops[i]),
		      RMAEXT_PENDING);
	}
	EQUAL(flush_for(p.r.window, -1, 0.2), -FI_ETIMEDOUT);
	for (int i = 0; i < 3; i++)
		while (rmaext_op_release(&ops[i]) == RMAEXT_PENDING)
			rmaext_fabric_progress(p.r.target, 1000000);
	EQUAL(rmaext_window_pending(p.r.window), 0);
	serve_start(&p);
	rmaext_fabric_progress(p.r.origin, 50000000);
	for (int k = 0; k < LONG; k++)
		EQUAL(old[k], 0x7777777777777777);
	for (int i = 0; i < 50; i++)
		OK(add(patient, 16, 2));
	OK(update(patient, 8, RMAEXT_SUM, RMAEXT_UINT64, values, old, LONG));
	drop_window(patient);
	serve_stop(&p);
	EQUAL(((uint64_t *)p.r.window_memory)[16], 100);
	free(values);
	free(old);
	pair_close(&p);
}

/* The process there is killed with a line before it. */
/*
 * A provider reports a receive as failed twice, as ofi_rxm does with a message
 * of two pieces when its sender dies: the landing must not be posted twice.
 */
static void failed_twice(void)
{
	const struct rmaext_error error = {.code = -FI_ECANCELED};
	const int64_t end = now() + 10 * SECOND;
	struct rmx_receive_buffer *landing;
	struct rmx_am *ex;
	unsigned int posted = 0;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	OK(add(p.r.window, 0, 1));
	serve_stop(&p);
	ex = p.r.target->am;
	landing = &ex->receive_buffers[1];
	EQUAL(landing->state, RMX_RECEIVING);
	p.r.target->transport->cancel(p.r.target, &landing->call);
	while (landing->state == RMX_RECEIVING) {
		CHECK(now() < end);
		rmaext_fabric_progress(p.r.target, 1000000);
	}
	rmx_am_complete(p.r.target, &landing->call, 0, &error);
	EQUAL(landing->state, RMX_FREE);
	for (unsigned int i = 0; i < ex->receives_made; i++)
		posted += ex->receive_buffers[i].state == RMX_RECEIVING;
	EQUAL(posted, ex->receiving);
	serve_start(&p);
	for (int i = 0; i < 100; i++)
		OK(add(p.r.window, 0, 1));
	serve_stop(&p);
	EQUAL(*(uint64_t *)p.r.window_memory, 101);
	pair_close(&p);
}

/* Sends long messages of two pieces to that endpoint, until it is killed. */
static void sender(const int *from, const int *to)
{
	static char values[RMX_MOST];
	const struct iovec iov[] = {{values, 64}, {values, sizeof(values)}};
	char name[256];
	size_t len = (size_t)read(*from, name, sizeof(name));
	rmaext_fabric *f = fabric_open(false, false);
	struct fi_context2 contexts[RMX_CREDITS + 1];
	rmaext_peer *peer;

	OK(rmaext_peer_add(f, name, len, -1, &peer));
	while (fi_send(f->endpoint->ep, values, 64, NULL, peer->addr,
		       &contexts[0]))
		rmaext_fabric_progress(f, 1000000);
	rmaext_fabric_progress(f, 10000000);
	CHECK(write(*to, "c", 1) == 1 && read(*from, name, 1) == 1);
	for (unsigned int i = 1; i <= RMX_CREDITS; i++) {
		const struct fi_msg message = {
			.msg_iov = iov,
			.iov_count = COUNT(iov),
			.addr = peer->addr,
			.context = &contexts[i],
		};

		OK(fi_sendmsg(f->endpoint->ep, &message, FI_COMPLETION));
	}
	rmaext_fabric_progress(f, 10000000);
	CHECK(write(*to, "s", 1) == 1);
	pause();
}

/* The reads of its messages fail: those of others are received as before. */
static void sender_killed(void)
{
	enum { LONG = 150000 };
	uint64_t *ones = malloc(LONG * sizeof(*ones));
	int to[2], from[2], status;
	const uint64_t *cells;
	const int64_t end = now() + 10 * SECOND;
	char name[256], byte;
	size_t len = sizeof(name);
	bool posted[RMX_RECEIVE_BUFFERS];
	unsigned int failed;
	struct rmx_am *ex;
	struct pair p;
	pid_t child;

	CHECK(ones && !pipe(to) && !pipe(from));
	child = fork_child();
	if (!child)
		sender(&to[0], &from[1]);
	for (int i = 0; i < LONG; i++)
		ones[i] = 1;
	pair_open(&p,
		  (struct rig_options){.size = LONG * 8, .no_progress = true});
	OK(rmaext_fabric_address(p.r.target, name, &len));
	CHECK(write(to[1], name, len) == (ssize_t)len);
	ex = p.r.target->am;
	serve_start(&p);
	OK(add(p.r.window, 0, 1));
	CHECK(read(from[0], &byte, 1) == 1);
	serve_stop(&p);
	for (unsigned int i = 0; i < RMX_RECEIVE_BUFFERS; i++)
		posted[i] = ex->receive_buffers[i].state == RMX_RECEIVING;
	CHECK(write(to[1], "g", 1) == 1 && read(from[0], &byte, 1) == 1);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	leaky(true); /* the registrations for those reads */
	do {
		CHECK(now() < end);
		rmaext_fabric_progress(p.r.target, 1000000);
		failed = 0;
		for (unsigned int i = 0; i < RMX_RECEIVE_BUFFERS; i++)
			failed += posted[i] &&
				  ex->receive_buffers[i].state != RMX_RECEIVING;
	} while (failed < RMX_CREDITS);
	leaky(false);
	serve_start(&p);
	for (int i = 0; i < 20; i++) {
		OK(add(p.r.window, 0, 1));
		OK(update(p.r.window, 0, RMAEXT_SUM, RMAEXT_UINT64, ones, NULL,
			  LONG));
	}
	OK(flush(p.r.window));
	serve_stop(&p);
	cells = (uint64_t *)p.r.window_memory;
	EQUAL(cells[0], 41);
	EQUAL(cells[LONG - 1], 20);
	free(ones);
	pair_close(&p);
}

static void killed(void)
{
	enum { LONG = 200000 };
	uint64_t *values = calloc(LONG, 8), one = 1;
	char name[256];
	size_t len = sizeof(name);
	int tell[2], status;
	rmaext_window *w;
	rmaext_peer *peer;
	rmaext_fabric *f;
	rmaext_op *op;
	struct pair p;
	int64_t begin;
	pid_t child;
	int ret;

	CHECK(values && !pipe(tell));
	child = fork_child();
	if (!child) { /* opens, and is connected to, but serves nothing */
		f = fabric_open(false, false);
		OK(rmaext_fabric_address(f, name, &len));
		CHECK(write(tell[1], name, len) == (ssize_t)len);
		for (int i = 0; i < 200; i++)
			rmaext_fabric_progress(f, 5000000);
		pause();
	}
	len = (size_t)read(tell[0], name, sizeof(name));
	CHECK((ssize_t)len > 0);
	pair_open(&p, (struct rig_options){.size = LONG * 8});
	OK(rmaext_peer_add(p.r.origin, name, len,
			   (int)syscall(SYS_pidfd_open, child, 0), &peer));
	w = window_of(p.r.origin, peer, &p.r,
		      (struct lie){.route = RMAEXT_FABRIC, .timeout = 20});
	for (int i = 0; i < 300; i++)
		OK(update_begin(w, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL,
				NULL, 1, &op));
	ret = update_begin(w, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, values, NULL,
			   NULL, LONG, &op);
	EQUAL(ret, RMAEXT_PENDING);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	begin = now();
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, TENTH);
	CHECK(ret == -FI_ENOTCONN || ret == -FI_ECONNRESET || ret < 0);
	while (rmaext_op_release(&op) == RMAEXT_PENDING)
		CHECK(now() - begin < 10 * SECOND);
	CHECK(flush(w) < 0);
	CHECK(now() - begin < 10 * SECOND);
	OK(add(p.r.window, 0, 1)); /* others go on */
	drop_window(w);
	free(values);
	pair_close(&p);
}

/* The fabric closes with a line, and its owners come later. */
static void close_with_line(void)
{
	enum { LONG = 200000 };
	uint64_t *values = calloc(LONG, 8), one = 1;
	rmaext_op *op, *none;
	struct pair p;

	CHECK(values);
	for (int i = 0; i < 2; i++) {
		pair_open(&p, (struct rig_options){.no_progress = true,
						   .size = LONG * 8});
		for (int k = 0; k < 100; k++)
			OK(update_begin(p.r.window, 0, 0, RMAEXT_SUM,
					RMAEXT_UINT64, &one, NULL, NULL, 1,
					&none));
		EQUAL(update_begin(p.r.window, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				   values, NULL, values, LONG, &op),
		      RMAEXT_PENDING);
		if (i)
			OK(rmaext_fabric_close(&p.r.origin));
		else
			OK(rmaext_window_shut(p.r.window));
		EQUAL(rmaext_op_wait(op, TENTH), -FI_ESHUTDOWN);
		if (!i)
			OK(rmaext_fabric_close(&p.r.origin));
		OK(rmaext_op_release(&op));
		EQUAL(rmaext_window_pending(p.r.window), 0);
		rmaext_window_free(p.r.window);
		drop_window(p.there);
		OK(rmaext_memory_close(&p.r.memory));
		OK(rmaext_fabric_close(&p.r.target));
		rig_guards(&p.r);
		free(p.r.block);
	}
	free(values);
}

const struct test tests[] = {
	{"late", late, NULL, NULL},
	{"give_up", give_up, NULL, NULL},
	{"behind_given_up", behind_given_up, NULL, NULL},
	{"forgotten", forgotten, NULL, NULL},
	{"close_fabric", close_fabric, NULL, NULL},
	{"unanswered", unanswered, NULL, NULL},
	{"failed_twice", failed_twice, NULL, NULL},
	{"sender_killed", sender_killed, NULL, NULL},
	{"killed", killed, NULL, NULL},
	{"close_with_line", close_with_line, NULL, NULL},
	{0},
};
