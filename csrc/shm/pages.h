/* SPDX-License-Identifier: BSD-3-Clause */
/* The pages of a piece of memory; see pages.c. */
#ifndef RMAEXT_PAGES_H
#define RMAEXT_PAGES_H

#include "base/common.h"

/*
 * Has all pages of own memory there, for reading or for writing, and leaves
 * what is in them. Pages that are shared until somebody writes, such as the
 * page of zeros, are not those that a writer uses later, so `write` replaces
 * them. Any thread may call it. Returns 0 or -errno without a record.
 */
int rmx_pages_populate(void *addr, uint64_t len, bool write);

#endif
