/* SPDX-License-Identifier: BSD-3-Clause */
/* What the owner of an operation does with it, whatever it is. */
#include "base/life.h"

#include "base/common.h"

int rmaext_op_wait(rmaext_op *op, int64_t slice)
{
	return op->life->wait(op, slice < RMX_SLICE ? slice : RMX_SLICE);
}

int rmaext_op_release(rmaext_op **op_p)
{
	const int ret = *op_p ? (*op_p)->life->release(*op_p) : 0;

	if (!ret)
		*op_p = NULL;
	return ret;
}

int rmaext_op_cancel(rmaext_op *op)
{
	return op->life->cancel && op->life->cancel(op);
}

int64_t rmaext_op_rank(const rmaext_op *op)
{
	return op->life->rank(op);
}
