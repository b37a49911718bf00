/* SPDX-License-Identifier: BSD-3-Clause */
/* The devices that arrays were found on, and their streams. */
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
	ret = device->kind->open(library, device);
	if (ret) {
		free(device);
		return ret;
	}
	pthread_mutex_init(&device->lock, NULL);
	*device_p = device;
	return 0;
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

struct rmaext_stream *rmx_stream_take(struct rmx_device *device)
{
	struct rmaext_stream *s;

	pthread_mutex_lock(&device->lock);
	s = device->free;
	if (s)
		device->free = s->next;
	pthread_mutex_unlock(&device->lock);
	if (s)
		return s;
	s = malloc(sizeof(*s));
	if (!s) {
		rmx_no_memory("a stream");
		return NULL;
	}
	s->device = device;
	if (!device->kind->stream(device, &s->it))
		return s;
	free(s);
	return NULL;
}

void rmx_stream_give(struct rmaext_stream *s)
{
	pthread_mutex_lock(&s->device->lock);
	s->next = s->device->free;
	s->device->free = s;
	pthread_mutex_unlock(&s->device->lock);
}

int rmaext_stream_take(rmaext_device *device, rmaext_stream **stream_p,
		       uint64_t *handle_p)
{
	struct rmaext_error record;
	struct rmaext_stream *s = rmx_stream_take(device);

	if (!s) {
		rmaext_error_last(&record);
		return record.code;
	}
	*stream_p = s;
	*handle_p = (uintptr_t)s->it;
	return 0;
}

void rmaext_stream_give(rmaext_stream *s)
{
	rmx_stream_give(s);
}

int rmaext_stream_copy(rmaext_stream *s, int in, void *to, const void *from,
		       uint64_t len)
{
	const int ret = rmx_stream_copy(s, in, to, from, len);
	/* what was begun still uses the host's memory */
	const int waited = rmx_stream_wait(s);

	return ret ? ret : waited;
}

int rmaext_device_wait(rmaext_device *device, uint64_t handle)
{
	return device->kind->wait(device, (void *)(uintptr_t)handle);
}

int rmaext_device_allocate(rmaext_device *device, uint64_t len, void **memory_p)
{
	return device->kind->allocate(device, len, memory_p);
}

void rmaext_device_free(rmaext_device *device, void *memory)
{
	device->kind->free(device, memory);
}
