# SPDX-License-Identifier: BSD-3-Clause
"""The calls that fail today in some place, and why: to be taken off this list when mended.

`calls.py --known` runs them all the same. Not on it, and not run: Win.Allocate_shared where the
route is forced to be fabric. It calls MPI's, and whoever is in that waits for a rank that an
exception has ended before it came there.
"""

_UNLOCK = "at its beginning: `finally: unlock` leaves the lock held"
_WITH_LOCK = "LockGuard.__enter__ and __exit__ begin in Python: use cmethods.With"
_SECTION = "Dict's reading section (memory.py __enter__, __exit__) is not left"
_BETWEEN = "between two windows of the container nobody is told"
_PIECES = "several operations: some are done"

KNOWN = {
    # locks: the coordinator
    "lock_all": "LockGuard is made after all locks are taken, outside of the `try`",
    "unlock exclusive": _UNLOCK,
    "unlock shared": _UNLOCK,
    "unlock_all": _UNLOCK,
    "with lock exclusive": _WITH_LOCK,
    "with lock shared": _WITH_LOCK,
    "with lock_all": _WITH_LOCK,
    "Win.Lock exclusive": "compat/epochs.py: after the lock is taken, before it is noted",
    "Win.Lock_all": "compat/epochs.py: after the own lock is taken, before it is noted",
    "Win.Unlock exclusive": _UNLOCK,
    "Win.Unlock shared": _UNLOCK,
    "Win.Unlock unused exclusive": _UNLOCK,
    "Win.Unlock_all": _UNLOCK,
    # containers
    "Dict.get": _SECTION,
    "Dict.[]": _SECTION,
    "Dict.in": _SECTION,
    "Dict.[]=": _SECTION,
    "Dict.[]= new": _SECTION,
    "Dict.del": _SECTION,
    "Dict.setdefault": _SECTION,
    "Dict.setdefault new": _SECTION,
    "Dict.pop": _SECTION,
    "Dict.pop none": _SECTION,
    "Dict.add": _SECTION,
    "Dict.add new": _SECTION,
    "Dict.get_many": _SECTION,
    "Dict.set_many": _SECTION,
    "Dict.add_many": _SECTION,
    "Dict.local_items": _SECTION,
    "TaskQueue.put": "findings A1 to A3",
    "TaskQueue loop": "findings A1 to A3",
    "Dict": _BETWEEN,
    "TaskQueue": _BETWEEN,
    "Published": _BETWEEN,
    "Store": _BETWEEN,
    "close of Dict": _BETWEEN,
    "close of TaskQueue": _BETWEEN,
    "close of Published": _BETWEEN,
    "Dict.len": _BETWEEN,
    "Dict.items": _BETWEEN,
    "Dict.clear": _BETWEEN,
    # windows
    "field accumulate": _PIECES,
    "joined put": _PIECES,
    "joined accumulate": _PIECES,
    "joined rput": _PIECES,
}
