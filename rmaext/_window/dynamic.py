# SPDX-License-Identifier: BSD-3-Clause
"""Windows to which each rank attaches memory, and detaches it, by itself."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from .._comm.columns import Columns, Same, Told, Ways
from .._comm.group import Group
from .._comm.region import Region
from .._comm.window_record import WindowRecord, dtype_text
from .._memory import arrays, node
from .._native._lib import ffi, lib
from .._ops.arguments import told
from .._ops.core import Array, Place
from .._ops.many import PUT, Places
from .._runtime.failures import from_c, not_for
from ..errors import AccessError, AlignmentError, AttachError, RmaError
from ..typing import ScalarT
from .refusals import SeveralArrays
from .window import Window

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DynamicWindow"]

_END = (1 << 63) - 1  # addresses are below it
_KEY = bytes(8)  # a remote key where nothing is registered
_SHORT = 32 << 10  # bytes of a put that C copies and sends later


class DynamicRegion(Region):
    """The whole address space of each rank, reached by message only."""

    dynamic = True
    creation = "creation of a dynamic window"

    def exchange(self, make: Callable[[], tuple[Array, int]]) -> None:
        """Agree on the dtype, and open the network. Collective."""
        group = self.group

        def mine() -> tuple[WindowRecord, int]:
            self.array, access = make()
            text = dtype_text(self.array.dtype)
            record = WindowRecord(0, 0, access, text, _KEY, shape=self.array.shape)
            return record, self.array.itemsize

        self.told = told = Told.by(group, mine)
        self.fabric = group.network().fabric
        self.records = told.records(group.rank, 1)
        self.records.size = Same(group.size, _END)
        self.records.own = told.own._replace(size=_END)

    def connect(self) -> None:
        """Settle the routes."""
        self.reach(Ways(self.group.here))

    def columns(self) -> Columns:
        """Return what C needs: all of the address space."""
        return super().columns()._replace(size=ffi.new("uint64_t *", _END))


class DynamicWindow(SeveralArrays[ScalarT], Window[ScalarT]):
    """A window over what each rank has attached at the moment; made by `Window.dynamic`.

    Notes
    -----
    An offset is what `attach` on the target has returned, plus the number of
    elements from there. Whoever makes memory known, in whatever way, passes that
    on, and detaches the memory only when nobody uses it any more; who
    comes too late gets a BoundsError, from the target, and nothing is changed. A put is
    complete when it returns. Any threads may attach, detach and operate at once, as on a
    `Window`.

    Examples
    --------
    >>> with rmaext.Window.dynamic(MPI.COMM_SELF, "i8") as other:
    ...     first = other.attach(np.arange(4))
    ...     other.get(0, first + 1, 2)
    array([1, 2])
    """

    _made_by = "Window.dynamic(comm, dtype)"
    _region: DynamicRegion
    _attached: dict[int, tuple[Array, int]]  # by address, with what keeps it

    @classmethod
    def _make(
        cls, comm: MPI.Comm, dtype: DTypeLike, timeout: float | None, proc_null: bool
    ) -> Self:
        """See `Window.dynamic`."""

        def nothing() -> Array:
            checked = np.dtype(dtype)
            arrays.check_dtype(checked)
            return np.empty(0, checked)

        self = cls.__new__(cls)
        self._attached = {}
        self._create(comm, nothing, None, timeout, None, proc_null)
        return self

    def _new_region(self, group: Group) -> Region:
        return DynamicRegion(group)

    def _bind_plain(self) -> None:
        pass  # no operation is plain: all go through the methods of this class

    # -- memory --------------------------------------------------------------------

    @told
    def attach(self, array: NDArray[ScalarT]) -> int:
        """Let the other ranks reach an array.

        Parameters
        ----------
        array : numpy.ndarray
            Of the window's dtype, C-contiguous, writeable, not empty, at an address that
            is a multiple of the item size. The window keeps it until it is detached.

        Returns
        -------
        int
            The offset of its first element, for operations on this rank.

        Raises
        ------
        AttachError
            Some of it is attached already, or it has no elements.
        AccessError
            It is read-only.
        AlignmentError, TypeError, ValueError, ClosedError

        Notes
        -----
        Local; corresponds to MPI_Win_attach and MPI_Get_address.

        Examples
        --------
        >>> with rmaext.Window.dynamic(MPI.COMM_SELF, "i8") as other:
        ...     first = other.attach(np.arange(4))
        ...     other.get(0, first + 1, 2)
        array([1, 2])
        """
        self._check_open("attach")
        arrays.check_origin(array, self._dtype)
        if not array.flags.writeable:
            text = f"attach: window {self._name}: the array is read-only"
            raise AccessError(errno.EACCES, text, call="attach")
        address = _address(array)
        if address % self._dtype.itemsize:
            text = f"attach: window {self._name}: address {address:#x} is no multiple of the "
            text += f"{self._dtype.itemsize} bytes of an element"
            raise AlignmentError(errno.EFAULT, text, call="attach")
        # While others may write there nobody else gets the memory. Noted first: so what C has
        # attached is known here, whatever a signal handler raises.
        before, kept = self._attached.get(address), node.keep(array)
        self._attached[address] = array, kept
        try:
            self._change("attach", lib.rmaext_attach, array)
        except Exception as exc:
            if isinstance(exc, RmaError):  # C has not: a signal handler's may come after it
                self._restore(address, before)
                node.let_go(kept)
            raise
        if before is not None:  # of a `detach` that a signal has ended
            node.let_go(before[1])
        return address // self._dtype.itemsize

    def _restore(self, address: int, before: tuple[Array, int] | None) -> None:
        if before is None:
            del self._attached[address]
        else:
            self._attached[address] = before

    @told
    def detach(self, array: NDArray[ScalarT]) -> None:
        """Take an array from the other ranks' reach.

        When it returns, no operation of another rank is under way there, and
        none will begin.

        Raises
        ------
        AttachError
            It is not attached, or only as a part of a larger one.
        ClosedError, TypeError

        Notes
        -----
        Local; corresponds to MPI_Win_detach.

        Examples
        --------
        >>> array = np.arange(4)
        >>> with rmaext.Window.dynamic(MPI.COMM_SELF, "i8") as other:
        ...     first = other.attach(array)
        ...     other.detach(array)
        ...     other.put(1, 0, first)
        Traceback (most recent call last):
        rmaext.errors.BoundsError: ...
        """
        self._check_open("detach")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"detach needs a NumPy array, not {type(array).__name__}")
        self._change("detach", lib.rmaext_detach, array)
        _, kept = self._attached.pop(_address(array))
        node.let_go(kept)

    def _change(self, call: str, function: Any, array: Array) -> None:
        where = f"{call}: window {self._name}, {array.size} elements at {_address(array):#x}"
        if not array.size:
            raise AttachError(errno.EINVAL, f"{where}: there is nothing to {call}", call=call)
        code = function(self._handle, ffi.cast("void *", _address(array)), array.nbytes)
        if code:
            error = from_c(code, where)
            if code in (-errno.EEXIST, -errno.ENXIO):
                error = AttachError(-code, str(error), call=call)
            raise error

    def _let_go(self) -> None:
        super()._let_go()
        while self._attached:
            node.let_go(self._attached.popitem()[1][1])

    # -- what it is ----------------------------------------------------------------

    def _extent(self) -> str:
        count = len(self._attached)
        return f"{count} array{'s' * (count != 1)} attached"

    @property  # type: ignore[misc]  # a list, made anew: nothing may be assigned
    def local(self) -> Any:
        """The arrays of this rank that are attached, as a list. Local."""
        return [array for array, _ in self._attached.values()]

    @property
    def memory(self) -> Any:
        """There is none but what is attached."""
        raise not_for(self, "memory")

    def size(self, rank: int) -> int:
        """Raise Unsupported: nobody but the target knows what is attached there.

        Examples
        --------
        >>> with rmaext.Window.dynamic(MPI.COMM_SELF) as other:
        ...     other.size(0)
        Traceback (most recent call last):
        rmaext.errors.Unsupported: size: window ...: not for a DynamicWindow
        """
        raise not_for(self, "size")

    def _rest(self, call: str, rank: Any, offset: Any) -> int:
        raise ValueError(f"{call}: window {self._name}: how many elements? Give count or out")

    # -- operations ----------------------------------------------------------------

    def _run(self, call: str, place: Place, buffers: tuple[Array, ...], what: Any) -> None:
        rank, first, count = place
        if what.kind == lib.RMAEXT_PUT and buffers[0].nbytes <= _SHORT:
            # put_many waits for the target, whose error is then raised by this put
            offsets = np.arange(first, first + count)
            self._many(PUT, rank, offsets, buffers[0].reshape(-1), None)
            return
        if what.kind == lib.RMAEXT_GET:
            what.kind, what.op, what.type = lib.RMAEXT_UPDATE, lib.RMAEXT_NO_OP, lib.RMAEXT_UINT8
        super()._run(call, place, buffers, what)

    def _many_error(self, call: str, code: int, bad: int, places: Places) -> Exception:
        error = super()._many_error(call, code, bad, places)
        if bad >= 0 or not isinstance(error, RmaError) or error.rank is None:
            return error
        ranks, offsets, _ = places.broadcast()
        there = offsets[ranks == error.rank]
        first, last = int(there.min()), int(there.max())
        text = f"{call}: window {self._name}, rank {error.rank}, offset {first}, length "
        text += f"{last + 1 - first}: {error.detail}"
        if code == -errno.ERANGE:
            text += ", not all of it is attached"
        return type(error)(-code, text, call=error.call, rank=error.rank, detail=error.detail)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
