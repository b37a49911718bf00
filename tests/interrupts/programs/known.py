# SPDX-License-Identifier: BSD-3-Clause
"""The calls that fail today in some place, and why: to be taken off this list when mended.

`calls.py --known` runs them all the same. Not on it, and not run: Win.Allocate_shared where the
route is forced to be fabric. It calls MPI's, and whoever is in that waits for a rank that an
exception has ended before it came there.
"""

_UNLOCK = "at its beginning, in `finally`: the lock stays held"
_BETWEEN = "between two collective steps of the container nobody is told"
_PIECES = "several operations: some are done"

KNOWN = {
    # locks
    "lock_all": "all are taken, and LockGuard(self, None) begins in Python, outside of the `try`",
    "with lock_all": "the same",
    "Win.Lock_all": "compat/epochs.py lock_all: after the own lock is taken, before it is noted",
    "unlock exclusive": _UNLOCK,
    "unlock shared": _UNLOCK,
    "unlock_all": _UNLOCK,
    "Win.Unlock exclusive": _UNLOCK,
    "Win.Unlock shared": _UNLOCK,
    "Win.Unlock unused exclusive": _UNLOCK,
    "Win.Unlock_all": _UNLOCK,
    # containers
    "Dict": _BETWEEN,
    "TaskQueue": _BETWEEN,
    "Published": _BETWEEN,
    "Store": _BETWEEN,
    "close of Dict": _BETWEEN,
    "Dict.len": _BETWEEN,
    "Dict.items": _BETWEEN,
    "Dict.clear": _BETWEEN,
    # windows
    "field accumulate": _PIECES,
    "joined put": _PIECES,
    "joined accumulate": _PIECES,
    "joined rput": _PIECES,
}
