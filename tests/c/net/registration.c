/* SPDX-License-Identifier: BSD-3-Clause */
/* Registration, keys and every mr_mode that a provider here can be given. */
#include "rig.h"

#include <rdma/fabric.h>

enum { MR_RAW = 1 << 3, MR_VIRT_ADDR = 1 << 4, MR_PROV_KEY = 1 << 6 };

static void registration(void)
{
	rmaext_fabric *f = fabric_open(true, false);
	rmaext_memory *first = NULL, *second = NULL, *many[100];
	char *block = calloc(1, 100 * 4096);
	uint64_t key = 0;
	size_t len;
	int ret;

	CHECK(block);
	EQUAL(memory_register(f, block, 0, 3, 1, &first), -FI_EINVAL);
	EQUAL(memory_register(f, block, 8, 0, 1, &first), -FI_EINVAL);
	EQUAL(memory_register(f, block, 8, 4, 1, &first), -FI_EINVAL);
	EQUAL(first, NULL);
	OK(memory_register(f, block, 4096, 3, 0xfedcba9876543210, &first));
	len = 0;
	EQUAL(rmaext_memory_key(first, NULL, &len), -FI_ETOOSMALL);
	EQUAL(len, 8);
	len = 7;
	EQUAL(rmaext_memory_key(first, &key, &len), -FI_ETOOSMALL);
	EQUAL(key, 0);
	len = 20;
	OK(rmaext_memory_key(first, &key, &len));
	EQUAL(len, 8);
	EQUAL(key, 0xfedcba9876543210);
	EQUAL(rmaext_memory_base(first), 0);
	/* a key that is taken */
	ret = memory_register(f, block, 4096, 3, key, &second);
	EQUAL(ret, -FI_ENOKEY);
	EQUAL(second, NULL);
	OK(memory_register(f, block, 4096, 3, key + 1, &second));
	OK(rmaext_memory_close(&first));
	EQUAL(first, NULL);
	OK(rmaext_memory_close(&first));
	OK(memory_register(f, block, 4096, 3, key, &first));
	for (size_t i = 0; i < COUNT(many); i++)
		OK(memory_register(f, block + 4096 * i, 4096, 1, i + 1,
				   &many[i]));
	for (size_t i = 0; i < COUNT(many); i += 2)
		OK(rmaext_memory_close(&many[i]));
	/* the rest goes with the fabric */
	OK(rmaext_fabric_close(&f));
	free(block);
}

static void options(void)
{
	rmaext_fabric *f = fabric_open(true, false);
	struct rmaext_piece pieces[65];
	struct rmaext_memory_options o = {
		.pieces = pieces,
		.n_pieces = 1,
		.access = RMAEXT_READ | RMAEXT_WRITE,
		.requested_key = 7,
		.lazy = 1,
	};
	struct rmaext_fabric_info info;
	struct rmaext_stats stats;
	rmaext_memory *m = NULL;
	struct rmaext_error e;
	uint64_t count = 7;
	char block[4096];

	rmaext_fabric_describe(f, &info);
	CHECK(info.mr_iov_limit < COUNT(pieces) - 1);
	for (size_t i = 0; i < COUNT(pieces); i++)
		pieces[i] = (struct rmaext_piece){block + 16 * i, 8};
	/* providers say how many they take, and take more */
	o.n_pieces = info.mr_iov_limit + 1;
	EQUAL(rmaext_memory_register(f, &o, &m), -FI_EINVAL);
	o.n_pieces = 0;
	EQUAL(rmaext_memory_register(f, &o, &m), -FI_EINVAL);
	o.n_pieces = 1;
	pieces[0].len = UINT64_MAX;
	EQUAL(rmaext_memory_register(f, &o, &m), -FI_EINVAL);
	pieces[0].len = 8;
	o.iface = RMAEXT_IFACE_CUDA;
	EQUAL(rmaext_memory_register(f, &o, &m), -FI_EOPNOTSUPP);
	rmaext_error_last(&e);
	CHECK(strstr(e.detail, "FI_HMEM"));
	o.iface = RMAEXT_IFACE_SYSTEM;
	EQUAL(m, NULL);
	OK(rmaext_memory_register(f, &o, &m));
	OK(rmaext_memory_refresh(m, 0, 8));
	OK(rmaext_memory_refresh(m, 8, 0));
	EQUAL(rmaext_memory_refresh(m, 1, 8), -ERANGE);
	EQUAL(rmaext_memory_refresh(m, UINT64_MAX, 8), -ERANGE);
	EQUAL(rmaext_memory_writes(m, &count), -FI_ENOSYS);
	EQUAL(count, 7);
	OK(rmaext_memory_close(&m));
	rmaext_fabric_stats(f, &stats);
	EQUAL(stats.registrations, 1);
	EQUAL(stats.deregistrations, 1);
	OK(rmaext_fabric_close(&f));
}

/* The one provider here that counts what others write. */
static void counted(void)
{
	struct rmaext_piece piece;
	struct rmaext_memory_options o = {
		.pieces = &piece,
		.n_pieces = 1,
		.access = RMAEXT_READ | RMAEXT_WRITE,
		.requested_key = 7,
		.counts_writes = 1,
	};
	rmaext_memory *uncounted;
	uint64_t count = 99;
	rmaext_window *w;
	char word[8];
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 100000});
	CHECK(r.info.caps & FI_RMA_EVENT);
	EQUAL(rmaext_memory_writes(r.memory, &count), -FI_ENOSYS);
	uncounted = r.memory;
	piece = (struct rmaext_piece){r.window_memory, r.size};
	OK(rmaext_memory_register(r.target, &o, &r.memory));
	r.key_len = sizeof(r.key);
	OK(rmaext_memory_key(r.memory, r.key, &r.key_len));
	rig_window(&r, &(struct rig_options){0}, &w);
	OK(rmaext_memory_writes(r.memory, &count));
	EQUAL(count, 0);
	for (int i = 0; i < 5; i++)
		OK(put(w, 0, "12345678", 8));
	OK(get(w, 0, word, 8));
	OK(flush(w));
	OK(rmaext_memory_writes(r.memory, &count));
	EQUAL(count, 5);
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	OK(rmaext_memory_close(&uncounted));
	rig_close(&r);
}

/* Who believes to have more rights than were registered is refused there. */
static void least_rights(void)
{
	uint64_t word = 5, is = 6;

	for (int access = RMAEXT_READ; access <= RMAEXT_WRITE; access++) {
		rmaext_window *w;
		struct rig r;

		rig_open(&r,
			 (struct rig_options){.size = 64, .access = access});
		rig_window(&r, &(struct rig_options){0}, &w);
		if (access == RMAEXT_READ)
			CHECK(put(w, 0, &word, 8) || flush(w));
		else
			CHECK(get(w, 0, &is, 8));
		EQUAL(*r.window_memory, 0);
		EQUAL(is, 6);
		OK(rmaext_window_close(w));
		rmaext_window_free(w);
		rig_close(&r);
	}
}

static void peers(void)
{
	rmaext_fabric *f = fabric_open(true, false);
	char name[256] = {0};
	size_t len = sizeof(name);
	rmaext_peer *peer = NULL, *same = NULL;

	OK(rmaext_fabric_address(f, name, &len));
	EQUAL(rmaext_peer_add(f, name, len - 1, -1, &peer), -FI_EINVAL);
	EQUAL(rmaext_peer_add(f, name, len + 1, -1, &peer), -FI_EINVAL);
	EQUAL(rmaext_peer_add(f, name, 0, -1, &peer), -FI_EINVAL);
	EQUAL(peer, NULL);
	OK(rmaext_peer_add(f, name, len, -1, &peer));
	OK(rmaext_peer_add(f, name, len, -1, &same));
	OK(rmaext_fabric_close(&f));
}

/* Another thread may still hold pointers into a fabric that was closed. */
static void after_close(void)
{
	rmaext_fabric *f = fabric_open(true, false), *stale = f;
	rmaext_memory *m = NULL, *none = NULL;
	char name[256], word[8];
	size_t len = sizeof(name);
	rmaext_peer *peer = NULL;
	int64_t start, shortest = INT64_MAX;

	OK(rmaext_fabric_address(f, name, &len));
	OK(memory_register(f, word, sizeof(word), 3, 1, &m));
	OK(rmaext_fabric_close(&f));
	EQUAL(memory_register(stale, word, sizeof(word), 3, 2, &none),
	      -FI_ESHUTDOWN);
	EQUAL(none, NULL);
	EQUAL(rmaext_peer_add(stale, name, len, -1, &peer), -FI_ESHUTDOWN);
	EQUAL(peer, NULL);
	EQUAL(rmaext_fabric_address(stale, name, &len), -FI_ESHUTDOWN);
	EQUAL(rmaext_memory_key(m, name, &len), -FI_ESHUTDOWN);
	for (int i = 0; i < 5; i++) { /* others use this machine, too */
		start = now();
		rmaext_fabric_progress(stale, SECOND);
		rmaext_fabric_leave(stale);
		start = now() - start;
		shortest = start < shortest ? start : shortest;
	}
	CHECK(shortest < SECOND / 20);
	OK(rmaext_memory_close(&m));
	EQUAL(m, NULL);
}

/* put and get under whatever key and address the provider wants */
static void round_trip(struct rig *r)
{
	const size_t last = r->size - 2;
	char *in = malloc(r->size), *out = malloc(r->size);

	CHECK(in && out);
	fill(in, r->size, 1);
	OK(put(r->window, 0, in, r->size));
	OK(flush(r->window));
	CHECK(!memcmp(r->window_memory, in, r->size));
	fill(r->window_memory, r->size, 2);
	OK(get(r->window, 0, out, r->size));
	CHECK(!memcmp(out, r->window_memory, r->size));
	OK(put(r->window, last, "?!", 2));
	OK(flush(r->window));
	CHECK(!memcmp(r->window_memory + last, "?!", 2));
	OK(get(r->window, last, out, 2));
	CHECK(!memcmp(out, "?!", 2));
	EQUAL(put(r->window, last, in, 3), -ERANGE);
	rig_guards(r);
	free(in);
	free(out);
}

static void any_provider(void)
{
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 100000, .shift = 8});
	round_trip(&r);
	rig_close(&r);
}

/* What ofi_rxm runs on; 1.17 has it as net, beside a tcp without RMA. */
static void native(void)
{
	if (rmaext_library_version(library) < 2u << 16)
		provider = "net";
	any_provider();
}

static void basic(void)
{
	uint64_t one = 1, old = 7;
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 100000, .mr_basic = true});
	CHECK(r.info.mr_mode & MR_VIRT_ADDR && r.info.mr_mode & MR_PROV_KEY);
	EQUAL(rmaext_memory_base(r.memory), (uintptr_t)r.window_memory);
	round_trip(&r);
	memset(r.window_memory, 0, 8);
	OK(fetch_add(r.window, 0, RMAEXT_UINT64, &one, &old, 1));
	EQUAL(old, 0);
	OK(fetch_add(r.window, 0, RMAEXT_UINT64, &one, &old, 1));
	EQUAL(old, 1);
	rig_close(&r);
}

static void basic_read_only(void)
{
	char *page;
	rmaext_fabric *f = fabric_open(true, true);
	rmaext_memory *m = NULL;

	/* FI_MR_ALLOCATED touches pages: here it must not write them */
	page = (char *)(uintptr_t)"a string of the program's text";
	OK(memory_register(f, page, strlen(page), RMAEXT_READ, 5, &m));
	OK(rmaext_memory_close(&m));
	OK(rmaext_fabric_close(&f));
}

static void virtual_addresses(void)
{
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 100000});
	CHECK(r.info.mr_mode & MR_VIRT_ADDR);
	EQUAL(rmaext_memory_base(r.memory), (uintptr_t)r.window_memory);
	EQUAL(r.info.wait_fd, 0); /* progress without a descriptor */
	round_trip(&r);
	rig_close(&r);
}

static void raw(void)
{
	struct ranks none = {.count = 0};
	uint64_t one = 1, old = 7;
	rmaext_window *second, *empty;
	rmaext_op *op = NULL;
	size_t len = 31;
	struct rig r;
	char key[32];

	if (rmaext_library_version(library) >> 16 >= 2) {
		struct rmaext_fabric_options options = {.provider = provider};
		rmaext_fabric *f = NULL;

		EQUAL(rmaext_fabric_open(library, &options, &f), -FI_ENODATA);
		EQUAL(f, NULL);
		return;
	}
	rig_open(&r, (struct rig_options){.size = 100000});
	CHECK(r.info.mr_mode & MR_RAW);
	EQUAL(r.info.key_size, 32);
	EQUAL(r.key_len, 32);
	EQUAL(rmaext_memory_key(r.memory, key, &len), -FI_ETOOSMALL);
	EQUAL(len, 32);
	round_trip(&r);
	/* mrail cannot cut one byte in two: it goes as a message */
	OK(put(r.window, 0, "!", 1));
	OK(flush(r.window));
	EQUAL(r.window_memory[0], '!');
	round_trip(&r);
	memset(r.window_memory, 0, 8);
	OK(fetch_add(r.window, 0, RMAEXT_UINT64, &one, &old, 1));
	EQUAL(old, 0);
	EQUAL(r.window_memory[0], 1);
	/* the same key, mapped twice, unmapped once by each window's close */
	rig_window(&r, &(struct rig_options){0}, &second);
	OK(put(second, 8, &one, 8));
	OK(flush(second));
	CHECK(!memcmp(r.window_memory + 8, &one, 8));
	OK(rmaext_window_close(second));
	rmaext_window_free(second);
	round_trip(&r);
	/* one that nobody uses: nothing is mapped; one without ranks */
	rig_window(&r, &(struct rig_options){0}, &second);
	OK(window_new(r.origin, &none, SECOND, &empty));
	EQUAL(put_begin(empty, 0, 0, &one, 8, &op), -ERANGE);
	OK(rmaext_window_close(empty));
	rmaext_window_free(empty);
	OK(rmaext_window_close(second));
	rmaext_window_free(second);
	rig_close(&r);

	/* left open: the fabric unmaps */
	rig_open(&r, (struct rig_options){.size = 100000});
	round_trip(&r);
	OK(rmaext_fabric_close(&r.origin));
	rmaext_window_free(r.window);
	free(r.block);
}

static const char rails[] = "FI_PROVIDER=tcp;ofi_rxm;ofi_mrail "
			    "FI_OFI_MRAIL_ADDR=127.0.0.1,127.0.0.1";

const struct test tests[] = {
	{"registration", registration, NULL, NULL},
	{"options", options, NULL, NULL},
	{"counted", counted, NULL, "sockets"},
	{"least_rights", least_rights, NULL, "sockets"},
	{"peers", peers, NULL, NULL},
	{"after_close", after_close, NULL, NULL},
	{"offsets", any_provider, NULL, NULL},
	{"basic", basic, NULL, NULL},
	{"basic_read_only", basic_read_only, NULL, NULL},
	{"sockets", any_provider, NULL, "sockets"},
	{"sockets_basic", basic, NULL, "sockets"},
	{"udp", any_provider, NULL, "udp;ofi_rxd"},
	/* 1.17 never frees the fi_info of a connection */
	{"native_tcp", native, "ASAN_OPTIONS=detect_leaks=0", "tcp"},
	{"shm", virtual_addresses, NULL, "shm"},
	{"raw", raw, rails, "tcp;ofi_rxm;ofi_mrail"},
	{0},
};
