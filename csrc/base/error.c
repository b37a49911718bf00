/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(RMAEXT_ETOOSMALL == (int)FI_ETOOSMALL, "as libfabric has it");
_Static_assert(RMAEXT_EBADFLAGS == (int)FI_EBADFLAGS, "as libfabric has it");
_Static_assert(RMAEXT_ENOKEY == (int)FI_ENOKEY, "as libfabric has it");

/*
 * A record a thread, not a fabric: opening has no fabric yet, and two threads
 * that fail at once must not read each other's words.
 */
static _Thread_local struct rmaext_error last = {.rank = -1};

int rmx_fail(int code, int64_t rank, const char *call, const char *format, ...)
{
	va_list args;

	last.code = code;
	last.prov_errno = 0;
	last.rank = rank;
	snprintf(last.call, sizeof(last.call), "%s", call);
	va_start(args, format);
	vsnprintf(last.detail, sizeof(last.detail), format, args);
	va_end(args);
	return code;
}

int rmx_fail_record(const struct rmaext_error *record)
{
	last = *record;
	return record->code;
}

void rmaext_error_last(struct rmaext_error *error_p)
{
	*error_p = last;
}
