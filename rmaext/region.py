# SPDX-License-Identifier: BSD-3-Clause
"""Memory that the ranks of a communicator have told each other how to reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from . import memory, node
from ._lib import ffi
from .errors import KeyRecordError
from .fabric import Fabric
from .group import Group, key_length
from .keys import WindowRecord, agree, blame, dtype_text, parse_all
from .node import NO_BLOCK
from .registration import Registration
from .storage import stored

__all__ = ["Region", "same_dtype"]

Array = NDArray[Any]


class Region:
    """One array of every rank, registered as far as that is needed, and how to reach each.

    Attributes
    ----------
    group : Group
    array : numpy.ndarray
        This rank's.
    fabric : Fabric or None
        None where all ranks are reached by memory.
    records : list of WindowRecord
        What each rank has.
    routes : list of int
        RMAEXT_DIRECT and so on, a rank.
    maps : list
        Where the memory of each rank is mapped here; NULL where it is not.
    registration : Registration
        How this rank's is to be registered; set while `exchange` makes the array.
    registered : C handle holder or None
        Of this rank's memory, which begins at byte `shift` of what is registered.
    """

    dynamic = False  # offsets are addresses

    array: Array
    records: list[WindowRecord]
    routes: list[int]
    maps: list[Any]

    def __init__(self, group: Group) -> None:
        self.group = group
        self.fabric: Fabric | None = None
        self._access = 0
        self.registration = Registration()
        self.registered: Any = None
        self.shift = 0
        self._kept = -1
        self.parts = 0  # arrays of a window that this is the first of

    def exchange(self, make: Callable[[], tuple[Array, int]]) -> None:
        """Let each rank make its array, with the rights of origins, and describe it. Collective.

        They agree on any error. One in `connect`, which follows, is this rank's alone.
        """
        group = self.group

        def mine() -> bytes:
            self.array, self._access = make()
            # Peers may write until all agree that they do not: neither del nor an
            # exception between any two lines ends that.
            self._kept = node.keep(self.array)
            return self._record(network=not group.all_direct).pack()

        records = parse_all(WindowRecord.unpack, agree(group.gather, mine))
        same_dtype(records)
        _same_kind(records)
        _same_shape(records, self.array.dtype.itemsize)
        if group.all_direct:
            alone = group.size == 1 and not self.registration.needs_network
            if alone or all(r.block != NO_BLOCK or not r.size for r in records):
                group.map_all(records)
                self.records = records
                return
            # somebody's own array, which needs a key for atomics at least, or one that
            # is to be registered
            group.network()
            payloads = agree(group.gather, lambda: self._record(network=True).pack())
            records = parse_all(WindowRecord.unpack, payloads)
        self.fabric = group.network().fabric
        key_length(self.fabric, records)
        group.map_all(records)
        self.records = records

    def connect(self) -> None:
        """Settle the routes."""
        own = memory.address(self.array)
        self.routes, self.maps = self.group.routes(self.records, own)

    def window(self, timeout: float, token: bytes, block: Any = None) -> Any:
        """Return a C window over it, with a `control.Block` or none."""
        network = None if self.fabric is None else self.group.network()
        ways = (self.records, self.routes, self.maps)
        name = token if network else bytes(16)
        return self.group.window(network, *ways, timeout, name, block, self.dynamic)

    def release(self) -> None:
        """Deregister. No peer uses the memory any more."""
        if self.registered is not None:
            self.group.network().fabric.deregister(self.registered)
        node.let_go(self._kept)

    def _record(self, network: bool) -> WindowRecord:
        """Describe the own array; registered, if it can be reached by the network."""
        array, key, base = self.array, b"", 0
        pointer = memory.address(array)
        start = int(ffi.cast("uintptr_t", pointer))
        if network and array.nbytes:
            key, base = self._register(pointer, self.group.next_key())
        block = NO_BLOCK
        if array.nbytes and (network or not self.registration.needs_network):
            block = node.Arena.find(pointer, array.nbytes)
        text = dtype_text(array.dtype)
        where = (key, start, array.shape, block, self.parts)
        access = self._access | stored(array, self.registration)
        return WindowRecord(array.nbytes, base, access, text, *where)

    def _register(self, pointer: Any, number: int) -> tuple[bytes, int]:
        """Return the key of the own array, and the base of its addresses."""
        fabric = self.group.network().fabric
        pieces = [(pointer, self.array.nbytes)]
        self.registered = fabric.register(pieces, self._access, number, self.registration)
        fabric.keep(self.registered, self.array)
        return fabric.key(self.registered)


def _same_shape(records: list[WindowRecord], itemsize: int) -> None:
    odd = [rank for rank, r in enumerate(records) if math.prod(r.shape) * itemsize != r.size]
    if odd:
        raise blame(odd, KeyRecordError, "shape and size of the window do not match")


def _same_kind(records: list[WindowRecord]) -> None:
    lists = [rank for rank, record in enumerate(records) if record.parts]
    if lists and len(lists) < len(records):
        raise blame(lists, TypeError, "a list of arrays, the other ranks have one array")


def same_dtype(records: list[WindowRecord]) -> None:
    """Raise, on all ranks alike, unless all have the dtype of the most."""
    names = [record.dtype for record in records]
    if len(set(names)) == 1:
        return
    common = max(dict.fromkeys(names), key=names.count)
    odd = [rank for rank, name in enumerate(names) if name != common]
    if odd:
        text = f"dtype {names[odd[0]]}, the other ranks have {common}"
        raise blame(odd, TypeError, text)
