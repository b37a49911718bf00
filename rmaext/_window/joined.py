# SPDX-License-Identifier: BSD-3-Clause
"""Windows over several arrays of each rank, whose elements share one range of offsets."""

from __future__ import annotations

import errno
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._comm.columns import Numbers, Some
from .._comm.group import Group
from .._comm.region import Region
from .._fabric.registration import How, one_part
from .._memory.arrays import access_bits, address, part_of, window_array
from .._memory.devices import check_reachable
from .._native._lib import lib
from .._ops.core import Array, Place, WindowCore
from .._ops.many import Call, Places
from .._runtime import lifetime
from .._runtime.reports import dtype_name
from ..errors import KeyRejectedError
from ..typing import Access, ScalarT
from . import storage
from .refusals import SeveralArrays
from .window import Window

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["JoinedWindow"]

_READ, _WRITE = lib.RMAEXT_READ, lib.RMAEXT_WRITE


class Part(Region):
    """One of the arrays of a `JoinedRegion`, registered together with others."""

    def __init__(self, whole: JoinedRegion, k: int) -> None:
        super().__init__(whole.group)
        self._whole, self._k = whole, k
        self.registration = whole.registration

    def _register(self, pointer: Any, number: int) -> tuple[bytes, int]:
        fabric, whole = self.group.network().fabric, self._whole
        lot = whole.lot(self._k, fabric.iov_limit)
        arrays = [whole.arrays[k] for k in lot]
        held = whole.held.get(lot[0])
        if held is None:
            pieces = [(address(array), array.nbytes) for array in arrays]
            held = fabric.register(pieces, self._access, number, self.registration)
            fabric.keep(held, arrays)
            whole.held[lot[0]] = held
        self.registered = held
        self.shift = sum(array.nbytes for array in arrays[: lot.index(self._k)])
        key, base = fabric.key(held)
        return key, base + self.shift  # with FI_MR_VIRT_ADDR or without, see fi_mr(3)


class JoinedRegion(Region):
    """A region for each array; as many as the rank with the most has.

    The provider is told of as many arrays at a time as it takes (mr_iov_limit), and as have
    the same rights.
    """

    def __init__(self, group: Group, arrays: Sequence[Array], access: Access | None) -> None:
        super().__init__(group)
        self.arrays, self._rights = arrays, access
        self.regions: list[Region] = []
        self.held: dict[int, Any] = {}  # registrations, by their first array

    def exchange(self, make: Callable[[], tuple[Array, int]]) -> None:
        """Describe all arrays; the record of the first says how many there are. Collective."""
        first = Part(self, 0)
        first.parts = max(1, len(self.arrays))
        self.regions.append(first)

        def mine() -> tuple[Array, int]:
            made = make()
            first.registration = self.registration
            return made

        first.exchange(mine)
        dtype = first.array.dtype
        for k in range(1, max(first.records.parts)):
            region = Part(self, k)
            self.regions.append(region)
            array = self.arrays[k] if k < len(self.arrays) else np.empty(0, dtype)
            pair = (array, self._bits(array))
            region.exchange(lambda pair=pair: pair)  # type: ignore[misc]
        self.array = first.array
        fabrics = (region.fabric for region in self.regions)
        self.fabric = next((fabric for fabric in fabrics if fabric is not None), None)

    def lot(self, k: int, limit: int) -> list[int]:
        """Return which arrays, k and at most `limit`, are registered in one region."""
        lots: list[list[int]] = []
        for j, array in enumerate(self.arrays):
            if not array.nbytes:
                continue
            last = lots[-1] if lots else []
            alike = last and self._bits(self.arrays[last[0]]) == self._bits(array)
            if alike and len(last) < limit:
                last.append(j)
            else:
                lots.append([j])
        if len(lots) > 1 and self.registration.key is not None:
            text = f"key={self.registration.key:#x}: the arrays need {len(lots)} registrations, "
            text += f"as their rights differ, or one takes {limit} at most"
            raise KeyRejectedError(errno.EKEYREJECTED, text, call="fi_mr_regattr")
        return next(lot for lot in lots if k in lot)

    def _bits(self, array: Array) -> int:
        return access_bits(self._rights, array.flags.writeable)

    def connect(self) -> None:
        """Settle the routes."""
        for region in self.regions:
            region.connect()

    def release(self) -> None:
        """Deregister, and let go of the memory. No peer uses it any more."""
        for region in self.regions:
            region.release()
        super().release()
        self.arrays = ()
        self.held.clear()


class JoinedWindow(SeveralArrays[ScalarT], Window[ScalarT]):
    """A window over several arrays of each rank: `Window(comm, [a, b, c])`.

    Parameters
    ----------
    comm, access, timeout, proc_null, **how
        As for `Window`.
    array : list of numpy.ndarray
        Of one dtype; at least one, which may be empty. Their number and sizes may
        differ between ranks. Each stays where it is. They are registered as one region
        where the provider takes as many pieces (mr_iov_limit) and their rights are the
        same, else as several.

    Notes
    -----
    Collective, blocking; corresponds to a window of MPI_Win_create_dynamic with
    several attached regions, or to a derived datatype for each call. The
    elements of the arrays, one after another, share one range of offsets, and an
    operation may span the seams. It is then not one, but one on each array: each
    element is updated atomically, as always, and the exception of a signal handler may come
    between two arrays. `local` and `peer_view` are lists.

    There are no functions for compiled code, and no views. Threads may do what they may with
    any `Window`.

    Examples
    --------
    >>> arrays = [np.zeros(2), np.zeros((2, 1))]
    >>> with rmaext.Window(MPI.COMM_SELF, arrays) as other:
    ...     other.put([1.0, 2.0], rank=0, offset=1)  # across the seam
    >>> arrays
    [array([0., 1.]), array([[2.],
           [0.]])]
    """

    _made_by = "Window(comm, [array, ...])"
    _region: JoinedRegion
    _given: tuple[list[Array], Access | None]
    _arrays: list[Window[ScalarT]]  # a window for each array
    _bounds: Any  # [r, k] is the offset at which array k of rank r begins

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make one, also by its own name."""
        return super(Window, cls).__new__(cls)

    def __init__(
        self,
        comm: MPI.Comm,
        array: NDArray[ScalarT] | Sequence[NDArray[ScalarT]],
        access: Access | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        **how: Unpack[How],
    ) -> None:
        arrays = list(array)
        self._given = arrays, access

        def first() -> Array:
            if not arrays:
                raise ValueError("a list of no arrays; one of them may be empty")
            for array in arrays:
                check_reachable(array)  # one array of a rank may lie on a device, none of several
            checked = [window_array(array) for array in arrays]
            for array in checked:
                access_bits(access, array.flags.writeable)
                if array.dtype != checked[0].dtype:
                    names = dtype_name(checked[0].dtype), dtype_name(array.dtype)
                    text = "the arrays have dtypes {} and {}".format(*names)
                    raise TypeError(text)
            return checked[0]

        self._create(comm, first, access, timeout, how, proc_null)

    def _new_region(self, group: Group) -> Region:
        return JoinedRegion(group, *vars(self).pop("_given"))

    def _adopt(self, token: bytes, block: Any) -> None:
        """Make a C window for each array."""
        region, group, name = self._region, self._group, int(self._name)
        self._arrays = []
        for k, part in enumerate(region.regions):
            window: Window[ScalarT] = Window.__new__(Window)
            window._group, window._region, window._comm = group, part, self._comm
            window._name, window._timeout = f"{name}, array {k}", self._timeout
            window._null = self._null
            window._adopt(group.token(name | k << 32) if k else token, block)
            lifetime.on_end(window)
            self._arrays.append(window)
        for window in self._arrays:
            window._closed = False
        first = self._arrays[0]
        self._fabric, self._handle = region.fabric, first._handle
        self._dtype, self._stride = first._dtype, first._stride
        self._atomic_type = first._atomic_type
        sizes = np.array([[*window._sizes] for window in self._arrays], dtype=np.int64).T
        bounds = [np.zeros((group.size, 1), np.int64), sizes.cumsum(axis=1)]
        self._bounds = np.ascontiguousarray(np.concatenate(bounds, axis=1))
        self._sizes = Numbers(self._bounds[:, -1])
        self._bind_arrays(tuple(self._arrays), self._bounds)
        self._settle_routes()

    def _settle_routes(self) -> None:
        for window in self._arrays:
            window._settle_routes()
        routes = {
            r: max(
                (w._routes[r] for w in self._arrays if w._sizes[r]),
                default=self._arrays[0]._routes[r],
            )
            for r in self._group.here
        }
        self._routes = Some(self._group.size, routes, lib.RMAEXT_FABRIC)

    def _parts(self) -> list[WindowCore[ScalarT]]:
        return [*self._arrays]

    # -- what it is ----------------------------------------------------------------

    def _extent(self) -> str:
        mine = self._mine()
        shapes = ", ".join(str(window._array.shape) for window in mine[:4])
        return f"{len(mine)} arrays of shape {shapes}{', ...' * (len(mine) > 4)}"

    def _rights(self) -> str:
        return ", ".join(sorted({window._rights() for window in self._mine()}))

    def _mine(self) -> list[Window[ScalarT]]:
        """Return the windows of the arrays that this rank has; others may have more."""
        return self._arrays[: self._region.regions[0].records.own.parts]

    @property  # type: ignore[misc]  # a list, made anew: nothing may be assigned
    def local(self) -> Any:
        """The arrays of this rank, as a list. Local."""
        return [window.local for window in self._mine()]

    @property
    def memory(self) -> Any:
        """Key, base address, size and rights of each array of this rank, as a list."""
        return [window.memory for window in self._mine()]

    def peer_view(self, rank: int) -> Any:
        """Return the arrays of a rank of this node, as a list, without a copy.

        Parameters
        ----------
        rank : int

        Returns
        -------
        list of numpy.ndarray
            Each as `Window.peer_view` returns one.

        Raises
        ------
        NotLocalError, AccessError, BoundsError, ClosedError
            As `Window.peer_view`.

        Notes
        -----
        Local; corresponds to MPI_Win_shared_query.

        Examples
        --------
        >>> with rmaext.Window(MPI.COMM_SELF, [np.zeros(2), np.ones(1)]) as other:
        ...     other.peer_view(0)
        [array([0., 0.]), array([1.])]
        """
        self._check_open("peer_view")
        number = self._rank(rank, "peer_view")
        count = self._region.regions[0].records[number].parts
        return [window.peer_view(number) for window in self._arrays[:count]]

    def refresh(self, part: slice | None = None) -> None:
        """Tell the provider that other pages than before back these elements.

        Parameters
        ----------
        part : slice of int, optional
            Elements, counted one array after another; all by default.

        Notes
        -----
        Local; as `Window.refresh` in all else. fi_mr_refresh.

        Examples
        --------
        >>> with rmaext.Window(MPI.COMM_SELF, [np.zeros(2), np.ones(3)]) as other:
        ...     other.refresh(slice(1, 4))
        """
        self._check_open("refresh")
        me = self._group.rank
        start, stop = one_part("refresh", part, self._sizes[me])
        for window, first, count, _ in self._pieces((me, start, stop - start)):
            window.refresh(slice(first, first + count))

    @property
    def writes_received(self) -> int:
        """How many writes of peers have modified this rank's arrays; as of `Window`."""
        self._check_open("writes_received")
        firsts = {id(w._region.registered): w for w in self._arrays}
        return sum(window.writes_received for window in firsts.values())

    # -- operations ----------------------------------------------------------------

    def _pieces(self, place: Place) -> Iterator[tuple[Window[ScalarT], int, int, int]]:
        """Give the window, the first element there, the count, and how many came before."""
        rank, first, count = place
        bounds = self._bounds[rank].tolist()
        for window, low, high in zip(self._arrays, bounds, bounds[1:], strict=False):
            start, stop = max(first, low), min(first + count, high)
            if start < stop:
                yield window, start - low, stop - start, start - first

    def _foresee(self, call: str, place: Place, access: int, number: int) -> None:
        for window, first, count, _ in self._pieces(place):
            window._foresee(call, (place[0], first, count), access, number)

    def _run(self, call: str, place: Place, buffers: tuple[Array, ...], what: Any) -> None:
        rank, _, whole = place
        self._foresee(call, place, _needs(what), -1)
        for window, first, count, before in self._pieces(place):
            start = before * self._dtype.itemsize
            window._run(call, (rank, first, count), buffers, part_of(what, start, count, whole))

    def _many(
        self, call: Call, ranks: Any, offsets: Any, values: Array | None, out: Array | None
    ) -> Any:
        whole, values, out = self._arranged(call, ranks, offsets, values, out)
        ranks = whole.broadcast()[0]
        which, places = self._sort(call.name, whole)
        access = (_READ if call.results else 0) | (_WRITE if call.kind != lib.RMAEXT_GET else 0)
        number = call.type if call.kind == lib.RMAEXT_UPDATE else -1
        lots = [(self._arrays[k], np.flatnonzero(which == k)) for k in np.unique(which)]
        for window, lot in lots:
            for rank in np.unique(ranks[lot]).tolist():
                window._foresee(call.name, (rank, 0, 1), access, number)
        results = None if out is None else out.reshape(-1)
        for window, lot in lots:
            given = whole.some(values, lot)
            got = window._many(call, given[0], places[lot], given[2], None)
            if results is not None:
                results[lot] = got
        return out

    def _sort(self, call: str, places: Places) -> tuple[Array, Array]:
        """Return which array each element is in, and where there; BoundsError if in none."""
        ranks, offsets, _ = places.broadcast()
        known = np.where((ranks >= 0) & (ranks < len(self._sizes)), ranks, 0)
        sizes = self._bounds[known, -1]
        bad = np.flatnonzero((ranks != known) | (offsets < 0) | (offsets >= sizes))
        if bad.size:
            raise self._place_error(call, -errno.ERANGE, int(bad[0]), places)
        which = np.zeros(ranks.size, np.int64)
        for k in range(1, len(self._arrays)):
            which += offsets >= self._bounds[known, k]
        # An array without elements ends where it begins: >= goes past it.
        return which, offsets - self._bounds[known, which]

    def _flush(self, rank: int | None = None, *, persist: bool = False) -> None:
        self._check_open("flush")
        failure: Exception | None = None
        for window in self._arrays:  # all of them, also if one fails
            try:
                window.flush(rank)
            except Exception as exc:
                failure = failure or exc
        if failure is not None:
            raise failure
        if persist:
            storage.persist(self, None if rank is None else operator.index(rank))


def _needs(what: Any) -> int:
    """Return what a `struct rmaext_call` needs of its target."""
    changes = what.kind == lib.RMAEXT_PUT or (
        what.kind == lib.RMAEXT_UPDATE and what.op != lib.RMAEXT_NO_OP
    )
    return (_READ if what.result else 0) | (_WRITE if changes else 0)
