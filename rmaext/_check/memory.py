# SPDX-License-Identifier: BSD-3-Clause
"""Which memory of this process is a window's, and what the requests that go on do with it."""

from __future__ import annotations

import bisect
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._runtime.reports import site
from .clock import NEVER, alone, clock
from .races import BUFFER, READ, RETURN, WRITE
from .report import Finding, report
from .spans import Spans, common, of_array

if TYPE_CHECKING:
    from .races import Access
    from .shadow import Shadow

__all__ = ["Begun", "begin", "begun_by", "flushed", "forget", "keep", "memory", "unwaited"]


class Region(NamedTuple):
    """Addresses that are a rank's memory in a window."""

    first: int
    end: int
    shadow: Shadow
    rank: int
    shift: int  # what makes an address the place in that rank's memory


class Buffer(NamedTuple):
    """Addresses that a request reads, or writes."""

    spans: Spans
    writes: bool
    begun: Begun


class Memory:
    """The memory of this process, by address."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._firsts: list[int] = []
        self._buffers: dict[int, list[Buffer]] = defaultdict(list)  # by 4 KiB of addresses

    @alone
    def use(self, buffer: Buffer) -> None:
        """Note that a request uses memory, until `let_go`."""
        for page in _pages(buffer.spans):
            self._buffers[page].append(buffer)

    @alone
    def let_go(self, buffer: Buffer) -> None:
        """Note that the request is done."""
        for page in _pages(buffer.spans):
            left = [it for it in self._buffers[page] if it is not buffer]
            if left:
                self._buffers[page] = left
            else:
                del self._buffers[page]

    @alone
    def add(self, array: NDArray[Any], shadow: Shadow, rank: int, base: int = 0) -> None:
        """Note that an array is a rank's memory from byte `base` on."""
        first = array.__array_interface__["data"][0]
        if not array.nbytes or self._find(first, first + 1) is not None:
            return
        at = bisect.bisect(self._firsts, first)
        self._firsts.insert(at, first)
        region = Region(first, first + array.nbytes, shadow, rank, base - first)
        self._regions.insert(at, region)

    @alone
    def remove(self, shadow: Shadow) -> None:
        """Forget the memory of a window that is closed."""
        self._regions = [it for it in self._regions if it.shadow is not shadow]
        self._firsts = [it.first for it in self._regions]

    def _find(self, low: int, high: int) -> Region | None:
        at = bisect.bisect(self._firsts, low) - 1
        if at >= 0 and low < self._regions[at].end:
            return self._regions[at]
        at += 1
        return self._regions[at] if at < len(self._firsts) and self._firsts[at] < high else None

    def touch(
        self, array: NDArray[Any], writes: bool, what: str, begun: Begun | None = None
    ) -> None:
        """Note that this process reads or writes an array; `begun`: by a request that goes on."""
        if not array.size or not (self._regions or self._buffers):
            return
        self.touch_spans(of_array(array), writes, what, begun)

    @alone
    def touch_spans(
        self, spans: Spans, writes: bool, what: str, begun: Begun | None = None
    ) -> None:
        """Note that this process reads or writes bytes at these addresses."""
        if not len(spans):
            return
        if self._buffers:
            self._against_requests(spans, writes, what)
        region = self._find(int(spans[0, 0]), int(spans[-1, 1]))
        if region is None:
            return
        kind = WRITE if writes else READ
        inside = np.clip(spans, region.first, region.end) + region.shift
        ends = RETURN if begun is None else BUFFER
        access = region.shadow.note(region.rank, kind, inside, what, ends=ends)
        if begun is not None and access is not None:
            begun.accesses.append(access)

    def _against_requests(self, spans: Spans, writes: bool, what: str) -> None:
        near = [it for page in _pages(spans) for it in self._buffers.get(page, ())]
        for buffer in near:
            if not (writes or buffer.writes) or common(buffer.spans, spans) is None:
                continue
            here, rank = site(), clock().me
            does = "writes" if buffer.writes else "reads"
            text = (
                f"rmaext check: {what} at {here} of rank {rank} uses memory that the {buffer.begun}"
            )
            text += f" {does} meanwhile: wait for the request first"
            report.tell([Finding("race", f"{what} {here} {buffer.begun}", text)])


def _pages(spans: Spans) -> range:
    return (
        range(int(spans[0, 0]) >> 12, (int(spans[-1, 1] - 1) >> 12) + 1) if len(spans) else range(0)
    )


memory = Memory()


# -- requests --------------------------------------------------------------------------

_COPIED = 1 << 26  # bytes of an origin that are kept, to see whether it changes


class Begun:
    """A request of the program.

    Attributes
    ----------
    accesses : list of Access
        What it does to windows; complete when the request is.
    remote : list of Access
        Those that a flush completes.
    waited : bool
        Whether the program has learnt of its end, or let go of it.
    """

    def __init__(self, shadow: Shadow, words: tuple[str, str], reads: bool) -> None:
        self.shadow, self.words, self.reads = shadow, words, reads
        self.accesses: list[Access] = []
        self.remote: list[Access] = []
        self.waited = self.done = False
        self._buffers: list[Buffer] = []
        self._origins: list[tuple[NDArray[Any], bytes]] = []  # and what was in them

    def __str__(self) -> str:
        call, site = self.words
        return f"{call} that rank {clock().me} began at {site}"

    def use(self, array: NDArray[Any], writes: bool) -> None:
        """Note that it reads an origin, or writes a result, until it is done."""
        memory.touch(array, writes, self.words[0], self)
        buffer = Buffer(of_array(array), writes, self)
        memory.use(buffer)
        self._buffers.append(buffer)
        if not writes and array.nbytes <= _COPIED:
            # An ordinary array, which notes nothing, of bytes without fields: NumPy's copies
            # of records leave out what lies between those, and a NaN is not equal to itself.
            origin = array.view(np.ndarray).view(f"V{array.itemsize}")
            self._origins.append((origin, origin.tobytes()))

    @alone
    def end(self) -> None:
        """Note that it is done, and see whether its origin has changed meanwhile."""
        if self.done:
            return
        self.done = True
        now = clock().tick()
        for access in self.accesses:
            access.done, access.near = min(access.done, now), min(access.near, now)
        for buffer in self._buffers:
            memory.let_go(buffer)
        self._buffers = []
        origins, self._origins = self._origins, []
        if any(origin.tobytes() != before for origin, before in origins):
            text = f"rmaext check: the origin of the {self} was changed before the request was done"
            report.tell(
                [Finding("buffer", f"origin {self}", f"{text}: wait for the request first")]
            )

    def flushed(self) -> None:
        """Note that a flush has completed it; who wanted no result need not wait any more."""
        self.end()
        self.waited = self.waited or not self.reads


_open: weakref.WeakKeyDictionary[Any, Begun] = weakref.WeakKeyDictionary()
_all: list[Begun] = []
_limit = [1000]  # of their number, until those are taken out that were waited for


@alone
def begin(request: Any, begun: Begun) -> None:
    """Follow a request."""
    _open[request] = begun
    keep(begun)


@alone
def keep(begun: Begun) -> None:
    """See that a request is waited for."""
    _all.append(begun)
    if len(_all) > _limit[0]:
        _all[:] = [it for it in _all if not it.waited]
        _limit[0] = 1000 + 2 * len(_all)


def begun_by(request: Any) -> Begun | None:
    """Return what is known of a request."""
    try:
        return _open.get(request)
    except TypeError:
        return None


@alone
def flushed(shadow: Shadow, everything: bool = False) -> None:
    """Note that a flush has completed some of a window's requests, or everything."""
    for begun in _all:
        if begun.shadow is shadow and (everything or all(it.done != NEVER for it in begun.remote)):
            begun.flushed()


def forget(shadow: Shadow) -> None:
    """Forget the requests of a window that is closed."""
    for begun in _all:
        if begun.shadow is shadow:
            begun.end()
            begun.waited = True


def unwaited(shadow: Shadow | None = None) -> list[Finding]:
    """Return the requests, of a window or of all, that nobody has waited for."""
    found = []
    for begun in _all:
        if not begun.waited and (shadow is None or begun.shadow is shadow):
            begun.waited = True
            call, site = begun.words
            text = f"rmaext check: the {begun} was never waited for: call wait(), test() or free()"
            found.append(Finding("request", f"request {call} {site}", text))
    return found
