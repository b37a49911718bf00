# SPDX-License-Identifier: BSD-3-Clause
"""Windows that look at the memory of another: a part of it, other elements, fewer rights."""

from __future__ import annotations

import errno
import math
import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._comm.columns import Column, Flat, Same, changed, each, one_of
from .._memory import arrays
from .._native._lib import ffi, lib
from .._native.owned import owned
from .._ops.core import Array, Shape
from .._runtime import lifetime
from .._runtime.config import timeout_seconds
from .._runtime.failures import from_c
from ..errors import AccessError, BoundsError, Unsupported
from ..typing import Access, ScalarT
from .window import Window

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Layout", "View", "dup", "layout_of", "subwindow", "view"]


class Layout(NamedTuple):
    """Where the elements of a field are: in records, several in each if it has dimensions.

    Attributes
    ----------
    record : int
        Bytes from one record to the next.
    shape, steps : tuple of int
        The dimensions within a record, and the bytes from one element to the next along each.
    """

    record: int
    shape: Shape = ()
    steps: Shape = ()

    def within(self) -> Array:
        """Return where the elements of a record begin, in C order, from the first one on."""
        places = np.zeros((), np.int64)
        for count, step in zip(self.shape, self.steps, strict=True):
            places = np.add.outer(places, np.arange(count, dtype=np.int64) * step)
        return places.reshape(-1)

    def dense(self, unit: int) -> bool:
        """Whether elements of so many bytes follow each other without gaps."""
        run = unit
        for count, step in zip(self.shape[::-1], self.steps[::-1], strict=True):
            if step != run:
                return False
            run *= count
        return run == self.record


def layout_of(parent: Window[Any], unit: int) -> Layout:
    """Return where the elements of a window are; those of `unit` bytes, if without gaps."""
    return parent._layout if isinstance(parent, View) and parent._gaps else Layout(unit)


class View(Window[ScalarT]):
    """A window over a part of another, or with other hints; made by `subwindow` and `dup`.

    Notes
    -----
    It has all that `Window` has. Synchronisation is that of the window: its locks, epochs and
    fences, and a `flush` of either completes the operations of both. Threads may do with it what
    they may with the window, and with both at once.

    Examples
    --------
    >>> part = win.subwindow(4, 7)
    >>> part.size(0), part.local.shape
    (3, (3,))
    """

    _made_by = "subwindow, dup and view of a window"
    _parent: Window[Any]
    _source: Window[Any]  # which is no view
    _cut: Callable[[Array], Array]  # from the whole of a rank's array to the part of it
    _layout: Layout

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
        shape: Column[Shape] | None = None,
        dtype: np.dtype[Any] | None = None,
        layout: Layout | None = None,
        access: int = lib.RMAEXT_READ | lib.RMAEXT_WRITE,
        timeout: float | None = None,
    ) -> Self:
        """Make it. Byte `first` is where it begins. What is not given is the parent's.

        `counts` are elements, in one dimension unless a shape is given.
        """
        self._closed = True  # until it is whole
        self._parent, self._name, self._cut = parent, name, cut
        self._source = root = parent._root
        self._comm, self._group, self._fabric = root._comm, root._group, root._fabric
        self._block, self._routes, self._region = root._block, root._routes, root._region
        self._timeout = parent._timeout if timeout is None else timeout
        self._null = parent._null
        self._dtype = parent._dtype if dtype is None else dtype
        unit = self._dtype.itemsize
        self._layout = layout or layout_of(parent, unit)
        self._gaps = not self._layout.dense(unit)
        self._within = self._layout.within()
        self._stride = math.gcd(self._layout.record, *self._layout.steps) if self._gaps else unit
        self._array = cut(parent._array)
        self._sizes = parent._sizes if counts is None else counts
        self._atomic_type = arrays.atomic_type(self._dtype)
        sizes = each(self._sizes, lambda n: self._byte(n - 1) + unit if n else 0)
        self._handle = self._make(first, sizes, access)
        if shape is None:
            shape = parent._records.shape if counts is None else Flat(counts, 1)
        self._records = parent._records.part(first, access, self._handle, sizes, shape)
        if not self._gaps:  # else all goes through the methods here
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
        return owned(handle[0], lib.rmaext_window_free, self._root._handle)

    def _device_array(self) -> Any:
        text = f"local: window {self._name}: a view of memory on a device: take `local` of the "
        raise Unsupported(errno.EOPNOTSUPP, text + "window, and that part of it", call="local")

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

    def _abandon(self, error: BaseException | None) -> None:
        self._closed = True

    def __del__(self) -> None:
        pass  # it may be forgotten: its memory is the window's


def subwindow(parent: Any, start: int, stop: int) -> View[Any]:
    """See `Window.subwindow`."""
    parent._check_open("subwindow")
    if layout_of(parent, 1).shape:
        text = f"subwindow: window {parent._name}: a field with dimensions has none: "
        text += "take the field of a subwindow"
        raise Unsupported(errno.EOPNOTSUPP, text, call="subwindow")
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
        first=parent._byte(start),
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


def view(parent: Any, dtype: Any) -> View[Any]:
    """See `Window.view`."""
    parent._check_open("view")
    old, new = parent._dtype, np.dtype(dtype)
    where = f"view: window {parent._name} of dtype {old}"
    arrays.check_dtype(new)
    if new.subdtype is not None:
        raise TypeError(f"{where}: {new} has dimensions: its elements are {new.base}")
    name = f"{parent._name} as {new}"
    kind = type(parent) if isinstance(parent, View) else View
    made: View[Any] = kind.__new__(kind)
    if new.itemsize == old.itemsize:
        return made._look(parent, name, lambda a: a.view(new), dtype=new)
    if parent._gaps:
        text = f"{where}: elements that lie apart can only be seen as others of their size, "
        raise ValueError(f"{text}{old.itemsize} bytes, not {new.itemsize}")
    shapes = parent._records.shape
    for rank, shape in enumerate([shapes.value] if isinstance(shapes, Same) else shapes):
        if not shape or shape[-1] * old.itemsize % new.itemsize:
            last = shape[-1] if shape else 1
            text = f"{where}, rank {rank}: {last} x {old.itemsize} bytes of the last dimension "
            raise ValueError(f"{text}of shape {shape} are no multiple of {new.itemsize}, or none")

    def reshape(shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] * old.itemsize // new.itemsize)

    return made._look(
        parent,
        name,
        lambda a: a.view(new),
        counts=each(parent._sizes, lambda n: n * old.itemsize // new.itemsize),
        shape=changed(shapes, reshape),
        dtype=new,
        layout=Layout(new.itemsize),
    )
