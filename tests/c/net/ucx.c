/* SPDX-License-Identifier: BSD-3-Clause */
/* UCX as a transport, over the stub of tests/ucx, whose calls fail on demand.
 */
#define CHECK_LIBRARY "build/provider/ucx-stub.so"
#include "rig.h"
#include "am/am.h"
#include "net/ucx/ucx.h"

static void (*fail)(const char *list);
static void (*break_all)(void);
static unsigned int (*flushes)(void);
static const ucp_mem_map_params_t *mapped;
static const ucp_mem_advise_params_t *advised;

static void stub_find(void)
{
	void *handle = dlopen(library_path, RTLD_NOW | RTLD_NOLOAD);

	CHECK(handle);
	*(void **)&fail = dlsym(handle, "stub_fail");
	*(void **)&break_all = dlsym(handle, "stub_break_all");
	*(void **)&flushes = dlsym(handle, "stub_flushes");
	mapped = dlsym(handle, "stub_mapped");
	advised = dlsym(handle, "stub_advised");
	CHECK(fail && break_all && flushes && mapped && advised);
}

static int error_is(int ret, const char *words)
{
	struct rmaext_error e;

	rmaext_error_last(&e);
	EQUAL(e.code, ret);
	if (!strstr(e.detail, words))
		fprintf(stderr, "no \"%s\" in \"%s\"\n", words, e.detail);
	CHECK(strstr(e.detail, words));
	return ret;
}

/* -- what does not open */

static void libraries(void)
{
	rmaext_library *lib = NULL;
	char version[16];

	EQUAL(rmaext_ucx_open("/no/such/libucp.so.0", 0, &lib), -FI_ENOENT);
	EQUAL(rmaext_ucx_open("/etc/passwd", 0, &lib), -FI_ENOENT);
	EQUAL(rmaext_ucx_open("libm.so.6", 0, &lib),
	      error_is(-FI_ENOENT, "ucs_status_string is missing"));
	setenv("STUB_VERSION", "1.13.1", 1);
	EQUAL(rmaext_ucx_open(library_path, 0, &lib),
	      error_is(-FI_ENOENT, "1.13.1, and must be 1.20"));
	setenv("STUB_VERSION", "2.0.0", 1);
	EQUAL(rmaext_ucx_open(library_path, 0, &lib), -FI_ENOENT);
	EQUAL(lib, NULL);
	setenv("STUB_VERSION", "1.20.0", 1);
	rmaext_ucx_version(library, version);
	CHECK(!strcmp(version, "1.20.0"));
}

static int fabric_try(const uint8_t *sign)
{
	const struct rmaext_fabric_options options = {.secret = sign,
						      .provider = "ucx"};
	rmaext_fabric *f = NULL;
	int ret = rmaext_fabric_open(library, &options, &f);

	EQUAL(!ret, f != NULL);
	OK(rmaext_fabric_close(&f));
	return ret;
}

static void no_device(void)
{
	const uint8_t sign[RMAEXT_SECRET] = "sixty-four";

	EQUAL(fabric_try(NULL), error_is(-FI_ENODATA, "by rc or dc"));
	unsetenv("STUB_DEVICE");
	setenv("UCX_TLS", "tcp,sm,ud", 1);
	EQUAL(fabric_try(NULL), error_is(-FI_ENODATA, "UCX_TLS=tcp,sm,ud"));
	setenv("UCX_TLS", "dc_mlx5,tcp", 1);
	OK(fabric_try(NULL));
	EQUAL(fabric_try(sign), error_is(-FI_ENOSYS, "signed"));
}

/* Each is what UCX_TLS says, and what is made of it. */
static void transports(void)
{
	static const struct {
		const char *wanted, *used;
		bool rdma;
	} rows[] = {
		{NULL, "ib", true},
		{"", "ib", true},
		{"all", "ib", true},
		{"ib", "ib", true},
		{"self,sm,ib", "ib", true},
		{"self,all", "ib", true},
		{"^tcp,sm", "rc,dc,ud", true},
		{"^ib", "", false},
		{"^all", "", false},
		{"^rc_mlx5", "rc_v,dc,ud", true},
		{"^rc_v,dc_x,ud_verbs", "rc_x,ud_x", true},
		{"^rc_mlx5,rc_verbs,dc", "ud", false},
		{"^dc", "rc,ud", true},
		{"^rc,dc", "ud", false},
		{"rc", "rc", true},
		{"rc_verbs,ud_verbs,self,sm,tcp", "rc_verbs,ud_verbs", true},
		{"dc_x,rcx,r,c", "dc_x", true},
		{"ud", "ud", false},
		{"tcp", "", false},
	};
	char used[128];

	for (size_t i = 0; i < COUNT(rows); i++) {
		EQUAL(rmx_ucx_transports(rows[i].wanted, used, sizeof(used)),
		      rows[i].rdma);
		CHECK(!strcmp(used, rows[i].used));
	}
}

/* Nothing of it stays: the sanitizer, and the stub, would say so. */
static void opening_fails(void)
{
	static const char *const calls[] = {
		"config_read:1",
		"config_modify:1",
		"config_modify:2",
		"config_modify:3",
		"init_version:1",
		"worker_create:1",
		"worker_set_am_recv_handler:1",
		"worker_get_efd:1",
		"worker_get_address:1",
		"mem_map:1",
	};
	char list[64];

	stub_find();
	for (size_t i = 0; i < COUNT(calls); i++) {
		snprintf(list, sizeof(list), "%s:%d", calls[i],
			 UCS_ERR_NO_MEMORY);
		fail(list);
		EQUAL(fabric_try(NULL), -FI_ENOMEM);
		OK(fabric_try(NULL));
	}
	fail("config_modify:1:-5");
	EQUAL(fabric_try(NULL), error_is(-FI_EINVAL, "RCACHE_ENABLE=n"));
}

/* What peers are reached by does no RDMA. */
static void only_ud(void)
{
	EQUAL(fabric_try(NULL), error_is(-FI_ENODATA, "ud_stub/stub:1 only"));
	unsetenv("STUB_TRANSPORT");
	OK(fabric_try(NULL));
}

/* -- memory and keys */

static void memory_fails(void)
{
	char key[256], block[256] = {0};
	size_t len = sizeof(key);
	rmaext_memory *memory = NULL;
	rmaext_fabric *f;

	stub_find();
	f = fabric_open(true, false);
	fail("mem_map:1:-4,rkey_pack:1:-3,mem_advise:1:-5,mem_unmap:1:-3");
	EQUAL(memory_register(f, block, sizeof(block), RMAEXT_READ, 1, &memory),
	      -FI_ENOMEM);
	OK(memory_register(f, block, sizeof(block), RMAEXT_READ, 1, &memory));
	EQUAL(rmaext_memory_key(memory, key, &len), -FI_EIO);
	len = 10;
	EQUAL(rmaext_memory_key(memory, key, &len), -FI_ETOOSMALL);
	EQUAL(len, RMX_UCX_KEY);
	OK(rmaext_memory_key(memory, key, &len));
	EQUAL(rmaext_memory_refresh(memory, 0, 8), -FI_EINVAL);
	OK(rmaext_memory_refresh(memory, 0, sizeof(block)));
	EQUAL(rmaext_memory_close(&memory), -FI_EIO);
	CHECK(memory);
	OK(rmaext_memory_close(&memory));
	OK(rmaext_fabric_close(&f));
}

/*
 * ucp_mem_map() is given the memory itself, and no more rights than the window
 * has; NONBLOCK says that its pages may come late. ucp_mem_query() says what
 * became of it.
 */
static void memory_is_mapped(void)
{
	enum {
		READ = UCP_MEM_MAP_PROT_LOCAL_READ,
		BOTH = READ | UCP_MEM_MAP_PROT_LOCAL_WRITE,
	};
	static const struct {
		int access, lazy;
		unsigned int prot, flags;
	} rows[] = {
		{RMAEXT_READ, 0, READ | UCP_MEM_MAP_PROT_REMOTE_READ, 0},
		{RMAEXT_WRITE, 0, BOTH | UCP_MEM_MAP_PROT_REMOTE_WRITE, 0},
		{RMAEXT_READ | RMAEXT_WRITE, 1,
		 BOTH | UCP_MEM_MAP_PROT_REMOTE_READ |
			 UCP_MEM_MAP_PROT_REMOTE_WRITE,
		 UCP_MEM_MAP_NONBLOCK},
	};
	static char block[4096];
	const struct rmaext_piece piece = {block + 8, sizeof(block) - 16};
	rmaext_memory *memory = NULL;
	rmaext_fabric *f;

	stub_find();
	f = fabric_open(true, false);
	for (size_t i = 0; i < COUNT(rows); i++) {
		const struct rmaext_memory_options options = {
			.pieces = &piece,
			.n_pieces = 1,
			.access = rows[i].access,
			.lazy = rows[i].lazy,
		};

		OK(rmaext_memory_register(f, &options, &memory));
		EQUAL(mapped->address, piece.addr);
		EQUAL(mapped->length, piece.len);
		EQUAL(mapped->prot, rows[i].prot);
		EQUAL(mapped->flags, rows[i].flags);
		OK(rmaext_memory_refresh(memory, 100, 24));
		EQUAL(advised->address, block + 8 + 100);
		EQUAL(advised->length, 24);
		EQUAL(advised->advice, UCP_MADV_WILLNEED);
		OK(rmaext_memory_close(&memory));
		/* the stub would abort at its end if this stayed mapped */
		fail("mem_query:1:-3");
		EQUAL(rmaext_memory_register(f, &options, &memory), -FI_EIO);
		fail("mem_query-:1:1");
		EQUAL(rmaext_memory_register(f, &options, &memory),
		      error_is(-FI_EINVAL, "4080 bytes"));
	}
	OK(rmaext_fabric_close(&f));
}

/* -- operations */

enum { SIZE = 1 << 16 };

static void rig_start(struct rig *r)
{
	stub_find();
	rig_open(r, (struct rig_options){
			    .size = SIZE, .two = true, .served = true});
}

static int add_one(struct rig *r, uint64_t *result)
{
	const uint64_t one = 1;
	rmaext_op *op = NULL;

	return finish(update_begin(r->window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64,
				   &one, NULL, result, 1, &op),
		      &op);
}

/* Everything works, whatever went wrong before. */
static void all_works(struct rig *r)
{
	static char values[SIZE], back[SIZE];
	static unsigned char next;
	uint64_t before = 0;

	memset(values, ++next, sizeof(values));
	memset(values + 8, 0, 8);
	OK(put(r->window, 0, values, sizeof(values)));
	OK(flush_for(r->window, 0, 10));
	CHECK(!memcmp(r->window_memory, values, sizeof(values)));
	OK(get(r->window, 0, back, sizeof(back)));
	CHECK(!memcmp(back, values, sizeof(back)));
	for (uint64_t i = 0; i < 5; i++) {
		OK(add_one(r, &before));
		EQUAL(before, i);
	}
}

/* A put that fails says so when it is waited for, or at its flush. */
static int put_failed(struct rig *r, size_t len)
{
	char values[SIZE] = {0};
	int ret = put(r->window, 0, values, len);

	return ret ? ret : flush_for(r->window, 0, 10);
}

static void calls_fail(void)
{
	static const char *const puts[] = {"put_nbx:1:-3", "put_nbx+:1:-3",
					   "ep_flush_nbx:1:-3",
					   "ep_flush_nbx+:1:-3"};
	const size_t lengths[] = {8, SIZE};
	uint64_t before;
	char back[8];
	struct rig r;

	rig_start(&r);
	all_works(&r);
	for (size_t i = 0; i < COUNT(puts); i++)
		for (size_t k = 0; k < COUNT(lengths); k++) {
			fail(puts[i]);
			/* a failed flush costs the connection */
			EQUAL(put_failed(&r, lengths[k]),
			      i < 2 ? -FI_EIO : -FI_ECONNRESET);
			fail("ep_flush_nbx+:0:0,ep_flush_nbx:0:0");
			all_works(&r);
		}
	fail("get_nbx:1:-3");
	EQUAL(get(r.window, 0, back, 8), -FI_EIO);
	fail("get_nbx+:1:-3");
	EQUAL(get(r.window, 0, back, 8), -FI_EIO);
	fail("am_send_nbx:1:-3");
	EQUAL(add_one(&r, &before), -FI_EIO);
	fail("am_send_nbx+:1:-3");
	EQUAL(add_one(&r, &before), -FI_EIO);
	/* nothing is taken for a while */
	fail("put_nbx:1:-2,get_nbx:1:-2,am_send_nbx:1:-2");
	all_works(&r);
	rig_close(&r);
}

/*
 * A connection is lost: what is on its way fails, and then all goes on. Each
 * put has bytes and a place of its own: one that says that it is done is there.
 */
static void connections_break(void)
{
	enum { PUTS = 40, PLACE = 16384 };
	static const size_t lengths[] = {PLACE, 8};
	static char values[PUTS * PLACE];
	rmaext_op *ops[PUTS] = {0};
	bool done[PUTS], failed[PUTS];
	int compared = 0;
	uint64_t before;
	struct rig r;
	int lost = 0;

	stub_find();
	rig_open(&r, (struct rig_options){.size = sizeof(values),
					  .two = true,
					  .served = true});
	all_works(&r);
	for (int round = 0; round < 30; round++) {
		for (size_t i = 0; i < COUNT(ops); i++) {
			char *own = values + PLACE * i;
			const size_t len = lengths[i % 2];
			int ret;

			memset(own, (int)(round * COUNT(ops) + i) % 255 + 1,
			       PLACE);
			ret = put_begin(r.window, 0, PLACE * i, own, len,
					&ops[i]);
			done[i] = false;
			failed[i] = ret == -FI_ECONNRESET;
			CHECK(!ret || ret == RMAEXT_PENDING ||
			      ret == -FI_ECONNRESET);
			/* some end before it, some begin after it */
			if (i == COUNT(ops) / 4 && !flush_for(r.window, 0, 10))
				memset(done, true, i + 1);
			if (i == COUNT(ops) / 2)
				break_all();
			if (i == COUNT(ops) * 3 / 4)
				rmaext_fabric_progress(r.origin, 0);
		}
		for (size_t i = 0; i < COUNT(ops); i++) {
			if (!ops[i])
				continue;
			failed[i] = finish(RMAEXT_PENDING, &ops[i]);
			done[i] = !failed[i];
			lost += failed[i];
		}
		if (flush_for(r.window, 0, 10))
			lost++;
		else
			memset(done, true, sizeof(done));
		for (size_t i = 0; i < COUNT(ops); i++) {
			if (!done[i] || failed[i])
				continue;
			CHECK(!memcmp(r.window_memory + PLACE * i,
				      values + PLACE * i, lengths[i % 2]));
			compared++;
		}
		while (flush_for(r.window, 0, 10))
			;
		/* a message of then may be lost, too: it says so */
		for (int tries = 0; add_one(&r, &before) && tries < 10; tries++)
			lost++;
		all_works(&r);
	}
	CHECK(lost && compared);
	fail("ep_create:1:-6");
	break_all();
	put_failed(&r, SIZE); /* or it comes when all is over */
	fail("ep_create:0:0");
	while (flush_for(r.window, 0, 10))
		;
	while (add_one(&r, &before))
		;
	all_works(&r);
	fail("ep_rkey_unpack:1:-4");
	break_all();
	while (put_failed(&r, SIZE) < 0)
		;
	fail("ep_rkey_unpack:0:0");
	while (add_one(&r, &before))
		;
	all_works(&r);
	rig_close(&r);
}

/*
 * UCP has copied the messages, or ends them well though they are lost; nobody
 * serves the target. Their owner, and a flush, hear of the loss: not the time
 * limit.
 */
static void messages_are_lost(void)
{
	const uint64_t one = 1;
	static char values[8] = "written";
	rmaext_op *op = NULL;
	uint64_t before;
	struct rig r;

	stub_find();
	rig_open(&r, (struct rig_options){.size = SIZE,
					  .two = true,
					  .served = true,
					  .no_progress = true});
	for (int i = 0; i < 10; i++) {
		EQUAL(update_begin(r.window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64,
				   &one, NULL, &before, 1, &op),
		      RMAEXT_PENDING);
		break_all();
		EQUAL(finish(RMAEXT_PENDING, &op), -FI_ECONNRESET);
		OK(update(r.window, 8, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL,
			  1));
		rmaext_fabric_progress(r.origin, 0); /* it has gone */
		break_all();
		EQUAL(flush_for(r.window, 0, 10), -FI_ECONNRESET);
		while (put(r.window, 0, values, sizeof(values)) ||
		       flush_for(r.window, 0, 10))
			;
		CHECK(!memcmp(r.window_memory, values, sizeof(values)));
	}
	rig_close(&r);
}

/*
 * What a lost connection had on its way ends late. That does not break the one
 * after it: a put by another key, which waits for nothing old, gets there.
 */
static void old_flushes_end_late(void)
{
	static char values[SIZE];
	struct rig_options o = {.size = SIZE, .two = true, .served = true};
	const struct rmx_ucx_peer *peer;
	rmaext_window *other;
	int rounds = 0;
	struct rig r;

	stub_find();
	rig_open(&r, o);
	rig_window(&r, &o, &other);
	all_works(&r);
	peer = (void *)(uintptr_t)r.peer->addr;
	for (int i = 0; i < 200; i++) {
		rmaext_op *old = NULL;
		bool closed = false;
		int ret;

		put_begin(r.window, 0, 0, values, SIZE / 2, &old);
		break_all();
		for (int k = 0; k < 100 && !closed; k++) {
			rmaext_fabric_progress(r.origin, 0);
			pthread_mutex_lock(&r.origin->endpoint->lock);
			closed = !peer->ep;
			pthread_mutex_unlock(&r.origin->endpoint->lock);
		}
		memset(values + SIZE / 2, i + 1, 8);
		ret = put(other, SIZE / 2, values + SIZE / 2, 8);
		if (!ret)
			ret = flush_for(other, 0, 10);
		if (closed) {
			OK(ret);
			EQUAL(r.window_memory[SIZE / 2], (char)(i + 1));
			rounds++;
		}
		if (old)
			finish(RMAEXT_PENDING, &old);
		while (flush_for(r.window, 0, 10))
			;
		while (flush_for(other, 0, 10))
			;
	}
	CHECK(rounds);
	OK(rmaext_window_close(other));
	rmaext_window_free(other);
	rig_close(&r);
}

/* The target refuses it: nothing is touched, and the next one works. */
static void out_of_bounds(void)
{
	struct rig_options o = {.size = SIZE / 2, .two = true, .served = true};
	static char values[SIZE];
	struct rig r;

	stub_find();
	rig_open(&r, o);
	memset(values, 1, sizeof(values));
	r.size =
		SIZE; /* the origin believes it; the registration ends before */
	OK(rmaext_window_close(r.window));
	rmaext_window_free(r.window);
	rig_window(&r, &o, &r.window);
	r.size = SIZE / 2;
	EQUAL(put_failed(&r, SIZE), -FI_ECONNRESET);
	EQUAL(get(r.window, SIZE / 2, values, 8), -FI_ECONNRESET);
	EQUAL(r.window_memory[0], 0);
	OK(put(r.window, SIZE / 2 - 8, values, 8));
	OK(flush_for(r.window, 0, 10));
	EQUAL(r.window_memory[SIZE / 2 - 1], 1);
	/* so does memory that is there no more */
	OK(rmaext_memory_close(&r.memory));
	CHECK(put_failed(&r, 8) < 0);
	rig_close(&r);
}

/* One flush is for many puts. */
static void flushes_are_few(void)
{
	enum { PUTS = 64 };
	rmaext_op *ops[PUTS] = {0};
	static char values[2048];
	unsigned int before;
	struct rig r;

	rig_start(&r);
	all_works(&r);
	before = flushes();
	for (int i = 0; i < PUTS; i++)
		put_begin(r.window, 0, 512 * (uint64_t)i, values,
			  sizeof(values), &ops[i]);
	for (int i = 0; i < PUTS; i++)
		OK(ops[i] ? finish(RMAEXT_PENDING, &ops[i]) : 0);
	OK(flush_for(r.window, 0, 10));
	CHECK(flushes() - before < PUTS / 2);
	rig_close(&r);
}

/* What no rank sends: it is dropped, and the next message comes. */
static void strange_messages(void)
{
	static struct rmx_call calls[3];
	struct iovec iov = {calloc(1, 2 * RMX_LONGEST), 2 * RMX_LONGEST};
	const size_t lengths[] = {2 * RMX_LONGEST, 0, 3};
	const struct rmx_transport *transport;
	struct rig r;

	rig_start(&r);
	all_works(&r);
	transport = r.origin->transport;
	for (size_t i = 0; i < COUNT(lengths); i++) {
		iov.iov_len = lengths[i];
		OK(transport->send(r.origin, r.peer->addr, &iov, NULL, 1,
				   &calls[i]));
	}
	for (int i = 0; i < 5; i++) {
		rmaext_fabric_progress(r.origin, TENTH / 10);
		all_works(&r);
	}
	rig_close(&r);
	free(iov.iov_base);
}

const struct test tests[] = {
	{"libraries", libraries, NULL, "ucx"},
	{"no_device", no_device, "STUB_DEVICE=none", "ucx"},
	{"transports", transports, NULL, "ucx"},
	{"opening_fails", opening_fails, NULL, "ucx"},
	{"only_ud", only_ud, "STUB_TRANSPORT=ud_stub", "ucx"},
	{"memory_fails", memory_fails, NULL, "ucx"},
	{"memory_is_mapped", memory_is_mapped, NULL, "ucx"},
	{"calls_fail", calls_fail, NULL, "ucx"},
	{"connections_break", connections_break, NULL, "ucx"},
	{"copied_messages_are_lost", messages_are_lost, "STUB_PROMPT=1", "ucx"},
	{"messages_are_lost", messages_are_lost, NULL, "ucx"},
	{"old_flushes_end_late", old_flushes_end_late, NULL, "ucx"},
	{"out_of_bounds", out_of_bounds, NULL, "ucx"},
	{"flushes_are_few", flushes_are_few, NULL, "ucx"},
	{"strange_messages", strange_messages, NULL, "ucx"},
	{0},
};
