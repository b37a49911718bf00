/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Remote keys. A key has eight bytes, or is raw bytes of any length where the
 * provider sets FI_MR_RAW. With other providers fi_mr_raw_attr gives
 * -FI_ENOSYS, whatever fi_mr(3) says.
 */
#include "net/libfabric/libfabric.h"

#include <string.h>

int rmx_fi_key(struct rmaext_fabric *f, const struct rmx_region *region,
	       uint64_t *base, void *buf, size_t *len)
{
	struct fid_mr *mr = region->of_transport;
	size_t size = *len;
	uint64_t key;
	int ret;

	if (f->limits.raw_keys) {
		ret = fi_mr_raw_attr(mr, base, buf, len, 0);
		if (ret)
			return rmx_fail(ret, RMX_NO_RANK, "fi_mr_raw_attr",
					"provider %s: room for %zu bytes, %zu "
					"needed",
					f->limits.provider, size, *len);
		return 0;
	}
	key = fi_mr_key(mr);
	if (key == FI_KEY_NOTAVAIL)
		return rmx_fail(-FI_ENOKEY, RMX_NO_RANK, "fi_mr_key",
				"provider %s gives no key for the memory",
				f->limits.provider);
	*len = sizeof(key);
	if (size < sizeof(key))
		return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, "fi_mr_key",
				"room for %zu bytes, 8 needed", size);
	memcpy(buf, &key, sizeof(key));
	return 0;
}

int rmx_fi_key_map(struct rmaext_fabric *f, uint64_t base, uint8_t *raw,
		   size_t len, uint64_t *key_p)
{
	return fi_mr_map_raw(f->endpoint->domain, base, raw, len, key_p, 0);
}

void rmx_fi_key_unmap(struct rmaext_fabric *f, uint64_t key)
{
	fi_mr_unmap_key(f->endpoint->domain, key);
}
