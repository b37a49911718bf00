/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of other processes' devices that is mapped here. */
#include "memory/device.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards this */
static struct rmx_import *imports;

/* The caller has the lock. */
static int import_find(struct rmx_device *device,
		       const struct rmaext_export *from,
		       struct rmx_import **import_p)
{
	struct rmx_import *it = imports;
	int ret;

	while (it &&
	       (it->owner != getpid() ||
		memcmp(&it->from, from, offsetof(struct rmaext_export, at))))
		it = it->next;
	if (!it) {
		it = calloc(1, sizeof(*it));
		if (!it)
			return rmx_no_memory("a mapping");
		ret = device->kind->import(device, from, &it->base, &it->parts);
		if (ret) {
			free(it);
			return ret;
		}
		it->device = device;
		it->from = *from;
		it->owner = getpid();
		it->next = imports;
		imports = it;
	}
	it->users++;
	*import_p = it;
	return 0;
}

/*
 * What nobody uses any more is closed if its device has nothing to do; else it
 * stays, for the next. The lock is not held meanwhile: who needs such a mapping
 * then opens it once more.
 */
static void imports_close(bool wait)
{
	struct rmx_import **at = &imports, *unused = NULL, *it;

	pthread_mutex_lock(&lock);
	while ((it = *at)) {
		if (it->users || it->owner != getpid()) {
			at = &it->next;
			continue;
		}
		*at = it->next;
		it->next = unused;
		unused = it;
	}
	pthread_mutex_unlock(&lock);
	while ((it = unused)) {
		unused = it->next;
		if (rmx_device_idle(it->device, wait)) {
			it->device->kind->close(it->device, it->base,
						it->parts);
			free(it);
			continue;
		}
		pthread_mutex_lock(&lock);
		it->next = imports;
		imports = it;
		pthread_mutex_unlock(&lock);
	}
}

int rmx_import_open(const char *library, const void *export, uint64_t size,
		    struct rmx_import **import_p, char **map_p)
{
	struct rmx_device *device;
	struct rmaext_export from;
	struct rmx_import *it = NULL;
	uint64_t end;
	int ret, number;

	memcpy(&from, export, sizeof(from));
	ret = rmx_cuda.seek(library, &from, &number);
	if (!ret)
		ret = rmaext_device_open(library, number, &device);
	if (ret)
		return ret;
	/* a handle of what its owner has freed may come again */
	imports_close(false);
	pthread_mutex_lock(&lock);
	ret = import_find(device, &from, &it);
	pthread_mutex_unlock(&lock);
	if (ret)
		return ret;
	/* what another process tells may be anything */
	ret = __builtin_add_overflow(from.at, size, &end)
		      ? rmx_fail(-ERANGE, RMX_NO_RANK, "map", "no such place")
		      : device->kind->find(library, it->base, end, &number);
	if (ret) {
		rmx_import_close(it);
		return ret;
	}
	*map_p = it->base + from.at;
	*import_p = it;
	return 0;
}

void rmx_import_close(struct rmx_import *it)
{
	if (!it || it->owner != getpid())
		return;
	pthread_mutex_lock(&lock);
	it->users--;
	pthread_mutex_unlock(&lock);
	imports_close(true);
}

int rmaext_import_try(const char *library, const void *export, uint64_t size)
{
	struct rmx_import *it;
	char *map;
	int ret = rmx_import_open(library, export, size, &it, &map);

	if (!ret)
		rmx_import_close(it);
	return ret;
}
