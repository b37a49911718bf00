# SPDX-License-Identifier: BSD-3-Clause
"""What the errors of waits say: why nothing came, as far as this rank can know it.

It is the verdict of `python -m rmaext why`, of this node's ranks, at the moment of the error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._native._lib import lib
from .._runtime import failures
from .._runtime.log import log

if TYPE_CHECKING:
    from .snapshot import Snapshot

__all__ = ["install"]

_MOST = 16  # ranks that are looked at: each of them may do so at the same time
_COMMAND = "`python -m rmaext why`"


def install() -> None:
    """Have the errors of waits say it."""
    failures.advise = _advice


def _advice(late: bool) -> str:
    """Return the findings that are about the calling thread's last wait; "" if there are none."""
    try:
        from .job import LONG  # here: few programs ever need it, and its import takes long

        # no verdict is of shorter waits, and to look at all ranks takes a while
        if lib.rmaext_record_again(1) < LONG * 1e9:
            return ""
        found = "; ".join(_findings())
        if late and _COMMAND not in found:
            found += f"{found and '. '}{_COMMAND}, while it waits, shows the line of each rank"
        return found
    except Exception:  # whatever is wrong here, the error that is being made is of something else
        log.debug("no advice", exc_info=True)
        return ""
    finally:
        lib.rmaext_record_again(0)


def _findings() -> list[str]:
    from .record import count_notifications, find

    records, _ = find([os.getpid()], whole_jobs=True)
    try:
        if len(records) > _MOST:
            return [f"{_COMMAND} tells who waits for whom"]
        snapshots = [record.snapshot() for record in records]
        count_notifications(snapshots, records)
        return _of_this_process(snapshots)
    finally:
        for record in records:
            record.close()


def _of_this_process(snapshots: Sequence[Snapshot]) -> list[str]:
    from .job import jobs
    from .verdict import verdict

    return [
        finding.text
        for job in jobs(snapshots)
        for me in job.members
        if me.pid == os.getpid()
        for finding in verdict(job)
        if me.rank in finding.waiting and finding.kind != "unclear"
    ]
