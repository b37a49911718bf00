/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A target whose peer cannot be added on first use is tried again on the next;
 * a flush of all ranks is no use.
 */
#include "rig.h"

#include "net/endpoint.h"
#include "net/progress.h"

enum { SIZE = 64 };

static int refused;

static int refuse(struct rmaext_fabric *f, const void *address, size_t len,
		  int pidfd, bool client, struct rmaext_peer **peer_p)
{
	(void)f, (void)address, (void)len, (void)pidfd, (void)client;
	(void)peer_p;
	refused++;
	return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "refuse", "it is full");
}

static int put_to(rmaext_window *w, const char *letter)
{
	rmaext_op *op = NULL;

	return finish(put_begin(w, 1, 0, letter, 1, &op), &op);
}

static void put_and_look(rmaext_window *w, const char *memory, char letter)
{
	OK(put_to(w, &letter));
	OK(flush(w));
	EQUAL(memory[0], letter);
}

static void again(void)
{
	rmaext_fabric *origin = fabric_open(false, false);
	rmaext_fabric *target = fabric_open(true, false);
	const struct rmx_hooks *hooks = origin->hooks,
			       bad = {
				       .complete = hooks->complete,
				       .before_read = hooks->before_read,
				       .after_read = hooks->after_read,
				       .restless = hooks->restless,
				       .send = hooks->send,
				       .add_peer = refuse,
				       .push = hooks->push,
				       .give_up = hooks->give_up,
				       .forget = hooks->forget,
			       };
	const uint8_t route[2] = {RMAEXT_DIRECT, RMAEXT_FABRIC};
	const uint8_t token[16] = "fifteen letters", serves[2] = {1, 1};
	const uint64_t size[2] = {SIZE, SIZE};
	const uint8_t access[2] = {RMAEXT_READ | RMAEXT_WRITE,
				   RMAEXT_READ | RMAEXT_WRITE};
	const uint8_t align[2] = {0, 0};
	_Alignas(64) char memory[2][SIZE] = {{0}};
	char address[2][256], keys[2][256], packed[512], letter = 'n';
	size_t len = sizeof(address[0]), key_len = sizeof(keys[0]);
	void *const map[1] = {memory[0]};
	struct rmaext_error why;
	const uint64_t own[1] = {(uint64_t)(uintptr_t)memory[0]};
	struct rmaext_targets targets = {
		.token = token,
		.size = size,
		.access = access,
		.align = align,
		.map = map,
		.address = own,
		.route = route,
	};
	uint64_t base[2];
	rmaext_memory *held[2];
	rmaext_window *w;

	for (int i = 0; i < 2; i++) {
		rmaext_fabric *f = i ? target : origin;

		len = sizeof(address[i]), key_len = sizeof(keys[i]);
		OK(rmaext_fabric_address(f, address[i], &len));
		OK(memory_register(f, memory[i], SIZE,
				   RMAEXT_READ | RMAEXT_WRITE,
				   0x33 + (uint64_t)i, &held[i]));
		OK(rmaext_memory_key(held[i], keys[i], &key_len));
		base[i] = rmaext_memory_base(held[i]);
	}
	memmove(address[0] + len, address[1], len);
	memcpy(packed, keys[0], key_len);
	memcpy(packed + key_len, keys[1], key_len);
	targets.base = base;
	targets.keys = (const uint8_t *)packed;
	targets.key_len = key_len;
	OK(rmaext_members_new(2, 0, NULL, NULL, arena, &targets.members));
	OK(rmaext_members_connect(targets.members, origin,
				  &(struct rmaext_addresses){
					  .address = (uint8_t *)address[0],
					  .len = len,
					  .serves = serves,
				  }));
	OK(rmaext_window_create(origin, &targets, 10 * SECOND, &w));
	rmaext_members_release(targets.members);

	EQUAL(origin->ranks_met, 1);
	OK(flush(w));
	EQUAL(origin->ranks_met, 1);
	origin->hooks = &bad;
	for (int i = 1; i <= 3; i++) {
		EQUAL(put_to(w, &letter), -FI_ENOMEM);
		rmaext_error_last(&why);
		EQUAL(why.rank, 1);
		CHECK(strstr(why.detail, "not be added: refuse: it is full"));
		OK(flush(w));
		CHECK(refused >= i);
	}
	origin->hooks = hooks;
	put_and_look(w, memory[1], 'y');
	put_and_look(w, memory[1], 'z');

	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	for (int i = 0; i < 2; i++) {
		OK(rmaext_memory_close(&held[i]));
		OK(rmaext_fabric_close(i ? &target : &origin));
	}
}

const struct test tests[] = {
	{"again", again, NULL, NULL},
	{0},
};
