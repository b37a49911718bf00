# SPDX-License-Identifier: BSD-3-Clause
"""The ranks of one communicator: who shares a node, and how they meet.

Made once per communicator, kept by an attribute of it, and shared by all
windows over it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from mpi4py import MPI

try:  # hashlib loads OpenSSL besides
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

from .._memory.node import NO_ARENA, NO_BLOCK, Arena, Block, Process, Team, allow_copies
from .._native._lib import ffi, lib
from .._native.owned import owned
from .._record import advice, writer
from .._runtime import config as environment
from .._runtime import late, lifetime, locks, mpi_progress, reports
from .._runtime.config import Config, tell_of_launcher, tell_of_unknown
from .._runtime.failures import check, is_of_all
from .._runtime.log import log
from .._runtime.steps import AGREEMENT
from ..errors import BusyError, PeerLostError, RmaError, SyncError
from . import collective
from .abandoned import Abandoned
from .agreement import agree, parse_all
from .columns import Columns, Told, Ways
from .host import Beacon, Hello, Hellos
from .liveness import Watch
from .meeting import Meetings
from .network import Network, offers
from .venue import Venue

__all__ = ["Group", "gathered", "together"]


_T = TypeVar("_T")


def check_comm(comm: Any) -> MPI.Comm:
    """Refuse what is no intracommunicator; nothing can be agreed over it."""
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"comm must be an mpi4py communicator, not {type(comm).__name__}")
    if comm == MPI.COMM_NULL:
        raise ValueError("comm is MPI.COMM_NULL")
    if comm.Is_inter():
        raise ValueError("comm is an intercommunicator; merge it first")
    return comm


class Group:
    """The ranks of a communicator.

    Attributes
    ----------
    comm : MPI.Comm
        A private duplicate.
    all_direct : bool
        Every rank can map the arenas of all others.
    one_host : bool
        All ranks share one loopback interface.
    crowded : bool
        More ranks than cores.
    spin : float
        Seconds that one who waits spins before it yields its core, or sleeps.
    timeout : float
        Seconds, of windows that say nothing else.
    hints_from : int
        Updates by message of which a hint is given; 0: none.
    last_hints : list of str
        To be given at the end of the program, by one rank.
    hellos : Hellos
        What the ranks have told of themselves.
    processes : dict of Process
        Those proven to be on this node, but for the own, by rank.
    here : list of int
        The own rank and those with a process.
    watch : Watch
        Knows who is gone.
    """

    _keyval = MPI.KEYVAL_INVALID
    _lock = locks.lock()  # with two keys a group would be found by half its users

    timeout: float
    hints_from: int
    _opening: list[Any]
    failed_everywhere = False  # the opening, by the same error

    def __init__(self, comm: MPI.Comm) -> None:
        self._users = 1  # the attribute
        self._abandoned: list[Any] = []  # windows that this rank has abandoned
        self._keys = 0
        self.windows = 0  # made so far
        self.last_hints: list[str] = []
        self._network: Network | None = None
        self.controls: Any = None  # set by the first window: control.Controls
        self._board: Any = None  # rank 0's
        self._segments: set[int] = set()  # of the own arena: mapped by all
        mpi_progress.begin()
        writer.begin()
        advice.install()
        self.record_id = comm.size  # of the communicator, until its ranks have agreed on one
        self.comm = collective.duplicate(comm, self._interrupted, self._opening)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.meetings = meetings = Meetings(self, self.comm)
        self.gather, self.gather_whole = meetings.gather, meetings.gather_whole
        self.reduce, self.collective = meetings.reduce, meetings.collective
        self.watch = Watch()
        self.processes: dict[int, Process] = {}
        self.here = [self.rank]  # the own rank, and those with a process
        self._nears: Any = None  # C's handles of those
        self._members: dict[bool, Any] = {}  # C's table of the ranks; with a network, and without
        self.all_direct = self.one_host = self.size == 1
        self.apart = False  # no two ranks share memory
        try:
            self._open()
            meetings.finish(None)
        except BaseException as exc:
            Team.discard(self._board)
            mpi_progress.withdraw(self.comm)
            if meetings.all_have(exc):
                self.failed_everywhere = True
                self.comm.Free()
            raise

    def _interrupted(self, comm: MPI.Comm, error: BaseException) -> None:
        """Tell those who wait on the duplicate that this rank does not come."""
        Abandoned(Venue(comm)).abandon_call(error, _OPENING)

    @classmethod
    def of(cls, comm: MPI.Comm) -> Group:
        """Return the communicator's group, made on first use. Collective."""
        lifetime.check("window")
        collective.finish()
        known = cls.known(comm)
        if known is not None:
            return known
        check_comm(comm)
        with cls._lock:
            if cls._keyval == MPI.KEYVAL_INVALID:
                cls._keyval = MPI.Comm.Create_keyval(delete_fn=cls._comm_freed, nopython=False)
        group = comm.Get_attr(cls._keyval)
        if group is _UNFINISHED:
            text = f"{_OPENING} was interrupted, here or on another rank: use a duplicate of it"
            raise SyncError(errno.ECANCELED, text)
        if not isinstance(group, Group):
            group = cls.__new__(cls)
            group._opening = []  # of MPI's duplication, which is the first that others count on
            try:
                # stays there when a signal interrupts what follows
                comm.Set_attr(cls._keyval, _UNFINISHED)
                _end_some()
                cls.__init__(group, comm)
                _groups.add(group)
                comm.Set_attr(cls._keyval, group)
            except BaseException as exc:
                group._end_unfinished(comm, exc)
                raise
        return group

    def _end_unfinished(self, comm: MPI.Comm, error: BaseException) -> None:
        """End the creation of the group by an error, perhaps of a signal handler."""
        if comm.Get_attr(self._keyval) is self:
            return  # it was done
        if self.failed_everywhere or not collective.has_begun(self._opening):
            comm.Delete_attr(self._keyval)  # the ranks are where this one is
        elif hasattr(self, "meetings"):
            self.meetings.abandoned.abandon_call(error, _OPENING)
        elif hasattr(self, "comm"):
            self._interrupted(self.comm, error)

    @classmethod
    def known(cls, comm: Any) -> Group | None:
        """Return the communicator's group, if it has one."""
        if cls._keyval != MPI.KEYVAL_INVALID and isinstance(comm, MPI.Comm) and comm:
            known = comm.Get_attr(cls._keyval)
            if isinstance(known, Group):
                return known
        return None

    @staticmethod
    def _comm_freed(_comm: MPI.Comm, _keyval: int, group: Any) -> None:
        if isinstance(group, Group):
            group.count_out()

    def join(self) -> None:
        """Count a window in."""
        self._users += 1

    def count_out(self, abandoned: Any = None) -> None:
        """Count a window, or the communicator, out; after the last the ranks meet once more.

        `abandoned`: a window that this rank closes without the others.
        """
        if abandoned is not None:
            self._abandoned.append(abandoned)
        self._users -= 1
        if not self._users and not lifetime.ending():
            _ending.append(self)
            _end_some()

    def _end_if_all(self) -> None:
        """End, once all ranks have counted out. Not waiting.

        A rank that has counted out may still be in the last meeting, look at what others have
        told there, and ask for words that a broken connection has lost; and of a window that
        it has abandoned others may know nothing yet. So all memory stays until all have come here.
        """
        if any(window._may_write() for window in self._abandoned):
            return  # the others keep theirs, too
        if not self.meetings.end.of_comm():
            return
        _groups.discard(self)  # first: what has begun to end meets no more
        _ending.remove(self)
        self._end()

    def _end(self) -> None:
        for window in self._abandoned:
            window._free_abandoned()
        if self.controls is not None:
            self.controls.close()
        if self.meetings.venue.team is not None:
            self.meetings.venue.team.close()
        lib.rmaext_record_comm_gone(self.record_id)
        if self._network is not None:
            self._network.end()
        mpi_progress.withdraw(self.comm)
        self.comm.Free()

    # -- set-up ----------------------------------------------------------------

    def _open(self) -> None:
        def hello() -> bytes:
            self._config = config = Config.read()
            late.load()
            writer.check()  # here, as the others wait for this rank already
            if MPI.COMM_WORLD.rank == 0:
                tell_of_unknown()
            if MPI.COMM_WORLD.size == 1 and MPI.Comm.Get_parent() == MPI.COMM_NULL:
                tell_of_launcher()
            self.timeout, self.hints_from = config.timeout, config.hints_from
            mpi_progress.start_thread()
            if config.ptracer:
                allow_copies()
            try:
                process = self._process_facts()
                if self.rank == 0 and self.size > 1:
                    self._board = board = Team.board(self.size)
                    process["board"] = list(Arena.find(board, len(board)))
            except NO_ARENA as exc:
                log.info("no memory that other processes can map: %s", exc)
                process = {}
            made.append(Hello.make(config, Beacon.own().name, **process))
            return made[0].pack()

        made: list[Hello] = []
        payloads = agree(self.gather, hello)
        own = made[0]
        self.hellos = hellos = Hellos(payloads, own)
        del payloads
        self._secret = bytes.fromhex(hellos.first.secret)
        self.record_id = int.from_bytes(self._derive(b"record", 0, 8), "little") or 1
        self.forced, self.apart = hellos.forced, hellos.apart
        crowding = sum(h.pids == own.pids for h in hellos.near.values()) / own.cpus
        self.crowded = crowding > 1
        mpi_progress.offer(self.comm, crowding)
        # one that spins starves those it waits for when no core is idle
        self.spin = 0.0 if self.crowded else 50e-6
        if self.size == 1:
            writer.communicator(self.comm, self.record_id, 1)
            if self.forced:
                self.all_direct = False
                self.network()
            return
        self.watch = Watch(hellos)  # from here on the dead are noticed
        self.watch.told = self.meetings.abandoned.last_words
        self._find_processes()
        writer.communicator(self.comm, self.record_id, len(self.watch.near))
        where = self._find_board()
        mapped = sum(process.can_map for process in self.processes.values())
        alone = mapped < self.size - 1 or not where
        worst = self.reduce(2 if len(self.watch.near) < self.size else int(alone))
        self.one_host = worst < 2
        self.all_direct = worst == 0
        # without a progress thread somebody must serve the fabric meanwhile
        if self.all_direct and hellos.progress.all():
            team = Team(where, self.rank, self.size, self.spin, self.record_id)
            self.meetings.venue.meet_at(team)
        else:
            Team.discard(self._board)
        if not self.all_direct:
            self.network()
        text = "communicator of %d ranks: this one maps the memory of %d others; %d on this host"
        log.info(text, self.size, mapped, len(self.watch.near))

    @staticmethod
    def _process_facts() -> dict[str, Any]:
        arena = Arena.own()
        address, first = arena.process()
        return {"nonce": arena.nonce.hex(), "address": address, "arena": list(first)}

    def _find_processes(self) -> None:
        """Find those that are on this node, which `here` then lists with this one."""
        debug = log.debugs()
        for rank in range(self.size) if debug else self.hellos.near:
            if rank != self.rank and (process := self._find_process(rank)):
                self.processes[rank] = process
        self.watch.processes = self.processes
        self.here = sorted([self.rank, *self.processes])

    def _find_process(self, rank: int) -> Process | None:
        hello = self.hellos.near.get(rank)
        # pid and namespace were checked for the pidfd; the nonce is the proof
        if self.forced or hello is None or rank not in self.watch.pidfds or not hello.nonce:
            why = "RMAEXT_ROUTE is fabric" if self.forced else "it is on another host"
            if rank in self.watch.near and not self.forced:
                why = "it has no memory to map, or no process of this name is seen here"
            log.debug("rank %d is reached by the network: %s", rank, why)
            return None
        nonce, first = bytes.fromhex(hello.nonce), Block(*hello.arena)
        try:
            return Process.find(hello.pid, hello.address, nonce, first, self.watch.pidfds[rank])
        except MemoryError as exc:  # the fabric serves
            log.info("rank %d is reached by the network: %s", rank, exc)
            return None

    def _find_board(self) -> Any:
        if self.rank == 0:
            return self._board
        process = self.processes.get(0)
        if process is None or not process.can_map:
            return None
        try:
            return process.map(
                Block(*self.hellos.first.board), lib.rmaext_node_barrier_bytes(self.size)
            )
        except RmaError:
            return None

    def network(self) -> Network:
        """Return the endpoints, opened on first use. Collective."""
        if self._network is None:
            config = self._config

            def hello() -> bytes:
                return Hello.make(config, "", **offers(config)).pack()

            alike: dict[Any, Hello] = {}

            def parse(payload: bytes) -> Hello:
                hello = Hello.parse(payload)
                return alike.setdefault(hello.offer(), hello)

            hellos = parse_all(parse, agree(self.gather, hello))
            self._network = Network(self, hellos, config)
        return self._network

    # -- windows -----------------------------------------------------------------

    def next_name(self) -> int:
        """Return a number for a window, the same on all ranks."""
        self.windows += 1
        return self.windows

    def next_key(self) -> int:
        """Return the next key that all ranks derive: 64 bits nobody else can guess."""
        self._keys += 1
        return int.from_bytes(self._derive(b"key", self._keys, 8), "little")

    def token(self, name: int, what: bytes = b"window") -> bytes:
        """Return 16 bytes that name a window in messages, and that nobody else can guess."""
        return self._derive(what, name, 16)

    def _derive(self, what: bytes, number: int, size: int) -> bytes:
        data = number.to_bytes(8, "little")
        return blake2b(data, key=self._secret, person=what, digest_size=size).digest()

    def fresh(self, block: Block) -> bool:
        """Whether no window of this communicator was in that segment of the own arena."""
        return block != NO_BLOCK and block.inode not in self._segments

    def map_all(self, told: Told) -> None:
        """Map the segments that these records are the first to name. Collective."""
        if told.all.fresh:

            def mine() -> bytes:
                self.ways(told, ffi.NULL)
                return b""

            agree(self.gather, mine)
            if told.own.block != NO_BLOCK:
                self._segments.add(told.own.block[1])

    def ways(self, told: Told, own: Any) -> Ways:
        """Return how to reach the ranks that are here; `own`: this rank's memory."""
        ways = Ways(self.here)
        if self._nears is None:
            self._nears = ffi.new("rmaext_neighbour *[]", len(self.here))
            for i, rank in enumerate(self.here):
                if rank != self.rank:
                    self._nears[i] = self.processes[rank].handle
        told.find(self._nears, ways)
        here = lib.RMAEXT_IPC if told.own.access & lib.RMAEXT_DEVICE else lib.RMAEXT_DIRECT
        ways.set(self.rank, lib.RMAEXT_FABRIC if self.forced else here, own)
        return ways

    def members(self, network: Network | None) -> Any:
        """Return C's table of the ranks, which all windows share."""
        known = self._members.get(network is not None)
        if known is not None:
            return known
        nears = ffi.new("rmaext_neighbour *[]", self.size)
        for rank, process in self.processes.items():
            nears[rank] = process.handle
        made, arena = ffi.new("rmaext_members **"), Arena.own_handle()
        check(lib.rmaext_members_new(self.size, self.rank, ffi.NULL, nears, arena, made))
        members = owned(made[0], lib.rmaext_members_release)
        if network is not None:
            network.introduce(members)
        return self._members.setdefault(network is not None, members)

    def blocks(self, first: Sequence[Any]) -> Any:
        """Return C's table of control blocks; `first`: those of `here`, as mapped here."""
        made = ffi.new("rmaext_blocks **")
        check(lib.rmaext_blocks_new(self.members(self._network), ffi.new("void *[]", first), made))
        return owned(made[0], lib.rmaext_blocks_release)

    def window(
        self,
        network: Network | None,
        columns: Columns,
        ways: Ways,
        timeout: float,
        token: bytes,
        block: Any = None,
        dynamic: bool = False,
        device: Any = ffi.NULL,
    ) -> Any:
        """Return the C window over what the ranks have, with a `control.Block` or none."""
        same, size, base, access, align, keys, key_len, _ = columns
        what = [
            *(self.members(network), ffi.from_buffer("uint8_t[]", token), same),
            *(size, base, access, align, keys, key_len),
            *(ways.route, ways.map, ways.address),
            *((ffi.NULL, 0) if block is None else (block.table, 8 * block.base)),
            *(dynamic, int(self.spin * 1e9), ffi.NULL, device),
        ]
        mapped = lib.RMAEXT_IPC in bytes(ffi.buffer(ways.route))  # few windows are on devices
        library = ffi.new("char[]", environment.cuda_library()) if mapped else ffi.NULL
        targets = ffi.new("struct rmaext_targets *", [*what, library])
        handle = ffi.new("rmaext_window **")
        own = network.fabric.live() if network else ffi.NULL
        check(lib.rmaext_window_create(own, targets, int(timeout * 1e9), handle))
        ways.look(handle[0])
        # the struct outlives close: another thread may still be inside a call
        made = owned(handle[0], lib.rmaext_window_free)
        if block is None:  # of rmaext's own
            reports.windows.add(made)
        return made


_UNFINISHED = object()  # in place of a group whose creation was interrupted


_OPENING = "the creation of the communicator's first window"

# Until all ranks have counted their windows out: at the end of the program each waits for its
# ranks. No weak references: ranks would collect theirs at different times, and wait for others
# that do not know of the group any more.
_groups: set[Group] = set()
_ending: list[Group] = []  # those of them that have ended here, but perhaps not elsewhere


_ending_lock = locks.lock()


def together(
    comm: Any, what: str, make: Callable[[], _T], agreed: type[Exception] = RmaError
) -> _T:
    """Bracket what is several collective calls.

    What only this rank raises between them, as a signal handler does, is told to the others.
    Errors of the kind `agreed` are known to them.
    """
    group = Group.known(comm)
    before = None if group is None else group.meetings.venue.numbers.number
    try:
        return make()
    except BaseException as exc:
        group = Group.known(comm)
        # before the first meeting nobody counts on this rank
        begun = group is not None and group.meetings.venue.numbers.number != before
        if group is not None and begun and not isinstance(exc, agreed) and not is_of_all(exc):
            group.meetings.abandoned.abandon_call(exc, what)
        raise


def gathered(comm: MPI.Comm, tell: Callable[[], bytes]) -> Sequence[bytes]:
    """Return what each rank tells; what `tell` raises on one, all do. Collective, one meeting."""
    group = Group.of(comm)
    with group.collective(AGREEMENT):
        return agree(group.gather, tell)


def _end_some() -> None:
    """End the groups to whose end all ranks have come by now. Local, not blocking."""
    if _ending:
        # what a signal handler within it would do, the call goes on to do
        locks.locked(_ending_lock, lambda: None, _end_each)


def has_lost_any() -> bool:
    """Tell whether a rank of some communicator that has windows is gone, or has left. Local."""
    for group in list(_groups):
        try:
            group.watch.look(group._network)
        except PeerLostError:
            return True
    return False


def _end_each() -> None:
    for group in [*_ending]:
        with suppress(RmaError):  # lost ranks, a window abandoned by some only: all stays as it is
            group._end_if_all()


def _raised(error: BaseException) -> None:
    """Tell the other ranks of all communicators which exception ends this one's program."""
    for group in list(_groups):
        with suppress(Exception):  # of one where MPI can send no more
            group.meetings.abandoned.end_by(error)


def _finalize() -> None:
    """Wait until the ranks of all communicators have come to their end, too.

    Until then they may use this rank's memory. The communicators' ranks meet at the same
    time: in which order others come to which does not matter. Ctrl-C ends the wait.
    """
    _end_some()
    left = [group for group in _groups if group.size > 1 and group not in _ending]
    nap = 1e-5
    while left:
        for group in list(left):
            try:
                if group.meetings.end.of_program():
                    left.remove(group)
            except BusyError:  # a thread that is a daemon
                left.remove(group)
            except (PeerLostError, SyncError):
                # they have learnt from it where this rank is, or can meet no more
                nap = 1e-5
        if left:
            mpi_progress.nap(nap)
            nap = min(nap * 1.5, 5e-3)


lifetime.on_finalize(_finalize)
lifetime.on_raised(_raised)
