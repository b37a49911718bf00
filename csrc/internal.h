/* SPDX-License-Identifier: BSD-3-Clause */
/* All that the .c files share, a header a subject. */
#ifndef RMAEXT_INTERNAL_H
#define RMAEXT_INTERNAL_H

#include "executor.h"

#endif
