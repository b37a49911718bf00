/* SPDX-License-Identifier: BSD-3-Clause */
/* A fabric over the demanding provider, and what its cases check. */
#ifndef SELFTEST_H
#define SELFTEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "net/libfabric/quirks.h"

#define PAGE 4096
#define ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | REMOTE)
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)

struct library {
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	void (*freeinfo)(struct fi_info *info);
	int (*getinfo)(uint32_t version, const char *node, const char *service,
		       uint64_t flags, const struct fi_info *hints,
		       struct fi_info **info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
		      void *context);
};

extern struct library lib;
extern uint64_t (*violations)(const char *kind);
extern uint64_t (*calls)(const char *name);
extern int (*device)(const void *start, size_t len, int iface);

extern struct fi_info *info;
extern struct fid_fabric *fabric;
extern struct fid_domain *domain;
extern struct fid_av *av;
extern struct fid_cq *cq;
extern struct fid_ep *ep;
extern fi_addr_t self;

extern char local[2 * PAGE], window[2 * PAGE], more[PAGE];
extern struct fi_context2 contexts[8];

#define STR(x) #x
#define AT(line) STR(line)
#define CHECK(condition) \
	check(condition, __FILE__ ":" AT(__LINE__) ": " #condition)
#define GOOD(call) good(call, __FILE__ ":" AT(__LINE__) ": " #call)
#define BAD(kind, code, call)                       \
	do {                                        \
		uint64_t had = violations(kind);    \
		uint64_t all = violations(NULL);    \
		long bad_ = (long)(call);           \
                                                    \
		expect(bad_, code, #call);          \
		CHECK(violations(kind) == had + 1); \
		CHECK(violations(NULL) == all + 1); \
	} while (0)

#define EVERY_MODE                                                     \
	(FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | \
	 FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT |         \
	 FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_COLLECTIVE)

/* Posted, perhaps after a while: the connection is being made. */
#define POST(call)                                                \
	do {                                                      \
		ssize_t ret_;                                     \
                                                                  \
		while ((ret_ = (call)) == -FI_EAGAIN)             \
			fi_cq_read(cq, NULL, 0);                  \
		good(ret_, __FILE__ ":" AT(__LINE__) ": " #call); \
	} while (0)

void check(bool condition, const char *text);
void good(long ret, const char *text);
void expect(long ret, long code, const char *text);
void load(const char *path);
void find_counts(void);
struct fi_info *hints(int mr_mode);
void find(void);
void open_domain(void);
void open_endpoint(void);
void close_endpoint(void);
void close_domain(void);
void set_up(void);
void tear_down(void);
void done(void *context);
int failed(void *context);
int reg_flags(void *start, size_t len, uint64_t access, uint64_t key,
	      uint64_t flags, struct fid_mr **mr);
int reg(void *start, size_t len, uint64_t access, uint64_t key,
	struct fid_mr **mr);
void end(struct fid_mr *mr);
ssize_t put(size_t len, void *desc, uint64_t addr, uint64_t key);
ssize_t get(size_t len, void *desc, uint64_t addr, uint64_t key);
void put_well(size_t len, void *desc, uint64_t addr, uint64_t key);
void *untouched(size_t len, int protection);

void case_key(void);
void case_address(void);
void case_rights(void);
void case_argument(void);
void case_length(void);
void case_pieces(void);
void case_auth_key(void);
void case_flags(void);
void case_requested_key(void);
void case_leak(void);
void case_order(void);
void case_atomic(void);
void case_offer(void);
void case_origin(void);
void case_desc(void);
void case_local_rights(void);
void case_busy(void);
void case_messages(void);
void case_virt_addr(void);
void case_prov_key(void);
void case_raw(void);
void case_allocated(void);
void case_os_access(void);
void case_refresh(void);
void case_unbound(void);
void case_rma_event(void);
void case_hmem(void);
void case_collective(void);
void case_pmem(void);
void case_async(void);
void case_faults(void);
void case_completion(void);
void case_delay(void);
void case_two(void);

/* The other libfabric, for the case with two. */
extern const char *other;

#endif
