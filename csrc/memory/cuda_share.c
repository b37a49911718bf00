/* SPDX-License-Identifier: BSD-3-Clause */
/* CUDA's memory that other processes of the node map. */
#include "memory/cuda.h"

#define PEER_ACCESS 1u /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
/* of enum CUpointer_attribute */
enum { CAN_IPC = 10, OF_START = 11 };

/* Memory of pools and of cuMemCreate has no handle. */
int rmx_cuda_export(const void *address, const struct rmx_device *device,
		    struct rmaext_export *export_p)
{
	const rmx_address at = (uintptr_t)address;
	struct rmx_ipc_handle handle;
	unsigned int can = 0;
	rmx_address start = 0;
	int ret, it;

	ret = rmx_driver.cuPointerGetAttribute(&can, CAN_IPC, at);
	if (!ret && !can)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"cudaMalloc has not made that memory, but a "
				"pool or cuMemCreate, which CUDA has no "
				"handle for");
	if (!ret)
		ret = rmx_driver.cuPointerGetAttribute(&start, OF_START, at);
	if (!ret)
		ret = rmx_driver.cuDeviceGet(&it, device->number);
	if (!ret)
		ret = rmx_driver.cuDeviceGetUuid(export_p->device, it);
	if (ret)
		return rmx_cuda_fail(ret, "cuPointerGetAttribute");
	ret = rmx_context_enter(device);
	if (ret)
		return ret;
	ret = rmx_driver.cuIpcGetMemHandle(&handle, start);
	memcpy(export_p->handle, &handle, sizeof(handle));
	export_p->at = at - start;
	return rmx_context_leave(ret, "cuIpcGetMemHandle");
}

int rmx_cuda_seek(const char *library, const struct rmaext_export *export,
		  int *number_p)
{
	uint8_t uuid[sizeof(export->device)];
	int ret = rmx_cuda_need(library, false), count = 0, it, active;
	unsigned int flags;

	if (ret)
		return ret;
	ret = rmx_driver.cuDeviceGetCount(&count);
	if (ret == NOT_INITIALIZED)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "device", RMX_NO_CUDA);
	if (ret)
		return rmx_cuda_fail(ret, "cuDeviceGetCount");
	for (int i = 0; i < count; i++) {
		if (rmx_driver.cuDeviceGet(&it, i) ||
		    rmx_driver.cuDeviceGetUuid(uuid, it) ||
		    memcmp(uuid, export->device, sizeof(uuid)))
			continue;
		ret = rmx_driver.cuDevicePrimaryCtxGetState(it, &flags,
							    &active);
		if (ret)
			return rmx_cuda_fail(ret, "cuDevicePrimaryCtxGetState");
		*number_p = i;
		return active ? 0
			      : rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
					 "this process has no context on "
					 "device %d: use the device first",
					 i);
	}
	return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
			"this process does not see that device: see "
			"CUDA_VISIBLE_DEVICES");
}

int rmx_cuda_import(const struct rmx_device *device,
		    const struct rmaext_export *export, char **base_p)
{
	struct rmx_ipc_handle handle;
	rmx_address base = 0;
	int ret = rmx_context_enter(device);

	if (ret)
		return ret;
	memcpy(&handle, export->handle, sizeof(handle));
	ret = rmx_driver.cuIpcOpenMemHandle_v2(&base, handle, PEER_ACCESS);
	*base_p = (char *)(uintptr_t)base;
	return rmx_context_leave(ret, "cuIpcOpenMemHandle");
}

void rmx_cuda_close(const struct rmx_device *device, char *base)
{
	if (!rmx_context_enter(device))
		rmx_context_leave(
			rmx_driver.cuIpcCloseMemHandle((uintptr_t)base),
			"cuIpcCloseMemHandle");
}
