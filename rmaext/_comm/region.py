# SPDX-License-Identifier: BSD-3-Clause
"""Memory that the ranks of a communicator have told each other how to reach."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._fabric.endpoint import Endpoint
from .._fabric.registration import PLAIN
from .._memory import arrays, node, pages
from .._memory.devices import DeviceArray
from .._memory.node import NO_BLOCK
from .._native._lib import ffi, lib
from .._runtime import config
from .._runtime.failures import from_c
from .._runtime.log import log
from ..errors import NotLocalError, Unsupported
from .columns import Column, Columns, Records, Told, Ways
from .group import Group
from .network import check_keys
from .window_record import WindowRecord, dtype_text

__all__ = ["Region"]

Array = NDArray[Any]
_NOTHING = np.empty(0, np.uint8)


class Region:
    """One array of every rank, registered as far as that is needed, and how to reach each.

    Attributes
    ----------
    group : Group
    array : numpy.ndarray
        This rank's.
    fabric : Endpoint or None
        None where all ranks are reached by memory.
    records : Records
        What each rank has.
    routes : Column of int
        RMAEXT_DIRECT and so on, a rank.
    maps : Column
        Where the memory of each rank is mapped here; NULL where it is not.
    registration : Registration
        How this rank's is to be registered; set while `exchange` makes the array.
    registered : C handle holder or None
        Of this rank's memory, which begins at byte `shift` of what is registered.
    """

    dynamic = False  # offsets are addresses
    creation = "creation of a window"  # the collective call

    array: Array
    records: Records
    routes: Column[int]
    maps: Column[Any]
    told: Told | None  # until the window is made
    ways: Ways

    def __init__(self, group: Group) -> None:
        self.group = group
        self.fabric: Endpoint | None = None
        self._access = 0
        self.registration = PLAIN
        self.registered: Any = None
        self.shift = 0
        self._exported: Any = None  # of an array on a device, while others may map it
        self._kept = -1
        self.parts = 0  # arrays of a window that this is the first of

    def exchange(self, make: Callable[[], tuple[Array, int]]) -> None:
        """Let each rank make its array, with the rights of origins, and describe it. Collective.

        They agree on any error. One in `connect`, which follows, is this rank's alone.
        """
        group = self.group

        def mine() -> tuple[WindowRecord, int]:
            self.array, self._access = make()
            # Peers may write until all agree that they do not: neither del nor an
            # exception between any two lines ends that.
            self._kept = node.keep(self.array)
            return self._record(network=not group.all_direct), self.array.itemsize

        told = Told.by(group, mine)
        if group.all_direct:
            alone = group.size == 1 and not self.registration._needs_network
            alone = alone and self.device == ffi.NULL
            if alone or not told.all.elsewhere:
                # not so where a rank has made itself not dumpable: then by the network
                with contextlib.suppress(NotLocalError):
                    self._settle(told)
                    return
            # somebody's own array, which needs a key for atomics at least, or one that
            # is to be registered
            group.network()
            told = Told.by(group, lambda: (self._record(network=True), self.array.itemsize))
        self.fabric = group.network().fabric
        if told.all.key_len:
            check_keys(self.fabric, told.all.key_len)
        self._settle(told)

    def _settle(self, told: Told) -> None:
        self.group.map_all(told)
        self.told = told
        self.records = told.records(self.group.rank, self.array.itemsize)

    def connect(self) -> None:
        """Settle the routes."""
        if self.told is not None:
            self.reach(self.group.ways(self.told, arrays.address(self.array)))

    def reach(self, ways: Ways) -> None:
        """Set the routes."""
        self.ways = ways
        self.routes, self.maps = ways.columns(self.group.size)

    def columns(self) -> Columns:
        """Return what C needs of the records; once."""
        told, self.told = self.told, None
        if told is None:
            raise RuntimeError("the window was made before")
        return told.columns()

    def window(self, timeout: float, token: bytes, block: Any = None) -> Any:
        """Return a C window over it, with a `control.Block` or none."""
        network = None if self.fabric is None else self.group.network()
        what = (self.columns(), self.ways, timeout, token if network else bytes(16))
        handle = self.group.window(network, *what, block, self.dynamic, self.device)
        self.records.lie_in(handle)
        if log.debugs():
            self._report_routes()
        return handle

    def _report_routes(self) -> None:
        """Say how the ranks that are here are reached, and why not directly."""
        group = self.group
        for rank in group.here:
            process = group.processes.get(rank)
            route = self.routes[rank]
            if rank == group.rank or process is None or route == lib.RMAEXT_DIRECT:
                continue
            if self.records.access[rank] & lib.RMAEXT_DEVICE:
                self._report_device(rank)
                continue
            if not process.can_map:
                why = "its memory cannot be mapped"
            else:
                why = "its array is not in memory that can be mapped: use Window.allocate, "
                why += "rmaext.empty or rmaext.zeros"
            name = "cma" if route == lib.RMAEXT_CMA else "fabric"
            log.debug("route to rank %d is %s, not direct: %s", rank, name, why)

    def _report_device(self, rank: int) -> None:
        """Say why a rank's memory, which lies on a device, is not mapped here."""
        i = self.group.here.index(rank)
        exported = ffi.cast("void *", self.ways.address[i])
        if self.routes[rank] == lib.RMAEXT_IPC:
            return
        why = "its process has not said how"
        if exported != ffi.NULL:
            size = self.records.size[rank]
            code = lib.rmaext_import_try(config.cuda_library(), exported, size)
            why = str(from_c(code, "it cannot be mapped")) if code else "it is mapped by now"
        log.debug("route to rank %d is fabric, not ipc: %s", rank, why)

    def _export(self, pointer: Any, nbytes: int) -> bytes:
        """Return what others of this node can map an array by that lies on the device."""
        made = ffi.new("struct rmaext_export *")
        self._exported = ffi.gc(made, lib.rmaext_device_unexport)
        code = lib.rmaext_device_export(self.device, pointer, nbytes, made)
        if not code:
            return bytes(ffi.buffer(made))
        log.debug("no other rank maps this one's array: %s", from_c(code, "export"))
        return b""

    @property
    def device(self) -> Any:
        """C's, of the device that has the array; NULL: the host has it."""
        array = self.array
        handle = array.handle if isinstance(array, DeviceArray) and array.nbytes else None
        return ffi.NULL if handle is None else handle

    def release(self) -> None:
        """Deregister, and let go of the memory. No peer uses it any more."""
        if self.registered is not None:
            self.group.network().fabric.deregister(self.registered)
        self._exported = None
        node.let_go(self._kept)
        self.array = _NOTHING

    def _record(self, network: bool) -> WindowRecord:
        """Describe the own array; registered, if it can be reached by the network."""
        array, key, base = self.array, b"", 0
        pointer = arrays.address(array)
        start = int(ffi.cast("uintptr_t", pointer))
        on_device = self.device != ffi.NULL
        if network and array.nbytes and not on_device:
            key, base = self._register(pointer, self.group.next_key())
        block = NO_BLOCK
        if array.nbytes and not on_device and (network or not self.registration._needs_network):
            block = node.Arena.find(pointer, array.nbytes)
        text = dtype_text(array.dtype)
        where = (key, start, array.shape, block, self.parts, self.group.fresh(block))
        access, exported = self._access, b""
        if self.registration.persistent or (block is NO_BLOCK and pages.is_a_file(array)):
            access |= int(lib.RMAEXT_STORED)
        if on_device:
            if self.registration.persistent:
                text = "persistent=True: the array lies on a device, and no file holds it"
                raise Unsupported(errno.EOPNOTSUPP, text)
            access |= int(lib.RMAEXT_DEVICE)
            exported = self._export(pointer, array.nbytes) if network else b""
        return WindowRecord(array.nbytes, base, access, text, *where, exported)

    def _register(self, pointer: Any, number: int) -> tuple[bytes, int]:
        """Return the key of the own array, and the base of its addresses."""
        fabric = self.group.network().fabric
        pieces = [(pointer, self.array.nbytes)]
        self.registered = fabric.register(pieces, self._access, number, self.registration)
        fabric.keep(self.registered, self.array)
        return fabric.key(self.registered)
