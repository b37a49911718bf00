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


class SharedRegion(Region):
    """Rank 0's memory, cut into a part for each rank.

    It stays where it is until all agree that they do not use it any more; if they never
    do, until the last process that has mapped it ends: also when rank 0 is killed.
    """

    creation = "creation of a shared window"

    whole: Array  # of bytes
    _starts: list[Any]  # of the parts, as mapped here
    _aligns: Any

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
        starts = [0, *itertools.accumulate(records.size)]
        block = node.Block(*_BLOCK.unpack(agree(group.gather, lambda: self._lead(starts[-1]))[0]))
        agree(group.gather, lambda: self._follow(block, starts[-1]))
        own = arrays.address(self.whole)
        self._starts = [own + start for start in starts[:-1]]
        # Mapped addresses differ between ranks, but not modulo 64, and only that is used.
        first = int(ffi.cast("uintptr_t", own))
        records.own = records.own._replace(address=first + starts[group.rank])
        aligns = [(first + start) % 64 for start in starts[:-1]]
        self._aligns = ffi.new("uint8_t[]", aligns)
        records.align = Numbers(np.array(aligns, np.uint8))
        part = self.whole[starts[group.rank] : starts[group.rank + 1]]
        self.array = part.view(self.array.dtype).reshape(self.array.shape)

    def _lead(self, nbytes: int) -> bytes:
        if self.group.rank:
            return b""
        self.whole = node.empty(nbytes, np.uint8)
        self._kept = node.keep(self.whole)
        pointer = arrays.address(self.whole)
        block = node.Arena.find(pointer, nbytes) if nbytes else node.Block(0, 0, 0, 0)
        if block == node.NO_BLOCK:
            raise MemoryError(f"no shared memory of {nbytes} bytes")
        return _BLOCK.pack(*block)

    def _follow(self, block: node.Block, nbytes: int) -> bytes:
        process = self.group.processes.get(0)
        if process is not None and nbytes:
            data = ffi.buffer(ffi.cast("char *", process.map(block, nbytes)), nbytes)
            self.whole = np.frombuffer(data, np.uint8)
        elif self.group.rank:
            self.whole = np.empty(0, np.uint8)
        return b""

    def connect(self) -> None:
        """Settle the routes."""
        ways = Ways(self.group.here)
        for rank, start in enumerate(self._starts):
            ways.set(rank, lib.RMAEXT_DIRECT, start)
        self.reach(ways)

    def columns(self) -> Columns:
        """Return what C needs of the records, with each part's alignment."""
        columns = super().columns()
        same = columns.same & ~lib.RMAEXT_SAME_ALIGN
        return columns._replace(same=same, align=self._aligns)


class SharedWindow(Window[ScalarT]):
    """Memory in one piece for the ranks of a node; made by `Window.shared`.

    Notes
    -----
    It has all that `Window` has, and `whole`. All routes are "direct".

    Examples
    --------
    >>> with rmaext.Window.shared(MPI.COMM_SELF, 3) as other:
    ...     other.put(1.0, 0, 1)
    ...     other.whole
    array([0., 1., 0.])
    """

    _region: SharedRegion

    @classmethod
    def _make(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        timeout: float | None,
        proc_null: bool,
    ) -> Self:
        """See `Window.shared`."""
        self = cls.__new__(cls)
        self._create(comm, lambda: _like(shape, dtype), None, timeout, None, proc_null)
        return self

    def _new_region(self, group: Group) -> Region:
        return SharedRegion(group)

    @property
    def whole(self) -> NDArray[ScalarT]:
        """The parts of all ranks, one after another, as one array of one dimension. Local.

        Accesses are ordinary loads and stores, as those of `peer_view`. Let go of
        it before the window is closed.
        """
        self._check_open("whole")
        return self._region.whole.view(self._dtype)


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
