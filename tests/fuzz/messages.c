/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libFuzzer: any bytes as a message, to an endpoint with windows of all kinds
 * and with requests of its own on their way. All of csrc/ is the real thing;
 * only the provider behind the endpoint is not there. What a message must not
 * touch lies behind AddressSanitizer's red zones: memory next to a window's,
 * and next to the message.
 *
 * The first bytes say what a stranger cannot guess, and somebody may have
 * nonetheless: tokens, the secret of the secret, the id of a request.
 */
#include "am/am.h"

#include <sanitizer/asan_interface.h>

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 4096, RANKS = 2, TOKENS = 5, ELEMENTS = 40 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct rmaext_fabric fabric;
static uint8_t tokens[TOKENS][RMX_TOKEN];
static const uint8_t secret[RMX_TOKEN] = "the secret's, all";
static rmaext_window *asked; /* of which requests are made */
static rmaext_window *revocable;
static rmaext_window *whole;

/* -- a transport that sends nothing, and receives what the fuzzer says */

static bool refuses; /* every other message */
static bool turn;
static void *sent[RMX_SEND_BUFFERS + RMX_RECEIVE_BUFFERS];
static size_t sent_count;
static struct rmx_completion arrivals[2];
static size_t arrival_count;

static int taken(void)
{
	return refuses && (turn = !turn) ? -FI_EAGAIN : 0;
}

static int receive(struct rmaext_fabric *f, void *buf, size_t len, void *desc,
		   struct rmx_call *call)
{
	(void)f, (void)buf, (void)len, (void)desc, (void)call;
	return taken();
}

static int send_later(struct rmaext_fabric *f, uint64_t peer,
		      const struct iovec *iov, void **descs, size_t count,
		      struct rmx_call *call)
{
	int ret = taken();

	(void)f, (void)peer, (void)iov, (void)descs, (void)count;
	if (!ret)
		sent[sent_count++] = call;
	return ret;
}

static int inject(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		  size_t len)
{
	(void)f, (void)peer, (void)buf, (void)len;
	return taken();
}

static int add(struct rmaext_fabric *f, const void *address, size_t len,
	       uint64_t *peer)
{
	(void)f, (void)address, (void)len;
	*peer = 0;
	return 0;
}

static void take_out(struct rmaext_fabric *f, uint64_t peer)
{
	(void)f, (void)peer;
}

static int completions(struct rmaext_fabric *f, struct rmx_completion *done,
		       struct rmaext_error *failure)
{
	size_t n = 0, count = RMX_POLL_MOST;

	(void)f, (void)failure;
	for (; n < count && n < sent_count; n++)
		done[n] = (struct rmx_completion){.context = sent[n]};
	memmove(sent, sent + n, (sent_count - n) * sizeof(*sent));
	sent_count -= n;
	if (n < count && arrival_count) {
		done[n++] = arrivals[0];
		arrivals[0] = arrivals[1];
		arrival_count--;
	}
	return (int)n;
}

static const char *words(const struct rmaext_fabric *f, int code)
{
	(void)f, (void)code;
	return "an error";
}

static void endpoint(void)
{
	static const struct rmx_transport transport = {
		.words = words,
		.add = add,
		.remove = take_out,
		.receive = receive,
		.send = send_later,
		.inject = inject,
		.poll = completions,
	};
	const struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = 1};

	fabric = (struct rmaext_fabric){
		.transport = &transport,
		.hooks = &rmx_am_hooks,
		.transfers = calloc(1, sizeof(*fabric.transfers)),
		.am = calloc(1, sizeof(*fabric.am)),
		.limits = {.provider = "none",
			   .message = 1 << 30,
			   .chunk = 4 << 20,
			   .least = 1,
			   .copied = 64,
			   .pieces = 4,
			   .keys = UINT64_MAX,
			   .ip = true},
		.address_len = sizeof(own),
		.progress = {.cq_fd = -1, .wake_fd = -1},
	};
	memcpy(fabric.address, &own, sizeof(own));
	pthread_mutex_init(&fabric.lock, NULL);
	pthread_mutex_init(&fabric.transfers->backlog.lock, NULL);
	if (rmx_transfers_start(&fabric) || rmx_am_start(&fabric) ||
	    rmx_progress_start(&fabric, 0, 0) ||
	    rmaext_clients_admit(&fabric, secret))
		abort();
}

/* -- windows */

static rmaext_peer *peer(unsigned short port)
{
	const struct sockaddr_in it = {.sin_family = AF_INET, .sin_port = port};
	rmaext_peer *made;

	if (rmaext_peer_add(&fabric, &it, sizeof(it), -1, &made))
		abort();
	return made;
}

/* Over memory of its own; NULL: the other rank's alone. */
static rmaext_window *window(int number, void *memory, int access, bool dynamic)
{
	rmaext_peer *const peers[RANKS] = {peer(1), peer(2)};
	const uint64_t size[RANKS] = {SIZE, SIZE}, base[RANKS] = {0};
	const uint8_t rights[RANKS] = {(uint8_t)access, (uint8_t)access};
	const uint8_t align[RANKS] = {0}, route = RMAEXT_FABRIC;
	const uint64_t address = 0;
	void *map = memory, *block;
	rmaext_members *members;
	rmaext_blocks *blocks = NULL;
	rmaext_window *w;

	block = aligned_alloc(64, rmaext_block_bytes(RANKS));
	memset(block, 0, rmaext_block_bytes(RANKS));
	if (rmaext_members_new(RANKS, 0, peers, NULL, NULL, &members) ||
	    rmaext_blocks_new(members, &block, &blocks) ||
	    rmaext_window_create(&fabric,
				 &(struct rmaext_targets){
					 .members = members,
					 .token = tokens[number],
					 .size = size,
					 .base = base,
					 .access = rights,
					 .align = align,
					 .keys = (const uint8_t[16]){0},
					 .key_len = 8,
					 .route = &route,
					 .map = &map,
					 .address = &address,
					 .blocks = blocks,
					 .dynamic = dynamic,
				 },
				 (int64_t)1e5, &w))
		abort();
	return w;
}

static void grant_anew(void)
{
	const struct rmaext_grant it = {tokens[3], 64, 1024, RMAEXT_READ | 2};

	if (revocable) {
		if (rmaext_window_close(revocable))
			abort();
		rmaext_window_free(revocable);
	}
	if (rmaext_grant_open(&fabric, whole, &it, &revocable))
		abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char *memory, *ranges;
	rmaext_window *dynamic;

	(void)argc, (void)argv;
	for (int i = 0; i < TOKENS; i++)
		memset(tokens[i], 'a' + i, RMX_TOKEN);
	endpoint();
	memory = aligned_alloc(64, SIZE);
	memset(memory, 0, SIZE);
	whole = window(0, memory, RMAEXT_READ | RMAEXT_WRITE, false);
	memory = aligned_alloc(64, SIZE);
	memset(memory, 0, SIZE);
	window(1, memory, RMAEXT_READ, false);
	dynamic = window(2, NULL, RMAEXT_READ | RMAEXT_WRITE, true);
	for (int i = 0; i < 2; i++) {
		ranges = aligned_alloc(64, 256);
		memset(ranges, 0, 256);
		if (rmaext_attach(dynamic, ranges, 256))
			abort();
	}
	grant_anew();
	asked = window(4, NULL, RMAEXT_READ | RMAEXT_WRITE, false);
	return 0;
}

/* -- inputs */

static struct rmx_receive_buffer *landing(void)
{
	struct rmx_am *ex = fabric.am;

	for (unsigned int i = 0; i < ex->receives_made; i++)
		if (ex->receive_buffers[i].state == RMX_RECEIVING)
			return &ex->receive_buffers[i];
	return NULL;
}

/*
 * Bytes behind it that nobody is to touch: the reply comes after them, but
 * where a reply was at the message's end, which is taken off first.
 */
static size_t zone(const void *message, size_t len)
{
	const size_t reply = sizeof(struct rmx_reply_header);
	struct rmx_request_header q = {0};
	size_t end;

	memcpy(&q, message, len < sizeof(q) ? len : sizeof(q));
	end = ((len + (q.replies ? 0 : reply) + 63) & ~(size_t)63) - reply;
	return end > len ? end - len : 0;
}

static void arrive(const void *bytes, size_t len)
{
	struct rmx_receive_buffer *it = landing();
	const size_t behind = zone(bytes, len);
	char *data;

	if (!it)
		return;
	data = it->data;
	memcpy(data, bytes, len);
	ASAN_POISON_MEMORY_REGION(data + len, behind);
	rmx_am_complete(&fabric, &it->call, len, NULL);
	ASAN_UNPOISON_MEMORY_REGION(data + len, behind);
}

static void request(const uint8_t *how, uint8_t *message, size_t len)
{
	struct rmx_request_header q;

	if (len < sizeof(q)) {
		arrive(message, len);
		return;
	}
	memcpy(&q, message, sizeof(q));
	q.magic = RMX_REQUEST;
	if (how[0] < TOKENS)
		memcpy(q.token, tokens[how[0]], RMX_TOKEN);
	if (how[1] & 1)
		q.name = fabric.peers->name;
	if (how[1] & 2)
		q.rank %= RANKS;
	if (how[1] & 4 && len >= RMX_HEADERS) { /* of the first item */
		uint8_t *form =
			message + sizeof(q) + offsetof(struct rmx_item, form);

		*form = (uint8_t)(1 + *form % 3);
	}
	if (how[1] & 8 && len >= sizeof(q) + sizeof(struct rmx_introduction)) {
		struct rmx_introduction *introduction =
			(struct rmx_introduction
				 *)(void *)(message + len -
					    sizeof(*introduction));

		q.sender = RMX_WITH_INTRODUCTION;
		memcpy(message + len - sizeof(*introduction), secret,
		       sizeof(secret));
		if (how[1] & 16)
			memcpy((char *)introduction +
				       offsetof(struct rmx_introduction, len),
			       (uint8_t[]){sizeof(struct sockaddr_in), 0}, 2);
	}
	memcpy(message, &q, sizeof(q));
	if (how[1] & 64)
		grant_anew();
	arrive(message, len);
}

/* An id of what is on its way, if there is any. */
static uint64_t id_of(uint8_t number)
{
	const struct rmx_am *ex = fabric.am;
	unsigned int n = ex->sends_made ? number % ex->sends_made : 0;

	for (unsigned int i = 0; i < ex->sends_made;
	     i++, n = (n + 1) % ex->sends_made)
		if (ex->send_buffers[n].op)
			return (uint64_t)ex->send_buffers[n].generation << 32 |
			       n;
	return number;
}

static size_t reply(const uint8_t *how, uint8_t *message, size_t len)
{
	struct rmx_reply_header r;

	if (len < sizeof(r))
		return len;
	memcpy(&r, message, sizeof(r));
	r.magic = RMX_REPLY;
	if (how[0] & 1)
		r.id = id_of(how[1]);
	if (how[0] & 2)
		memcpy(r.token, tokens[4], RMX_TOKEN);
	if (how[0] & 4)
		r.status = 0;
	memcpy(message, &r, sizeof(r));
	return len;
}

/* A request of our own, and the bytes as its answer. */
static void begun(const uint8_t *how, uint8_t *message, size_t len)
{
	static uint64_t buffers[3][ELEMENTS];
	static int ended;
	struct rmaext_call call = {
		.kind = how[2] % 3,
		.op = RMAEXT_SUM,
		.type = RMAEXT_UINT64,
		.rank = 1,
		.operand = buffers[0],
		.compare = buffers[1],
		.result = buffers[2],
		.count = how[3] % ELEMENTS,
		.ended = &ended,
	};
	rmaext_op *op;

	if (call.kind != RMAEXT_UPDATE) { /* others post reads and writes */
		call.kind = RMAEXT_UPDATE;
		call.op = RMAEXT_CSWAP;
	}
	if (rmaext_start(asked, &call, &op) != RMAEXT_PENDING)
		return;
	arrive(message, reply(how, message, len));
	/* not believed: here is one that is, once it has been sent */
	for (int i = 0; !ended && i < 1000; i++) {
		struct rmx_reply_header r = {.magic = RMX_REPLY,
					     .status = -FI_EIO};

		refuses = false;
		rmx_look(&fabric);
		r.id = id_of(0);
		memcpy(r.token, tokens[4], RMX_TOKEN);
		arrive(&r, sizeof(r));
	}
	if (!ended || rmaext_op_release(&op))
		abort();
}

/* The same of many elements, read from the queue as in life. */
static void many(const uint8_t *how, uint8_t *message, size_t len)
{
	const int64_t rank = 1;
	int64_t offsets[ELEMENTS];
	uint64_t *values = malloc(ELEMENTS * sizeof(*values));
	const int n = 1 + how[2] % ELEMENTS;
	rmaext_op *op;
	int64_t bad;
	struct rmx_reply_header r = {.magic = RMX_REPLY, .status = -FI_EIO};
	struct rmx_receive_buffer *first = landing();

	for (int i = 0; i < n; i++)
		offsets[i] = i * how[3] % (SIZE / 8);
	/* it will be the first box that is free */
	r.id = fabric.am->sends_made;
	if (fabric.am->free)
		r.id = (uint64_t)fabric.am->free->generation << 32 |
		       (uint64_t)(fabric.am->free - fabric.am->send_buffers);
	memcpy(r.token, tokens[4], RMX_TOKEN);
	if (first && !refuses) {
		len = reply(how, message, len);
		if (len >= sizeof(r) && how[0] & 1)
			memcpy(message + offsetof(struct rmx_reply_header, id),
			       &r.id, sizeof(r.id));
		memcpy(first->data, message, len);
		arrivals[0] = (struct rmx_completion){
			.context = &first->call,
			.len = len,
		};
		arrival_count = 1;
	}
	rmaext_start_many(
		asked,
		&(struct rmaext_places_call){
			.kind = how[3] & 1 ? RMAEXT_GET : RMAEXT_UPDATE,
			.op = RMAEXT_SUM,
			.type = RMAEXT_UINT64,
			.ones = RMAEXT_ONE_RANK,
			.unit = 8,
			.count = (uint64_t)n,
			.ranks = &rank,
			.offsets = offsets,
			.values = values,
			.results = values,
		},
		&op, &bad);
	rmaext_op_release(&op);
	arrival_count = 0;
	free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t message[RMX_LONGEST];
	struct rmx_receive_buffer *it;
	uint8_t how[4];

	if (size < 5 || size - 5 > sizeof(message))
		return 0;
	memcpy(how, data + 1, sizeof(how));
	size -= 5;
	memcpy(message, data + 5, size);
	refuses = data[0] & 16;
	switch (data[0] % 8) {
	case 2:
	case 6:
		begun(how, message, size);
		break;
	case 7: /* seldom: each may wait for a millisecond */
		many(how, message, size);
		break;
	default:
		request(how, message, size);
	}
	refuses = false;
	/* what waits is tried again, for the last time */
	for (it = fabric.am->early; it; it = it->next)
		it->since = 0;
	rmx_look(&fabric);
	return 0;
}
