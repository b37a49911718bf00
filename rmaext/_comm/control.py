# SPDX-License-Identifier: BSD-3-Clause
"""Control blocks: what each window keeps on each rank besides its memory.

Locks, epochs, notifications and the guard of updates live there, see
csrc/win/control_block.h. The blocks of a communicator's windows are cut from
slabs, so that a window costs no registration of its own for them; a slab is
exchanged when all are taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._memory import node
from .._native._lib import ffi, lib
from .network_barrier import NetworkBarrier
from .region import Region

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Block", "Controls", "Maps"]

_FIRST = 16  # blocks of the first slab; each next one has twice as many
_MOST = 1024
_ACCESS = lib.RMAEXT_READ | lib.RMAEXT_WRITE


class Block(NamedTuple):
    """One window's control block on every rank.

    Attributes
    ----------
    window : Window
        A hidden one over the slab, of int64, for what remote ranks do there.
    base : int
        The block's first element in it.
    maps : Maps
        The block on each rank, as mapped here; NULL where it is not.
    table : cdata
        C's of those, the first of the slab.
    slab, place : int
    """

    window: Any
    base: int
    maps: Maps
    table: Any
    slab: int
    place: int


class Maps:
    """Where each rank's block is mapped."""

    def __init__(self, first: dict[int, Any], at: int) -> None:
        self._first, self._at = first, at

    def __getitem__(self, rank: int) -> Any:
        first = self._first.get(rank)
        return ffi.NULL if first is None else first + self._at


class Slab(NamedTuple):
    """Blocks of many windows."""

    region: Region
    window: Any
    first: dict[int, Any]  # rank: where it is mapped
    table: Any


class Controls:
    """The control blocks of a communicator's windows.

    All ranks take and give them in the same order, that of the collective calls,
    so they agree on which is whose without a word.
    """

    def __init__(self, group: Group, make_window: Callable[[Region, int], Any]) -> None:
        self._group = group
        self._make_window = make_window
        self._bytes = int(lib.rmaext_block_bytes(group.size))
        self._slabs: list[Slab] = []
        self._free: list[tuple[int, int]] = []

    def take(self) -> Block:
        """Return a block of zeros. Collective when a slab must be made."""
        if not self._free:
            self._grow()
        number, index = heapq.heappop(self._free)
        slab, at = self._slabs[number], index * self._bytes
        return Block(slab.window, at // 8, Maps(slab.first, at), slab.table, number, index)

    def give(self, block: Block) -> None:
        """Take a block back, which no rank uses any more; all ranks do."""
        words = self._bytes // 8
        self._slabs[block.slab].region.array[block.base : block.base + words] = 0
        heapq.heappush(self._free, (block.slab, block.place))

    def _grow(self) -> None:
        number = len(self._slabs)
        count = min(_FIRST << number, _MOST)
        end = count * self._bytes  # of the blocks
        more = 0 if number else NetworkBarrier.bytes()
        region = Region(self._group)
        region.exchange(lambda: (node.empty((end + more) // 8, np.int64), _ACCESS))
        region.connect()
        here = self._group.here
        first = {rank: ffi.cast("char *", m) for rank in here if (m := region.maps[rank])}
        table = self._group.blocks([first.get(rank, ffi.NULL) for rank in here])
        window = self._make_window(region, number)
        lib.rmaext_window_controls(window._handle, count)
        self._slabs.append(Slab(region, window, first, table))
        apart = self._group.apart and self._group.size > 1
        if not number and apart and region.fabric is not None:
            own = region.array[end // 8 :]
            barrier = NetworkBarrier(window, own, end, self._group.record_id)
            self._group.meetings.venue.meet_at(barrier)
        self._free = [(number, index) for index in range(count)]

    def close(self) -> None:
        """End of the communicator, to which all ranks have come."""
        far = self._group.meetings.venue.far
        if far is not None:
            self._group.meetings.venue.meet_at(None)
            far.close()
        for slab in self._slabs:
            slab.window._closed = True
            if not lib.rmaext_window_close(slab.window._handle):
                slab.region.release()
