/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Raw keys. A key is mapped to the eight bytes that transfers take
 * when it is first used, as most ranks talk to few others.
 */
#include "win/window.h"

int rmx_key_map(struct rmaext_window *window, int64_t rank)
{
	struct rmx_target *target = rmx_target_of(window, rank);
	struct rmaext_fabric *f = window->fabric;
	int ret = 0;

	if (!window->raw_keys || window->attached)
		return 0;
	pthread_mutex_lock(&f->lock);
	if (!target->mapped) {
		ret = f->transport->key_map(
			f, target->base,
			window->raw_keys +
				(size_t)(window->raw_same ? 0 : rank) *
					window->raw_len,
			window->raw_len, &target->key);
		target->mapped = !ret;
	}
	pthread_mutex_unlock(&f->lock);
	if (ret)
		rmx_fail(ret, rank, "rmx_key_map",
			 "cannot map the key of %zu bytes: %s", window->raw_len,
			 rmx_words(f, ret));
	return ret;
}

void rmx_key_unmap_all(struct rmaext_window *window)
{
	struct rmaext_fabric *f = window->fabric;

	if (!window->raw_keys)
		return;
	for (int64_t rank = 0; rank < window->count; rank++) {
		struct rmx_target *target = &window->targets[rank];

		if (target->mapped)
			f->transport->key_unmap(f, target->key);
		target->mapped = false;
	}
}
