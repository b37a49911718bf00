/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Remote keys. A key has eight bytes, or is raw bytes of any length where the
 * provider sets FI_MR_RAW. With other providers fi_mr_raw_attr gives
 * -FI_ENOSYS, whatever fi_mr(3) says.
 */
#include "net/endpoint.h"

#include <string.h>

static int memory_key(struct rmaext_memory *memory, void *buf, size_t *len)
{
	struct rmaext_fabric *f = memory->fabric;
	size_t size = *len;
	uint64_t key;
	int ret;

	if (f->mr_mode & FI_MR_RAW) {
		ret = fi_mr_raw_attr(memory->region.mr, &memory->base, buf, len,
				     0);
		if (ret)
			return rmx_fail(ret, RMX_NO_RANK, "fi_mr_raw_attr",
					"provider %s: room for %zu bytes, %zu "
					"needed",
					f->info->fabric_attr->prov_name, size,
					*len);
		return 0;
	}
	key = fi_mr_key(memory->region.mr);
	if (key == FI_KEY_NOTAVAIL)
		return rmx_fail(-FI_ENOKEY, RMX_NO_RANK, "fi_mr_key",
				"provider %s gives no key for the memory",
				f->info->fabric_attr->prov_name);
	*len = sizeof(key);
	if (size < sizeof(key))
		return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, "fi_mr_key",
				"room for %zu bytes, 8 needed", size);
	memcpy(buf, &key, sizeof(key));
	return 0;
}

int rmaext_memory_key(rmaext_memory *memory, void *buf, size_t *len)
{
	struct rmaext_fabric *f = memory->fabric;
	int ret = rmx_fabric_enter(f, "rmaext_memory_key");

	if (ret)
		return ret;
	ret = memory_key(memory, buf, len);
	rmx_fabric_leave(f);
	return ret;
}
