/* SPDX-License-Identifier: BSD-3-Clause */
/* What the calls of rmaext.h share among themselves, and with csrc/python. */
#ifndef RMAEXT_API_H
#define RMAEXT_API_H

#include "am/am.h"

/* update.c; the caller is inside the window */
int rmx_update_begin(struct rmaext_window *window,
		     const struct rmaext_call *call, struct rmaext_op **op_p);
/* of RMX_LOCAL_UPDATE, from malloc(): a slice more */
int rmx_update_wait(struct rmaext_op *op);

/*
 * notify.c: rmaext_put_notify() by message, with a copy of the data: it never
 * waits. -FI_EAGAIN: the line to that rank is full, nothing was done.
 */
int rmx_notify_post(struct rmaext_window *window, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot);

/* vector.c: the arguments of rmaext_many */
struct rmx_many {
	struct rmaext_window *window;
	int kind, op, type;
	uint64_t unit, count;
	int ones;
	const int64_t *ranks, *offsets;
	const void *values;
	void *results;
	uint64_t scale; /* bytes that an offset counts; 0: as the window has it
			 */
};

/*
 * All of it, where it is short, plain and by memory. False: nothing was done,
 * and rmaext_many() does it, or knows why not. The caller keeps the window
 * open.
 */
bool rmx_many_direct(const struct rmx_many *many, int *ret_p);

/* elements are runs; takes over strides, which malloc() gave, in any case */
int rmx_many_strided(struct rmaext_window *window, int kind,
		     struct rmx_strides *strides, void *buf,
		     struct rmaext_many *many_p);

/* strided.c: rmx_check() of all that the loops reach from offset on */
int rmx_strides_check(const struct rmx_strides *strides,
		      const struct rmaext_window *window, const char *call,
		      int64_t rank, uint64_t offset, int access);

#endif
