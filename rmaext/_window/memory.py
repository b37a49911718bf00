# SPDX-License-Identifier: BSD-3-Clause
"""What there is to say of a window's memory, and to the system and the provider about it."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from .._fabric.registration import one_part
from .._memory import arrays, pages
from .._memory.devices import DeviceArray
from .._memory.pages import Wish
from .._native._lib import ffi, lib
from .._ops.arguments import told
from .._ops.core import ROUTES, Array, WindowCore
from .._runtime.copies import Unique
from ..errors import RmaError, Unsupported
from ..typing import Access, Advice, MemoryKind, Ordering, Route, ScalarT

if TYPE_CHECKING:
    from .._fabric.endpoint import Endpoint

__all__ = ["Description", "Memory", "MemoryOperations"]


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
class Memory(Unique):
    """The memory of one rank in a window: what `win.memory` returns.

    It does not change: any threads may read it at once.

    Attributes
    ----------
    key : bytes
        The remote key that the peers use; empty where none was needed.
    base : int
        Address of the first byte.
    size : int
        Bytes.
    access : str
        Rights of origins: "r", "w" or "rw".
    kind : str
        Who has allocated it: "system", or a device's library; see `Registration`.
    device : int
        Its number.
    ordering : str
        Of what is written, as granted: "strict".

    Examples
    --------
    >>> win.memory.size, win.memory.access
    (80, 'rw')
    """

    key: bytes
    base: int
    size: int
    access: Access
    kind: MemoryKind = "system"
    device: int = 0
    ordering: Ordering = "strict"
    _window: Any = field(default=None, repr=False, compare=False)

    def describe(self) -> dict[str, Any]:
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
                "device": of "kind", where no pages are resident; "array": any other.
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

        Examples
        --------
        >>> facts = win.memory.describe()
        >>> facts["dtype"], facts["shape"], facts["origin"], facts["routes"]
        ('float64', (10,), 'arena', ['direct'])
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
        on_device = isinstance(array, DeviceArray)
        if on_device:
            origin = "device"
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
            # pages of the pool are there before anybody touches them
            resident=array.nbytes
            if pool
            else pages.resident(pointer, 0 if on_device else array.nbytes),
            asked=_asked(window._wish),
            granted=_granted(window._wish, self.base, seen, fabric if self.key else None),
            routes=[ROUTES[route] for route in window._routes],
            provider="" if fabric is None else fabric.provider,
            registration=fabric.mr_mode or "scalable" if fabric is not None and self.key else "",
        )


def _asked(wish: Wish | None) -> dict[str, Any]:
    return {} if wish is None else wish._asdict()


def _granted(
    wish: Wish | None, address: int, seen: dict[str, Any], fabric: Endpoint | None
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


class MemoryOperations(WindowCore[ScalarT]):
    """What `Window` says of this rank's memory, and to the system and the provider about it."""

    _wish: Wish | None = None  # of `allocate`

    @property
    def memory(self) -> Memory:
        """What this rank's part is, how it is registered, and `describe()`."""
        mine = self._records.own
        how = self._root._region.registration
        access = arrays.access_name(mine.access)
        place = (mine.key, mine.address, mine.size)
        array: Any = self._root._region.array
        if not isinstance(array, DeviceArray):
            return Memory(*place, access, how.kind, how.device, _window=self)
        return Memory(*place, access, "cuda", array.number, _window=self)

    @told
    def route(self, rank: int) -> Route:
        """Return how a rank is reached: "direct", "cma", "ipc" or "fabric". Local.

        "direct": by this CPU's own loads, stores and atomics, for arena memory
        (`allocate`, `rmaext.empty`) on the same node; "cma": put and get by the
        kernel's process_vm_writev and process_vm_readv, for other arrays on the
        same node, atomics as on the next; "ipc": put and get by a stream of this
        process, for arrays of CUDA's on the same node; "fabric": by libfabric.

        Examples
        --------
        >>> win.route(0)
        'direct'
        """
        return ROUTES[self._routes[self._rank(rank, "route")]]

    @told
    def advise(self, advice: Advice, part: slice | None = None) -> bool:
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
        Local; corresponds to ucp_mem_advise, which it calls for "willneed" where UCX is the
        transport. "willneed" blocks until the pages are there.

        Examples
        --------
        >>> win.advise("willneed", slice(0, 5))
        True
        """
        self._check_open("advise")
        if not isinstance(advice, str):
            raise TypeError(f"advise: {advice!r} must be a string")
        if advice not in get_args(Advice):
            words = " or ".join(map(repr, get_args(Advice)))
            raise ValueError(f"advise: {advice!r} must be {words}")
        array: Any = self._array
        start, stop = one_part("advise", part, array.size)
        if isinstance(array, DeviceArray):
            text = f"advise: window {self._name}: its memory lies on a device, whose pages are not "
            raise Unsupported(errno.EOPNOTSUPP, text + "the host's", call="advise")
        # Pages of a file are only read: writing to them would have all written back.
        write = array.flags.writeable and pages.mapped_file(array) is None
        pointer = ffi.cast("char *", arrays.address(array)) + self._byte(start)
        last = self._byte(stop - 1) + self._dtype.itemsize
        nbytes = last - self._byte(start) if start < stop else 0
        taken = pages.advise(pointer, nbytes, advice == "willneed", write)
        if taken and advice == "willneed" and getattr(self._fabric, "transport", "") == "ucx":
            try:  # where pages come late, the network's own table of them lacks these
                self._refresh("advise", start, stop)
            except RmaError:
                taken = False
        return taken

    @told
    def refresh(self, part: slice | None = None) -> None:
        """Tell the provider that other pages than before back this rank's memory.

        Parameters
        ----------
        part : slice of int, optional
            Elements that this is about, in C order, as for `advise`; all by default.

        Raises
        ------
        ClosedError, TypeError, ValueError
        RmaError
            The provider refuses.

        Notes
        -----
        Local; fi_mr_refresh. Needed after the first touch, or after munmap and mmap, of
        memory that was registered without pages, where `win.fabric.mr_mode` has
        MMU_NOTIFY; elsewhere it does nothing. Operations of peers on this memory fail
        meanwhile: let there be a `fence` before it, and after.

        Examples
        --------
        >>> win.refresh()  # all pages of this rank's memory
        """
        self._check_open("refresh")
        self._refresh("refresh", *one_part("refresh", part, self._array.size))

    def _refresh(self, call: str, start: int, stop: int) -> None:
        root = self._root
        if start < stop and self._fabric is not None and root._region.registered is not None:
            unit = self._array.strides[-1] if self._array.ndim else self._array.itemsize
            first = _start(self._array) - _start(root._array) + root._region.shift
            length = (stop - start - 1) * unit + self._array.itemsize
            where = f"{call}: window {self._name}"
            self._fabric.refresh(root._region.registered, first + start * unit, length, where)

    @property
    def writes_received(self) -> int:
        """How many writes and atomics of peers have modified this rank's memory. Local.

        Of a window that was made with `counts_writes=True`. Those that come by the
        network as such count; not what the ranks of the same node do to the memory
        itself, nor updates that are carried out for others by this rank's progress
        thread. With RMAEXT_ROUTE=fabric all puts come by the network.

        Raises
        ------
        Unsupported
            The window was made without `counts_writes=True`.

        Notes
        -----
        fi_mr_bind of a counter, with FI_REMOTE_WRITE. A put in several pieces may count
        as several writes.
        """
        self._check_open("writes_received")
        region = self._root._region
        if not region.registration.counts_writes:
            text = f"window {self._name}: made without counts_writes=True"
            raise Unsupported(errno.EOPNOTSUPP, text, call="writes_received")
        if self._fabric is None or region.registered is None:  # it has no elements
            return 0
        return self._fabric.writes(region.registered)


def _start(array: Array) -> int:
    return int(ffi.cast("uintptr_t", arrays.address(array)))
