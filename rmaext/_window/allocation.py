# SPDX-License-Identifier: BSD-3-Clause
"""What there is to say of a window's memory, and to the system about it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._fabric import registration
from .._memory import arrays, node, pages
from .._memory.pages import HugePages, Wish
from .._native._lib import ffi, lib

if TYPE_CHECKING:
    from typing import Self, Unpack  # Python 3.11

    from mpi4py import MPI
    from numpy.typing import DTypeLike

    from .._comm.group import Group
    from .._comm.records import Column, Records
    from .._comm.region import Region
    from .._fabric.endpoint import Fabric
    from .._fabric.registration import How

__all__ = ["Allocations", "Description", "Memory"]

Array = NDArray[Any]
_ADVICE = {"normal": False, "willneed": True}
_ROUTES = {
    lib.RMAEXT_DIRECT: "direct",
    lib.RMAEXT_CMA: "cma",
    lib.RMAEXT_FABRIC: "fabric",
}


class Description(dict[str, Any]):
    """What `Memory.describe` returns: a dict, which prints as a table."""

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {_text(name, it)}" for name, it in self.items())


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(key, it)}" for key, it in value.items()) or "nothing"
    if isinstance(value, bytes):
        return value.hex() or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name in ("address", "hint", "fixed_address") and type(value) is int:
        return f"{value:#x}"
    return str(value)


@dataclass(frozen=True)
class Memory(registration.Memory):
    """The part of a window that one rank has, which can be described."""

    _window: Any = field(default=None, repr=False, compare=False)

    def describe(self) -> Description:
        """Return what there is to know of this memory. Print it to read it.

        Returns
        -------
        dict
            Its `str` is a table. Its items:

            "address", "size" : int
                In bytes.
            "dtype", "shape", "access", "key"
                As of the window; the key as bytes.
            "origin" : str
                "arena": from `Window.allocate` or `rmaext.empty`; "file": a mapped one;
                "array": any other.
            "file" : str
                Its name.
            "persistent" : bool
                Whether `flush(persist=True)` is for it.
            "kind" : str
                As in `Registration`.
            "page_size", "resident" : int
                Bytes of a page, and of all pages that are there.
            "asked", "granted" : dict
                The arguments `hint`, `fixed_address`, `lazy` and `hugepages`, and what
                became of them. "lazy" is False where pages had to be there: for a
                provider that demands FI_MR_ALLOCATED, and in huge pages from the
                system's pool. "hugepages" is "pool" for these, "transparent" where
                the system has put huge pages in at the moment, else "none".
            "routes" : list of str
                How each rank is reached from here.
            "provider", "registration" : str
                Of the endpoint, and what it demands of registered memory; empty where
                all ranks are reached by memory.

        Raises
        ------
        ClosedError

        Notes
        -----
        Local; corresponds to ucp_mem_query and ucp_mem_print_info. It reads
        /proc/self/smaps, which takes a millisecond or more.
        """
        window = self._window
        window._check_open("describe")
        array, fabric = window._array, window._fabric
        pointer = arrays.address(array)
        seen = pages.facts(self.base if self.size else 0)
        pool = seen["page_size"] >= pages.HUGE_PAGE
        origin = "array" if pages.mapped_file(array) is None else "file"
        if seen["file"].startswith("/memfd:rmaext"):
            origin = "arena"
        return Description(
            address=self.base,
            size=self.size,
            dtype=str(window._dtype),
            shape=array.shape,
            access=self.access,
            key=self.key,
            origin=origin,
            kind=self.kind,
            file=seen["file"] if origin == "file" else "",
            persistent=bool(window._records[window._group.rank].access & lib.RMAEXT_STORED),
            page_size=seen["page_size"],
            # those of the pool are there before anybody maps them
            resident=array.nbytes if pool else pages.resident(pointer, array.nbytes),
            asked=_asked(window._wish),
            granted=_granted(window._wish, self.base, seen, fabric if self.key else None),
            routes=[_ROUTES[route] for route in window._routes],
            provider="" if fabric is None else fabric.provider,
            registration=fabric.mr_mode or "scalable" if fabric is not None and self.key else "",
        )


def _asked(wish: Wish | None) -> dict[str, Any]:
    return {} if wish is None else wish._asdict()


def _granted(
    wish: Wish | None, address: int, seen: dict[str, Any], fabric: Fabric | None
) -> dict[str, Any]:
    wish = wish or Wish()
    pool = seen["page_size"] >= pages.HUGE_PAGE
    touched = fabric is not None and "ALLOCATED" in fabric.mr_mode.split("|")
    granted: dict[str, Any] = {
        "lazy": wish.lazy and not pool and not touched,
        "hugepages": "pool" if pool else "transparent" if seen["huge"] else "none",
    }
    if wish.hint is not None:
        granted["hint"] = address == wish.hint
    if wish.fixed_address is not None:
        granted["fixed_address"] = address == wish.fixed_address
    return granted


class Allocations:
    """What `Window` says of its memory."""

    _wish: Wish | None = None  # of `allocate`

    _array: Array
    _dtype: np.dtype[Any]
    _fabric: Fabric | None
    _group: Group
    _name: int | str
    _records: Records
    _region: Region
    _routes: Column[int]
    _stride: int

    if TYPE_CHECKING:
        # of Window
        def _check_open(self, call: str) -> None: ...
        def _rank(self, rank: Any, call: str) -> int: ...
        def _create(
            self,
            comm: MPI.Comm,
            make: Callable[[], Array],
            access: str | None,
            timeout: float | None,
            how: How,
            proc_null: bool,
        ) -> None: ...

    @classmethod
    def allocate(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        access: str | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        hint: int | None = None,
        fixed_address: int | None = None,
        lazy: bool = True,
        hugepages: HugePages = False,
        **how: Unpack[How],
    ) -> Self:
        """Return a window over new memory, filled with zeros.

        Parameters
        ----------
        comm, access, timeout, proc_null, how
            As for `Window`.
        shape, dtype
            As in numpy.zeros; the shape may differ between ranks.
        hint : int, optional
            Address near which this rank's memory is to lie.
        fixed_address : int, optional
            Address at which it is to lie exactly: a multiple of the page size, where
            nothing else is, up to the end of the last page. Ranks may differ.
        lazy : bool, optional
            Pages come on first touch, as far as the provider lets them. False: all
            are there from the start, or MemoryError is raised.
        hugepages : bool or "require", optional
            Huge pages from the system's pool, all there from the start and one more
            than the memory fills; if there are too few, ordinary memory, or with
            "require" MemoryError.

        Raises
        ------
        TypeError, ValueError, MemoryError
            On every rank, if any rank's arguments do not fit.
        AddressError
            On every rank: what some rank wants at `fixed_address` cannot lie there.

        Notes
        -----
        Collective, blocking; corresponds to MPI_Win_allocate, and ucp_mem_map with
        UCP_MEM_MAP_ALLOCATE (NONBLOCK: `lazy`, FIXED: `fixed_address`).
        `win.memory.describe()` says what was granted. Memory that has an address or
        huge pages takes a file descriptor.
        """
        self = cls.__new__(cls)
        self._wish = wish = Wish(hint, fixed_address, lazy, hugepages)
        make = functools.partial(node.empty, shape, dtype, **wish._asdict())
        self._create(comm, make, access, timeout, how, proc_null)
        return self

    @property
    def memory(self) -> Memory:
        """What this rank's part is, how it is registered, and `describe()`."""
        mine = self._records.own
        how = getattr(self, "_root", self)._region.registration
        access = arrays.access_name(mine.access)
        place = (mine.key, mine.address, mine.size, access)
        return Memory(*place, how.kind, how.device, _window=self)

    def route(self, rank: int) -> str:
        """Return how a rank is reached: "direct", "cma" or "fabric". Local.

        "direct": by this CPU's own loads, stores and atomics, for arena memory
        (`allocate`, `rmaext.empty`) on the same node; "cma": put and get by the
        kernel's process_vm_writev and process_vm_readv, for other arrays on the
        same node, atomics as on the next; "fabric": by libfabric.
        """
        return _ROUTES[self._routes[self._rank(rank, "route")]]

    def advise(self, advice: str, part: slice | None = None) -> bool:
        """Tell the system what is about to happen to this rank's memory.

        Parameters
        ----------
        advice : {"willneed", "normal"}
            "willneed": have the pages there, so that the first accesses do not wait
            for them. Memory that is a file's is read ahead. "normal": nothing special.
        part : slice, optional
            Elements of this rank's memory, by default all: `slice(100, 200)`. As NumPy
            has it: what lies outside is left out, and negative bounds count from the
            end; but without a step.

        Returns
        -------
        bool
            Whether the system took it. It changes nothing but speed.

        Raises
        ------
        ValueError, TypeError
            There is no such advice, or that is no such slice.
        ClosedError

        Notes
        -----
        Local; corresponds to ucp_mem_advise. "willneed" blocks until the pages are
        there.
        """
        self._check_open("advise")
        if not isinstance(advice, str):
            raise TypeError(f"advise: {advice!r} must be a string")
        if advice not in _ADVICE:
            raise ValueError(f"advise: {advice!r} must be {' or '.join(map(repr, _ADVICE))}")
        start, stop = registration.one_part("advise", part, self._array.size)
        array = self._array
        unit, stride = self._dtype.itemsize, self._stride
        # writing to a file's pages would have all of them written back
        write = array.flags.writeable and pages.mapped_file(array) is None
        pointer = ffi.cast("char *", arrays.address(array)) + start * stride
        nbytes = (stop - start - 1) * stride + unit if start < stop else 0
        return pages.advise(pointer, nbytes, _ADVICE[advice], write)
