/* SPDX-License-Identifier: BSD-3-Clause */
/* Lines of text that grow in a buffer of the caller. */
#include "base/common.h"

#include <stdarg.h>
#include <stdio.h>

void rmx_text_add(struct rmx_text *text, const char *format, ...)
{
	const size_t used = text->used < text->size ? text->used : text->size;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(used < text->size ? text->buf + used : NULL,
		      text->size - used, format, args);
	va_end(args);
	text->used += n > 0 ? (size_t)n : 0;
}

int rmx_text_end(struct rmx_text *text, const char *call, size_t *len_p)
{
	*len_p = text->used + 1;
	if (*len_p > text->size)
		return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, call,
				"the text has %zu bytes, the buffer %zu",
				*len_p, text->size);
	if (!text->used)
		text->buf[0] = '\0';
	return 0;
}
