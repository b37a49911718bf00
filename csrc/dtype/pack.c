/* SPDX-License-Identifier: BSD-3-Clause */
/* MPI_Pack and MPI_Unpack of a datatype that is given as runs of bytes. */
#include "rmaext.h"

#include <string.h>

void rmaext_pack(int kind, void *base, const int64_t *offsets,
		 const int64_t *lengths, uint64_t count, void *piece)
{
	char *at = piece;

	for (uint64_t i = 0; i < count; i++) {
		const size_t len = (size_t)lengths[i];
		char *run = (char *)base + offsets[i];

		memcpy(kind == RMAEXT_PUT ? at : run,
		       kind == RMAEXT_PUT ? run : at, len);
		at += len;
	}
}
