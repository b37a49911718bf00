/* SPDX-License-Identifier: BSD-3-Clause */
/* The pages of a piece of memory; see pages.c. */
#ifndef RMAEXT_PAGES_H
#define RMAEXT_PAGES_H

#include "base/common.h"

/*
 * Has all pages of own memory there, for reading or for writing, and leaves
 * what is in them. Pages that are shared until somebody writes, such as the
 * page of zeros, are not those that a writer uses later, so `write` replaces
 * them. It takes them step by step, and looks each time whether there is room
 * for the rest: so ranks that do so at once do not fill the memory before one
 * of them sees it. Any thread may call it. Returns 0 or -errno without a
 * record; -ENOSPC: there is no room for them, and a part may be there.
 */
int rmx_pages_populate(void *addr, uint64_t len, bool write);

/*
 * room.c: how many bytes this process may have more before the kernel kills
 * somebody, as far as is known; UINT64_MAX: nothing says. `prefix` comes before
 * the names of all files of the system: "", but for tests.
 */
uint64_t rmx_room(const char *prefix);

#endif
