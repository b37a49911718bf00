/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Breaks each rule that the demanding provider imposes, on purpose, by plain
 * libfabric calls, and sees that it is refused and counted; and that the same
 * done well is not. One process, RMA to itself.
 *
 *   selftest LIBFABRIC CASE [OTHER]     FI_PROVIDER_PATH names the provider
 *   selftest --list                     each case and what it provokes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define PAGE 4096
#define ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | REMOTE)
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)

static struct {
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	void (*freeinfo)(struct fi_info *info);
	int (*getinfo)(uint32_t version, const char *node, const char *service,
		       uint64_t flags, const struct fi_info *hints,
		       struct fi_info **info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
		      void *context);
} lib;

static uint64_t (*violations)(const char *kind);
static uint64_t (*calls)(const char *name);
static int (*device)(const void *start, size_t len, int iface);

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t self;

static char local[2 * PAGE], window[2 * PAGE], more[PAGE];
static struct fi_context2 contexts[8];

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

static void check(bool condition, const char *text)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", text);
	_exit(1);
}

static void good(long ret, const char *text)
{
	if (!ret)
		return;
	fprintf(stderr, "%s: %ld\n", text, ret);
	_exit(1);
}

static void expect(long ret, long code, const char *text)
{
	if (ret == code)
		return;
	fprintf(stderr, "%s: %ld, not %ld\n", text, ret, code);
	_exit(1);
}

/* -- a fabric
 * ------------------------------------------------------------------ */

static void load(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	CHECK(handle);
	/* the versions that the headers' structs are of */
	*(void **)&lib.getinfo = dlvsym(handle, "fi_getinfo", "FABRIC_1.3");
	*(void **)&lib.dupinfo = dlvsym(handle, "fi_dupinfo", "FABRIC_1.3");
	*(void **)&lib.freeinfo = dlvsym(handle, "fi_freeinfo", "FABRIC_1.3");
	*(void **)&lib.fabric = dlvsym(handle, "fi_fabric", "FABRIC_1.1");
	CHECK(lib.getinfo && lib.dupinfo && lib.freeinfo && lib.fabric);
}

static void find_counts(void)
{
	char path[4096];
	void *handle;

	snprintf(path, sizeof(path), "%s/demand-fi.so",
		 getenv("FI_PROVIDER_PATH"));
	handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	CHECK(handle);
	*(void **)&violations = dlsym(handle, "demand_violations");
	*(void **)&calls = dlsym(handle, "demand_calls");
	*(void **)&device = dlsym(handle, "demand_device");
	CHECK(violations && calls && device);
}

static struct fi_info *hints(int mr_mode)
{
	struct fi_info *h = lib.dupinfo(NULL);

	CHECK(h);
	h->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = mr_mode;
	h->fabric_attr->prov_name = strdup("demand");
	return h;
}

#define EVERY_MODE                                                     \
	(FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | \
	 FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT |         \
	 FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_COLLECTIVE)

static void find(void)
{
	struct fi_info *h = hints(EVERY_MODE);

	GOOD(lib.getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, h,
			 &info));
	lib.freeinfo(h);
	CHECK(!strcmp(info->fabric_attr->prov_name, "demand"));
}

static void open_domain(void)
{
	GOOD(lib.fabric(info->fabric_attr, &fabric, NULL));
	GOOD(fi_domain(fabric, info, &domain, NULL));
}

static void open_endpoint(void)
{
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC};
	struct fi_cq_attr cq_attr = {
		.size = 64, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
	char name[64];
	size_t len = sizeof(name);

	GOOD(fi_av_open(domain, &av_attr, &av, NULL));
	GOOD(fi_cq_open(domain, &cq_attr, &cq, NULL));
	GOOD(fi_endpoint(domain, info, &ep, NULL));
	GOOD(fi_ep_bind(ep, &av->fid, 0));
	GOOD(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	GOOD(fi_enable(ep));
	GOOD(fi_getname(&ep->fid, name, &len));
	CHECK(fi_av_insert(av, name, 1, &self, 0, NULL) == 1);
}

static void close_endpoint(void)
{
	GOOD(fi_close(&ep->fid));
	GOOD(fi_close(&cq->fid));
	GOOD(fi_close(&av->fid));
}

static void close_domain(void)
{
	GOOD(fi_close(&domain->fid));
	GOOD(fi_close(&fabric->fid));
	lib.freeinfo(info);
}

static void set_up(void)
{
	find();
	open_domain();
	open_endpoint();
}

static void tear_down(void)
{
	close_endpoint();
	close_domain();
}

/* Posted, perhaps after a while: the connection is being made. */
#define POST(call)                                                \
	do {                                                      \
		ssize_t ret_;                                     \
                                                                  \
		while ((ret_ = (call)) == -FI_EAGAIN)             \
			fi_cq_read(cq, NULL, 0);                  \
		good(ret_, __FILE__ ":" AT(__LINE__) ": " #call); \
	} while (0)

/* One completion; its context is that of the operation. */
static void done(void *context)
{
	struct fi_cq_msg_entry entry;
	ssize_t n;

	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	CHECK(n == 1);
	CHECK(entry.op_context == context);
}

static int failed(void *context)
{
	struct fi_cq_err_entry error = {0};
	struct fi_cq_msg_entry entry;
	ssize_t n;

	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	CHECK(n == -FI_EAVAIL);
	CHECK(fi_cq_readerr(cq, &error, 0) == 1);
	CHECK(error.op_context == context);
	return error.err;
}

static int reg_flags(void *start, size_t len, uint64_t access, uint64_t key,
		     uint64_t flags, struct fid_mr **mr)
{
	struct iovec iov = {.iov_base = start, .iov_len = len};
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = access,
		.requested_key = key,
	};

	return fi_mr_regattr(domain, &attr, flags, mr);
}

static int reg(void *start, size_t len, uint64_t access, uint64_t key,
	       struct fid_mr **mr)
{
	return reg_flags(start, len, access, key, 0, mr);
}

static void end(struct fid_mr *mr)
{
	GOOD(fi_close(&mr->fid));
}

static ssize_t put(size_t len, void *desc, uint64_t addr, uint64_t key)
{
	return fi_write(ep, local, len, desc, self, addr, key, contexts);
}

static ssize_t get(size_t len, void *desc, uint64_t addr, uint64_t key)
{
	return fi_read(ep, local, len, desc, self, addr, key, contexts);
}

static void put_well(size_t len, void *desc, uint64_t addr, uint64_t key)
{
	memset(local, 0x5a, len);
	memset(window, 0, len);
	POST(put(len, desc, addr, key));
	done(contexts);
	POST(get(len, desc, addr, key)); /* what was written has arrived */
	done(contexts);
	for (size_t i = 0; i < len; i++)
		CHECK(local[i] == 0x5a);
}

static void *untouched(size_t len, int protection)
{
	void *start =
		mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(start != MAP_FAILED);
	return start;
}

/* -- cases: without demands
 * ------------------------------------------------------ */

static void case_key(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == 7);
	put_well(100, NULL, 0, 7);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 8));
	BAD("key", -FI_EKEYREJECTED, get(8, NULL, 0, 8));
	end(mr);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	CHECK(calls("write") >= 3 && calls("regattr") == 1);
	tear_down();
}

static void case_address(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, PAGE - 8, 7);
	BAD("address", -FI_EACCES, put(8, NULL, PAGE - 7, 7));
	BAD("address", -FI_EACCES, get(8, NULL, PAGE, 7));
	BAD("address", -FI_EACCES, put(8, NULL, (uintptr_t)window, 7));
	BAD("address", -FI_EACCES,
	    fi_inject_write(ep, local, 8, self, PAGE, 7));
	end(mr);
	tear_down();
}

static void case_rights(void)
{
	struct fid_mr *readable, *writable;
	uint64_t one = 1;

	set_up();
	GOOD(reg(window, PAGE, FI_REMOTE_READ, 7, &readable));
	GOOD(reg(more, PAGE, FI_REMOTE_WRITE, 8, &writable));
	BAD("rights", -FI_EACCES, put(8, NULL, 0, 7));
	BAD("rights", -FI_EACCES, get(8, NULL, 0, 8));
	BAD("rights", -FI_EACCES,
	    fi_fetch_atomic(ep, &one, 1, NULL, local, NULL, self, 0, 8,
			    FI_UINT64, FI_SUM, contexts));
	POST(put(8, NULL, 0, 8));
	done(contexts);
	POST(get(8, NULL, 0, 7));
	done(contexts);
	end(readable);
	end(writable);
	tear_down();
}

static void case_argument(void)
{
	struct iovec two[2] = {{window, 8}, {more, 8}};
	struct fid_mr *mr;

	set_up();
	BAD("argument", -FI_EINVAL, reg(window, 0, REMOTE, 7, &mr));
	BAD("argument", -FI_EINVAL, reg(window, 8, 0, 7, &mr));
	BAD("argument", -FI_EINVAL, reg(window, 8, 1ULL << 60, 7, &mr));
	BAD("argument", -FI_EINVAL,
	    fi_mr_reg(domain, window, 8, REMOTE, 8, 7, 0, &mr, NULL));
	BAD("argument", -FI_EINVAL,
	    fi_mr_regv(domain, two, 2, REMOTE, 0, 7, 0, &mr, NULL));
	GOOD(fi_mr_regv(domain, two, 1, REMOTE, 0, 7, 0, &mr, NULL));
	end(mr);
	GOOD(fi_mr_reg(domain, window, 8, REMOTE, 0, 7, 0, &mr, NULL));
	end(mr);
	tear_down();
}

static void case_flags(void)
{
	struct fid_mr *mr;

	set_up();
	BAD("flags", -FI_EBADFLAGS,
	    reg_flags(window, 8, REMOTE, 7, 1ULL << 33, &mr));
	BAD("flags", -FI_EBADFLAGS,
	    reg_flags(window, 8, REMOTE, 7, FI_RMA_PMEM, &mr));
	tear_down();
}

static void case_requested_key(void) /* DEMAND_KEY_SIZE=2 */
{
	struct fid_mr *mr, *again;

	set_up();
	CHECK(info->domain_attr->mr_key_size == 2);
	BAD("requested_key", -FI_EKEYREJECTED,
	    reg(window, 8, REMOTE, 0x10000, &mr));
	GOOD(reg(window, 8, REMOTE, 0xffff, &mr));
	expect(reg(more, 8, REMOTE, 0xffff, &again), -FI_ENOKEY, "twice");
	put_well(8, NULL, 0, 0xffff);
	end(mr);
	tear_down();
}

static void case_leak(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, 8, REMOTE, 7, &mr));
	close_endpoint();
	BAD("leak", -FI_EBUSY, fi_close(&domain->fid));
	end(mr);
	close_domain();
}

static void case_order(void)
{
	set_up();
	BAD("order", -FI_EBUSY, fi_close(&cq->fid));
	BAD("order", -FI_EBUSY, fi_close(&av->fid));
	BAD("order", -FI_EBUSY, fi_close(&domain->fid));
	tear_down();
}

static void case_atomic(void)
{
	uint64_t *counter = (uint64_t *)window, one = 1, old = 0, want = 42;
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	*counter = 41;
	POST(fi_fetch_atomic(ep, &one, 1, NULL, &old, NULL, self, 0, 7,
			     FI_UINT64, FI_SUM, contexts));
	done(contexts);
	CHECK(old == 41 && *counter == 42);
	POST(fi_compare_atomic(ep, &one, 1, NULL, &want, NULL, &old, NULL, self,
			       0, 7, FI_UINT64, FI_CSWAP, contexts));
	done(contexts);
	CHECK(old == 42 && *counter == 1);
	BAD("address", -FI_EACCES,
	    fi_atomic(ep, &one, 1, NULL, self, PAGE, 7, FI_UINT64, FI_SUM,
		      contexts));
	BAD("key", -FI_EKEYREJECTED,
	    fi_inject_atomic(ep, &one, 1, self, 0, 9, FI_UINT64, FI_SUM));
	end(mr);
	tear_down();
}

/* Nobody who does not obey is given it, and nobody who does not name it. */
static void case_offer(void) /* verbs */
{
	struct fi_info *h = hints(EVERY_MODE & ~FI_MR_LOCAL), *found;

	set_up();
	tear_down();
	expect(lib.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &found),
	       -FI_ENODATA, "without FI_MR_LOCAL");
	h->domain_attr->mr_mode = EVERY_MODE;
	free(h->fabric_attr->prov_name);
	h->fabric_attr->prov_name = NULL;
	GOOD(lib.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &found));
	for (struct fi_info *i = found; i; i = i->next)
		CHECK(!strstr(i->fabric_attr->prov_name, "demand"));
	lib.freeinfo(found);
	lib.freeinfo(h);
}

/* -- local
 * ----------------------------------------------------------------------- */

static void case_origin(void)
{
	struct iovec iov[2] = {{local, 8}, {more, 8}};
	struct fid_mr *target, *mr, *small;
	void *desc[2], *one[2];
	uint64_t word = 1;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &target));
	GOOD(reg(local, PAGE, ALL & ~REMOTE, 8, &mr));
	GOOD(reg(more, 8, ALL & ~REMOTE, 9, &small));
	desc[0] = one[0] = fi_mr_desc(mr);
	desc[1] = fi_mr_desc(small);
	one[1] = NULL;
	put_well(PAGE, desc[0], 0, 7);
	BAD("origin", -FI_EINVAL, put(8, NULL, 0, 7));
	BAD("origin", -FI_EINVAL, get(8, NULL, 0, 7));
	BAD("origin", -FI_EINVAL, put(8, desc[1], 0, 7));
	BAD("origin", -FI_EINVAL, put(PAGE + 1, desc[0], 0, 7));
	BAD("origin", -FI_EINVAL, fi_send(ep, local, 8, NULL, self, contexts));
	BAD("origin", -FI_EINVAL, fi_recv(ep, local, 8, NULL, self, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_tsend(ep, local, 8, NULL, self, 1, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_trecv(ep, local, 8, NULL, self, 1, 0, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_writev(ep, iov, one, 2, self, 0, 7, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_readv(ep, iov, one, 2, self, 0, 7, contexts));
	BAD("origin", -FI_EINVAL, fi_sendv(ep, iov, one, 2, self, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_fetch_atomic(ep, local, 1, desc[0], &word, NULL, self, 0, 7,
			    FI_UINT64, FI_SUM, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_atomic(ep, &word, 1, NULL, self, 0, 7, FI_UINT64, FI_SUM,
		      contexts));
	POST(fi_writev(ep, iov, desc, 2, self, 0, 7, contexts));
	done(contexts);
	POST(fi_inject_write(ep, &word, 8, self, 0, 7));
	POST(fi_fetch_atomic(ep, local, 1, desc[0], local + 8, desc[0], self, 0,
			     7, FI_UINT64, FI_SUM, contexts));
	done(contexts);
	end(small);
	end(mr);
	end(target);
	tear_down();
}

static void case_desc(void)
{
	struct fid_mr *target, *mr;
	void *desc;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &target));
	GOOD(reg(local, PAGE, ALL & ~REMOTE, 8, &mr));
	desc = fi_mr_desc(mr);
	BAD("desc", -FI_EINVAL, put(8, &desc, 0, 7));
	end(mr);
	BAD("desc", -FI_EINVAL, put(8, desc, 0, 7));
	end(target);
	tear_down();
}

static void case_local_rights(void)
{
	struct fid_mr *target, *mr;
	void *desc;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &target));
	GOOD(reg(local, PAGE, FI_WRITE, 8, &mr));
	desc = fi_mr_desc(mr);
	POST(put(8, desc, 0, 7));
	done(contexts);
	BAD("rights", -FI_EACCES, get(8, desc, 0, 7));
	BAD("rights", -FI_EACCES, fi_send(ep, local, 8, desc, self, contexts));
	BAD("rights", -FI_EACCES, fi_recv(ep, local, 8, desc, self, contexts));
	end(mr);
	end(target);
	tear_down();
}

static void case_busy(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(local, PAGE, FI_RECV, 8, &mr));
	GOOD(fi_recv(ep, local, 8, fi_mr_desc(mr), FI_ADDR_UNSPEC, contexts));
	BAD("busy", -FI_EBUSY, fi_close(&mr->fid));
	GOOD(fi_cancel(&ep->fid, contexts));
	CHECK(failed(contexts) == FI_ECANCELED);
	GOOD(fi_recv(ep, local, 8, fi_mr_desc(mr), FI_ADDR_UNSPEC, contexts));
	close_endpoint(); /* which ends it */
	end(mr);
	close_domain();
}

static void case_messages(void)
{
	struct fid_mr *mr;
	void *desc;

	set_up();
	GOOD(reg(local, PAGE, FI_SEND | FI_RECV, 8, &mr));
	desc = fi_mr_desc(mr);
	GOOD(fi_recv(ep, local, 8, desc, FI_ADDR_UNSPEC, contexts));
	memcpy(local + 8, "12345678", 8);
	POST(fi_inject(ep, local + 8, 8, self));
	done(contexts);
	CHECK(!memcmp(local, "12345678", 8));
	GOOD(fi_trecv(ep, local, 8, desc, FI_ADDR_UNSPEC, 3, 0, contexts));
	memcpy(local + 8, "abcdefgh", 8);
	POST(fi_tinject(ep, local + 8, 8, self, 3));
	done(contexts);
	CHECK(!memcmp(local, "abcdefgh", 8));
	end(mr);
	tear_down();
}

/* -- addresses and keys
 * ------------------------------------------------------------ */

static void case_virt_addr(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window + 16, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, (uintptr_t)window + 16, 7);
	CHECK(window[16] == 0x5a && !window[15]);
	BAD("address", -FI_EACCES, put(8, NULL, 0, 7));
	BAD("address", -FI_EACCES, put(8, NULL, (uintptr_t)window + 15, 7));
	BAD("address", -FI_EACCES,
	    put(8, NULL, (uintptr_t)window + 16 + PAGE - 7, 7));
	end(mr);
	tear_down();
}

static void case_prov_key(void)
{
	struct fid_mr *mr, *other;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	GOOD(reg(more, PAGE, REMOTE, 7, &other));
	CHECK(fi_mr_key(mr) != fi_mr_key(other));
	put_well(8, NULL, 0, fi_mr_key(mr));
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	end(mr);
	end(other);
	tear_down();
}

static void case_raw(void) /* any DEMAND_KEY_SIZE */
{
	size_t size = strtoull(getenv("DEMAND_KEY_SIZE"), NULL, 10);
	static uint8_t raw[4096];
	struct fid_mr *mr;
	uint64_t base = 1, key;
	size_t len = size - 1;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	expect(fi_mr_raw_attr(mr, &base, raw, &len, 0), -FI_ETOOSMALL, "short");
	CHECK(len == size);
	GOOD(fi_mr_raw_attr(mr, &base, raw, &len, 0));
	CHECK(base == 0);
	BAD("raw_key", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	GOOD(fi_mr_map_raw(domain, base, raw, len, &key, 0));
	put_well(8, NULL, 0, key);
	if (size > 8) {
		raw[size - 1] ^= 1;
		BAD("raw_key", -FI_EKEYREJECTED,
		    fi_mr_map_raw(domain, base, raw, len, &base, 0));
	}
	BAD("raw_key", -FI_EKEYREJECTED,
	    fi_mr_map_raw(domain, base, raw, len + 1, &base, 0));
	end(mr);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, key));
	close_endpoint();
	BAD("leak", -FI_EBUSY, fi_close(&domain->fid));
	open_endpoint();
	GOOD(fi_mr_unmap_key(domain, key));
	BAD("raw_key", -FI_EKEYREJECTED, put(8, NULL, 0, key));
	BAD("raw_key", -FI_EINVAL, fi_mr_unmap_key(domain, key));
	tear_down();
}

/* -- pages
 * ------------------------------------------------------------------------ */

static void case_allocated(void)
{
	char *pages = untouched(4 * PAGE, PROT_READ | PROT_WRITE);
	struct fid_mr *mr;

	set_up();
	BAD("allocated", -FI_EFAULT, reg(pages, 4 * PAGE, REMOTE, 7, &mr));
	for (int i = 0; i < 3; i++)
		pages[i * PAGE] = 1;
	BAD("allocated", -FI_EFAULT,
	    reg(pages + 8, 4 * PAGE - 8, REMOTE, 7, &mr));
	GOOD(reg(pages + 8, 3 * PAGE - 8, REMOTE, 7, &mr));
	end(mr);
	pages[3 * PAGE] = 1;
	GOOD(reg(pages, 4 * PAGE, REMOTE, 7, &mr));
	end(mr);
	tear_down();
}

static void case_os_access(void)
{
	char *page = untouched(PAGE, PROT_READ);
	struct fid_mr *mr;

	CHECK(*(volatile char *)page == 0);
	set_up();
	BAD("os_access", -FI_EACCES, reg(page, PAGE, REMOTE, 7, &mr));
	GOOD(reg(page, PAGE, FI_REMOTE_READ, 7, &mr));
	end(mr);
	tear_down();
}

static void case_refresh(void)
{
	char *pages = untouched(4 * PAGE, PROT_READ | PROT_WRITE);
	struct iovec second = {pages + PAGE + 8, 8};
	struct iovec outside = {pages + 4 * PAGE - 8, 16};
	struct fid_mr *mr;

	set_up();
	pages[0] = 1;
	GOOD(reg(pages + 8, 4 * PAGE - 8, REMOTE, 7, &mr));
	POST(put(PAGE - 8, NULL, 0, 7));
	done(contexts);
	BAD("refresh", -FI_EFAULT, put(PAGE - 7, NULL, 0, 7));
	pages[PAGE] = 1;
	BAD("refresh", -FI_EFAULT, get(8, NULL, PAGE, 7));
	GOOD(fi_mr_refresh(mr, &second, 1, 0));
	POST(get(8, NULL, PAGE, 7));
	done(contexts);
	BAD("address", -FI_EINVAL, fi_mr_refresh(mr, &outside, 1, 0));
	pages[2 * PAGE] = pages[3 * PAGE] = 1;
	BAD("refresh", -FI_EFAULT, get(8, NULL, 3 * PAGE, 7));
	GOOD(fi_mr_refresh(mr, NULL, 0, 0));
	POST(get(8, NULL, 3 * PAGE, 7));
	done(contexts);
	end(mr);
	tear_down();
}

/* -- bind and enable
 * --------------------------------------------------------------- */

static void case_unbound(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	BAD("unbound", -FI_EINVAL, fi_mr_enable(mr));
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	GOOD(fi_mr_bind(mr, &ep->fid, 0));
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	GOOD(fi_mr_enable(mr));
	CHECK(fi_mr_key(mr) == 7);
	put_well(8, NULL, 0, 7);
	BAD("unbound", -FI_EINVAL, fi_mr_enable(mr));
	BAD("unbound", -FI_EINVAL, fi_mr_bind(mr, &ep->fid, 0));
	BAD("order", -FI_EBUSY, fi_close(&ep->fid));
	end(mr);
	tear_down();
}

static void case_rma_event(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fid_cntr *cntr;
	struct fid_mr *mr;

	set_up();
	GOOD(fi_cntr_open(domain, &attr, &cntr, NULL));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr)); /* without the flag */
	BAD("unbound", -FI_EINVAL, fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	end(mr);
	GOOD(reg_flags(window, PAGE, REMOTE, 7, FI_RMA_EVENT, &mr));
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	BAD("unbound", -FI_EINVAL, fi_mr_enable(mr));
	BAD("argument", -FI_EINVAL, fi_mr_bind(mr, &cntr->fid, 0));
	GOOD(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	GOOD(fi_mr_enable(mr));
	for (int i = 0; i < 3; i++)
		put_well(8, NULL, 0, 7);
	CHECK(fi_cntr_read(cntr) == 3);
	BAD("order", -FI_EBUSY, fi_close(&cntr->fid));
	end(mr);
	CHECK(fi_cntr_read(cntr) == 3);
	GOOD(fi_close(&cntr->fid));
	tear_down();
}

/* -- memory kinds, collectives, persistent memory
 * ------------------------------------ */

static void case_hmem(void)
{
	struct iovec iov = {more, PAGE};
	struct fi_mr_attr attr = {.mr_iov = &iov,
				  .iov_count = 1,
				  .access = ALL,
				  .requested_key = 8,
				  .iface = FI_HMEM_CUDA};
	struct fid_mr *mr, *on_device;

	set_up();
	CHECK(info->caps & FI_HMEM);
	device(more, PAGE, FI_HMEM_CUDA);
	BAD("hmem", -FI_EINVAL,
	    fi_mr_reg(domain, window, 8, REMOTE, 0, 7, 0, &mr, NULL));
	BAD("hmem", -FI_EINVAL, reg(more, PAGE, REMOTE, 7, &mr));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	GOOD(fi_mr_regattr(domain, &attr, 0, &on_device));
	put_well(8, NULL, 0, 7);
	BAD("origin", -FI_EINVAL,
	    fi_write(ep, more, 8, NULL, self, 0, 7, contexts));
	POST(fi_write(ep, more, 8, fi_mr_desc(on_device), self, 0, 7,
		      contexts));
	done(contexts);
	end(mr);
	end(on_device);
	tear_down();
}

static void case_collective(void)
{
	struct fid_mr *mr;

	set_up();
	BAD("collective", -FI_EINVAL, reg(window, PAGE, REMOTE, 7, &mr));
	GOOD(reg(window, PAGE, REMOTE | FI_COLLECTIVE, 7, &mr));
	put_well(8, NULL, 0, 7);
	end(mr);
	tear_down();
}

static ssize_t commit(uint64_t key)
{
	struct iovec iov = {local, 8};
	struct fi_rma_iov rma = {.addr = 0, .len = 8, .key = key};
	struct fi_msg_rma msg = {.msg_iov = &iov,
				 .iov_count = 1,
				 .addr = self,
				 .rma_iov = &rma,
				 .rma_iov_count = 1,
				 .context = contexts};

	return fi_writemsg(ep, &msg, FI_COMPLETION | FI_COMMIT_COMPLETE);
}

static void case_pmem(void)
{
	struct fid_mr *plain, *lasting;

	set_up();
	CHECK(info->caps & FI_RMA_PMEM);
	GOOD(reg(more, PAGE, REMOTE, 7, &plain));
	GOOD(reg_flags(window, PAGE, REMOTE, 8, FI_RMA_PMEM, &lasting));
	BAD("flags", -FI_EBADFLAGS, commit(7));
	POST(commit(8));
	done(contexts);
	end(plain);
	end(lasting);
	tear_down();
}

/* -- asynchronous registration
 * --------------------------------------------------------- */

static ssize_t event(struct fid_eq *eq, struct fid_mr *mr)
{
	struct fi_eq_entry entry;
	uint32_t what;
	ssize_t n = fi_eq_sread(eq, &what, &entry, sizeof(entry), 5000, 0);

	if (n > 0)
		CHECK(n == sizeof(entry) && what == FI_MR_COMPLETE &&
		      entry.fid == &mr->fid);
	return n > 0 ? 0 : n;
}

static void case_async(void) /* DEMAND_FAULT=mr_complete:3:ENOMEM */
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_err_entry error = {0};
	struct fid_eq *eq, *late;
	struct fid_mr *mr, *other;
	uint32_t what;

	set_up();
	expect(reg(window, PAGE, REMOTE, 7, &mr), -FI_ENOEQ, "no EQ");
	GOOD(fi_eq_open(fabric, &attr, &eq, NULL));
	GOOD(fi_eq_open(fabric, &attr, &late, NULL));
	GOOD(fi_domain_bind(domain, &eq->fid, FI_REG_MR));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	CHECK(fi_eq_read(eq, &what, &error, sizeof(error), 0) == -FI_EAGAIN);
	GOOD(event(eq, mr));
	CHECK(fi_mr_key(mr) == 7);
	put_well(8, NULL, 0, 7);
	GOOD(reg(more, PAGE, REMOTE, 8, &other));
	GOOD(event(eq, other));
	end(other);
	BAD("unbound", -FI_EINVAL,
	    fi_domain_bind(domain, &late->fid, FI_REG_MR));
	GOOD(reg(more, PAGE, REMOTE, 8, &other));
	expect(event(eq, other), -FI_EAVAIL, "a fault");
	CHECK(fi_eq_readerr(eq, &error, 0) > 0);
	CHECK(error.err == FI_ENOMEM && error.fid == &other->fid);
	end(other);
	end(mr);
	BAD("order", -FI_EBUSY, fi_close(&eq->fid));
	GOOD(fi_close(&late->fid));
	close_endpoint();
	GOOD(fi_close(&domain->fid));
	GOOD(fi_close(&eq->fid));
	GOOD(fi_close(&fabric->fid));
	lib.freeinfo(info);
}

/* -- faults and delays
 * ------------------------------------------------------------------ */

static void case_faults(void) /* DEMAND_FAULT is set here */
{
	static const struct {
		const char *name;
		int code;
	} errors[] = {
		{"ENOKEY", FI_ENOKEY},
		{"ENOSYS", FI_ENOSYS},
		{"EKEYREJECTED", FI_EKEYREJECTED},
		{"EBADFLAGS", FI_EBADFLAGS},
		{"ETOOSMALL", FI_ETOOSMALL},
		{"EBUSY", FI_EBUSY},
		{"12", FI_ENOMEM},
	};
	struct fid_mr *mr;
	char text[64];

	set_up();
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		snprintf(text, sizeof(text), "read:1:EIO,regattr:%zu:%s",
			 2 * i + 2, errors[i].name);
		setenv("DEMAND_FAULT", text, 1);
		GOOD(reg(window, PAGE, REMOTE, 7, &mr));
		end(mr);
		expect(reg(window, PAGE, REMOTE, 7, &mr), -errors[i].code,
		       errors[i].name);
	}
	setenv("DEMAND_FAULT", "close_mr:*:EBUSY", 1);
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	expect(fi_close(&mr->fid), -FI_EBUSY, "close");
	expect(fi_close(&mr->fid), -FI_EBUSY, "close");
	unsetenv("DEMAND_FAULT");
	put_well(8, NULL, 0, 7);
	end(mr);
	tear_down();
}

static void case_completion(void) /* DEMAND_FAULT=completion:2:EIO */
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	POST(put(8, NULL, 0, 7));
	done(contexts);
	POST(fi_write(ep, local, 8, NULL, self, 0, 7, contexts + 1));
	CHECK(failed(contexts + 1) == FI_EIO);
	POST(put(8, NULL, 0, 7));
	done(contexts);
	end(mr);
	tear_down();
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Late, and whoever sleeps on the descriptor is woken. */
static void case_delay(void) /* DEMAND_DELAY_US=50000 */
{
	struct fid *fids[1];
	struct fi_cq_msg_entry entry;
	struct fid_mr *mr;
	double start;
	int fd;

	set_up();
	GOOD(fi_control(&cq->fid, FI_GETWAIT, &fd));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	POST(put(8, NULL, 0, 7));
	start = now();
	fids[0] = &cq->fid;
	while (fi_cq_read(cq, &entry, 1) == -FI_EAGAIN) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		CHECK(now() - start < 5);
		if (!fi_trywait(fabric, fids, 1))
			CHECK(poll(&p, 1, 5000) == 1);
	}
	CHECK(now() - start > 0.045);
	end(mr);
	tear_down();
}

/* -- two libfabrics in a process
 * ---------------------------------------------------------- */

static const char *other;

static void case_two(void)
{
	struct fid_domain *first = domain;
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, 0, 7);
	end(mr);
	tear_down();
	load(other);
	set_up();
	CHECK(domain != first);
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, 0, 7);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 8));
	end(mr);
	tear_down();
}

/* -- all of them
 * ----------------------------------------------------------------------------
 */

static const struct {
	const char *name, *mode, *environment, *kinds;
	void (*run)(void);
} cases[] = {
	{"key", "none", "", "key", case_key},
	{"address", "none", "", "address", case_address},
	{"rights", "none", "", "rights", case_rights},
	{"argument", "none", "", "argument", case_argument},
	{"flags", "none", "", "flags", case_flags},
	{"requested_key", "none", "DEMAND_KEY_SIZE=2", "requested_key",
	 case_requested_key},
	{"leak", "none", "", "leak", case_leak},
	{"order", "none", "", "order", case_order},
	{"atomic", "none", "", "address key", case_atomic},
	{"offer", "verbs", "", "", case_offer},
	{"origin", "local", "", "origin", case_origin},
	{"desc", "local", "", "desc", case_desc},
	{"local_rights", "local", "", "rights", case_local_rights},
	{"busy", "local", "", "busy", case_busy},
	{"messages", "local", "", "", case_messages},
	{"virt_addr", "virt_addr", "", "address", case_virt_addr},
	{"prov_key", "prov_key", "", "key", case_prov_key},
	{"raw_1", "raw", "DEMAND_KEY_SIZE=1", "raw_key leak", case_raw},
	{"raw_32", "raw", "DEMAND_KEY_SIZE=32", "raw_key leak", case_raw},
	{"raw_4096", "raw", "DEMAND_KEY_SIZE=4096", "raw_key leak", case_raw},
	{"allocated", "allocated", "", "allocated", case_allocated},
	{"os_access", "allocated", "", "os_access", case_os_access},
	{"refresh", "mmu_notify", "", "refresh", case_refresh},
	{"unbound", "endpoint", "", "unbound disabled order", case_unbound},
	{"rma_event", "rma_event", "", "unbound", case_rma_event},
	{"hmem", "hmem", "", "hmem origin", case_hmem},
	{"collective", "collective", "", "collective", case_collective},
	{"pmem", "pmem", "", "flags", case_pmem},
	{"async", "async", "DEMAND_FAULT=mr_complete:3:ENOMEM",
	 "disabled unbound order", case_async},
	{"faults", "none", "", "", case_faults},
	{"completion", "none", "DEMAND_FAULT=completion:2:EIO", "",
	 case_completion},
	{"delay", "none", "DEMAND_DELAY_US=50000", "", case_delay},
	{"two", "none", "", "key", case_two},
};

int main(int argc, char **argv)
{
	size_t n = sizeof(cases) / sizeof(*cases), i = 0;

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (i = 0; i < n; i++)
			printf("%s: %s\n", cases[i].name, cases[i].kinds);
		return 0;
	}
	while (argc >= 3 && i < n && strcmp(cases[i].name, argv[2]))
		i++;
	if (argc < 3 || i == n) {
		fprintf(stderr, "selftest LIBFABRIC CASE [OTHER] | --list\n");
		return 2;
	}
	other = argv[3];
	setenv("DEMAND_MODE", cases[i].mode, 1);
	if (*cases[i].environment)
		putenv((char *)cases[i].environment);
	load(argv[1]);
	find();
	lib.freeinfo(info);
	find_counts();
	cases[i].run();
	return 0;
}
