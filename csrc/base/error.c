/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(RMAEXT_ETOOSMALL == (int)FI_ETOOSMALL, "as libfabric has it");
_Static_assert(RMAEXT_EBADFLAGS == (int)FI_EBADFLAGS, "as libfabric has it");
_Static_assert(RMAEXT_ENOKEY == (int)FI_ENOKEY, "as libfabric has it");

/*
 * Each thread has its record, rather than each fabric: there is no fabric yet
 * when one is opened, and two threads that fail at once must not read each
 * other's words.
 */
static _Thread_local struct rmaext_error last_error = {.rank = -1};

int rmx_fail(int code, int64_t rank, const char *call, const char *format, ...)
{
	va_list args;

	last_error.code = code;
	last_error.prov_errno = 0;
	last_error.rank = rank;
	snprintf(last_error.call, sizeof(last_error.call), "%s", call);
	va_start(args, format);
	vsnprintf(last_error.detail, sizeof(last_error.detail), format, args);
	va_end(args);
	return code;
}

int rmx_no_memory(const char *what)
{
	return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "malloc", "no memory for %s",
			what);
}

int rmx_fail_record(const struct rmaext_error *record)
{
	last_error = *record;
	return record->code;
}

void rmaext_error_last(struct rmaext_error *error_p)
{
	*error_p = last_error;
}
