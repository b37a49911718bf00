/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The target carries out ranges, which are elements that lie one after another.
 * All ranges of a message are checked before the first is carried out.
 */
#include "am/am.h"
#include "exec/update.h"
#include "win/notify.h"

#include <errno.h>
#include <string.h>

static int range_check_put(const struct rmx_range *r)
{
	if (r->unit != 1 || r->op || r->type || (r->flags & RMX_WITH_FETCH))
		return -FI_EINVAL;
	return 0;
}

static int range_check_get(const struct rmx_range *r)
{
	if (r->unit != 1 || r->op || r->type || !r->count ||
	    r->flags != RMX_WITH_FETCH)
		return -FI_EINVAL;
	return 0;
}

static int range_check_update(const struct rmaext_window *w,
			      const struct rmx_range *r)
{
	const bool fetch = r->flags & RMX_WITH_FETCH;

	if (!rmx_update_valid(r->op, r->type) ||
	    r->unit != rmx_unit_of(r->type) || !r->count ||
	    (r->flags & RMX_WITH_NOTIFY) ||
	    (!fetch && (r->op == RMAEXT_CSWAP || r->op == RMAEXT_NO_OP)))
		return -FI_EINVAL;
	if (rmx_wide(r->type) && !rmx_control_block_of(w, w->self))
		return -FI_EOPNOTSUPP; /* nothing guards it */
	if (((uintptr_t)w->own + r->offset) & (rmx_type_of(r->type).align - 1u))
		return -FI_EFAULT;
	return 0;
}

/* `r` is a copy; any of its fields may be wrong. */
static int range_check(const struct rmaext_window *w, const struct rmx_range *r,
		       struct rmx_share *share_p)
{
	const struct rmx_target *t = rmx_target_of(w, w->self);
	const bool update = r->kind == RMX_UPDATE;
	const bool get = r->kind == RMX_MESSAGE_GET;
	const int access =
		update	   ? rmx_update_access(r->op, r->flags & RMX_WITH_FETCH)
		: get	   ? RMAEXT_READ
		: r->count ? RMAEXT_WRITE
			   : 0; /* it only notifies */
	int ret;

	if ((!update && !get && r->kind != RMX_MESSAGE_PUT) ||
	    (r->flags & ~(RMX_WITH_FETCH | RMX_WITH_NOTIFY)) || r->zero[0] ||
	    r->zero[1] || r->zero[2])
		return -FI_EINVAL;
	if (w->invites && (r->flags & RMX_WITH_NOTIFY))
		return -FI_EACCES; /* a grant is of memory */
	if (r->flags & RMX_WITH_NOTIFY
		    ? r->slot >= RMAEXT_NOTIFY ||
			      !rmx_control_block_of(w, w->self)
		    : r->slot)
		return -FI_EINVAL;
	ret = update ? range_check_update(w, r)
	      : get  ? range_check_get(r)
		     : range_check_put(r);
	if (ret)
		return ret;
	if ((access && !w->own && !w->attached) ||
	    (t->access & access) != access)
		return -FI_EACCES;
	if (access && (r->count > UINT64_MAX / r->unit ||
		       !rmx_has(w, r->offset, r->count * r->unit)))
		return -ERANGE;
	*share_p = rmx_share_of(r->kind, r->op, r->flags & RMX_WITH_FETCH,
				r->count * r->unit);
	return 0;
}

uint64_t rmx_ranges_bytes(const char *data)
{
	const struct rmx_request_header *q =
		(const struct rmx_request_header *)data;
	size_t at = sizeof(*q);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < q->count; i++) {
		struct rmx_share s;
		struct rmx_range r;

		memcpy(&r, data + at, sizeof(r));
		s = rmx_share_of(r.kind, r.op, r.flags & RMX_WITH_FETCH,
				 r.count * r.unit);
		at = RMX_ALIGNED(at + sizeof(r) + s.operands * s.values);
		bytes += r.count * r.unit;
	}
	return bytes;
}

int rmx_ranges_check(const struct rmaext_window *w, const char *data,
		     size_t len, size_t *results_p)
{
	const struct rmx_request_header *q =
		(const struct rmx_request_header *)data;
	size_t at = sizeof(*q), end = at, results = 0;

	if (q->kind || q->type || q->op || q->fetch || q->unit || !q->count)
		return -FI_EINVAL;
	for (uint32_t i = 0; i < q->count; i++) {
		struct rmx_share s;
		struct rmx_range r;
		int ret;

		if (at > len || len - at < sizeof(r))
			return -FI_EINVAL;
		memcpy(&r, data + at, sizeof(r));
		ret = range_check(w, &r, &s);
		if (ret)
			return ret;
		at += sizeof(r);
		if (s.operands && s.values > (len - at) / s.operands)
			return -FI_EINVAL;
		end = at + s.operands * s.values;
		at = RMX_ALIGNED(end);
		if (!s.results)
			continue;
		if (s.values > RMX_MOST - RMX_ALIGNED(results))
			return -FI_EINVAL;
		results = RMX_ALIGNED(results) + s.values;
	}
	*results_p = results;
	return end == len ? 0 : -FI_EINVAL;
}

static int range_apply(struct rmaext_window *w, const struct rmx_range *r,
		       const char *operand, const char *compare, char *results,
		       uint64_t *done, int64_t ns)
{
	char *memory = rmx_own(w, r->offset);
	int ret = 0;

	if (r->kind == RMX_UPDATE)
		ret = rmx_update_apply(
			w, memory,
			&(struct rmaext_call){
				.op = r->op,
				.type = r->type,
				.rank = w->self,
				.operand = operand,
				.compare = compare,
				.result = r->flags & RMX_WITH_FETCH ? results
								    : NULL,
				.count = r->count,
			},
			done, ns);
	else if (r->kind == RMX_MESSAGE_GET)
		rmx_copy(results, memory, r->count * r->unit);
	else
		rmx_copy(memory, operand, r->count * r->unit);
	if (!ret && (r->flags & RMX_WITH_NOTIFY))
		rmx_notify_add(w, w->self, r->slot, 1);
	return ret;
}

int rmx_ranges_apply(struct rmaext_window *w, const char *data, char *results,
		     struct rmx_done *done, int64_t ns)
{
	const struct rmx_request_header *q =
		(const struct rmx_request_header *)data;
	int ret = 0;

	data += sizeof(*q);
	for (uint32_t i = 0; i < q->count; i++) {
		struct rmx_range r;
		struct rmx_share s;
		const char *compare;

		memcpy(&r, data, sizeof(r));
		data += sizeof(r);
		s = rmx_share_of(r.kind, r.op, r.flags & RMX_WITH_FETCH,
				 r.count * r.unit);
		compare = s.operands > 1 ? data : NULL;
		data += compare ? s.values : 0;
		if (i >= done->parts) {
			ret = range_apply(w, &r, data, compare, results,
					  &done->elements, ns);
			if (ret)
				break;
			done->parts++;
			done->elements = 0;
		}
		data += s.operands ? s.values : 0;
		data = (const char *)RMX_ALIGNED((uintptr_t)data);
		if (s.results)
			results += RMX_ALIGNED(s.values);
	}
	atomic_thread_fence(memory_order_seq_cst);
	return ret;
}
