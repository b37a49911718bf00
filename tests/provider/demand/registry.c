/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A file that the processes of a job map: which domain an address belongs to,
 * and which regions a domain has. Ranks that die leave their entries, which
 * harm nobody, as a domain's number is random.
 */
#define _GNU_SOURCE
#include "demand.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FREE, WRITING, LIVE, GONE };

#define REGIONS (1u << 18)
#define NAMES (1u << 12)
#define BYTES ((size_t)64 << 20) /* of resident pages */

struct name {
	_Atomic uint32_t state;
	uint32_t len;
	unsigned char name[48];
	_Atomic uint64_t domain;
};

struct file {
	struct name names[NAMES];
	struct dm_entry regions[REGIONS];
	_Atomic uint64_t used; /* of the bytes */
	unsigned char bytes[BYTES];
};

static struct file *file;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* It is sparse: what nobody uses takes no memory. */
static void map(void)
{
	const char *prefix = getenv("DEMAND_REPORT");
	char path[4096];
	void *mapped;
	int fd;

	if (prefix)
		snprintf(path, sizeof(path), "%s.registry", prefix);
	else
		snprintf(path, sizeof(path), "/tmp/demand-%u.registry",
			 (unsigned int)getuid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*file))) {
		perror(path);
		abort();
	}
	mapped = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED,
		      fd, 0);
	close(fd);
	if (mapped == MAP_FAILED) {
		perror(path);
		abort();
	}
	file = mapped;
}

static struct file *shared(void)
{
	pthread_once(&once, map);
	return file;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

struct dm_entry *dm_registry_add(uint64_t domain, uint64_t key)
{
	uint64_t at = mix(domain ^ mix(key));

	for (uint64_t i = 0; i < REGIONS; i++) {
		struct dm_entry *e = &shared()->regions[(at + i) % REGIONS];
		uint32_t state = atomic_load(&e->state);

		if (state != FREE && state != GONE)
			continue;
		if (!atomic_compare_exchange_strong(&e->state, &state, WRITING))
			continue;
		e->domain = domain;
		e->key = key;
		e->resident = 0;
		atomic_store(&e->enabled, 0);
		atomic_store(&e->writes, 0);
		return e;
	}
	return NULL;
}

void dm_registry_publish(struct dm_entry *entry)
{
	atomic_store(&entry->state, LIVE);
}

struct dm_entry *dm_registry_find(uint64_t domain, uint64_t key)
{
	uint64_t at = mix(domain ^ mix(key));

	for (uint64_t i = 0; i < REGIONS; i++) {
		struct dm_entry *e = &shared()->regions[(at + i) % REGIONS];
		uint32_t state = atomic_load(&e->state);

		if (state == FREE)
			return NULL;
		if (state == LIVE && e->domain == domain && e->key == key)
			return e;
	}
	return NULL;
}

void dm_registry_remove(struct dm_entry *entry)
{
	atomic_store(&entry->state, GONE);
}

/* Never given back: there is room for windows of 256 GiB. */
unsigned char *dm_registry_bytes(struct dm_entry *entry, size_t n)
{
	if (!entry->resident) {
		uint64_t at = atomic_fetch_add(&shared()->used, n);

		if (at + n > BYTES)
			return NULL;
		entry->resident = at + 1;
	}
	return shared()->bytes + entry->resident - 1;
}

static struct name *find_name(const void *name, size_t len, bool add)
{
	uint64_t at = 0;

	if (len > sizeof(file->names->name))
		return NULL;
	for (size_t i = 0; i < len; i++)
		at = mix(at ^ ((const unsigned char *)name)[i]);
	for (uint64_t i = 0; i < NAMES; i++) {
		struct name *n = &shared()->names[(at + i) % NAMES];
		uint32_t state = atomic_load(&n->state);

		if (state == FREE) {
			if (!add)
				return NULL;
			if (!atomic_compare_exchange_strong(&n->state, &state,
							    WRITING))
				continue;
			n->len = (uint32_t)len;
			memcpy(n->name, name, len);
			return n;
		}
		if (state == LIVE && n->len == len &&
		    !memcmp(n->name, name, len))
			return n;
	}
	return NULL;
}

/* A port may be taken again: the last who has it counts. */
void dm_registry_name(const void *name, size_t len, uint64_t domain)
{
	struct name *n = find_name(name, len, true);

	if (!n)
		return;
	atomic_store(&n->domain, domain);
	atomic_store(&n->state, LIVE);
}

int dm_registry_domain(const void *name, size_t len, uint64_t *domain_p)
{
	struct name *n = find_name(name, len, false);

	if (!n)
		return -FI_ENOENT;
	*domain_p = atomic_load(&n->domain);
	return 0;
}
