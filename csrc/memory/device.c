/* SPDX-License-Identifier: BSD-3-Clause */
/* The devices that arrays were found on. */
#include "memory/device.h"

#include <stdlib.h>

#define RMX_DEVICES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards these */
static struct rmx_device *devices[RMX_DEVICES];

int rmaext_device_find(const char *library, const void *address, uint64_t len,
		       int *number_p)
{
	return rmx_cuda.find(library, address, len, number_p);
}

static int device_new(const char *library, int number,
		      struct rmx_device **device_p)
{
	struct rmx_device *device = calloc(1, sizeof(*device));
	int ret;

	if (!device)
		return rmx_no_memory("a device");
	device->kind = &rmx_cuda;
	device->number = number;
	device->owner = getpid();
	pthread_mutex_init(&device->lock, NULL);
	pthread_mutex_init(&device->looks, NULL);
	ret = device->kind->open(library, device);
	if (!ret)
		ret = rmx_streams_prepare(device);
	if (ret)
		free(device);
	else
		*device_p = device;
	return ret;
}

int rmaext_device_open(const char *library, int number,
		       rmaext_device **device_p)
{
	int ret = 0;

	if (number < 0 || number >= RMX_DEVICES)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "device",
				"there is no device %d", number);
	pthread_mutex_lock(&lock);
	if (!devices[number])
		ret = device_new(library, number, &devices[number]);
	*device_p = devices[number];
	pthread_mutex_unlock(&lock);
	return ret;
}

int rmaext_device_allocate(rmaext_device *device, uint64_t len, void **memory_p)
{
	rmx_device_look(device); /* there may be room then */
	return device->kind->allocate(device, len, memory_p);
}

int rmaext_device_export(rmaext_device *device, const void *address,
			 uint64_t len, struct rmaext_export *export_p)
{
	return device->kind->export(address, len, device, export_p);
}

void rmaext_device_unexport(const struct rmaext_export *export)
{
	rmx_cuda.unexport(export);
}
