/* SPDX-License-Identifier: BSD-3-Clause */
/* The stub's context: its settings, memory and keys. */
#include "stub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

_Noreturn void stub_wrong(const char *what)
{
	fprintf(stderr, "ucx stub: %s\n", what);
	abort();
}

/* splitmix64; its seed is the process's own unless STUB_SEED is set */
static atomic_ullong draws;

uint64_t stub_draw(uint64_t below)
{
	uint64_t z = atomic_fetch_add(&draws, 0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % below;
}

/* -- calls that are to fail */

static struct {
	char name[40];
	int left; /* calls until then */
	int status;
} failures[8];

/* What it said of the same call before is over. */
void stub_fail(const char *list)
{
	char name[sizeof(failures->name)];
	int left, status, read = 0;

	for (; *list; list += read + (list[read] == ',')) {
		int i = 0;

		if (sscanf(list, "%39[^:]:%d:%d%n", name, &left, &status,
			   &read) != 3)
			stub_wrong("STUB_FAIL is not name:n:status,...");
		while (i < 7 && failures[i].left > 0 &&
		       strcmp(failures[i].name, name))
			i++;
		for (int k = 0; k < 8; k++)
			if (!strcmp(failures[k].name, name))
				failures[k].left = 0;
		memcpy(failures[i].name, name, sizeof(name));
		failures[i].status = status;
		failures[i].left = left;
	}
}

ucs_status_t stub_fails(const char *name)
{
	const size_t len = strlen(name);

	for (int i = 0; i < 8; i++) {
		const char *rest = failures[i].name + len;
		const bool always = !strncmp(failures[i].name, name, len) &&
				    !strcmp(rest, "*");

		if ((!always && strcmp(failures[i].name, name)) ||
		    failures[i].left <= 0)
			continue;
		if (!--failures[i].left) {
			failures[i].left = always;
			return (ucs_status_t)failures[i].status;
		}
	}
	return UCS_OK;
}

__attribute__((constructor)) static void settings_read(void)
{
	const char *list = getenv("STUB_FAIL"), *seed = getenv("STUB_SEED");

	atomic_store(&draws, seed ? strtoull(seed, NULL, 0)
				  : (unsigned long long)getpid());
	if (list)
		stub_fail(list);
}

/* -- the library, and a context */

const char *ucs_status_string(ucs_status_t status)
{
	switch (status) {
	case UCS_OK:
		return "Success";
	case UCS_ERR_NO_DEVICE:
		return "No such device";
	case UCS_ERR_CONNECTION_RESET:
		return "Connection reset by remote peer";
	case UCS_ERR_CANCELED:
		return "Request canceled";
	case UCS_ERR_NO_MEMORY:
		return "Out of memory";
	case UCS_ERR_UNREACHABLE:
		return "Unreachable";
	default:
		return "Some error";
	}
}

void ucp_get_version(unsigned int *major, unsigned int *minor,
		     unsigned int *release)
{
	const char *text = getenv("STUB_VERSION");

	if (sscanf(text ? text : "1.20.1", "%u.%u.%u", major, minor, release) !=
	    3)
		stub_wrong("STUB_VERSION");
}

ucs_status_t ucp_config_read(const char *prefix, const char *file,
			     ucp_config_t **config_p)
{
	ucs_status_t status = stub_fails("config_read");

	(void)prefix, (void)file;
	if (!status && !(*config_p = calloc(1, sizeof(**config_p))))
		status = UCS_ERR_NO_MEMORY;
	return status;
}

ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name,
			       const char *value)
{
	if (!strcmp(name, "TLS"))
		snprintf(config->tls, sizeof(config->tls), "%s", value);
	else if (!strcmp(name, "RCACHE_ENABLE"))
		config->uncached = !strcmp(value, "n");
	else if (!strcmp(name, "PREFER_OFFLOAD"))
		config->offload = !strcmp(value, "y");
	return stub_fails("config_modify");
}

void ucp_config_release(ucp_config_t *config)
{
	free(config);
}

ucs_status_t ucp_init_version(unsigned int major, unsigned int minor,
			      const ucp_params_t *params,
			      const ucp_config_t *config,
			      ucp_context_h *context_p)
{
	const char *device = getenv("STUB_DEVICE");
	ucs_status_t status = stub_fails("init_version");
	pthread_mutexattr_t attr;
	ucp_context_h c;

	if (status)
		return status;
	if (major != 1 || minor > 20 || !params->mt_workers_shared ||
	    !config->uncached || !config->offload)
		stub_wrong("ucp_init is not as it should be");
	if ((device && !strcmp(device, "none")) ||
	    (!strstr(config->tls, "rc") && !strstr(config->tls, "dc") &&
	     strcmp(config->tls, "ib")))
		return UCS_ERR_NO_DEVICE;
	c = calloc(1, sizeof(*c));
	if (!c)
		return UCS_ERR_NO_MEMORY;
	c->fd = memfd_create("ucx stub", MFD_CLOEXEC);
	if (c->fd < 0 || ftruncate(c->fd, sizeof(*c->shared)))
		stub_wrong("memfd_create");
	c->shared = mmap(NULL, sizeof(*c->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED, c->fd, 0);
	if (c->shared == MAP_FAILED)
		stub_wrong("mmap");
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&c->shared->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	pthread_mutex_init(&c->lock, NULL);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* Yama */
	*context_p = c;
	return UCS_OK;
}

void ucp_cleanup(ucp_context_h c)
{
	if (c->regions)
		stub_wrong("memory is mapped as the context ends");
	munmap(c->shared, sizeof(*c->shared));
	close(c->fd);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* -- memory */

static void shared_lock(struct shared *s)
{
	if (pthread_mutex_lock(&s->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&s->lock);
}

ucp_mem_map_params_t stub_mapped;
ucp_mem_advise_params_t stub_advised;

ucs_status_t ucp_mem_map(ucp_context_h c, const ucp_mem_map_params_t *params,
			 ucp_mem_h *memh_p)
{
	const uint64_t all = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
			     UCP_MEM_MAP_PARAM_FIELD_LENGTH |
			     UCP_MEM_MAP_PARAM_FIELD_FLAGS |
			     UCP_MEM_MAP_PARAM_FIELD_PROT;
	ucs_status_t status = stub_fails("mem_map");
	ucp_mem_h m;
	uint32_t i;

	if (status)
		return status;
	if ((params->field_mask & all) != all || !params->length ||
	    params->flags & ~(unsigned int)UCP_MEM_MAP_NONBLOCK)
		return UCS_ERR_INVALID_PARAM;
	m = calloc(1, sizeof(*m));
	if (!m)
		return UCS_ERR_NO_MEMORY;
	pthread_mutex_lock(&c->lock);
	stub_mapped = *params;
	shared_lock(c->shared);
	i = (uint32_t)(c->last_id % REGIONS); /* not the one just given up */
	for (uint32_t n = 0; n < REGIONS && c->shared->regions[i].id; n++)
		i = (i + 1) % REGIONS;
	if (c->shared->regions[i].id)
		stub_wrong("more regions than there is room for");
	m->index = i;
	m->id = ++c->last_id;
	m->base = (uint64_t)(uintptr_t)params->address;
	m->len = params->length;
	m->prot = params->prot;
	c->shared->regions[i].id = m->id;
	c->shared->regions[i].base = m->base;
	c->shared->regions[i].len = m->len;
	c->shared->regions[i].prot = m->prot;
	c->regions++;
	pthread_mutex_unlock(&c->shared->lock);
	pthread_mutex_unlock(&c->lock);
	*memh_p = m;
	return UCS_OK;
}

ucs_status_t ucp_mem_unmap(ucp_context_h c, ucp_mem_h m)
{
	ucs_status_t status = stub_fails("mem_unmap");

	if (status)
		return status;
	if (atomic_load(&m->users))
		stub_wrong("memory is unmapped that a call uses");
	pthread_mutex_lock(&c->lock);
	shared_lock(c->shared); /* no access is amid it */
	c->shared->regions[m->index].id = 0;
	c->regions--;
	pthread_mutex_unlock(&c->shared->lock);
	pthread_mutex_unlock(&c->lock);
	free(m);
	return UCS_OK;
}

ucs_status_t ucp_mem_query(ucp_mem_h m, ucp_mem_attr_t *attr)
{
	attr->address = (void *)(uintptr_t)m->base;
	attr->length = m->len - (size_t)stub_fails("mem_query-");
	return stub_fails("mem_query");
}

ucs_status_t ucp_mem_advise(ucp_context_h c, ucp_mem_h m,
			    ucp_mem_advise_params_t *params)
{
	const uint64_t at = (uint64_t)(uintptr_t)params->address;
	ucs_status_t status = stub_fails("mem_advise");

	if (status)
		return status;
	pthread_mutex_lock(&c->lock);
	stub_advised = *params;
	pthread_mutex_unlock(&c->lock);
	return at < m->base || at + params->length > m->base + m->len ||
			       params->advice != UCP_MADV_WILLNEED
		       ? UCS_ERR_INVALID_PARAM
		       : UCS_OK;
}

/* -- keys, whose lengths differ, as those of ranks with other devices do */

ucs_status_t ucp_rkey_pack(ucp_context_h c, ucp_mem_h m, void **buffer_p,
			   size_t *size_p)
{
	const struct packed_key key = {m->id, m->base, m->len, m->index,
				       m->prot};
	ucs_status_t status = stub_fails("rkey_pack");
	char *buf;

	(void)c;
	if (status)
		return status;
	*size_p = sizeof(key) + (size_t)getpid() % 3;
	buf = calloc(1, *size_p);
	if (!buf)
		return UCS_ERR_NO_MEMORY;
	memcpy(buf, &key, sizeof(key));
	*buffer_p = buf;
	return UCS_OK;
}

void ucp_rkey_buffer_release(void *buffer)
{
	free(buffer);
}

ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer,
				ucp_rkey_h *rkey_p)
{
	ucs_status_t status = stub_fails("ep_rkey_unpack");
	ucp_rkey_h key;

	if (status)
		return status;
	stub_enter(ep->worker);
	key = calloc(1, sizeof(*key));
	if (!key)
		stub_wrong("calloc");
	memcpy(&key->it, buffer, sizeof(key->it));
	key->ep = ep;
	stub_leave(ep->worker);
	*rkey_p = key;
	return UCS_OK;
}

void ucp_rkey_destroy(ucp_rkey_h key)
{
	if (key->users)
		stub_wrong("a key is destroyed that a call uses");
	free(key);
}
