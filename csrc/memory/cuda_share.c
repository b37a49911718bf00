/* SPDX-License-Identifier: BSD-3-Clause */
/* CUDA's memory that other processes of the node map. */
#include "memory/cuda.h"

#define PEER_ACCESS 1u /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
/* of enum CUpointer_attribute */
enum { CAN_IPC = 10, OF_START = 11 };

static int handle_export(rmx_address at, struct rmaext_export *export_p)
{
	struct rmx_ipc_handle handle;
	rmx_address start = 0;
	int ret = rmx_driver.cuPointerGetAttribute(&start, OF_START, at);

	if (ret)
		return rmx_cuda_fail(ret, "cuPointerGetAttribute");
	ret = rmx_driver.cuIpcGetMemHandle(&handle, start);
	if (ret)
		return rmx_cuda_fail(ret, "cuIpcGetMemHandle");
	export_p->kind = RMX_HANDLE;
	memcpy(export_p->handle, &handle, sizeof(handle));
	export_p->at = at - start;
	return 0;
}

int rmx_cuda_export(const void *address, uint64_t len,
		    const struct rmx_device *device,
		    struct rmaext_export *export_p)
{
	const rmx_address at = (uintptr_t)address;
	unsigned int can = 0;
	int ret, it;

	ret = rmx_driver.cuPointerGetAttribute(&can, CAN_IPC, at);
	if (!ret)
		ret = rmx_driver.cuDeviceGet(&it, device->number);
	if (!ret)
		ret = rmx_driver.cuDeviceGetUuid(export_p->device, it);
	if (ret)
		return rmx_cuda_fail(ret, "cuPointerGetAttribute");
	ret = rmx_context_enter(device);
	if (ret)
		return ret;
	ret = can ? handle_export(at, export_p)
		  : rmx_blocks_export(at, len, export_p);
	rmx_context_leave(0, "");
	return ret;
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

static int handle_import(const struct rmaext_export *export,
			 rmx_address *base_p)
{
	struct rmx_ipc_handle handle;
	int ret;

	memcpy(&handle, export->handle, sizeof(handle));
	ret = rmx_driver.cuIpcOpenMemHandle_v2(base_p, handle, PEER_ACCESS);
	return ret ? rmx_cuda_fail(ret, "cuIpcOpenMemHandle") : 0;
}

int rmx_cuda_import(const struct rmx_device *device,
		    const struct rmaext_export *export, char **base_p,
		    struct rmx_parts **parts_p)
{
	rmx_address base = 0;
	int ret = rmx_context_enter(device);

	if (ret)
		return ret;
	if (export->kind == RMX_HANDLE)
		ret = handle_import(export, &base);
	else if (!rmx_driver.cuMemSetAccess)
		ret = rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "map",
			       "this driver is of before CUDA 11");
	else
		ret = rmx_blocks_import(device, export, &base, parts_p);
	rmx_context_leave(0, "");
	*base_p = (char *)(uintptr_t)base;
	return ret;
}

void rmx_cuda_close(const struct rmx_device *device, char *base,
		    struct rmx_parts *parts)
{
	if (rmx_context_enter(device))
		return;
	if (parts)
		rmx_blocks_close(parts, (uintptr_t)base);
	else
		rmx_driver.cuIpcCloseMemHandle((uintptr_t)base);
	rmx_context_leave(0, "");
}
