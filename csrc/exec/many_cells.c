/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Elements in memory that is mapped here, one by one: what the loops
 * of many_direct.c do not take, and batches over any number of ranks.
 */
#include "exec/many.h"

int rmx_cells_update_each(struct rmx_many *b, uint64_t end)
{
	for (uint64_t at; b->at < end; b->at++) {
		const uint64_t i = b->at;
		const int64_t rank = rmx_rank_at(b, i);
		const struct rmx_target *t =
			rmx_place(b, rank, rmx_offset_at(b, i), b->unit, &at);
		void *cell;
		int ret;

		if (!t || !rmx_many_is_local(b, rank))
			return rmx_changed(b);
		cell = t->map + at;
		ret = rmx_update_cells(b->window, rank, b->op, b->type, &cell,
				       1, rmx_value_at(b, i), 0,
				       rmx_result_at(b, i), RMX_SLICE);
		b->busy = rank;
		if (ret)
			return ret;
	}
	return 0;
}

int rmx_cells_move_each(const struct rmx_many *b, uint64_t start, uint64_t end)
{
	void *cells[RMX_CELLS];

	for (uint64_t i = start, n; i < end; i += n) {
		n = end - i < RMX_CELLS ? end - i : RMX_CELLS;
		for (uint64_t k = 0, at; k < n; k++) {
			const struct rmx_target *t = rmx_place(
				b, rmx_rank_at(b, i + k),
				rmx_offset_at(b, i + k), b->unit, &at);

			if (!t || t->route != RMAEXT_DIRECT)
				return rmx_changed(b);
			cells[k] = t->map + at;
		}
		rmx_cells_move(b->kind, b->unit, cells, n, rmx_value_at(b, i),
			       b->step, rmx_result_at(b, i));
	}
	return 0;
}
