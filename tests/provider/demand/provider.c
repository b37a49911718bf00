/* SPDX-License-Identifier: BSD-3-Clause */
/* Where libfabric comes in; what is demanded; fabric. */
#define _GNU_SOURCE
#include "demand.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

/* What a provider over this one, as ofi_rxm, asks for; not in a header. */
#define CORE_PROV_ONLY (1ULL << 59)

#define EXTRA_CAPS (FI_RMA_EVENT | FI_HMEM | FI_RMA_PMEM | FI_COLLECTIVE)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void dm_lock(void)
{
	pthread_mutex_lock(&lock);
}

void dm_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

uint64_t dm_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t dm_random(void)
{
	uint64_t value;

	if (getrandom(&value, sizeof(value), 0) != sizeof(value))
		abort();
	return value;
}

/* -- what is demanded ----------------------------------------------------- */

#define VERBS (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

static const struct {
	const char *name;
	uint64_t mr_mode;
	bool async, pmem;
} modes[] = {
	{"none", 0, false, false},
	{"verbs", VERBS, false, false},
	{"efa", VERBS & ~(uint64_t)FI_MR_LOCAL, false, false},
	{"cxi", FI_MR_ENDPOINT | FI_MR_ALLOCATED, false, false},
	{"local", FI_MR_LOCAL, false, false},
	{"raw", FI_MR_RAW, false, false},
	{"virt_addr", FI_MR_VIRT_ADDR, false, false},
	{"allocated", FI_MR_ALLOCATED, false, false},
	{"prov_key", FI_MR_PROV_KEY, false, false},
	{"mmu_notify", FI_MR_MMU_NOTIFY, false, false},
	{"rma_event", FI_MR_RMA_EVENT, false, false},
	{"endpoint", FI_MR_ENDPOINT, false, false},
	{"hmem", FI_MR_HMEM, false, false},
	{"collective", FI_MR_COLLECTIVE, false, false},
	{"async", 0, true, false},
	{"pmem", 0, false, true},
};

static struct dm_demands demands;

static size_t number(const char *name, size_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* DEMAND_MODE: names of the table, with + between them. */
static void read_demands(void)
{
	const char *text = getenv("DEMAND_MODE");

	for (; text && *text; text += *text == '+') {
		size_t len = strcspn(text, "+"), i = 0;

		while (i < sizeof(modes) / sizeof(*modes) &&
		       (strlen(modes[i].name) != len ||
			strncmp(modes[i].name, text, len)))
			i++;
		if (i == sizeof(modes) / sizeof(*modes)) {
			fprintf(stderr, "DEMAND_MODE=%s: unknown\n", text);
			abort();
		}
		demands.mr_mode |= modes[i].mr_mode;
		demands.async |= modes[i].async;
		demands.pmem |= modes[i].pmem;
		text += len;
	}
	demands.key_size =
		number("DEMAND_KEY_SIZE", demands.mr_mode & FI_MR_RAW ? 32 : 8);
	demands.auth_key_size = number("DEMAND_AUTH_KEY_SIZE", 0);
	demands.iov_limit = number("DEMAND_IOV_LIMIT", 1);
	demands.max_msg = number("DEMAND_MAX_MSG", 0);
	demands.delay_ns = number("DEMAND_DELAY_US", 0) * 1000;
	demands.async_delay_ns = number("DEMAND_ASYNC_US", 1000) * 1000;
	if (demands.iov_limit > DM_PIECES || !demands.key_size ||
	    demands.key_size > DM_RAW_LIMIT ||
	    (!(demands.mr_mode & FI_MR_RAW) && demands.key_size > 8)) {
		fprintf(stderr, "DEMAND_KEY_SIZE or DEMAND_IOV_LIMIT\n");
		abort();
	}
}

const struct dm_demands *dm_demands(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_demands);
	return &demands;
}

bool dm_demanded(uint64_t bit)
{
	return dm_demands()->mr_mode & bit;
}

/* -- tables of operations ------------------------------------------------- */

struct head {
	void *owner;
	max_align_t align[];
};

/* Of the size that it says itself to have: a newer libfabric's is larger. */
void *dm_ops_copy(const void *table, void *owner)
{
	size_t size = *(const size_t *)table;
	struct head *head = calloc(1, sizeof(*head) + size);

	if (!head)
		abort();
	head->owner = owner;
	memcpy(head->align, table, size);
	return head->align;
}

void *dm_ops_owner(const void *copy)
{
	return ((const struct head *)copy - 1)->owner;
}

void dm_ops_free(void *copy)
{
	if (copy)
		free((struct head *)copy - 1);
}

int dm_close_lower(const struct fi_ops *lower, struct fid *fid,
		   const char *what)
{
	int ret = lower->close(fid);

	if (ret == -FI_EBUSY)
		dm_violated(DM_order, ret, "%s closed while in use", what);
	return ret;
}

/* -- fabric --------------------------------------------------------------- */

/* What the lower provider is to see of an info that was given out. */
struct fi_info *dm_lower_info(struct dm_library *library,
			      const struct fi_info *info)
{
	struct fi_info *lower = library->dupinfo(info);

	if (!lower)
		return NULL;
	free(lower->fabric_attr->prov_name);
	lower->fabric_attr->prov_name = strdup(LOWER);
	lower->caps &= ~EXTRA_CAPS;
	if (lower->tx_attr)
		lower->tx_attr->caps &= ~EXTRA_CAPS;
	if (lower->rx_attr)
		lower->rx_attr->caps &= ~EXTRA_CAPS;
	lower->domain_attr->caps &= ~EXTRA_CAPS;
	lower->domain_attr->mr_mode = 0;
	lower->domain_attr->mr_key_size = 0;
	lower->domain_attr->mr_iov_limit = 0;
	lower->domain_attr->auth_key_size = 0;
	lower->ep_attr->auth_key_size = 0;
	return lower;
}

static struct dm_fabric *fabric_of(struct fid *fid)
{
	return dm_ops_owner(fid->ops);
}

static int fabric_close(struct fid *fid)
{
	struct dm_fabric *f = fabric_of(fid);
	void *copies[] = {fid->ops, ((struct fid_fabric *)fid)->ops};
	int ret = dm_close_lower(f->fid_ops, fid, "fabric");

	if (ret)
		return ret;
	dm_ops_free(copies[0]);
	dm_ops_free(copies[1]);
	free(f);
	return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info,
		       struct fid_domain **domain, void *context)
{
	struct dm_fabric *f = fabric_of(&fabric->fid);
	struct fi_info *lower = dm_lower_info(f->library, info);
	int ret;

	if (!lower)
		return -FI_ENOMEM;
	ret = f->ops->domain(fabric, lower, domain, context);
	f->library->freeinfo(lower);
	if (!ret)
		dm_domain_patch(f, *domain);
	return ret;
}

static int open_domain2(struct fid_fabric *fabric, struct fi_info *info,
			struct fid_domain **domain, uint64_t flags,
			void *context)
{
	if (flags)
		return -FI_EBADFLAGS;
	return open_domain(fabric, info, domain, context);
}

static int open_eq(struct fid_fabric *fabric, struct fi_eq_attr *attr,
		   struct fid_eq **eq, void *context)
{
	struct dm_fabric *f = fabric_of(&fabric->fid);
	int ret = f->ops->eq_open(fabric, attr, eq, context);

	return ret ? ret : dm_eq_patch(*eq);
}

/* A completion that is held back, or an error of ours, is something to read. */
static int trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	struct dm_fabric *f = fabric_of(&fabric->fid);

	for (int i = 0; i < count; i++)
		if (fids[i]->fclass == FI_CLASS_CQ && dm_cq_waiting(fids[i]))
			return -FI_EAGAIN;
	return f->ops->trywait(fabric, fids, count);
}

static struct dm_library *caller(const void *address);

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
		       void *context)
{
	struct dm_library *library = caller(__builtin_return_address(0));
	char *name = attr->prov_name;
	struct dm_fabric *f;
	int ret;

	attr->prov_name = (char *)LOWER;
	ret = library->fabric(attr, fabric, context);
	attr->prov_name = name;
	if (ret)
		return ret;
	f = calloc(1, sizeof(*f));
	if (!f)
		abort();
	f->library = library;
	f->fid_ops = (*fabric)->fid.ops;
	f->ops = (*fabric)->ops;
	(*fabric)->fid.ops = dm_ops_copy(f->fid_ops, f);
	(*fabric)->fid.ops->close = fabric_close;
	(*fabric)->ops = dm_ops_copy(f->ops, f);
	(*fabric)->ops->domain = open_domain;
	if (FI_CHECK_OP(f->ops, struct fi_ops_fabric, domain2))
		(*fabric)->ops->domain2 = open_domain2;
	(*fabric)->ops->eq_open = open_eq;
	(*fabric)->ops->trywait = trywait;
	return 0;
}

/* -- info ----------------------------------------------------------------- */

/* What the application offers to obey; FI_MR_BASIC stands for three bits. */
static uint64_t offered(const struct fi_info *hints)
{
	uint64_t mode = (uint64_t)hints->domain_attr->mr_mode;

	if (mode & RMX_MR_BASIC)
		mode |= FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	if (hints->mode & RMX_LOCAL_MR)
		mode |= FI_MR_LOCAL;
	return mode;
}

static int getinfo(uint32_t version, const char *node, const char *service,
		   uint64_t flags, const struct fi_info *hints,
		   struct fi_info **info)
{
	struct dm_library *library = caller(__builtin_return_address(0));
	const struct dm_demands *d = dm_demands();
	struct fi_info *lower;
	uint64_t extra = FI_RMA_EVENT;
	int ret;

	/* only for those who ask for it by name: MPI is not to use it */
	if (!hints || !hints->fabric_attr || !hints->fabric_attr->prov_name ||
	    strcasecmp(hints->fabric_attr->prov_name, library->provider.name) ||
	    flags & CORE_PROV_ONLY || !hints->domain_attr ||
	    d->mr_mode & ~offered(hints))
		return -FI_ENODATA;
	if (d->mr_mode & FI_MR_HMEM)
		extra |= FI_HMEM;
	if (d->mr_mode & FI_MR_COLLECTIVE)
		extra |= FI_COLLECTIVE;
	if (d->pmem)
		extra |= FI_RMA_PMEM;
	if (hints->caps & EXTRA_CAPS & ~extra)
		return -FI_ENODATA;
	lower = dm_lower_info(library, hints);
	if (!lower)
		return -FI_ENOMEM;
	ret = library->getinfo(version, node, service, flags & ~CORE_PROV_ONLY,
			       lower, info);
	library->freeinfo(lower);
	if (ret)
		return ret;
	for (struct fi_info *i = *info; i; i = i->next) {
		free(i->fabric_attr->prov_name);
		i->fabric_attr->prov_name = NULL; /* libfabric sets it */
		i->caps |= extra;
		i->domain_attr->mr_mode = (int)d->mr_mode;
		i->domain_attr->mr_key_size = d->key_size;
		i->domain_attr->mr_iov_limit = d->iov_limit;
		i->domain_attr->auth_key_size = d->auth_key_size;
		if (d->max_msg)
			i->ep_attr->max_msg_size = d->max_msg;
		i->domain_attr->caps |= extra;
	}
	return 0;
}

static void cleanup(void)
{
}

/* -- libraries ------------------------------------------------------------ */

/*
 * The libfabric that a call comes from. It may have been opened RTLD_LOCAL, so
 * that its symbols are in no scope of ours.
 */
static struct dm_library *caller(const void *address)
{
	static struct dm_library *libraries;
	struct dm_library *library;
	uint32_t (*version)(void);
	void *handle;
	Dl_info where;

	if (!dladdr(address, &where))
		abort();
	dm_lock();
	for (library = libraries; library; library = library->next)
		if (library->base == where.dli_fbase)
			goto unlock;
	handle = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	library = calloc(1, sizeof(*library));
	if (!handle || !library)
		abort();
	/* the default versions, which providers inside libfabric use too */
	*(void **)&library->getinfo = dlsym(handle, "fi_getinfo");
	*(void **)&library->dupinfo = dlsym(handle, "fi_dupinfo");
	*(void **)&library->freeinfo = dlsym(handle, "fi_freeinfo");
	*(void **)&library->fabric = dlsym(handle, "fi_fabric");
	*(void **)&version = dlsym(handle, "fi_version");
	library->base = where.dli_fbase;
	library->provider = (struct fi_provider){
		.version = FI_VERSION(1, 0),
		.fi_version = version(),
		.name = "demand",
		.getinfo = getinfo,
		.fabric = open_fabric,
		.cleanup = cleanup,
	};
	library->next = libraries;
	libraries = library;
unlock:
	dm_unlock();
	return library;
}

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void);

struct fi_provider *fi_prov_ini(void)
{
	return &caller(__builtin_return_address(0))->provider;
}
