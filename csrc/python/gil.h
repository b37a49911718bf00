/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How much is done with the GIL held: what takes 5 to 10 us at most, which is
 * about what it costs to let go of it and to get it back from another thread.
 */
#ifndef RMAEXT_GIL_H
#define RMAEXT_GIL_H

#define PY_GIL_BYTES ((uint64_t)64 << 10)     /* copied in one piece */
#define PY_GIL_RUN_BYTES ((uint64_t)16 << 10) /* in any runs */
#define PY_GIL_RUNS 4096		      /* of PY_GIL_BYTES */
#define PY_GIL_UPDATE_BYTES ((uint64_t)4 << 10)
#define PY_GIL_PLACES ((uint64_t)4 << 10)	 /* of puts and gets */
#define PY_GIL_UPDATE_PLACES ((uint64_t)1 << 10) /* of updates */
#define PY_GIL_RANKS 64				 /* flushed */
#define PY_GIL_LOOKS 25				 /* at a counter: 1 us */

#endif
