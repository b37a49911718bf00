/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the programs share: an endpoint of tcp;ofi_rxm on 127.0.0.1, and a
 * stranger's plain socket to it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#define TRY(call)                                                         \
	do {                                                              \
		ssize_t try_ret = (call);                                 \
		if (try_ret) {                                            \
			printf("%s: %s\n", #call, fi_strerror(-try_ret)); \
			exit(2);                                          \
		}                                                         \
	} while (0)

struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct sockaddr_in name;
	int done, failed; /* completions */
};

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

static inline void end_prepare(struct end *e, const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr av = {0};
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG};

	memset(e, 0, sizeof(*e));
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->mode = FI_CONTEXT;
	hints->domain_attr->mr_mode =
		FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->fabric_attr->prov_name = strdup(provider);
	TRY(fi_getinfo(FI_VERSION(1, 17),
		       strstr(provider, "shm") ? NULL : "127.0.0.1", NULL,
		       strstr(provider, "shm") ? 0 : FI_SOURCE, hints,
		       &e->info));
	TRY(fi_fabric(e->info->fabric_attr, &e->fabric, NULL));
	TRY(fi_domain(e->fabric, e->info, &e->domain, NULL));
	TRY(fi_av_open(e->domain, &av, &e->av, NULL));
	TRY(fi_cq_open(e->domain, &cq, &e->cq, NULL));
	TRY(fi_endpoint(e->domain, e->info, &e->ep, NULL));
	TRY(fi_ep_bind(e->ep, &e->av->fid, 0));
	TRY(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
}

static inline void end_open(struct end *e, const char *provider)
{
	size_t len = sizeof(e->name);

	end_prepare(e, provider);
	TRY(fi_enable(e->ep));
	if (!strstr(provider, "shm"))
		TRY(fi_getname(&e->ep->fid, &e->name, &len));
	printf("libfabric %u.%u, %s\n", FI_MAJOR(fi_version()),
	       FI_MINOR(fi_version()), provider);
	fflush(stdout);
}

/* Returns how the peer is addressed. */
static inline fi_addr_t end_knows(struct end *e, struct end *peer)
{
	char name[256];
	size_t len = sizeof(name);
	fi_addr_t addr;

	TRY(fi_getname(&peer->ep->fid, name, &len));
	if (fi_av_insert(e->av, name, 1, &addr, 0, NULL) != 1)
		exit(2);
	return addr;
}

/* Reads completions once. */
static inline void end_poll(struct end *e)
{
	struct fi_cq_msg_entry entry;
	struct fi_cq_err_entry err = {0};
	ssize_t ret = fi_cq_read(e->cq, &entry, 1);

	if (ret > 0)
		e->done++;
	if (ret == -FI_EAVAIL && fi_cq_readerr(e->cq, &err, 0) > 0)
		e->failed++;
}

/* Registers memory under a key that shows; returns how a peer addresses it. */
static inline uint64_t end_register(struct end *e, void *memory, size_t len,
				    uint64_t access, struct fid_mr **mr)
{
	TRY(fi_mr_reg(e->domain, memory, len, access, 0, 0x5ec4e7, 0, mr,
		      NULL));
	return e->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR
		       ? (uintptr_t)memory
		       : 0;
}

/* Writes; waits for the completion. */
static inline void end_writes(struct end *e, struct end *peer, fi_addr_t to,
			      const void *source, size_t len, uint64_t addr,
			      uint64_t key)
{
	int before = e->done + e->failed;

	while (fi_write(e->ep, source, len, NULL, to, addr, key, NULL)) {
		end_poll(e);
		end_poll(peer);
	}
	while (e->done + e->failed == before) {
		end_poll(e);
		end_poll(peer);
	}
}

static inline void end_poll_for(struct end *e, double seconds)
{
	for (double end = now() + seconds; now() < end; usleep(200))
		end_poll(e);
}

/* -- a stranger --------------------------------------------------------------
 */

struct ctrl { /* struct ofi_ctrl_hdr */
	uint8_t version, type;
	uint16_t seg_size;
	uint32_t seg_no;
	uint64_t conn_id, msg_id, data;
};

struct hello { /* union rxm_cm_data */
	uint8_t version, endianness, ctrl_version, op_version;
	uint16_t port;
	uint8_t flow_ctrl, padding;
	uint32_t eager_limit, rx_size;
	uint64_t client_conn_id;
};

struct base { /* struct xnet_base_hdr */
	uint8_t version, op;
	uint16_t flags;
	uint8_t op_data, rma_iov_cnt, hdr_size, id;
	uint64_t size;
};

struct op { /* struct ofi_op_hdr */
	uint8_t version, rx_index, op, op_data;
	uint32_t flags;
	uint64_t size, data, tag;
};

struct packet { /* a message of tcp with a packet of rxm */
	struct base base;
	struct ctrl ctrl;
	struct op op;
};

static inline int stranger_connect(struct end *to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (void *)&to->name, sizeof(to->name))) {
		perror("connect");
		exit(2);
	}
	return fd;
}

static inline void stranger_send(int fd, const void *data, size_t len)
{
	if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
		perror("send");
}

/* Claims to be the endpoint that listens on that port; reads the answer. */
static inline void stranger_hello(int fd, struct end *to, int port, int pid)
{
	struct {
		struct ctrl ctrl;
		struct hello hello;
	} it = {
		.ctrl = {.version = 3,
			 .seg_size = htons(sizeof(struct hello)),
			 .data = 1},
		.hello = {.version = 1,
			  .endianness = 2,
			  .ctrl_version = 4,
			  .op_version = 3,
			  .port = port,
			  .eager_limit = 16384,
			  .rx_size = 128,
			  .client_conn_id = (uint64_t)pid << 32},
	};
	char answer[256];
	ssize_t len = -1;

	stranger_send(fd, &it, sizeof(it));
	for (int i = 0; i < 2000 && len < 0; i++) {
		end_poll(to);
		usleep(500);
		len = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
	}
	if (len < 2 || answer[1] != 1) {
		printf("the hello was refused (%zd)\n", len);
		exit(2);
	}
}

static inline struct packet stranger_packet(int type, size_t size)
{
	return (struct packet){
		.base = {.version = 3,
			 .hdr_size = sizeof(struct base),
			 .size = sizeof(struct packet) + size},
		.ctrl = {.version = 4, .type = type},
		.op = {.version = 2, .size = size},
	};
}
