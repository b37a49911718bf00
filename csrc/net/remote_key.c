/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Remote keys: eight bytes, or raw bytes of any length where the provider set
 * FI_MR_RAW (fi_mr_raw_attr is -FI_ENOSYS elsewhere, whatever fi_mr(3) says).
 */
#include "am/am.h"

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
				"provider %s has no key",
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

/* Raw keys are mapped on first use: most ranks talk to few others. */
int rmx_key_map(struct rmaext_window *window, int64_t rank)
{
	struct rmx_target *target = rmx_target_of(window, rank);
	struct rmaext_fabric *f = window->fabric;
	int ret = 0;

	if (!window->raw_keys || window->attached)
		return 0;
	pthread_mutex_lock(&f->lock);
	if (!target->mapped) {
		ret = fi_mr_map_raw(
			f->domain, target->base,
			window->raw_keys +
				(size_t)(window->raw_same ? 0 : rank) *
					window->raw_len,
			window->raw_len, &target->key, 0);
		target->mapped = !ret;
	}
	pthread_mutex_unlock(&f->lock);
	if (ret)
		rmx_fail(ret, rank, "fi_mr_map_raw", "key of %zu bytes: %s",
			 window->raw_len, f->lib->strerror(-ret));
	return ret;
}

void rmx_key_unmap_all(struct rmaext_window *window)
{
	if (!window->raw_keys)
		return;
	for (int64_t rank = 0; rank < window->count; rank++) {
		struct rmx_target *target = &window->targets[rank];

		if (target->mapped)
			fi_mr_unmap_key(window->fabric->domain, target->key);
		target->mapped = false;
	}
}
