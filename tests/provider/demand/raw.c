/* SPDX-License-Identifier: BSD-3-Clause */
/* Raw keys: a region's own, and those of peers, which are mapped. */
#define _GNU_SOURCE
#include "demand.h"

#include <stdlib.h>

static unsigned char filler(uint64_t key, size_t i)
{
	return (unsigned char)(key + i * 31);
}

int dm_raw_attr(struct dm_region *r, const struct fi_mr_raw_attr *attr)
{
	size_t size = dm_demands()->key_size, room = *attr->key_size;
	int ret = dm_called(DM_CALL_raw_attr);

	if (ret)
		return ret;
	if (!dm_demanded(FI_MR_RAW))
		return -FI_ENOSYS;
	*attr->key_size = size;
	if (room < size)
		return -FI_ETOOSMALL;
	if (!r->enabled || !r->ready)
		return dm_violated(DM_disabled, -FI_EINVAL,
				   "fi_mr_raw_attr of a disabled region");
	*attr->base_addr = r->entry->base;
	for (size_t i = 0; i < size; i++)
		attr->raw_key[i] =
			i < 8 ? (uint8_t)(r->key >> 8 * i) : filler(r->key, i);
	return 0;
}

int dm_raw_map(struct dm_domain *d, struct fi_mr_map_raw *map)
{
	size_t size = dm_demands()->key_size;
	struct dm_mapped *m;
	uint64_t key = 0;
	bool good = map->key_size == size;
	int ret = dm_called(DM_CALL_map_raw);

	if (ret)
		return ret;
	if (!dm_demanded(FI_MR_RAW))
		return -FI_ENOSYS;
	for (size_t i = 0; good && i < size; i++) {
		if (i < 8)
			key |= (uint64_t)map->raw_key[i] << 8 * i;
		else
			good = map->raw_key[i] == filler(key, i);
	}
	if (!good)
		return dm_violated(DM_raw_key, -FI_EKEYREJECTED,
				   "malformed raw key of %zu bytes",
				   map->key_size);
	m = calloc(1, sizeof(*m));
	if (!m)
		return -FI_ENOMEM;
	m->key = key;
	m->live = true;
	m->handle = dm_random();
	dm_lock();
	m->next = d->mapped;
	d->mapped = m;
	d->mappings++;
	dm_unlock();
	*map->key = m->handle;
	return 0;
}

/* The lock is held. It stays after it is unmapped, to be told from others. */
static struct dm_mapped *mapped(struct dm_domain *d, uint64_t handle)
{
	struct dm_mapped *m = d->mapped;

	while (m && m->handle != handle)
		m = m->next;
	return m;
}

int dm_raw_unmap(struct dm_domain *d, uint64_t handle)
{
	struct dm_mapped *m;
	int ret = dm_called(DM_CALL_unmap_key);

	if (ret)
		return ret;
	dm_lock();
	m = mapped(d, handle);
	if (!m || !m->live) {
		ret = dm_violated(DM_raw_key, -FI_EINVAL,
				  "unmapped a key that is not mapped");
	} else {
		m->live = false;
		d->mappings--;
	}
	dm_unlock();
	return ret;
}

int dm_raw_find(struct dm_domain *d, uint64_t handle, uint64_t *key_p)
{
	struct dm_mapped *m;
	int ret = 0;

	dm_lock();
	m = mapped(d, handle);
	if (m && m->live)
		*key_p = m->key;
	else
		ret = dm_violated(DM_raw_key, -FI_EKEYREJECTED, "%s raw key",
				  m ? "unmapped" : "unknown");
	dm_unlock();
	return ret;
}
