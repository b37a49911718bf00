/* SPDX-License-Identifier: BSD-3-Clause */
/* Grants, and clients: an endpoint that the owner has never heard of. */
#include "rig.h"
#include "am/am.h"

enum { SIZE = 4096, FIRST = 64, PART = 1024 };

static const uint8_t secret[RMX_TOKEN] = "fifteen letters";
static const uint8_t wrong[RMX_TOKEN] = "fifteen lettres";
static const uint8_t token[RMX_TOKEN] = "another fifteen";

struct client {
	rmaext_fabric *fabric;
	rmaext_window *window;
	uint64_t size; /* 0: PART */
};

/* What the announcement comes to. */
static int become_client(struct client *v, const struct rig *r,
			 const uint8_t *secret, double seconds)
{
	struct rmaext_client it = {
		.token = token,
		.secret = secret,
		.size = v->size ? v->size : PART,
		.access = RMAEXT_READ | RMAEXT_WRITE,
		.align = 0,
		.timeout = (int64_t)(seconds * 1e9),
	};

	if (!v->fabric)
		v->fabric = fabric_open(true, false);
	it.owner = peer_of(v->fabric, r->target);
	OK(rmaext_client_open(v->fabric, &it, &v->window));
	OK(rmaext_client_announce(v->window));
	return flush_for(v->window, 0, seconds);
}

static void leave(struct client *v, bool ends)
{
	OK(rmaext_window_close(v->window));
	rmaext_window_free(v->window);
	if (ends)
		OK(rmaext_fabric_close(&v->fabric));
}

static rmaext_window *grant_of(const struct rig *r, uint64_t first,
			       uint64_t size)
{
	const struct rmaext_grant it = {token, first, size,
					RMAEXT_READ | RMAEXT_WRITE};
	rmaext_window *granted;

	OK(rmaext_grant_open(r->target, r->there, &it, &granted));
	return granted;
}

static rmaext_window *grant(const struct rig *r)
{
	return grant_of(r, FIRST, PART);
}

static void end(rmaext_window *granted)
{
	OK(rmaext_window_close(granted));
	rmaext_window_free(granted);
}

static void secrets(void)
{
	rmaext_window *granted;
	struct client v = {0};
	struct rig r;

	rig_open(&r, (struct rig_options){
			     .size = SIZE, .two = true, .served = true});
	granted = grant(&r);
	/* it is closed; a wrong one, as it may arrive when it is open */
	EQUAL(become_client(&v, &r, wrong, 0.3), -FI_ETIMEDOUT);
	leave(&v, false);
	OK(rmaext_clients_admit(r.target, secret));
	EQUAL(become_client(&v, &r, wrong, 0.3), -FI_ETIMEDOUT);
	EQUAL(r.target->am->clients, 0);
	leave(&v, false);
	OK(become_client(&v, &r, secret, 10));
	EQUAL(r.target->am->clients, 1);
	leave(&v, false);
	OK(become_client(&v, &r, secret, 10));
	EQUAL(r.target->am->clients, 1); /* it is the same */
	leave(&v, true);
	end(granted);
	rig_close(&r);
}

static void full(void)
{
	struct client one = {0}, other = {0};
	rmaext_window *granted;
	struct rig r;

	rig_open(&r, (struct rig_options){
			     .size = SIZE, .two = true, .served = true});
	granted = grant(&r);
	OK(rmaext_clients_admit(r.target, secret));
	OK(become_client(&one, &r, secret, 10));
	r.target->am->clients = 1024;
	EQUAL(become_client(&other, &r, secret, 10), -FI_EBUSY);
	leave(&other, true);
	leave(&one, false); /* one that it knows is welcome still */
	OK(become_client(&one, &r, secret, 10));
	leave(&one, true);
	end(granted);
	rig_close(&r);
}

static void operations(void)
{
	static char out[PART], in[PART];
	rmaext_window *granted;
	struct client v = {0};
	uint64_t one = 1, old, got;
	struct rig r;
	struct rmx_op *op;

	rig_open(&r, (struct rig_options){
			     .size = SIZE, .two = true, .served = true});
	granted = grant(&r);
	OK(rmaext_clients_admit(r.target, secret));
	OK(become_client(&v, &r, secret, 10));
	fill(out, PART, 1);
	OK(put(v.window, 0, out, PART));
	OK(flush(v.window));
	CHECK(!memcmp(r.window_memory + FIRST, out, PART));
	for (int i = 0; i < FIRST; i++)
		EQUAL(r.window_memory[i], 0);
	for (int i = FIRST + PART; i < SIZE; i++)
		EQUAL(r.window_memory[i], 0);
	OK(get(v.window, 0, in, PART));
	CHECK(!memcmp(in, out, PART));
	memcpy(&old, out + 8, sizeof(old));
	OK(fetch_add(v.window, 8, RMAEXT_UINT64, &one, &got, 1));
	CHECK(got == old);
	EQUAL(put(v.window, 1, out, PART), -ERANGE);
	/* neither reads nor writes go by key */
	EQUAL(rmx_op_over(v.window,
			  &(struct rmaext_call){
				  .kind = RMAEXT_GET,
				  .result = in,
				  .count = PART,
			  },
			  false, 0, &op),
	      -FI_EOPNOTSUPP);
	end(granted);
	memcpy(in, r.window_memory + FIRST, PART);
	OK(put(v.window, 0, out, PART));
	EQUAL(flush(v.window), -FI_ESHUTDOWN);
	EQUAL(get(v.window, 0, out, PART), -FI_ESHUTDOWN);
	EQUAL(fetch_add(v.window, 8, RMAEXT_UINT64, &one, &got, 1),
	      -FI_ESHUTDOWN);
	CHECK(!memcmp(r.window_memory + FIRST, in, PART));
	leave(&v, false);
	EQUAL(become_client(&v, &r, secret, 10), -FI_ESHUTDOWN);
	leave(&v, true);
	rig_close(&r);
}

/* What a client of ours never asks for, and another might. */
static void refusals(void)
{
	enum { LONG = 100000 };
	static char in[LONG];
	rmaext_window *granted;
	struct client v = {0};
	struct rig r;
	rmaext_op *op;
	int ret;

	rig_open(&r, (struct rig_options){
			     .size = 2 * LONG, .two = true, .served = true});
	granted = grant_of(&r, 0, LONG);
	OK(rmaext_clients_admit(r.target, secret));
	v.size = LONG;
	v.fabric = fabric_open(false, false); /* whose `puts` no thread reads */
	OK(become_client(&v, &r, secret, 10));
	/* a grant is of memory, and of no notifications */
	ret = rmx_message_put(
		v.window,
		&(struct rmaext_call){.kind = RMAEXT_PUT, .notify = 4}, &op);
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, TENTH);
	OK(ret);
	if (op)
		OK(rmaext_op_release(&op));
	EQUAL(flush(v.window), -FI_EACCES);
	/* an answer that it might never fetch */
	OK(get(v.window, 0, in, LONG));
	CHECK(v.fabric->limits.tcp);
	v.fabric->limits.tcp = false;
	EQUAL(get(v.window, 0, in, LONG), -FI_EINVAL);
	v.fabric->limits.tcp = true;
	OK(get(v.window, 0, in, LONG));
	leave(&v, true);
	end(granted);
	rig_close(&r);
}

/* Attached to in its own process: the client's window is no target. */
static void own(void)
{
	rmaext_window *granted;
	struct client v = {0};
	uint64_t value = 7;
	struct rig r;

	rig_open(&r, (struct rig_options){
			     .size = SIZE, .two = true, .served = true});
	granted = grant(&r);
	OK(rmaext_clients_admit(r.target, secret));
	v.fabric = r.target;
	OK(become_client(&v, &r, secret, 10));
	OK(put(v.window, 8, &value, sizeof(value)));
	OK(flush(v.window));
	CHECK(!memcmp(r.window_memory + FIRST + 8, &value, sizeof(value)));
	leave(&v, false);
	end(granted);
	rig_close(&r);
}

const struct test tests[] = {
	{"secrets", secrets, NULL, NULL},
	{"full", full, NULL, NULL},
	{"operations", operations, NULL, NULL},
	{"refusals", refusals, NULL, NULL},
	{"own", own, NULL, NULL},
	{0},
};
