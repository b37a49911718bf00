/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls that wait for what a device has to do, as CUDA's free does, are made
 * once that has ended: a kernel that hangs would keep the caller for ever, be
 * it a collector of garbage, a close, or the end of the process.
 */
#include "memory/device.h"

#include <stdlib.h>

#define SETTLES ((int64_t)1000 * 1000 * 1000) /* ns */
#define NAP 50000			      /* ns */

/* Memory that nobody uses any more, but perhaps what the device has to do. */
struct rmx_freed {
	void *memory;
	uint64_t since; /* see rmx_device_settled() */
	struct rmx_freed *next;
};

uint64_t rmx_device_asked(struct rmx_device *device)
{
	uint64_t asked;

	pthread_mutex_lock(&device->looks);
	asked = device->asked;
	pthread_mutex_unlock(&device->looks);
	return asked;
}

/*
 * Has the event come that was recorded after that? 0, RMAEXT_PENDING or an
 * error. The caller has `looks`.
 */
static int settled_look(struct rmx_device *device, uint64_t since)
{
	int ret;

	while (device->passed <= since) {
		if (device->passed == device->asked) {
			ret = device->kind->settle(device);
			if (ret)
				return ret;
			device->asked++;
		}
		ret = device->kind->passed(device, device->settled);
		if (ret == RMAEXT_PENDING)
			return ret;
		if (ret) { /* the next look records it anew */
			device->asked = device->passed;
			return ret;
		}
		device->passed = device->asked;
		device->stays = false;
	}
	return 0;
}

bool rmx_device_settled(struct rmx_device *device, uint64_t since)
{
	const int64_t end = rmx_now() + SETTLES;
	struct rmaext_error record; /* of what has failed before */
	int ret;

	rmaext_error_last(&record);
	for (;;) {
		pthread_mutex_lock(&device->looks);
		ret = settled_look(device, since);
		if (ret == RMAEXT_PENDING && rmx_now() >= end)
			device->stays = true;
		if (ret != RMAEXT_PENDING || device->stays)
			break;
		pthread_mutex_unlock(&device->looks);
		rmx_sleep(NAP);
	}
	pthread_mutex_unlock(&device->looks);
	rmx_fail_record(&record);
	return !ret;
}

void rmx_device_look(struct rmx_device *device)
{
	struct rmx_freed *ready = NULL, **at, *it;
	struct rmaext_error record;

	rmaext_error_last(&record);
	pthread_mutex_lock(&device->looks);
	if (device->freed)
		settled_look(device, device->freed->since); /* the newest */
	for (at = &device->freed; (it = *at);) {
		if (it->since >= device->passed) {
			at = &it->next;
			continue;
		}
		*at = it->next;
		it->next = ready;
		ready = it;
	}
	pthread_mutex_unlock(&device->looks);
	while ((it = ready)) {
		ready = it->next;
		device->kind->free(device, it->memory);
		free(it);
	}
	rmx_fail_record(&record);
}

void rmaext_device_free(rmaext_device *device, void *memory)
{
	struct rmx_freed *it = NULL;
	uint64_t since;

	if (device->owner == getpid()) /* else it is the parent's */
		it = malloc(sizeof(*it));
	if (!it)
		return;
	pthread_mutex_lock(&device->looks);
	since = device->asked;
	*it = (struct rmx_freed){memory, since, device->freed};
	device->freed = it;
	pthread_mutex_unlock(&device->looks);
	rmx_device_settled(device, since);
	rmx_device_look(device);
}
