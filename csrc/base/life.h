/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an owner has of an operation, whatever that is: one operation, siblings,
 * or one on many elements.
 */
#ifndef RMAEXT_LIFE_H
#define RMAEXT_LIFE_H

#include "rmaext.h"

#include <stdbool.h>

/* Each of them begins with this. */
struct rmaext_op {
	const struct rmx_life *life;
};

/*
 * How it is waited for, and let go of: rmaext.h describes these functions as
 * rmaext_op_wait() and so on. `wait` enters the window itself, and `release`
 * returns 0 once *op is gone.
 */
struct rmx_life {
	int (*wait)(struct rmaext_op *op, int64_t slice);
	int (*release)(struct rmaext_op *op);
	bool (*cancel)(struct rmaext_op *op); /* NULL: it cannot be */
	int64_t (*rank)(const struct rmaext_op *op);
};

#endif
