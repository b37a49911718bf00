# SPDX-License-Identifier: BSD-3-Clause
"""What a window is to all its operations: its state, the checks of arguments, one call of C.

`Window` is assembled from classes of operations that derive from `WindowCore`. What they
use of each other is here, or a method of theirs that another one of them derives from.
"""

from __future__ import annotations

import errno
import math
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._memory import arrays
from .._memory.devices import DeviceArray, of_cuda
from .._native import cmethods
from .._native._lib import lib
from .._record import tracing
from .._runtime.copies import Unique
from .._runtime.failures import from_c
from ..errors import BoundsError, ClosedError
from ..typing import Route, ScalarT
from .arguments import integers

if TYPE_CHECKING:
    from mpi4py import MPI

    from .._comm.columns import Column, Records
    from .._comm.control import Block
    from .._comm.group import Group
    from .._comm.region import Region
    from .._fabric.endpoint import Endpoint

__all__ = ["ROUTES", "Array", "Place", "Shape", "WindowCore"]

Array = NDArray[Any]
Shape = tuple[int, ...]
Place = tuple[int, int, int]  # rank, offset and count, in elements
ROUTES: dict[int, Route] = {
    lib.RMAEXT_DIRECT: "direct",
    lib.RMAEXT_CMA: "cma",
    lib.RMAEXT_FABRIC: "fabric",
    lib.RMAEXT_IPC: "ipc",
}


class WindowCore(Unique, cmethods.Window[ScalarT]):
    """The state of a window, and what its operations have in common.

    The C type it derives from carries out what is plain: put, get, updates, many elements,
    notifications, flush. Whatever needs a conversion, another route or an error it leaves to
    the method of the same name with an underscore, which one of the derived classes has.

    Attributes
    ----------
    _closed : bool
        Whether operations raise ClosedError. C's.
    _name : int or str
        For messages; a number, alike on all ranks, unless it is a view's.
    _group : Group
        The ranks, and what they know of each other.
    _region : Region
        The registered memory of all ranks; `_records`, `_routes` and `_maps` are its.
    _array : numpy.ndarray
        The memory of this rank; once the window has let go of it, one element in that shape.
    _left : weakref of numpy.ndarray or None
        To the memory that the window has let go of.
    _dtype : numpy.dtype
    _stride : int
        Bytes that C counts offsets in: an element's, or what divides all distances of the
        elements of a field.
    _gaps : bool
        Whether something lies between the elements: those of a field.
    _sizes : Column of int
        Elements of each rank.
    _shapes : Column of tuple, tuple or None
        Of windows that are one array on each rank; a tuple, if all have that shape.
    _atomic_type : int or None
        C's number of the dtype; None if it has no updates.
    _handle : cdata
        The C window.
    _fabric : Endpoint or None
        The endpoint in use; None where all routes are direct.
    _block : Block or None
        The control blocks; a hidden window, over these themselves, has none.
    _timeout : float
        Seconds without progress until an operation is given up.
    _null : int or None
        MPI.PROC_NULL, where that is taken as a rank.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        tracing.follow(cls)

    _array: Array
    _atomic_type: int | None
    _block: Block | None = None
    _comm: MPI.Comm
    _dtype: np.dtype[ScalarT]
    _fabric: Endpoint | None
    _group: Group
    _handle: Any
    _left: Callable[[], Array | None] | None = None
    _maps: Column[Any]
    _name: int | str
    _null: int | None = None
    _records: Records
    _region: Region
    _routes: Column[int]
    _shapes: Column[Shape] | Shape | None = None
    _sizes: Column[int]
    _stride: int
    _timeout: float

    _hint = "; if neighbours may be MPI.PROC_NULL, make the window with proc_null=True"
    _gaps = False
    _made_by = ""  # what makes a window of this kind, if not its constructor
    _may_hint = False  # updates of some targets are slower than they need be, see `Statistics`
    _in_pieces = False  # a rank has more than one array
    _divided = False  # one operation is several in C: fields, several arrays, what is attached

    @property
    def _root(self) -> Any:
        """The window that a view looks at; any other window itself."""
        return self

    def _settle_routes(self) -> None:
        """Take from C how ranks are reached; see `Completion`."""
        raise NotImplementedError

    def _parts(self) -> list[WindowCore[ScalarT]]:
        """Return those whose C windows this one has."""
        return [self]

    def _advised(self) -> str:
        """Return the hint that is due about this window; "" if none is, see `Statistics`."""
        return ""

    @property
    def _where_it_lies(self) -> str:
        """What the record says of this rank's memory, behind its dtype."""
        array = self._array
        return f" on cuda:{array.number}" if isinstance(array, DeviceArray) else ""

    def _let_go(self) -> None:
        """Keep this rank's memory no longer: it stays for as long as the program holds it."""
        array = self._array
        given = array.given if isinstance(array, DeviceArray) else None
        try:
            left = weakref.ref(array if given is None else given)
        except TypeError:  # not every class has such references
            left = weakref.ref(array)
        self._left = left  # before the other, see `Window.local`
        self._array = np.broadcast_to(np.zeros((), array.dtype), array.shape)

    def __repr__(self) -> str:
        kind = type(self)
        name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
        try:
            words = [self._extent(), str(self._dtype), f"access {self._rights()!r}", self._reach()]
        except AttributeError:  # an exception has ended the creation halfway
            return f"<{name}: not made>"
        words += ["closed"] * self._closed
        return f"<{name} {self._name}: {', '.join(words)}>"

    def _extent(self) -> str:
        """Say of what shape the memory of this rank is."""
        return f"shape {self._array.shape}"

    def _rights(self) -> str:
        """Say what origins may do with it."""
        return arrays.access_name(self._records.own.access)

    def _reach(self) -> str:
        """Say by which routes how many ranks are reached. Looks only at ranks of this node."""
        here = self._group.here
        ways = Counter(ROUTES[self._routes[rank]] for rank in here)
        ways[ROUTES[lib.RMAEXT_FABRIC]] += self._group.size - len(here)
        count = f"{self._group.size} rank" + "s" * (self._group.size != 1)
        return f"{count} ({', '.join(f'{n} {way}' for way, n in ways.items() if n)})"

    # -- where elements are ------------------------------------------------------------

    def _byte(self, index: int) -> int:
        """Return where in a rank's memory an element begins."""
        return index * self._stride

    def _index(self, byte: int) -> int:
        """Return which element begins there."""
        return byte // self._stride

    def _indices(self, offsets: Array) -> Array:
        """Return which elements are at offsets as C counts them."""
        return offsets

    def _steps(self, shape: Shape) -> list[int]:
        """Return the bytes from one element to the next along each dimension."""
        return [self._stride * math.prod(shape[k + 1 :]) for k in range(len(shape))]

    # -- checks ----------------------------------------------------------------------

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(errno.ESHUTDOWN, f"{call}: window {self._name} is closed", call=call)

    def _rank(self, rank: Any, call: str) -> int:
        """Return a rank as an int; BoundsError if the window does not have it."""
        (number,) = integers(rank=rank)
        if not 0 <= number < len(self._sizes):
            last = len(self._sizes) - 1
            text = f"{call}: window {self._name} has ranks 0 to {last}, not {number}"
            raise BoundsError(errno.ERANGE, text + self._hint_for(number), call=call)
        return number

    def _hint_for(self, rank: int) -> str:
        """Return what to say of a rank that the window does not have."""
        from mpi4py import MPI  # here: `python -m rmaext` reads this file without

        if len(self._sizes) <= rank < MPI.COMM_WORLD.size:
            return ", which is a rank of MPI.COMM_WORLD, not of the window's communicator"
        return self._hint if rank < 0 and self._null is None else ""

    def _place(self, call: str, rank: Any, offset: Any, count: int) -> Place | None:
        """Check rank, offset and count, integers of any size; None: no operation (proc_null)."""
        number, first = integers(rank=rank, offset=offset)
        if not 0 <= number < len(self._sizes):
            if number == self._null:
                return None
            self._rank(rank, call)
        if first < 0 or first + count > self._sizes[number]:
            text = f"{self._where(call, (number, first, count))}: outside the "
            text += f"{self._sizes[number]} elements there"
            raise BoundsError(errno.ERANGE, text, call=call, rank=number)
        return number, first, count

    def _result(self, out: Any) -> Any:
        """Check the array for a result. One on a device is left for what `landed` copies to it."""
        if out is None:
            return None
        cuda = of_cuda(out)
        if cuda is not None:
            out = cuda.landing(out, self._null is not None, self._timeout)
        arrays.check_result(out, self._dtype)
        return out

    def _count(
        self, call: str, rank: Any, offset: Any, count: int | None, out: Array | None
    ) -> int:
        """Check what a get is to return; return the number of elements. `_result` has `out`."""
        if count is None:
            return self._rest(call, rank, offset) if out is None else out.size
        (count,) = integers(count=count)
        if count < 0:
            raise ValueError(f"{call}: count {count} is negative")
        if out is not None and out.size != count:
            raise ValueError(f"{call}: out has {out.size} elements, count is {count}")
        return count

    def _rest(self, call: str, rank: Any, offset: Any) -> int:
        """Return the number of elements from offset to the end."""
        number, first = integers(rank=rank, offset=offset)
        if number == self._null:
            return 0
        return max(0, self._sizes[self._rank(number, call)] - max(0, first))

    def _foresee(self, call: str, place: Place, access: int, number: int) -> None:
        """Raise what an operation would be refused for; `number`: of an atomic's type, or -1."""
        rank, first, count = place
        first, nbytes = self._byte(first), count * self._dtype.itemsize
        code = lib.rmaext_window_check(self._handle, rank, first, nbytes, access, number)
        if code:
            raise from_c(code, self._where(call, place))

    def _where(self, call: str, place: Place) -> str:
        """Return the words with which an error of an operation begins."""
        rank, offset, count = place
        return f"{call}: window {self._name}, rank {rank}, offset {offset}, length {count}"

    # -- one call of C ---------------------------------------------------------------

    def _run(self, call: str, place: Place, buffers: tuple[Array, ...], what: Any) -> None:
        """Carry out an operation. `buffers` stay alive until C is done with them.

        `what` is a `struct rmaext_call`, of which the place is set here. A signal handler may
        raise here.
        """
        what.rank, what.offset = place[0], self._byte(place[1])
        op = cmethods.Owner(self._fabric, self._handle, buffers)
        try:
            code = op.start(what)
            if code:
                self._continue(call, place, code, op)
        except BaseException:
            lib.rmaext_record_give_up()  # a signal handler may have raised before its first line
            raise
        finally:
            op.release()

    _run_whole = _run  # of all kinds of windows: theirs divide it

    def _continue(self, call: str, place: Place, code: int, op: cmethods.Owner | None) -> None:
        """Wait until an operation has ended, or raise its error. The caller releases it.

        Where the error is all that there is, there is no operation.
        """
        where = self._where(call, place)
        if code == lib.RMAEXT_PENDING:
            assert op is not None
            code = self._group.watch.wait(op, where, lambda: place[:1])
        if code:
            raise from_c(code, where)


tracing.follow(WindowCore, cmethods.Window)
