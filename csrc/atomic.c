/* SPDX-License-Identifier: BSD-3-Clause */
/* fetch_add and compare_and_swap: validity, the network's, the own CPU's. */
#include "internal.h"
#include "cpu.h"

#include <string.h>

_Static_assert((int)RMAEXT_SUM == FI_SUM && (int)RMAEXT_CSWAP == FI_CSWAP &&
		       (int)RMAEXT_INT8 == FI_INT8 &&
		       (int)RMAEXT_UINT64 == FI_UINT64 &&
		       (int)RMAEXT_DOUBLE == FI_DOUBLE &&
		       (int)RMAEXT_FLOAT_COMPLEX == FI_FLOAT_COMPLEX &&
		       (int)RMAEXT_LONG_DOUBLE == FI_LONG_DOUBLE,
	       "rmaext.h repeats libfabric's numbers");

/* The most elements a network atomic takes; 0 where there is none. */
static size_t network_count(struct rmaext_fabric *f, int type, int op)
{
	size_t count = 0;
	int ret;

	/* sockets in 1.17 says yes to types that there are not */
	if (!f->atomics || !rmx_unit_of(type))
		return 0;
	ret = op == RMAEXT_CSWAP
		      ? fi_compare_atomicvalid(f->ep, (enum fi_datatype)type,
					       (enum fi_op)op, &count)
		      : fi_fetch_atomicvalid(f->ep, (enum fi_datatype)type,
					     (enum fi_op)op, &count);
	return ret ? 0 : count;
}

/*
 * Own memory may be updated by the CPU only where the others' updates are the
 * target CPU's too: the two would not be atomic against each other.
 */
static bool by_cpu(const struct rmaext_window *w, int64_t rank)
{
	return w->targets[rank].route == RMAEXT_DIRECT;
}

/* Is there such an operation there; *most: elements that one call may have. */
static int find_atomic(struct rmaext_window *w, int64_t rank, int type, int op,
		       size_t *most)
{
	struct rmaext_fabric *f = w->fabric;

	if (by_cpu(w, rank))
		*most = rmx_cpu_valid(type) ? SIZE_MAX : 0;
	else
		*most = network_count(f, type, op);
	if (*most)
		return 0;
	return rmx_fail(-FI_EOPNOTSUPP, rank, "atomic",
			"provider %s has no such operation on this dtype",
			f ? f->info->fabric_attr->prov_name : "(CPU)");
}

int rmaext_atomic_valid(rmaext_window *w, int64_t rank, int type, int op)
{
	int ret = rmx_window_enter(w, "atomic");
	size_t most;

	if (ret)
		return ret;
	ret = rmx_check(w, "atomic", rank, 0, 0, 0);
	if (!ret)
		ret = find_atomic(w, rank, type, op, &most);
	rmx_window_leave(w);
	return ret;
}

#define ADD(type, size)                                                 \
	for (uint64_t at = 0; at < count * (size); at += (size))        \
	rmx_add_##type((char *)memory + at, (const char *)operand + at, \
		       (char *)result + at)

static void cpu_fetch_add(void *memory, int type, const void *operand,
			  void *result, uint64_t count)
{
	switch (type) {
	case RMAEXT_INT8:
	case RMAEXT_UINT8:
		ADD(uint8_t, 1);
		break;
	case RMAEXT_INT16:
	case RMAEXT_UINT16:
		ADD(uint16_t, 2);
		break;
	case RMAEXT_INT32:
	case RMAEXT_UINT32:
		ADD(uint32_t, 4);
		break;
	case RMAEXT_INT64:
	case RMAEXT_UINT64:
		ADD(uint64_t, 8);
		break;
	case RMAEXT_FLOAT:
		ADD(float, 4);
		break;
	case RMAEXT_DOUBLE:
		ADD(double, 8);
		break;
	case RMAEXT_FLOAT_COMPLEX:
		ADD(float_complex, 8);
		break;
	}
}

#define SWAP(bits)                                                            \
	for (uint64_t i = 0; i < count; i++) {                                \
		const size_t at = i * sizeof(bits);                           \
		bits old, new;                                                \
                                                                              \
		memcpy(&old, (const char *)compare + at, sizeof(old));        \
		memcpy(&new, (const char *)swap + at, sizeof(new));           \
		__atomic_compare_exchange_n((bits *)memory + i, &old, new, 0, \
					    __ATOMIC_SEQ_CST,                 \
					    __ATOMIC_SEQ_CST);                \
		memcpy((char *)result + at, &old, sizeof(old));               \
	}

static void cpu_swap(void *memory, size_t unit, const void *compare,
		     const void *swap, void *result, uint64_t count)
{
	switch (unit) {
	case 1:
		SWAP(uint8_t);
		break;
	case 2:
		SWAP(uint16_t);
		break;
	case 4:
		SWAP(uint32_t);
		break;
	case 8:
		SWAP(uint64_t);
		break;
	}
}

static bool aligned(const struct rmaext_window *w, int64_t rank,
		    uint64_t offset, size_t unit)
{
	return (w->targets[rank].align + offset) % unit == 0;
}

static bool direct(const struct rmaext_window *w, int64_t rank, uint64_t offset,
		   int type, uint64_t count)
{
	const size_t unit = rmx_unit_of(type);

	/* the caller has count elements in memory: the product fits */
	return rmx_passes(w, rank, offset, count * unit,
			  RMAEXT_READ | RMAEXT_WRITE) &&
	       by_cpu(w, rank) && rmx_cpu_valid(type) &&
	       aligned(w, rank, offset, unit);
}

bool rmx_fetch_add_direct(struct rmaext_window *w, int64_t rank,
			  uint64_t offset, int type, const void *operand,
			  void *result, uint64_t count)
{
	if (!direct(w, rank, offset, type, count))
		return false;
	cpu_fetch_add(w->targets[rank].map + offset, type, operand, result,
		      count);
	return true;
}

bool rmx_swap_direct(struct rmaext_window *w, int64_t rank, uint64_t offset,
		     int type, const void *compare, const void *swap,
		     void *result)
{
	if (!direct(w, rank, offset, type, 1))
		return false;
	cpu_swap(w->targets[rank].map + offset, rmx_unit_of(type), compare,
		 swap, result, 1);
	return true;
}

/* offset: within the operation, bytes */
int rmx_atomic_post(struct rmaext_op *op, uint64_t offset, size_t len,
		    void *context)
{
	struct rmaext_fabric *f = op->window->fabric;
	struct rmx_target *t = op->target;
	size_t count = len / op->unit;
	uint64_t addr = op->offset + offset +
			(f->mr_mode & FI_MR_VIRT_ADDR ? t->base : 0);

	if (op->kind == RMX_CSWAP)
		return (int)fi_compare_atomic(f->ep, op->operand + offset,
					      count, NULL, op->compare + offset,
					      NULL, op->local + offset, NULL,
					      t->peer->addr, addr, t->key,
					      op->type, FI_CSWAP, context);
	return (int)fi_fetch_atomic(f->ep, op->operand + offset, count, NULL,
				    op->local + offset, NULL, t->peer->addr,
				    addr, t->key, op->type, FI_SUM, context);
}

static int misaligned(const char *call, int64_t rank, uint64_t offset,
		      size_t unit)
{
	return rmx_fail(-FI_EFAULT, rank, call,
			"byte %llu is not aligned to %zu",
			(unsigned long long)offset, unit);
}

int rmaext_window_check(rmaext_window *w, int64_t rank, uint64_t offset,
			uint64_t len, int access, int type)
{
	int ret = rmx_window_enter(w, "check");
	size_t most;

	if (ret)
		return ret;
	ret = rmx_check(w, "check", rank, offset, len, access);
	if (!ret && type >= 0) {
		ret = find_atomic(w, rank, type, RMAEXT_SUM, &most);
		if (!ret && len && !aligned(w, rank, offset, rmx_unit_of(type)))
			ret = misaligned("check", rank, offset,
					 rmx_unit_of(type));
	}
	rmx_window_leave(w);
	return ret;
}

static int atomic(struct rmaext_window *w, const char *call, int64_t rank,
		  uint64_t offset, int type, enum rmx_kind kind,
		  const void *compare, const void *operand, void *result,
		  uint64_t count, struct rmaext_op **op_p)
{
	const size_t unit = rmx_unit_of(type);
	const int fi_op = kind == RMX_CSWAP ? RMAEXT_CSWAP : RMAEXT_SUM;
	const struct rmx_target *t;
	struct rmaext_op *op;
	size_t most;
	int ret = rmx_window_enter(w, call);

	*op_p = NULL;
	if (ret)
		return ret;
	if (!unit || count > UINT64_MAX / unit) {
		ret = rmx_fail(-FI_EINVAL, rank, call, "type %d", type);
		goto leave;
	}
	ret = rmx_check(w, call, rank, offset, count * unit,
			RMAEXT_READ | RMAEXT_WRITE);
	if (!ret)
		ret = find_atomic(w, rank, type, fi_op, &most);
	if (ret || !count)
		goto leave;
	if (!aligned(w, rank, offset, unit)) {
		ret = misaligned(call, rank, offset, unit);
		goto leave;
	}
	t = &w->targets[rank];
	if (by_cpu(w, rank)) {
		if (kind == RMX_CSWAP)
			cpu_swap(t->map + offset, unit, compare, operand,
				 result, count);
		else
			cpu_fetch_add(t->map + offset, type, operand, result,
				      count);
		goto leave;
	}
	ret = rmx_op_new(w, rank, kind, offset, count * unit, 0, &op);
	if (ret)
		goto leave;
	op->type = (enum fi_datatype)type;
	op->unit = unit;
	op->chunk = most * unit;
	op->local = result;
	op->operand = operand;
	op->compare = compare;
	ret = rmx_op_run(op, op_p);
leave:
	rmx_window_leave(w);
	return ret;
}

int rmaext_fetch_add(rmaext_window *w, int64_t rank, uint64_t offset, int type,
		     const void *operand, void *result, uint64_t count,
		     rmaext_op **op_p)
{
	return atomic(w, "fetch_add", rank, offset, type, RMX_FETCH_ADD, NULL,
		      operand, result, count, op_p);
}

int rmaext_compare_and_swap(rmaext_window *w, int64_t rank, uint64_t offset,
			    int type, const void *compare, const void *swap,
			    void *result, uint64_t count, rmaext_op **op_p)
{
	return atomic(w, "compare_and_swap", rank, offset, type, RMX_CSWAP,
		      compare, swap, result, count, op_p);
}
