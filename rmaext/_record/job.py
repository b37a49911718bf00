# SPDX-License-Identifier: BSD-3-Clause
"""The processes of a job, and what each of their waits is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os.path import basename
from typing import Any

from .._runtime.reports import OF_A_DEVICE, numbers
from .._runtime.steps import END, FIRST, Step
from .snapshot import Comm, Snapshot, Thread, Window

__all__ = ["LONG", "Absent", "Foreign", "Job", "Wait", "jobs"]

LONG = 1.0  # seconds: who has waited for less may well go on by itself
_MEETINGS = ("meeting", "mpi")
_OF_ANY = ("notify wait", "until")  # whom any rank can end


@dataclass(frozen=True, eq=False)
class Absent:
    """Ranks that none of the processes here is: one of a communicator, or all of them."""

    ranks: Sequence[int]
    comm: str = ""  # whose numbers these are; "": MPI_COMM_WORLD's
    elsewhere: bool = False  # they may be on another node
    met: bool = True  # they are known to have made a window

    @property
    def name(self) -> str:
        """Return them in words."""
        return numbers(self.ranks) + (f" of communicator {self.comm}" if self.comm else "")


@dataclass
class Foreign(Snapshot):
    """A process of another job, spawned or connected, that shares a communicator with this one."""

    @property
    def where(self) -> str:
        """Return its job in words."""
        words = self.program.split()
        return f"{basename(words[0]) if words else 'a program'} (job {self.job})"

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"rank {self.rank} of {self.where}"


@dataclass(eq=False)
class Wait:
    """A wait of a thread, and the processes that it needs: all of them, or any."""

    of: Snapshot
    thread: Thread
    what: str
    seconds: float
    needs: list[Snapshot | Absent] = field(default_factory=list)
    any: bool = False
    held: dict[int, tuple[int, float]] = field(default_factory=dict)  # by pid: tid and seconds
    blames: bool = True  # what it needs is known to be missing
    all_come: bool = False  # of a meeting: nobody is missing

    @property
    def on_device(self) -> bool:
        """Whether it is for a copy of a device."""
        return self.thread.text.startswith(OF_A_DEVICE)


class _Ranks:
    """The ranks of a communicator: those that are here, and the others together."""

    def __init__(self, here: dict[int, Snapshot], size: int, **absent: Any) -> None:
        self._here, self._size, self._facts = here, size, absent
        self._absent: dict[int | None, Absent] = {}  # None: all of them

    def rank(self, rank: int) -> Snapshot | Absent:
        """Return the process that has this rank."""
        return self._here.get(rank) or self._absence(rank)

    def absent(self) -> list[Absent]:
        """Return those that no process here is, as one, if there are any."""
        return [self._absence(None)] if len(self._here) < self._size else []

    def all(self, but: int = -1) -> list[Snapshot | Absent]:
        """Return all of them, or all but one that is here."""
        return [*(one for rank, one in self._here.items() if rank != but), *self.absent()]

    def _absence(self, rank: int | None) -> Absent:
        if rank not in self._absent:
            ranks = (rank,) if rank is not None else self._missing()
            self._absent[rank] = Absent(ranks, **self._facts)
        return self._absent[rank]

    def _missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._size) if rank not in self._here)


class Job:
    """The processes of one job, of all nodes that were looked at.

    Attributes
    ----------
    foreign : list of Foreign
        Those of other jobs that share communicators with it.
    """

    def __init__(self, members: Iterable[Snapshot], others: Iterable[Snapshot] = ()) -> None:
        self.members = sorted(members, key=lambda one: (one.rank, one.host, one.pid))
        self.size = max(one.size for one in self.members)
        shared = _shared(self.members)
        self.foreign = [Foreign(**vars(one)) for one in others if shared & _shared([one])]
        comms: dict[int, list[tuple[Snapshot, Comm]]] = {}
        for one in [*self.members, *self.foreign]:
            for comm in one.comms:
                comms.setdefault(comm.id, []).append((one, comm))
        elsewhere, met = False, False  # of MPI_COMM_WORLD's ranks that are not here
        self._comms: dict[int, _Ranks] = {}
        for number, there in comms.items():
            size = max(comm.size for _, comm in there)
            same = size == self.size and all(
                one.rank == comm.rank and not isinstance(one, Foreign) for one, comm in there
            )
            near: dict[str, int] = {}
            for one, comm in there:
                near[one.host] = max(near.get(one.host, 0), comm.here)
            # If all that share this node's memory are there, others are on other nodes.
            afar = sum(near.values()) < size
            if same:
                elsewhere, met = afar, True
            self._comms[number] = _Ranks(
                {comm.rank: one for one, comm in there},
                size,
                comm="" if same else _hex(number),
                elsewhere=afar,
            )
        world = {one.rank: one for one in self.members}
        self._world = _Ranks(world, self.size, elsewhere=elsewhere, met=met)
        used = {w.comm for one in self.members for w in one.windows if not w.hidden and w.open}
        self._several = len(used) > 1
        self._missing: dict[tuple[int, int], list[Snapshot | Absent]] = {}
        self._waits: dict[tuple[str, int], list[Wait]] = {}
        for one in [*self.members, *self.foreign]:
            live = (t for t in one.threads if t.kind and not t.ended)
            waits = (self._wait(one, thread) for thread in live)
            self._waits[one.host, one.pid] = sorted(
                waits, key=lambda wait: (wait.thread.tid != wait.of.own, -wait.seconds)
            )

    # -- who ------------------------------------------------------------------------

    def waits(self, one: Snapshot) -> list[Wait]:
        """Return a process's waits, the main thread's first, then the longest."""
        return self._waits[one.host, one.pid]

    def long(self) -> list[Wait]:
        """Return the waits that have lasted, those of other jobs' processes included."""
        return [wait for own in self._waits.values() for wait in own if wait.seconds >= LONG]

    def blocked(self, one: Snapshot, tid: int = 0) -> Wait | None:
        """Return the wait that keeps a process from what others need of it.

        That of a thread if one is given, else of the main thread, or one that this waits
        for, perhaps: but not one that may wait for ever, as that of a server.
        """
        if not runs(one):
            return None
        for wait in self.waits(one):
            if wait.seconds < LONG or (tid and wait.thread.tid != tid):
                continue
            if tid or wait.thread.tid == one.own or not wait.any:
                return wait
        return None

    def rank(self, comm: int, rank: int) -> Snapshot | Absent:
        """Return the process that has a rank in a communicator."""
        return self._ranks(comm).rank(rank)

    def others(self, comm: int, rank: int) -> list[Snapshot | Absent]:
        """Return all ranks of a communicator but one."""
        return self._ranks(comm).all(but=rank)

    def _ranks(self, comm: int) -> _Ranks:
        if comm not in self._comms:  # no process here has an entry of it
            self._comms[comm] = _Ranks({}, 0, comm=_hex(comm), elsewhere=True)
        return self._comms[comm]

    def gone(self) -> list[Absent]:
        """Return the ranks of the job that no process here is, if they should be here."""
        return [one for one in self._world.absent() if not one.elsewhere]

    # -- waits ----------------------------------------------------------------------

    def window(self, one: Snapshot, number: int) -> Window | None:
        """Return a window by its number in that process."""
        return next((window for window in one.windows if window.id == number), None)

    def _of_window(self, window: Window | None) -> str:
        if window is None or (not window.number and window.hidden):
            return ""
        return f" of window {window.number}{_of_container(window)}{self._of_comm(window.comm)}"

    def _of_comm(self, comm: int) -> str:
        return f" (communicator {_hex(comm)})" if self._several else ""

    def _target(self, one: Snapshot, thread: Thread, window: Window | None) -> str:
        """Return the name of whom an operation is for."""
        if window is None or thread.target < 0:
            return f"rank {thread.target}" if thread.target >= 0 else "all ranks"
        there = self.rank(window.comm, thread.target)
        return there.name if isinstance(there, (Absent, Foreign)) else f"rank {there.rank}"

    def _wait(self, one: Snapshot, thread: Thread) -> Wait:
        seconds = max(one.now - thread.since, 0) / 1e9
        window = self.window(one, thread.window)
        kind = f"{thread.kind} wait" if thread.wait and thread.kind == "notify" else thread.kind
        if kind in _MEETINGS:
            return self._meeting(one, thread, seconds)
        if thread.text.startswith(OF_A_DEVICE):
            kind, window = "device", None
        place, target = self._of_window(window), self._target(one, thread, window)
        what = {
            "flush": f"in a flush of {target}{place}",
            "request": f"for requests to {target}{place}",
            "lock": f"for the {'' if thread.offset else 'shared '}lock of {target}{place}",
            "notify wait": f"in {_notifications(thread)},{place}",
            "until": f"in wait_until{place}",
            "container": f"in {thread.text or 'a call of a container'}",
            "device": f"for {thread.text}",
            "epoch": f"in an epoch{place} for {target}",
            "guard": f"in an update of {target}{place}, which another's bulk update holds up",
            "put": f"in a put to {target}{place}",
            "get": f"in a get from {target}{place}",
            "notify": f"in a put with a notification to {target}{place}",
        }.get(kind, f"in an update of {target}{place}")
        free = kind in _OF_ANY or (kind == "container" and thread.target < 0)
        wait = Wait(one, thread, what, seconds, any=free)
        if window is None:
            wait.blames = False
        elif wait.any:
            wait.needs = self.others(window.comm, window.self)
        elif thread.target >= 0:
            wait.needs = [self.rank(window.comm, thread.target)]
        elif thread.target == -1:
            wait.needs = self.others(window.comm, window.self)
        if kind == "lock" and window is not None:
            self._holders(wait, window)
        elif not wait.any and kind not in ("epoch", "container"):
            # these need no call of the target: only that its process can answer
            wait.needs = [need for need in wait.needs if not runs(need)] or wait.needs
            wait.blames = any(not runs(need) for need in wait.needs)
        return wait

    def _meeting(self, one: Snapshot, thread: Thread, seconds: float) -> Wait:
        step = Step.of(thread.offset)
        mine = next((comm for comm in one.comms if comm.id == thread.bytes), None)
        first = mine is None and thread.kind == "meeting" and step.call == FIRST
        if first:  # its ranks have no name for it yet: the size stands there
            what = f"in {step}" + (f" ({thread.bytes} ranks)" if thread.bytes != self.size else "")
        elif thread.kind == "mpi":
            what = "in a collective call of MPI, made by rmaext"
        else:
            numbered = f"{step.call} #{step.number}" if step.number else step.call
            named = f"in {str(step).replace(step.call, numbered)}"
            what = "at the end of the program" if step.call == END else named
            its = (w for w in one.windows if (w.comm, w.number) == (thread.bytes, step.window))
            what += "".join(map(_of_container, its)) + self._of_comm(thread.bytes)
        wait = Wait(one, thread, what, seconds)
        if mine is not None:
            missing = self._missing.get((mine.id, mine.steps))
            if missing is None:
                all_ranks = self._ranks(mine.id).all()
                missing = [other for other in all_ranks if not _has_come(other, mine)]
                self._missing[mine.id, mine.steps] = missing
            wait.needs, wait.all_come = missing, not missing
        elif first and thread.bytes == self.size:
            wait.needs = [r for r in self._world.all() if not _has_come_first(r, thread.bytes)]
        wait.blames = bool(wait.needs)
        return wait

    def _holders(self, wait: Wait, window: Window) -> None:
        """Let it need those who hold the lock; the target, if that is it."""
        found: list[Snapshot | Absent] = []
        for other in [*self.members, *self.foreign]:
            for lock in other.locks:
                its = self.window(other, lock.window)
                same = its and (its.comm, its.number) == (window.comm, window.number)
                if same and lock.target == wait.thread.target:
                    seconds = max(other.now - lock.since, 0) / 1e9
                    found.append(other)
                    wait.held[other.pid] = lock.tid, seconds
        if found:
            wait.needs = found
        else:
            others = self.others(window.comm, window.self)
            target = [need for need in wait.needs if not runs(need)]
            wait.needs = target or [need for need in others if isinstance(need, Absent)]
            wait.blames = bool(wait.needs)


def _of_container(window: Window) -> str:
    """Return whose window it is: the program knows the container, and no window."""
    words = ", ".join(filter(None, (window.container, window.site)))
    return f" ({words})" if window.container else ""


def _hex(comm: int) -> str:
    return f"{comm & 0xFFFF:04x}"


def _notifications(thread: Thread) -> str:
    """Return the wait for notifications that a thread is in."""
    call, slots = thread.slots()
    if len(slots) == 1:
        return f"{call}, slot {slots[0]}, count {thread.bytes}"
    return f"{call}, slots {', '.join(map(str, slots))}"


def runs(one: Snapshot | Absent) -> bool:
    """Tell whether a process is there, and not stopped."""
    return isinstance(one, Snapshot) and one.process not in ("", "T", "t")


def _has_come(other: Snapshot | Absent, mine: Comm) -> bool:
    """Tell whether another rank has come to the meeting that this rank is in."""
    if isinstance(other, Absent):
        return False
    its = next(comm for comm in other.comms if comm.id == mine.id)
    if its.steps != mine.steps:
        return its.steps > mine.steps
    inside = (t for t in other.threads if t.kind in _MEETINGS and t.bytes == mine.id)
    return any(inside)


def _has_come_first(other: Snapshot | Absent, size: int) -> bool:
    """Tell whether another rank makes the first window of a communicator of that size."""
    return isinstance(other, Snapshot) and any(
        (t.kind, Step.of(t.offset).call, t.bytes) == ("meeting", FIRST, size) for t in other.threads
    )


def names(ones: Sequence[Snapshot | Absent]) -> str:
    """Return ranks in words."""
    known = world_ranks(ones)
    others = [one.name for one in ones if isinstance(one, Absent) and one.comm]
    foreign: dict[str, list[int]] = {}
    for one in ones:
        if isinstance(one, Foreign):
            foreign.setdefault(one.where, []).append(one.rank)
    others += [f"{numbers(sorted(set(ranks)))} of {where}" for where, ranks in foreign.items()]
    return " and ".join([*([numbers(known)] if known else []), *dict.fromkeys(others)])


def world_ranks(ones: Iterable[Snapshot | Absent]) -> list[int]:
    """Return the ranks in MPI_COMM_WORLD, of those of the job for which they are known."""
    found: set[int] = set()
    for one in ones:
        if isinstance(one, Foreign):
            continue
        if isinstance(one, Snapshot):
            found.add(one.rank)
        elif not one.comm:
            found.update(one.ranks)
    return sorted(found)


def jobs(snapshots: Iterable[Snapshot]) -> list[Job]:
    """Return the jobs: ranks with the same name of it on a node, and those that they meet."""
    groups: list[list[Snapshot]] = []
    by_job: dict[tuple[str, str], list[Snapshot]] = {}
    for one in snapshots:
        group = by_job.setdefault((one.host, one.job), [])
        if not group:
            groups.append(group)
        group.append(one)
    merged: list[list[Snapshot]] = []
    for group in groups:
        for before in merged:
            if _same_job(before, group):
                before += group
                break
        else:
            merged.append(list(group))
    return [
        Job(group, [one for other in merged if other is not group for one in other])
        for group in merged
    ]


def _shared(ones: Iterable[Snapshot]) -> set[int]:
    """Return the communicators that processes share with others."""
    return {comm.id for one in ones for comm in one.comms if comm.size > 1}


def _same_job(some: Sequence[Snapshot], others: Sequence[Snapshot]) -> bool:
    """Tell whether processes of two nodes have one MPI_COMM_WORLD."""
    apart = not {one.rank for one in some} & {one.rank for one in others}
    nodes = not {one.host for one in some} & {one.host for one in others}  # else spawned
    meet = bool(_shared(some) & _shared(others))
    return meet and apart and nodes and some[0].size == others[0].size
