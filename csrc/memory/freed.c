/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls that wait for what a device has to do, as CUDA's free does, are made
 * when that is nothing: a kernel that hangs would keep the caller for ever, be
 * it a collector of garbage, a close, or the end of the process.
 */
#include "memory/device.h"

#include <stdlib.h>

#define SETTLES ((int64_t)1000 * 1000 * 1000) /* ns */
#define AT_ONCE 200000 /* ns in which the event of a device at rest comes */
#define NAP 50000      /* ns */

/* Memory that nobody uses any more, but perhaps what the device has to do. */
struct rmx_freed {
	void *memory;
	struct rmx_freed *next;
};

/*
 * Has the device nothing to do? 0, RMAEXT_PENDING or an error. An event says so
 * that comes at once; while one has not come no other is recorded, as the queue
 * of a device that hangs may fill. The caller has `looks`.
 */
static int idle_look(struct rmx_device *device)
{
	const struct rmx_memory_kind *kind = device->kind;
	int64_t end;
	int ret = 0;

	if (device->recorded)
		ret = kind->passed(device, device->settled);
	if (ret == RMAEXT_PENDING)
		return ret;
	device->recorded = device->stays = false; /* or it has failed */
	if (!ret)
		ret = kind->settle(device);
	if (ret)
		return ret;
	device->recorded = true;
	end = rmx_now() + AT_ONCE;
	while ((ret = kind->passed(device, device->settled)) ==
		       RMAEXT_PENDING &&
	       rmx_now() < end)
		rmx_relax();
	device->recorded = ret == RMAEXT_PENDING;
	return ret;
}

bool rmx_device_idle(struct rmx_device *device, bool wait)
{
	const int64_t end = rmx_now() + (wait ? SETTLES : 0);
	struct rmaext_error record; /* of what has failed before */
	bool again;
	int ret;

	rmaext_error_last(&record);
	do {
		pthread_mutex_lock(&device->looks);
		ret = idle_look(device);
		again = wait && ret == RMAEXT_PENDING && device->recorded &&
			!device->stays;
		if (again && rmx_now() >= end) {
			device->stays = true;
			again = false;
		}
		pthread_mutex_unlock(&device->looks);
		if (again)
			rmx_sleep(NAP);
	} while (again);
	rmx_fail_record(&record);
	return !ret;
}

/* Frees what nobody used any more before the device had nothing to do. */
static void freed_look(struct rmx_device *device, bool wait)
{
	struct rmx_freed *all, **end = &all, *it;

	pthread_mutex_lock(&device->looks);
	all = device->freed;
	device->freed = NULL;
	pthread_mutex_unlock(&device->looks);
	if (all && rmx_device_idle(device, wait))
		while ((it = all)) {
			all = it->next;
			device->kind->free(device, it->memory);
			free(it);
		}
	if (!all)
		return;
	while (*end)
		end = &(*end)->next;
	pthread_mutex_lock(&device->looks);
	*end = device->freed;
	device->freed = all;
	pthread_mutex_unlock(&device->looks);
}

void rmx_device_look(struct rmx_device *device)
{
	freed_look(device, false);
}

void rmaext_device_free(rmaext_device *device, void *memory)
{
	struct rmx_freed *it = NULL;

	if (device->owner == getpid()) /* else it is the parent's */
		it = malloc(sizeof(*it));
	if (!it)
		return;
	it->memory = memory;
	pthread_mutex_lock(&device->looks);
	it->next = device->freed;
	device->freed = it;
	pthread_mutex_unlock(&device->looks);
	freed_look(device, true);
}
