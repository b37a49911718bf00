# SPDX-License-Identifier: BSD-3-Clause
"""The processes of one node: memory that they can map, who they are, where they meet."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import operator
import os
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._native._lib import ffi, lib
from .._native.owned import owned
from .._runtime import lifetime, locks
from .._runtime.failures import check
from .._runtime.files import text_of
from ..errors import RmaError
from ..typing import HugePages, ScalarT
from .arrays import check_dtype
from .pages import Wish

__all__ = [
    *("NO_ARENA", "NO_BLOCK", "Arena", "Block", "Process", "Team"),
    *("aligned", "empty", "keep", "let_go", "zeros"),
]

Array = NDArray[Any]


class Block(NamedTuple):
    """A part of an arena, as other processes find it."""

    fd: int  # in the owner
    inode: int
    size: int  # of the whole file
    offset: int


NO_BLOCK = Block(-1, 0, 0, 0)
NO_ARENA = (RmaError, MemoryError)  # memfd_create is forbidden, say: the other routes serve

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def _block(block: Any) -> Block:
    return Block(block.fd, block.inode, block.size, block.offset)


class Arena(lifetime.OfProcess):
    """This process's memory that its neighbours can map (csrc/shm/arena.c)."""

    def __init__(self) -> None:
        self.nonce = os.urandom(16)
        handle = ffi.new("rmaext_arena **")
        check(lib.rmaext_arena_open(self.nonce, handle))
        self.handle = handle[0]
        # no bytecode, in which a signal handler could raise
        self._free = functools.partial(lib.rmaext_arena_free, self.handle)

    @classmethod
    def own_handle(cls) -> Any:
        """Return the C object of this process's; NULL where there can be none."""
        try:
            return cls.own().handle
        except NO_ARENA:
            return ffi.NULL

    def process(self) -> tuple[int, Block]:
        """Return the address of the nonce, and the first segment."""
        process = ffi.new("struct rmaext_process *")
        lib.rmaext_arena_describe(self.handle, process)
        return int(process.address), _block(process.first)

    def allocate(self, nbytes: int) -> Any:
        """Return so many zero bytes, freed when the last array over them goes."""
        address = ffi.new("void **")
        check(lib.rmaext_arena_allocate(self.handle, nbytes, address))
        return ffi.buffer(owned(address[0], self._free), nbytes)

    def place(self, nbytes: int, wanted: int, how: int) -> Any:
        """As `allocate`, at an address, or of huge pages."""
        address = ffi.new("void **")
        check(lib.rmaext_arena_place(self.handle, nbytes, wanted, how, address))
        return ffi.buffer(owned(address[0], self._free), nbytes)

    @classmethod
    def find(cls, pointer: Any, nbytes: int) -> Block:
        """Return where these bytes lie in this process's; NO_BLOCK if elsewhere."""
        own, block = cls._own, ffi.new("struct rmaext_block *")
        found = own is not None and lib.rmaext_arena_find(own.handle, pointer, nbytes, block)
        return _block(block) if found else NO_BLOCK

    def close(self) -> None:
        """Tell the neighbours that this process takes no part any more."""
        lib.rmaext_arena_leave(self.handle)


@overload
def empty(
    shape: int | Sequence[int],
    dtype: type[ScalarT] | np.dtype[ScalarT],
    *,
    hint: int | None = None,
    fixed_address: int | None = None,
    lazy: bool = True,
    hugepages: HugePages = False,
) -> NDArray[ScalarT]: ...


@overload
def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike = float,
    *,
    hint: int | None = None,
    fixed_address: int | None = None,
    lazy: bool = True,
    hugepages: HugePages = False,
) -> Array: ...


def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike = float,
    *,
    hint: int | None = None,
    fixed_address: int | None = None,
    lazy: bool = True,
    hugepages: HugePages = False,
) -> Array:
    """Return an array that the other ranks of this node can reach directly.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : data-type, optional
        Any without Python objects.
    hint, fixed_address, lazy, hugepages
        As for `Window.allocate`.

    Returns
    -------
    numpy.ndarray
        C-contiguous, aligned to 64 bytes or more, filled with zeros. A window
        over it, or over a contiguous part of it, has the "direct" route to all
        ranks of the node: `Window(comm, rmaext.empty(...))` is then as fast as
        `Window.allocate`.

    Notes
    -----
    Local. The memory is anonymous and has no name; its size is not limited by
    /dev/shm. Untouched pages take no memory. A forked child shares it with its
    parent, as it does mmap's shared memory.

    Examples
    --------
    >>> array = rmaext.empty((2, 3))
    >>> with rmaext.Window(MPI.COMM_SELF, array) as other:
    ...     other.route(0)
    'direct'
    """
    wish = Wish(hint, fixed_address, lazy, hugepages).checked()
    dims, dtype, nbytes = sized(shape, dtype)
    if not nbytes:
        return np.zeros(dims, dtype)
    try:
        arena = Arena.own()
    except NO_ARENA:
        wish.refuse()
        return np.zeros(dims, dtype)
    return np.frombuffer(wish.obtain(arena, nbytes), dtype).reshape(dims)


def sized(shape: int | Sequence[int], dtype: DTypeLike) -> tuple[tuple[int, ...], Any, int]:
    """Return shape and dtype of an array of elements, as numpy.zeros has them, and its bytes."""
    dtype = np.dtype(dtype)
    check_dtype(dtype)
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    dims = tuple([operator.index(n) for n in dims]) + dtype.shape
    if min(dims, default=0) < 0:
        raise ValueError(f"shape {dims} has a negative dimension")
    nbytes = math.prod(dims) * dtype.base.itemsize
    if nbytes >> 62:
        raise MemoryError(f"no {nbytes} bytes: no machine has as many; is shape={dims} meant?")
    return dims, dtype.base, nbytes


zeros = empty  # fresh and returned memory are zeros alike


def aligned(nbytes: int, alignment: int) -> Array:
    """Return bytes as `empty` does, at a multiple of `alignment`; one at least is there."""
    room = empty(max(nbytes, 1) + alignment - 1, np.uint8)
    skip = -int(room.__array_interface__["data"][0]) % alignment
    return np.ndarray(nbytes, np.uint8, room, skip)


# -- memory that peers may still write -----------------------------------------

_kept: dict[int, Any] = {}
_tokens = itertools.count()


def keep(array: Array) -> int:
    """Keep window memory until `let_go`, else until the process has ended."""
    if not _kept:
        lifetime.on_exit(_pin)
    token = next(_tokens)
    _kept[token] = array
    return token


def let_go(token: int) -> None:
    """No peer has a window over that memory any more."""
    _kept.pop(token, None)


def _pin() -> None:
    # A neighbour may write by itself, into whatever lies there by then: not even
    # the end of the interpreter may free it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(list(_kept.values())))


# -- neighbours ------------------------------------------------------------------


def allow_copies() -> None:
    """Let the processes of this user copy from and to our memory, where Yama asks for that."""
    try:
        scope = text_of(_YAMA).strip()
    except OSError:
        return
    if scope == "1":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


class Process:
    """Another process, proven to share this node (csrc/shm/neighbour.c)."""

    _known: ClassVar[dict[bytes, Process]] = {}

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        reach = lib.rmaext_neighbour_reach(handle)
        self.can_map = bool(reach & lib.RMAEXT_CAN_MAP)
        self.can_copy = bool(reach & lib.RMAEXT_CAN_COPY)

    @classmethod
    def find(cls, pid: int, address: int, nonce: bytes, first: Block, pidfd: int) -> Process:
        """Return the process that claims this; it is asked once. `pidfd` stays open."""
        known = cls._known.get(nonce)
        if known is not None:
            return known
        near = ffi.new("rmaext_neighbour **")
        process = ffi.new("struct rmaext_process *", [pid, address, nonce, first])
        check(lib.rmaext_neighbour_open(process, pidfd, near))
        return cls._known.setdefault(nonce, cls(near[0]))

    def ended(self) -> bool:
        """Tell whether it has marked in its memory that it takes no part any more."""
        return bool(lib.rmaext_neighbour_left(self.handle))

    def map(self, block: tuple[int, int, int, int], nbytes: int) -> Any:
        """Return the address of a block of its memory, mapped here."""
        address = ffi.new("void **")
        where = ffi.new("struct rmaext_block *", block)
        check(lib.rmaext_neighbour_map(self.handle, where, nbytes, address))
        return address[0]


class Team:
    """The ranks of a communicator that all share a node (csrc/shm/node_barrier.c)."""

    # Own boards, until all ranks have closed theirs: a rank that is still waking
    # up in one would else change whatever comes to lie there.
    _boards: ClassVar[list[tuple[Any, int]]] = []
    _lock: ClassVar[Any] = locks.lock()

    def __init__(self, board: Any, rank: int, size: int, spin: float, name: int = 0) -> None:
        handle = ffi.new("rmaext_node_barrier **")
        check(lib.rmaext_node_barrier_open(board, rank, size, int(spin * 1e9), handle))
        self.handle = handle[0]
        lib.rmaext_node_barrier_name(self.handle, name)
        self._size = size

    @classmethod
    def board(cls, size: int) -> Any:
        """Return memory for one, kept until its ranks have closed it."""
        board = ffi.from_buffer(Arena.own().allocate(lib.rmaext_node_barrier_bytes(size)))
        with cls._lock:
            used = filter(lambda b: not lib.rmaext_node_barrier_deserted(*b), cls._boards)
            cls._boards = [*used, (board, size)]
        return board

    @classmethod
    def discard(cls, board: Any) -> None:
        """Free a board that no rank has used."""
        with cls._lock:
            cls._boards = list(filter(lambda b: b[0] is not board, cls._boards))

    def close(self) -> None:
        """After the last meeting; all ranks do."""
        lib.rmaext_node_barrier_close(self.handle)

    def write(self, record: bytes) -> bool:
        """Leave a record for the next meeting; False if it is too long."""
        return not lib.rmaext_node_barrier_write(self.handle, record, len(record))

    def read(self) -> tuple[Array, Array]:
        """Return all ranks' records of the meeting that was just left, and their lengths."""
        data = np.empty(self._size * int(lib.RMAEXT_BARRIER_SLOT), np.uint8)
        lengths = np.empty(self._size, np.int32)
        where = ffi.from_buffer("uint8_t[]", data), ffi.from_buffer("int32_t[]", lengths)
        return data[: lib.rmaext_node_barrier_read(self.handle, *where)], lengths

    def explain(self, why: str) -> None:
        """Leave a text for those who will not be met."""
        text = why.encode(errors="backslashreplace")
        lib.rmaext_node_barrier_explain(self.handle, text, len(text))

    def reason(self, rank: int) -> str:
        """Return the text that a rank has left."""
        data = ffi.new("uint8_t[]", int(lib.RMAEXT_BARRIER_SLOT))
        size = lib.rmaext_node_barrier_reason(self.handle, rank, data)
        return bytes(ffi.buffer(data, size)).decode(errors="replace")

    def give_up(self, why: str) -> None:
        """End all meetings, this rank's and the others', from now on."""
        try:
            self.explain(why)
        finally:
            lib.rmaext_node_barrier_give_up(self.handle)

    def given_up(self) -> str | None:
        """Return what the first rank that gave up has to say; None if none has."""
        rank = int(lib.rmaext_node_barrier_given_up(self.handle))
        return None if rank < 0 else self.reason(rank)
