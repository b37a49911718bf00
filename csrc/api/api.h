/* SPDX-License-Identifier: BSD-3-Clause */
/* What the functions of rmaext.h share among themselves and with csrc/python.
 */
#ifndef RMAEXT_API_H
#define RMAEXT_API_H

#include "am/coalesce.h"

/* Returns the name of a call, for error records. */
static inline const char *rmx_call_name(const struct rmaext_call *c)
{
	if (c->kind == RMAEXT_GET)
		return "get";
	if (c->kind == RMAEXT_PUT)
		return c->notify ? "put_notify" : "put";
	if (c->op == RMAEXT_CSWAP)
		return "compare_and_swap";
	return c->result ? "get_accumulate" : "accumulate";
}

/*
 * What rmaext_start() chooses from: an update; a put or get in a row, of a
 * part, and with a notification. The caller is inside the window. They return
 * as rmaext_start().
 */
int rmx_update_start(struct rmaext_window *window,
		     const struct rmaext_call *call, struct rmaext_op **op_p);
int rmx_move_start(struct rmaext_window *window, const struct rmaext_call *call,
		   struct rmaext_op **op_p);
int rmx_strided_start(struct rmaext_window *window,
		      const struct rmaext_call *call, struct rmaext_op **op_p);
int rmx_notify_start(struct rmaext_window *window,
		     const struct rmaext_call *call, struct rmaext_op **op_p);

/*
 * by_stream.c: a put or get in a row, which was checked and is not empty, of
 * memory of a device (rmx_device_of()); a put may notify then. Returns as
 * rmaext_start().
 */
int rmx_by_stream(struct rmaext_window *window, const struct rmaext_call *call,
		  struct rmaext_op **op_p);

/*
 * put_get.c: carries out a put or get that was checked, if it is by memory, and
 * counts it as `kind` at `place`; *ret_p is what came of it. False: it is to go
 * by the network, and nothing was done that is not done again.
 */
bool rmx_move_by_memory(struct rmaext_window *window,
			const struct rmaext_call *call, unsigned int kind,
			uint64_t place, int *ret_p);

/*
 * many.c: what rmaext_start_many() calls, inside the window, once it has
 * checked the call, but for the places; *op_p is NULL. Returns as that does.
 */
int rmx_many_start(struct rmaext_window *window,
		   const struct rmaext_places_call *call,
		   struct rmaext_op **op_p, int64_t *bad_p);

/*
 * many_check.c: check looks at all places. An error with a record; *bad_p is
 * the place, if one is. own copies a request's arrays, which the caller may
 * change after the call, and reads its counts; many->copies is the caller's to
 * free. It returns as check.
 */
struct rmx_many;
int rmx_many_check(struct rmx_many *many, int64_t *bad_p);
int rmx_many_own(struct rmx_many *many, const struct rmaext_places_call *call,
		 int64_t *bad_p);

/*
 * many.c: the kernel copies a part, which was checked, for a put or get, or a
 * stream does. A put notifies then, if that is asked for. Returns as
 * rmaext_start().
 */
int rmx_many_copy(struct rmaext_window *window, const struct rmaext_call *call,
		  const struct rmx_layout *part, struct rmaext_op **op_p);

/*
 * many.c: does all of it at once if it is short, valid and by memory; *ret_p
 * is what rmaext_start_many() would return. False: nothing was done, and the
 * caller calls that. The caller keeps the window open, by the GIL or inside
 * it. `fresh`, of a get: nobody sees the results if it fails.
 */
bool rmx_many_direct(struct rmaext_window *window,
		     const struct rmaext_places_call *call, bool fresh,
		     int *ret_p);

#endif
