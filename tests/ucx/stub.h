/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A libucp for tests only, between processes of one machine. It keeps what UCP
 * promises of an RDMA transport, and little else, though it does not do all
 * that UCP may:
 *
 * - A put or get is carried out by the origin alone (process_vm_writev), though
 *   the target sleeps. The target's table of regions is asked, under its lock:
 *   memory that is not mapped, or not for that, is not touched; the connection
 *   is lost instead.
 * - A put is in the target's memory when a flush that came after it has ended.
 *   Without one it stays on its way for long. Puts and gets overtake each
 * other.
 * - Its buffer is free when it completes, which may be at once, and says
 * nothing of the target.
 * - An active message is a datagram, or several. Messages overtake each other.
 * - What a lost or closed connection had on its way ends before or after that
 *   is told.
 * - A peer that has died is noticed by those who send to it; and, within 0.1 s,
 *   by all who are connected (UCX asks every 20 s, UCX_KEEPALIVE_INTERVAL).
 *
 * What a caller must not do ends the process with a word: two threads at a time
 * in a worker, calls from what is called back, memory or a key that is given up
 * while it is in use, a key of another connection, requests that nobody frees.
 *
 * STUB_FAIL=name:n:status fails the nth call of ucp_name, with name* all from
 * there on; with name+ its request fails later on; with mem_query- it says that
 * `status` bytes fewer are mapped. stub_break_all() loses all
 * connections of this process. STUB_DEVICE=none: there is no device;
 * STUB_TRANSPORT: how peers are reached; STUB_VERSION=1.13.1; STUB_ADDRESS=700:
 * bytes of an address; STUB_SEED orders what happens; STUB_PROMPT: nothing is
 * delayed.
 */
#ifndef STUB_H
#define STUB_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/ucx/abi.h"

enum { REGIONS = 16384, FRAGMENT = 60000 };

/* What a process shows to its peers: what may be done with its memory. */
struct shared {
	pthread_mutex_t lock; /* robust: an owner may be killed */
	struct {
		uint64_t id; /* 0: free */
		uint64_t base, len;
		uint32_t prot;
	} regions[REGIONS];
};

struct ucp_config {
	char tls[256];
	bool uncached; /* an unmap revokes the key */
	bool offload;  /* no software wins over a device */
};

struct ucp_context {
	struct shared *shared;
	int fd; /* of shared */
	pthread_mutex_t lock;
	uint64_t last_id;
	unsigned int regions;
};

struct ucp_mem {
	uint32_t index, prot;
	uint64_t id, base, len;
	atomic_uint users;
};

struct packed_key {
	uint64_t id, base, len;
	uint32_t index, prot;
};

struct ucp_rkey {
	struct packed_key it;
	ucp_ep_h ep;
	unsigned int users;
};

struct address {
	uint64_t nonce;
	int32_t pid, fd;
};

enum kind { PUT, GET, SEND, FLUSH, CLOSE };

/* A call on its way; the address of it is the request, if there is one. */
struct op {
	struct op *next;
	enum kind kind;
	ucp_ep_h ep;
	bool asked;	    /* somebody has the request, and frees it */
	bool over;	    /* it was called back */
	bool copied;	    /* buf is a copy of ours */
	ucs_status_t later; /* it is to fail with that */
	char *buf;
	size_t len, done; /* done: bytes of a message that were sent */
	uint64_t place, serial;
	ucp_rkey_h rkey;
	ucp_mem_h memh;
	void (*cb)(void *request, ucs_status_t status, void *data);
	void *data;
};

struct ucp_ep {
	ucp_ep_h next;
	ucp_worker_h worker;
	struct address peer;
	struct shared *shared; /* the peer's */
	struct sockaddr_un to;
	struct op *ops; /* in their order */
	void (*failed)(void *arg, ucp_ep_h ep, ucs_status_t status);
	void *arg;
	ucs_status_t broken; /* all calls give that */
	bool told, closed;
};

struct datagram {
	uint64_t from, message, offset, total;
};

/* A message that comes, or has come. */
struct inbound {
	struct inbound *next;
	struct datagram head;
	size_t have;
	char *data;
};

struct ucp_worker {
	ucp_context_h context;
	struct address own;
	int socket, event, timer, epoll;
	ucp_ep_h eps;
	struct inbound *inbox;
	ucp_am_handler_param_t handler;
	uint64_t serial;
	uint64_t asked; /* ns, when it last looked whether its peers live */
	unsigned int requests; /* that somebody has */
	atomic_flag busy;
};

/* stub.c */
_Noreturn void stub_wrong(const char *what);
uint64_t stub_draw(uint64_t below);
/* Is this call to fail? Returns the status, or 0. */
ucs_status_t stub_fails(const char *name);
void stub_fail(const char *list); /* as STUB_FAIL says */
void stub_break_all(void);
unsigned int stub_flushes(void); /* that have begun */
/* What the last calls of ucp_mem_map() and ucp_mem_advise() were given. */
extern ucp_mem_map_params_t stub_mapped;
extern ucp_mem_advise_params_t stub_advised;

/* worker.c: entered by one thread at a time, and by none that was called back
 */
void stub_enter(ucp_worker_h worker);
void stub_leave(ucp_worker_h worker);

#endif
