# SPDX-License-Identifier: BSD-3-Clause
"""What one process said of itself at one moment, as plain data that JSON can carry."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Comm", "Lock", "Notified", "Slow", "Snapshot", "Thread", "Window"]


@dataclass
class Thread:
    """A thread that has been in rmaext; `kind` is the call or wait that it is in, or ""."""

    tid: int  # in the process's own namespace
    kind: str = ""  # "flush", "lock", ..., see `layout.kinds`
    wait: bool = False  # a wait, and not an operation
    window: int = 0
    target: int = -2
    since: int = 0
    offset: int = 0
    bytes: int = 0
    waited: int = 0
    waits: int = 0
    name: str = ""
    site: str = ""
    text: str = ""
    ended: bool = False  # as far as that is known

    def slots(self) -> tuple[str, list[int]]:
        """Return the call and the slots of a wait for notifications.

        The words of a wait for several name them; the record cuts words at 63 bytes.
        """
        call = self.text.partition(": ")[0]
        whole = self.text + "," * (len(self.text) < 63)
        named = re.findall(r"\d+(?=,)", whole.partition(", slots ")[2])
        return (call, [*map(int, named)]) if named else ("wait_notify", [self.offset])


@dataclass
class Window:
    """A window; (comm, number) is the same on all ranks, `id` is local to the process."""

    id: int
    comm: int
    number: int
    open: bool = True
    hidden: bool = False
    ranks: int = 1
    self: int = 0
    unit: int = 1
    bytes: int = 0
    created: int = 0
    closed: int = 0
    counts: int = 0
    targets: int = 0
    dtype: str = ""
    kind: str = "Window"  # or "containers.Dict": one of a container's own
    site: str = ""  # where the program has made it

    @property
    def container(self) -> str:
        """The container that it is of, as "Dict"; "" if the program has made it."""
        return self.kind.partition("containers.")[2]


@dataclass
class Comm:
    """A communicator, and how far this rank is in the sequence of its meetings."""

    id: int
    size: int
    rank: int
    here: int = 1
    step: int = 0
    steps: int = 0
    came: int = 0
    left: int = 0


@dataclass
class Lock:
    """A lock of a target that this rank holds."""

    window: int
    target: int
    tid: int = 0
    exclusive: bool = True
    since: int = 0


@dataclass
class Notified:
    """What this rank has sent to one slot of a target that waits for a notification."""

    comm: int
    number: int
    target: int
    calls: int
    slot: int = -1  # -1: of those for which there was no room, all together
    last: int = 0  # when; 0: not known
    site: str = ""  # where the first one was; "": not known


@dataclass
class Slow:
    """Updates by message that this rank has made in a window, of which a hint is due."""

    comm: int
    number: int
    kind: str
    site: str
    calls: int
    bytes: int
    ns: float  # that one of them has taken; 0: unknown


@dataclass
class Snapshot:
    """A process at one moment. Times are CLOCK_MONOTONIC of its node, in ns."""

    pid: int  # as this node's tools know it
    job: str
    rank: int
    size: int
    host: str = ""
    program: str = ""
    network: str = ""  # by which its windows go to others: "tcp eth0", "ucx mlx5_0"
    state: str = "runs"  # "runs", "leaves" or "ended", as it says itself
    raised: str = ""  # the exception that has ended its program
    process: str = "S"  # the kernel's letter for its state; "": there is none any more
    now: int = 0
    version: str = ""
    own: int = 0  # its pid in its own namespace, which is the main thread's tid
    traced: bool = False
    next: int = 0  # number of the next event
    lost: int = 0
    uncounted: int = 0
    unclear: int = 0  # entries that were being written each time they were read
    threads: list[Thread] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    comms: list[Comm] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    notified: list[Notified] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)  # what `hints.look` has found
    line: str = ""  # where its main thread is in the program, if something could tell
    called: bool = False  # and whether it is in a call of rmaext there

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Snapshot:
        """Return what `to_json` was given; TypeError or KeyError for anything else."""
        parts = {"threads": Thread, "windows": Window, "comms": Comm, "locks": Lock}
        lists = {
            name: [kind(**one) for one in data[name]]
            for name, kind in {**parts, "notified": Notified, "slow": Slow}.items()
        }
        return Snapshot(**data | lists)
