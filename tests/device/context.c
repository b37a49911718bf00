/* SPDX-License-Identifier: BSD-3-Clause */
/* The driver, its devices and contexts, and calls that are to fail. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool initialized, forked;
static int count;
static size_t limit;
static uint64_t draws;
static struct context contexts[DEVICES];

static __thread struct context *stack[16];
static __thread int depth;
__thread bool device_in_worker;

static struct {
	char name[48];
	int left; /* calls until then */
	CUresult error;
} failures[8];

_Noreturn static void wrong(const char *what)
{
	fprintf(stderr, "tests/device: %s\n", what);
	abort();
}

/* splitmix64 */
uint64_t device_draw(uint64_t below)
{
	uint64_t z = draws += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % below;
}

static void failures_set(const char *list)
{
	int read = 0;

	memset(failures, 0, sizeof(failures));
	for (int i = 0; *list; i++, list += read + (list[read] == ','))
		if (i == 8 ||
		    sscanf(list, "%47[^:]:%d:%d%n", failures[i].name,
			   &failures[i].left, &failures[i].error, &read) != 3)
			wrong("DEVICE_FAIL is not name:k:error,...");
}

/* No part of the API: what DEVICE_FAIL would say, from now on. */
void device_fail(const char *list)
{
	pthread_mutex_lock(&lock);
	failures_set(list);
	pthread_mutex_unlock(&lock);
}

static CUresult failure(const char *function)
{
	for (int i = 0; i < 8; i++)
		if (!strcmp(failures[i].name, function) &&
		    failures[i].left > 0 && !--failures[i].left)
			return failures[i].error;
	return SUCCESS;
}

static struct {
	const char *name; /* a function's own, by its address */
	unsigned calls;
} counts[128];

static void count_call(const char *function)
{
	int i = 0;

	while (i < 127 && counts[i].name && counts[i].name != function)
		i++;
	counts[i].name = function;
	counts[i].calls++;
}

/* No part of the API: how often functions were called whose names begin so. */
unsigned device_calls(const char *prefix)
{
	unsigned calls = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < 128 && counts[i].name; i++)
		if (!strncmp(counts[i].name, prefix, strlen(prefix)))
			calls += counts[i].calls;
	pthread_mutex_unlock(&lock);
	return calls;
}

CUresult device_enter(const char *function, enum need need)
{
	struct context *context;
	CUresult result;

	if (forked) /* the lock may be held by a thread of the parent */
		return NOT_INITIALIZED;
	if (device_in_worker)
		return NOT_PERMITTED;
	pthread_mutex_lock(&lock);
	count_call(function);
	context = device_current();
	if (need != NOTHING && !initialized)
		result = NOT_INITIALIZED;
	else if (need == CONTEXT && !context)
		result = INVALID_CONTEXT;
	else if (need == CONTEXT && !context->retained)
		result = CONTEXT_IS_DESTROYED;
	else if (need == CONTEXT && context->broken)
		result = context->broken;
	else
		result = failure(function);
	/* These leave the context in a state in which nothing works. */
	if ((result == ECC_UNCORRECTABLE || result == ILLEGAL_ADDRESS ||
	     result == LAUNCH_FAILED) &&
	    context)
		context->broken = result;
	if (result)
		pthread_mutex_unlock(&lock);
	return result;
}

CUresult device_leave(CUresult result)
{
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return result;
}

void device_wait(void)
{
	pthread_cond_wait(&changed, &lock);
}

struct context *device_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

struct context *device_context(CUdevice device)
{
	return device >= 0 && device < count ? &contexts[device] : NULL;
}

size_t device_limit(void)
{
	return limit;
}

static void in_the_child(void)
{
	forked = true;
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

CUresult cuInit(unsigned flags)
{
	uint64_t devices = setting("DEVICE_COUNT", 1);
	CUresult refused;

	ENTER(NOTHING);
	if (flags)
		return device_leave(INVALID_VALUE);
	if (initialized)
		return device_leave(SUCCESS);
	failures_set(getenv("DEVICE_FAIL") ? getenv("DEVICE_FAIL") : "");
	refused = failure("cuInit"); /* the list is known only now */
	if (refused)
		return device_leave(refused);
	if (devices > DEVICES || !devices)
		return device_leave(NO_DEVICE);
	count = (int)devices;
	limit = setting("DEVICE_MEMORY", 1 << 30);
	draws = setting("DEVICE_SEED", (uint64_t)getpid());
	for (int i = 0; i < count; i++)
		contexts[i].device = i;
	if (pthread_atfork(NULL, NULL, in_the_child))
		return device_leave(OUT_OF_MEMORY);
	initialized = true;
	return device_leave(SUCCESS);
}

CUresult cuDriverGetVersion(int *version)
{
	ENTER(NOTHING);
	*version = 12080;
	return device_leave(SUCCESS);
}

static const struct {
	CUresult error;
	const char *name, *text;
} errors[] = {
	{SUCCESS, "CUDA_SUCCESS", "no error"},
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "not initialized"},
	{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device is there"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid context"},
	{NOT_MAPPED, "CUDA_ERROR_MAP_FAILED", "memory cannot be mapped"},
	{ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "ECC error"},
	{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid handle"},
	{NOT_READY, "CUDA_ERROR_NOT_READY", "work is not done yet"},
	{ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal address"},
	{CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	 "the context is destroyed"},
	{ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	 "the memory is registered already"},
	{NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	 "the memory is not registered"},
	{LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "a launch failed"},
	{NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "not permitted here"},
};

static CUresult error_find(CUresult error, const char **name, const char **text)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (errors[i].error == error) {
			*name = errors[i].name;
			*text = errors[i].text;
			return SUCCESS;
		}
	*name = *text = NULL;
	return INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	return error_find(error, name, &(const char *){NULL});
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	return error_find(error, &(const char *){NULL}, text);
}

/* -- devices */

CUresult cuDeviceGetCount(int *count_p)
{
	ENTER(DRIVER);
	*count_p = count;
	return device_leave(SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER(DRIVER);
	if (!device_context(ordinal))
		return device_leave(INVALID_DEVICE);
	*device = ordinal;
	return device_leave(SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	static const int known[][2] = {
		{18, 0},  /* integrated */
		{19, 1},  /* maps host memory */
		{40, 2},  /* copy engines */
		{41, 1},  /* unified addressing */
		{75, 9},  /* compute capability */
		{76, 0},  /* the same, minor */
		{83, 1},  /* managed memory */
		{89, 1},  /* which the CPU may touch at any time */
		{102, 0}, /* virtual memory management */
		{103, 0}, /* file descriptors of that */
		{115, 0}, /* pools */
		{124, 0}, /* dmabuf */
		{125, 1}, /* IPC */
	};

	ENTER(DRIVER);
	if (!device_context(device))
		return device_leave(INVALID_DEVICE);
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (known[i][0] == attribute) {
			*value = known[i][1];
			return device_leave(SUCCESS);
		}
	return device_leave(INVALID_VALUE);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	ENTER(DRIVER);
	if (!device_context(device))
		return device_leave(INVALID_DEVICE);
	memcpy(uuid->bytes, "rmaext's device", 15);
	uuid->bytes[15] = (unsigned char)device;
	return device_leave(SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return cuDeviceGetUuid(uuid, device);
}

/* -- contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context_p, CUdevice device)
{
	struct context *context;
	CUresult result = SUCCESS;

	ENTER(DRIVER);
	context = device_context(device);
	if (!context)
		return device_leave(INVALID_DEVICE);
	if (!context->retained)
		result = device_streams_open(context);
	if (!result) {
		context->retained++;
		*context_p = context;
	}
	return device_leave(result);
}

static void context_reset(struct context *context)
{
	device_drain();
	device_streams_close(context);
	device_memory_free(context);
	context->retained = 0;
	context->broken = SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	struct context *context;

	ENTER(DRIVER);
	context = device_context(device);
	if (!context)
		return device_leave(INVALID_DEVICE);
	if (!context->retained)
		return device_leave(INVALID_CONTEXT);
	if (context->retained == 1)
		context_reset(context);
	else
		context->retained--;
	return device_leave(SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
				    int *active)
{
	ENTER(DRIVER);
	if (!device_context(device))
		return device_leave(INVALID_DEVICE);
	*flags = 0;
	*active = device_context(device)->retained > 0;
	return device_leave(SUCCESS);
}

static bool context_is(CUcontext context)
{
	return context >= contexts && context < contexts + count;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER(DRIVER);
	*context = device_current();
	return device_leave(SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER(DRIVER);
	if (context && !context_is(context))
		return device_leave(INVALID_CONTEXT);
	if (depth)
		depth--; /* the top is replaced, or popped */
	if (context)
		stack[depth++] = context;
	return device_leave(SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER(DRIVER);
	if (!context_is(context) || depth == 16)
		return device_leave(INVALID_CONTEXT);
	stack[depth++] = context;
	return device_leave(SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER(DRIVER);
	if (!depth)
		return device_leave(INVALID_CONTEXT);
	depth--;
	if (context)
		*context = stack[depth];
	return device_leave(SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER(CONTEXT);
	*device = device_current()->device;
	return device_leave(SUCCESS);
}
