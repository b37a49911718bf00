# SPDX-License-Identifier: BSD-3-Clause
"""Windows that look at the memory of another: a part of it, a field, fewer rights."""

from __future__ import annotations

import errno
import operator
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._comm.columns import Column, Flat, Same, each, one_of
from .._memory import arrays
from .._native._lib import ffi, lib
from .._ops.core import Array, Place
from .._ops.vector import GET, PUT
from .._runtime import lifetime
from .._runtime.config import timeout_seconds
from .._runtime.failures import from_c, not_for
from ..errors import AccessError, AlignmentError, BoundsError
from ..typing import Access, ScalarT
from .window import Window

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

__all__ = ["FieldView", "View", "dup", "field", "subwindow"]


class View(Window[ScalarT]):
    """A window over a part of another, or with other hints; made by `subwindow` and `dup`.

    Notes
    -----
    It has all that `Window` has. Synchronisation is that of the window: its locks, epochs and
    fences, and a `flush` of either completes the operations of both.

    Examples
    --------
    >>> part = win.subwindow(4, 7)
    >>> part.size(0), part.local.shape
    (3, (3,))
    """

    _parent: Window[Any]
    _source: Window[Any]  # which is no view
    _cut: Callable[[Array], Array]  # from the whole of a rank's array to the part of it

    @property
    def _root(self) -> Any:
        return self._source

    def _look(
        self,
        parent: Window[Any],
        name: int | str,
        cut: Callable[[Array], Array],
        *,
        first: int = 0,
        counts: Column[int] | None = None,
        dtype: np.dtype[Any] | None = None,
        access: int = lib.RMAEXT_READ | lib.RMAEXT_WRITE,
        timeout: float | None = None,
    ) -> Self:
        """Make it. Byte `first` is where it begins; `counts`: elements, in one dimension."""
        self._closed = True  # until it is whole
        self._parent, self._name, self._cut = parent, name, cut
        self._source = root = parent._root
        self._comm, self._group, self._fabric = root._comm, root._group, root._fabric
        self._block, self._routes, self._region = root._block, root._routes, root._region
        self._timeout = parent._timeout if timeout is None else timeout
        self._null = parent._null
        self._dtype = parent._dtype if dtype is None else dtype
        self._stride, unit = parent._stride, self._dtype.itemsize
        self._array = cut(parent._array)
        self._sizes = parent._sizes if counts is None else counts
        self._atomic_type = arrays.atomic_type(self._dtype)
        sizes = each(self._sizes, lambda n: (n - 1) * self._stride + unit if n else 0)
        self._handle = self._make(first, sizes, access)
        shape = parent._records.shape if counts is None else Flat(counts, 1)
        self._records = parent._records.part(first, access, self._handle, sizes, shape)
        if self._stride == unit:  # else all goes through the methods here
            self._bind_plain()
        else:
            self._shapes = one_of(self._records.shape)
        lifetime.on_end(self)
        self._closed = False
        # in one step: another thread may make the first view, too
        vars(root).setdefault("_views", weakref.WeakValueDictionary())[id(self)] = self
        if root._closed:  # by another thread, which may not have seen this one
            self._closed = True
            root._check_open("view")
        return self

    def _make(self, first: int, sizes: Column[int], access: int) -> Any:
        """Return the C window."""
        same = isinstance(sizes, Same)
        bounds = ffi.new("uint64_t[]", [sizes.value] if isinstance(sizes, Same) else [*sizes])
        stride = 0 if self._stride == self._dtype.itemsize else self._stride
        what = (first, stride, bounds, same, access, int(self._timeout * 1e9))
        view = ffi.new("struct rmaext_view *", what)
        handle = ffi.new("rmaext_window **")
        code = lib.rmaext_window_view(self._parent._handle, view, handle)
        if code:
            raise from_c(code, f"window {self._name}")
        return ffi.gc(handle[0], lib.rmaext_window_free)

    def peer_view(self, rank: int) -> NDArray[ScalarT]:
        """Return that part of the memory of a rank of this node as an array, without a copy.

        Parameters
        ----------
        rank : int

        Returns
        -------
        numpy.ndarray
            In the shape of the part; read-only where the view allows no writing.

        Raises
        ------
        NotLocalError, AccessError, BoundsError, ClosedError
            As `Window.peer_view`.

        Notes
        -----
        Local; corresponds to MPI_Win_shared_query.

        Examples
        --------
        >>> win.local[:] = np.arange(10)
        >>> win.subwindow(4, 7).peer_view(0)
        array([4., 5., 6.])
        """
        self._check_open("peer_view")
        view: NDArray[ScalarT] = self._cut(self._parent.peer_view(rank))
        access = self._records[operator.index(rank)].access
        if not access & lib.RMAEXT_READ:
            text = f"peer_view: window {self._name}, rank {rank}: it allows no reading"
            raise AccessError(errno.EACCES, text, call="peer_view", rank=operator.index(rank))
        if not access & lib.RMAEXT_WRITE:
            view.flags.writeable = False
        return view

    def fence(self) -> None:
        """Flush to all ranks, and wait until all have done so: the fence of the window.

        Notes
        -----
        Collective, blocking; as `Window.fence` in all else.

        Examples
        --------
        >>> win.subwindow(0, 5).fence()
        """
        self._check_open("fence")
        self._root.fence()

    def close(self) -> None:
        """Flush, and end the view; twice is harmless. The window stays open.

        Raises
        ------
        RmaTimeout, PeerLostError
            As `flush`; the view is closed all the same.

        Notes
        -----
        Local, blocking. It need not be called: the view ends with the window.

        Examples
        --------
        >>> part = win.subwindow(0, 5)
        >>> part.close()
        >>> part.closed, win.closed
        (True, False)
        """
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        self._closed = True

    def __del__(self) -> None:
        pass  # it may be forgotten: its memory is the window's


class FieldView(View[ScalarT]):
    """A window over one field of records; made by `Window.field`.

    Notes
    -----
    An offset counts records. There are no functions for compiled code: these count elements
    that follow each other.

    Examples
    --------
    >>> records = np.zeros(3, [("mass", "f8"), ("count", "i8")])
    >>> with rmaext.Window(MPI.COMM_SELF, records) as other:
    ...     other.field("mass").get(0)
    array([0., 0., 0.])
    """

    _divided = True

    @property
    def numba(self) -> int:
        """There is none: compiled code counts elements that follow each other."""
        raise not_for(self, "numba")

    def _run(
        self,
        call: str,
        place: Place,
        buffers: tuple[Array, ...],
        function: Any,
        *arguments: Any,
    ) -> None:
        rank, first, count = place
        if function == lib.rmaext_strided:  # which is told where the elements are
            return super()._run(call, place, buffers, function, *arguments)
        moves = (lib.rmaext_put, lib.rmaext_get)
        if function not in moves:
            self._check_aligned(call, place)
        if count == 1:
            super()._run(call, place, buffers, function, *arguments)
        elif function in moves and count:
            offsets, flat = np.arange(first, first + count), buffers[0].reshape(-1)
            if function == lib.rmaext_put:
                self._many(PUT, 0, rank, offsets, flat, None)
            else:
                self._many(GET, 0, rank, offsets, None, flat)
        else:
            for k in range(count):
                one = arrays.part_of(arguments, k * self._dtype.itemsize, 1, count)
                super()._run(call, (rank, first + k, 1), buffers, function, *one)

    def _check_aligned(self, call: str, place: Place) -> None:
        unit = self._dtype.itemsize
        if unit > 8:  # longer ones are as C aligns them
            unit = self._dtype.alignment
        if (self._records[place[0]].address | self._stride) % unit:
            text = f"{self._where(call, place)}: records of {self._stride} bytes are not all "
            text += f"aligned to the {unit} of the field: numpy.dtype(..., align=True) aligns them"
            raise AlignmentError(errno.EFAULT, text, call=call, rank=place[0])


def subwindow(parent: Any, start: int, stop: int) -> View[Any]:
    """See `Window.subwindow`."""
    parent._check_open("subwindow")
    start, stop = operator.index(start), operator.index(stop)
    name = f"{parent._name}[{start}:{stop}]"
    if not 0 <= start <= stop:
        text = f"subwindow: window {name}: the bounds must be positive and in order"
        raise BoundsError(errno.ERANGE, text, call="subwindow")
    sizes = parent._sizes
    few = [sizes.value] if isinstance(sizes, Same) else sizes
    short = [rank for rank, size in enumerate(few) if 0 < size < stop]
    if short:
        text = f"subwindow: window {name}, rank {short[0]}: outside the "
        text += f"{parent._sizes[short[0]]} elements there"
        raise BoundsError(errno.ERANGE, text, call="subwindow", rank=short[0])
    counts = each(sizes, lambda size: stop - start if size else 0)
    kind = type(parent) if isinstance(parent, View) else View
    return kind.__new__(kind)._look(
        parent,
        name,
        lambda array: array.reshape(-1)[start:stop],
        first=start * parent._stride,
        counts=counts,
    )


def dup(parent: Any, access: Access | None, timeout: float | None) -> View[Any]:
    """See `Window.dup`."""
    parent._check_open("dup")
    rights = lib.RMAEXT_READ | lib.RMAEXT_WRITE
    if access is not None:
        rights = arrays.access_bits(access, True)
        have = parent._records.access
        few = [have.value] if isinstance(have, Same) else have
        less = [rank for rank, there in enumerate(few) if rights & ~there]
        if less:
            there = arrays.access_name(have[less[0]])
            text = f"dup: window {parent._name}, rank {less[0]}: {there!r}, not {access!r}"
            raise AccessError(errno.EACCES, text, call="dup", rank=less[0])
    limit = parent._timeout if timeout is None else timeout_seconds(timeout)
    kind = type(parent) if isinstance(parent, View) else View
    view = kind.__new__(kind)
    return view._look(parent, parent._name, lambda a: a.view(), access=rights, timeout=limit)


def field(parent: Any, name: str) -> FieldView[Any]:
    """See `Window.field`."""
    parent._check_open("field")
    fields = parent._dtype.fields
    if not fields:
        raise TypeError(f"field: window {parent._name} has dtype {parent._dtype}, without fields")
    if name not in fields:
        raise KeyError(f"field: window {parent._name} has {', '.join(fields)}, not {name!r}")
    dtype, at = fields[name][:2]
    if dtype.shape or not dtype.itemsize:
        raise TypeError(f"field {name!r} has elements of dtype {dtype}, not of one size")
    view: FieldView[Any] = FieldView.__new__(FieldView)
    return view._look(parent, f"{parent._name}.{name}", lambda a: a[name], first=at, dtype=dtype)
