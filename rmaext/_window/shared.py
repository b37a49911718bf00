# SPDX-License-Identifier: BSD-3-Clause
"""Windows whose memory is one piece that all ranks, which share a node, have mapped."""

from __future__ import annotations

import errno
import itertools
import operator
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from .._comm.agreement import agree
from .._comm.columns import Columns, Numbers, Told, Ways
from .._comm.group import Group
from .._comm.region import Region
from .._comm.window_record import WindowRecord, dtype_text
from .._memory import arrays, node
from .._native._lib import ffi, lib
from .._ops.core import Array
from .._runtime.failures import of_all
from ..errors import NotLocalError
from ..typing import ScalarT
from .window import Window

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SharedWindow"]

_BLOCK = struct.Struct("<4Q")
_LINE = 64  # bytes of a line of cache


class SharedRegion(Region):
    """Rank 0's memory, cut into a part for each rank.

    It stays where it is until all agree that they do not use it any more; if they never
    do, until the last process that has mapped it ends: also when rank 0 is killed.
    """

    creation = "creation of a shared window"

    whole: Array  # of bytes
    _starts: list[Any]  # of the parts, as mapped here
    _aligns: Any

    def __init__(self, group: Group, alignment: int, gaps: bool) -> None:
        super().__init__(group)
        self._alignment = max(alignment, _LINE)  # of the first part, with gaps of all
        self._unit = self._alignment if gaps else 1

    def exchange(self, make: Callable[[], tuple[Array, int]]) -> None:
        """Make the memory, for arrays like those that `make` returns. Collective."""
        group = self.group
        if not group.all_direct:
            text = "not all ranks can map each other's memory (several nodes, or RMAEXT_ROUTE is "
            text += "set): split the communicator by MPI.COMM_TYPE_SHARED"
            raise of_all(NotLocalError(errno.EREMOTE, text))

        def mine() -> tuple[WindowRecord, int]:
            like, access = make()
            self.array = like
            text = dtype_text(like.dtype)
            record = WindowRecord(like.nbytes, 0, access, text, b"", 0, like.shape)
            return record, like.itemsize

        self.told = told = Told.by(group, mine)
        self.records = records = told.records(group.rank, self.array.itemsize)
        unit = self._unit
        sizes = (-(-size // unit) * unit for size in records.size)
        *starts, nbytes = [0, *itertools.accumulate(sizes)]
        block = node.Block(*_BLOCK.unpack(agree(group.gather, lambda: self._lead(nbytes))[0]))
        agree(group.gather, lambda: self._follow(block, nbytes))
        own = arrays.address(self.whole)
        self._starts = [own + start for start in starts]
        # Mapped addresses differ between ranks, but not modulo 64, and only that is used.
        first = int(ffi.cast("uintptr_t", own))
        records.own = records.own._replace(address=first + starts[group.rank])
        aligns = [(first + start) % 64 for start in starts]
        self._aligns = ffi.new("uint8_t[]", aligns)
        records.align = Numbers(np.array(aligns, np.uint8))
        # a part without elements, too, is where its rank's memory would lie
        like, start = self.array, starts[group.rank]
        self.array = np.ndarray(like.shape, like.dtype, self.whole, start)

    def _lead(self, nbytes: int) -> bytes:
        if self.group.rank:
            return b""
        self.whole = node.aligned(nbytes, self._alignment)
        self._kept = node.keep(self.whole)
        block = node.Arena.find(arrays.address(self.whole), nbytes or 1)
        if block == node.NO_BLOCK:
            raise MemoryError(f"no shared memory of {nbytes} bytes")
        return _BLOCK.pack(*block)

    def _follow(self, block: node.Block, nbytes: int) -> bytes:
        process = self.group.processes.get(0)
        if process is not None:
            data = ffi.buffer(ffi.cast("char *", process.map(block, nbytes or 1)), nbytes)
            self.whole = np.ndarray(nbytes, np.uint8, data)
        return b""

    def connect(self) -> None:
        """Settle the routes."""
        ways = Ways(self.group.here)
        for rank, start in enumerate(self._starts):
            ways.set(rank, lib.RMAEXT_DIRECT, start)
        self.reach(ways)

    def release(self) -> None:
        """Let go of the memory. No peer uses it any more."""
        super().release()
        self.whole = self.array

    def columns(self) -> Columns:
        """Return what C needs of the records, with each part's alignment."""
        columns = super().columns()
        same = columns.same & ~lib.RMAEXT_SAME_ALIGN
        return columns._replace(same=same, align=self._aligns)


class SharedWindow(Window[ScalarT]):
    """Memory in one piece for the ranks of a node; made by `Window.shared`.

    Notes
    -----
    It has all that `Window` has, and `whole`. All routes are "direct". Threads may do what they
    may with any `Window`.

    Examples
    --------
    >>> with rmaext.Window.shared(MPI.COMM_SELF, 3) as other:
    ...     other.put(1.0, 0, 1)
    ...     other.whole
    array([0., 1., 0.])
    """

    _made_by = "Window.shared(comm, shape, dtype)"
    _lies: tuple[int, bool]
    _region: SharedRegion

    def _let_go(self) -> None:
        super()._let_go()
        if self._group.rank:  # all of it is rank 0's, which may use it again for another window
            self._left = lambda: None

    @classmethod
    def _make(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        timeout: float | None,
        proc_null: bool,
        alignment: int = 1,
        gaps: bool = False,
    ) -> Self:
        """See `Window.shared`; `alignment` is that of the first part, with gaps of all parts."""
        self = cls.__new__(cls)
        self._lies = alignment, gaps
        self._create(comm, lambda: _like(shape, dtype), None, timeout, None, proc_null)
        return self

    def _new_region(self, group: Group) -> Region:
        return SharedRegion(group, *self._lies)

    @property
    def whole(self) -> NDArray[ScalarT]:
        """The parts of all ranks, one after another, as one array of one dimension. Local.

        Accesses are ordinary loads and stores, as those of `peer_view`. Let go of
        it before the window is closed.
        """
        self._check_open("whole")
        return self._region.whole.view(self._dtype)

    @whole.setter
    def whole(self, array: NDArray[ScalarT]) -> None:
        arrays.only_itself(array, self.whole, "whole")


def _like(shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an array of a shape and dtype that takes no memory: all its elements are one."""
    one = node.empty(1, dtype)  # checks the dtype
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    dims = tuple(operator.index(n) for n in dims) + one.shape[1:]
    if any(n < 0 for n in dims):
        raise ValueError(f"shape {dims} has a negative dimension")
    if np.prod(dims, dtype=object) * one.itemsize >> 62:
        raise MemoryError(f"cannot map an array of shape {dims}")
    return np.lib.stride_tricks.as_strided(one, dims, (0,) * len(dims))
