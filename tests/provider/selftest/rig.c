/* SPDX-License-Identifier: BSD-3-Clause */
/* The rig of the self-test. */
#define _GNU_SOURCE
#include "selftest.h"

#include <dlfcn.h>

struct library lib;
uint64_t (*violations)(const char *kind);
uint64_t (*calls)(const char *name);
int (*device)(const void *start, size_t len, int iface);

struct fi_info *info;
struct fid_fabric *fabric;
struct fid_domain *domain;
struct fid_av *av;
struct fid_cq *cq;
struct fid_ep *ep;
fi_addr_t self;

char local[2 * PAGE], window[2 * PAGE], more[PAGE];
struct fi_context2 contexts[8];

void check(bool condition, const char *text)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", text);
	_exit(1);
}

void good(long ret, const char *text)
{
	if (!ret)
		return;
	fprintf(stderr, "%s: %ld\n", text, ret);
	_exit(1);
}

void expect(long ret, long code, const char *text)
{
	if (ret == code)
		return;
	fprintf(stderr, "%s: %ld, not %ld\n", text, ret, code);
	_exit(1);
}

/* -- a fabric ------------------------------------------------------------- */

void load(const char *path)
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

void find_counts(void)
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

struct fi_info *hints(int mr_mode)
{
	struct fi_info *h = lib.dupinfo(NULL);

	CHECK(h);
	h->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = mr_mode;
	h->fabric_attr->prov_name = strdup("demand");
	return h;
}

void find(void)
{
	struct fi_info *h = hints(EVERY_MODE);

	GOOD(lib.getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, h,
			 &info));
	lib.freeinfo(h);
	CHECK(!strcmp(info->fabric_attr->prov_name, "demand"));
}

void open_domain(void)
{
	GOOD(lib.fabric(info->fabric_attr, &fabric, NULL));
	GOOD(fi_domain(fabric, info, &domain, NULL));
}

void open_endpoint(void)
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

void close_endpoint(void)
{
	GOOD(fi_close(&ep->fid));
	GOOD(fi_close(&cq->fid));
	GOOD(fi_close(&av->fid));
}

void close_domain(void)
{
	GOOD(fi_close(&domain->fid));
	GOOD(fi_close(&fabric->fid));
	lib.freeinfo(info);
}

void set_up(void)
{
	find();
	open_domain();
	open_endpoint();
}

void tear_down(void)
{
	close_endpoint();
	close_domain();
}

/* One completion; its context is that of the operation. */
void done(void *context)
{
	struct fi_cq_msg_entry entry;
	ssize_t n;

	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	CHECK(n == 1);
	CHECK(entry.op_context == context);
}

int failed(void *context)
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

int reg_flags(void *start, size_t len, uint64_t access, uint64_t key,
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

int reg(void *start, size_t len, uint64_t access, uint64_t key,
	struct fid_mr **mr)
{
	return reg_flags(start, len, access, key, 0, mr);
}

void end(struct fid_mr *mr)
{
	GOOD(fi_close(&mr->fid));
}

ssize_t put(size_t len, void *desc, uint64_t addr, uint64_t key)
{
	return fi_write(ep, local, len, desc, self, addr, key, contexts);
}

ssize_t get(size_t len, void *desc, uint64_t addr, uint64_t key)
{
	return fi_read(ep, local, len, desc, self, addr, key, contexts);
}

void put_well(size_t len, void *desc, uint64_t addr, uint64_t key)
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

void *untouched(size_t len, int protection)
{
	void *start =
		mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(start != MAP_FAILED);
	return start;
}
