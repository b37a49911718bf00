# SPDX-License-Identifier: BSD-3-Clause
"""How windows of other kinds are made, views of a window, and tickets for other jobs.

Each kind has a module of its own, which imports `Window`: so it is imported late here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from .._ops.arguments import told
from .._ops.core import WindowCore
from .._remote import grants as _grants
from .._remote.grants import Grant
from .._runtime.failures import not_for
from ..typing import Access, ScalarT, Scope

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import DTypeLike

    from .dynamic import DynamicWindow
    from .fields import FieldView
    from .joined import JoinedWindow
    from .shared import SharedWindow
    from .views import View

__all__ = ["RelatedWindows"]

_OtherT = TypeVar("_OtherT", bound=np.generic)


class RelatedWindows(WindowCore[ScalarT]):
    """The methods of `Window` that return other windows, and those that export its memory."""

    @overload
    @classmethod
    def shared(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: type[ScalarT] | np.dtype[ScalarT],
        timeout: float | None = None,
        *,
        proc_null: bool = False,
    ) -> SharedWindow[ScalarT]: ...

    @overload
    @classmethod
    def shared(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
    ) -> SharedWindow[Any]: ...

    @classmethod
    def shared(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
    ) -> SharedWindow[Any]:
        """Return a window over new memory in one piece, for ranks that share a node.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
            Its ranks must share a node: `comm.Split_type(MPI.COMM_TYPE_SHARED)`.
        shape, dtype, timeout, proc_null
            As for `Window.allocate`; the shape may differ between ranks.

        Returns
        -------
        SharedWindow
            The ranks' parts follow each other in their order, without gaps: `whole` is
            all of them as one array, `peer_view(rank)` one of them, in its shape.

        Raises
        ------
        NotLocalError
            On every rank, if not all can map each other's memory.
        TypeError, ValueError, MemoryError
            On every rank, if any rank's arguments do not fit.

        Notes
        -----
        Collective, blocking; corresponds to MPI_Win_allocate_shared. The memory is filled
        with zeros. It is rank 0's, and stays while any process of the node has it
        mapped, also when that rank is killed. Arrays over it, `local` included,
        must not be used once the window is closed: the memory may
        then become part of another array of rank 0.

        Examples
        --------
        >>> with rmaext.Window.shared(MPI.COMM_SELF, 3, "i4") as other:
        ...     other.whole
        array([0, 0, 0], dtype=int32)
        """
        from .shared import SharedWindow

        return SharedWindow._make(comm, shape, dtype, timeout, proc_null)

    @overload
    @classmethod
    def dynamic(
        cls,
        comm: MPI.Comm,
        dtype: type[ScalarT] | np.dtype[ScalarT],
        timeout: float | None = None,
        *,
        proc_null: bool = False,
    ) -> DynamicWindow[ScalarT]: ...

    @overload
    @classmethod
    def dynamic(
        cls,
        comm: MPI.Comm,
        dtype: DTypeLike = float,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
    ) -> DynamicWindow[Any]: ...

    @classmethod
    def dynamic(
        cls,
        comm: MPI.Comm,
        dtype: DTypeLike = float,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
    ) -> DynamicWindow[Any]:
        """Return a window to which each rank attaches memory as it goes along.

        Parameters
        ----------
        comm, timeout, proc_null
            As for `Window`.
        dtype : data-type, optional
            Of all that is attached; the same on all ranks.

        Returns
        -------
        DynamicWindow
            With `attach(array)`, which returns the offset of the array's first
            element, and `detach(array)`.

        Raises
        ------
        TypeError, ValueError, NoProviderError
            On every rank, if any rank's arguments do not fit.

        Notes
        -----
        Collective, blocking; corresponds to MPI_Win_create_dynamic. Everything goes
        by message to the target's progress thread, from ranks of the same node and from
        itself too, as that alone knows what is attached at the moment: slower
        than other windows, but no access ever touches memory that is not.

        Examples
        --------
        >>> with rmaext.Window.dynamic(MPI.COMM_SELF, "i8") as other:
        ...     first = other.attach(np.arange(4))
        ...     other.get(0, first + 1, 2)
        array([1, 2])
        """
        from .dynamic import DynamicWindow

        return DynamicWindow._make(comm, dtype, timeout, proc_null)

    @staticmethod
    def _joined() -> type[JoinedWindow[Any]]:
        from .joined import JoinedWindow

        return JoinedWindow

    @told
    def subwindow(self, start: int, stop: int) -> View[ScalarT]:
        """Return a window over the elements [start, stop) of every rank.

        Parameters
        ----------
        start, stop : int
            Elements in C order. Each rank must have all of them, or no memory
            at all in the window; then it has none in the subwindow.

        Returns
        -------
        Window
            All operations count from `start`, and nothing outside is reached.
            `local` is one-dimensional.

        Raises
        ------
        BoundsError
            Naming the ranks that end before `stop`.
        ClosedError

        Notes
        -----
        Local: no rank waits, and nothing is registered. The nearest in MPI is a
        displacement added to each call. Operations of the subwindow are those of
        the window: a `flush` of either completes both's, and of two errors that are left
        to a flush, either may raise. `close()` of the subwindow is local and
        need not be called; when the window is closed, so is the subwindow. A
        `fence`, and locks, are those of the window.

        Examples
        --------
        >>> part = win.subwindow(4, 7)
        >>> part.put([1.0, 2.0], rank=0)
        >>> part.flush()
        >>> win.local[3:8]
        array([0., 1., 2., 0., 0.])
        """
        from .views import subwindow

        return subwindow(self, start, stop)

    @told
    def dup(self, access: Access | None = None, timeout: float | None = None) -> View[ScalarT]:
        """Return the same window with other hints.

        Parameters
        ----------
        access : {"r", "w", "rw"}, optional
            What operations of the duplicate may do: some of what the window
            allows on every rank that has memory.
        timeout : float, optional
            As for `Window`; by default the window's own.

        Raises
        ------
        AccessError
            The window does not allow as much.
        ClosedError, TypeError, ValueError

        Notes
        -----
        Local, and as `subwindow` in all else. Corresponds to MPI_Win_create over
        the same memory with another info object, without its cost.

        Examples
        --------
        >>> readers = win.dup(access="r")
        >>> readers.put(1.0, 0)
        Traceback (most recent call last):
        rmaext.errors.AccessError: ...
        """
        from .views import dup

        return dup(self, access, timeout)

    @overload
    def view(self, dtype: type[_OtherT] | np.dtype[_OtherT]) -> View[_OtherT]: ...

    @overload
    def view(self, dtype: DTypeLike) -> View[Any]: ...

    @told
    def view(self, dtype: DTypeLike) -> View[Any]:
        """Return the same memory as elements of another dtype.

        Parameters
        ----------
        dtype : dtype_like
            Without Python objects and dimensions.

        Returns
        -------
        Window
            Whose offsets count elements of that dtype. `local` is
            `win.local.view(dtype)`, and so are the shapes of all ranks.

        Raises
        ------
        ValueError
            Naming a rank, the last dimension of whose shape is not a whole number of
            the new elements; or the elements lie apart, as a field's do, and have another
            size.
        TypeError, ClosedError

        Notes
        -----
        Local, and as `subwindow` in all else; corresponds to the datatypes that each call of
        MPI names. Updates are atomic against those of the window and its other views if the
        elements of both have the same size.

        Examples
        --------
        >>> words = win.view("u8")  # the bits of floats
        >>> words.put(0x3FF8000000000000, rank=0, offset=2)
        >>> win.get(0, 2, 1)
        array([1.5])
        >>> win.view(np.uint8).size(0)
        80
        """
        from .views import view

        return view(self, dtype)

    @told
    def field(self, name: str) -> FieldView[Any]:
        """Return a window over one field of a structured dtype.

        Parameters
        ----------
        name : str
            Of a field.

        Returns
        -------
        Window
            Of the field's dtype; an offset counts records. Of a field with dimensions,
            as ("x", "f8", 3), it counts the field's elements, all of a record before those of
            the next: element k of record i is at 3 * i + k, and at `[rank, i, k]`. `local` is
            the field of this rank's array.

        Raises
        ------
        KeyError, TypeError
            There is no such field.
        ClosedError

        Notes
        -----
        Local, and as `subwindow` in all else; corresponds to MPI_Type_create_resized
        of the field's type. Operations on several records are carried
        out as many of one element each, so `put` is complete when it returns;
        what `win[rank, key] = values` writes is after a flush, as ever.
        Atomics raise AlignmentError, before anything is sent, where the field is
        not aligned to its size in every record: `np.dtype(..., align=True)`. A field
        with dimensions has no subwindow; a subwindow has fields.

        Examples
        --------
        >>> records = np.zeros(3, [("mass", "f8"), ("count", "i8")])
        >>> with rmaext.Window(MPI.COMM_SELF, records) as other:
        ...     other.field("count").fetch_add(1, rank=0, offset=2)
        np.int64(0)
        >>> records[2]
        np.void((0.0, 1), dtype=[('mass', '<f8'), ('count', '<i8')])
        """
        from .fields import field

        return field(self, name)

    # -- for other jobs ------------------------------------------------------------

    @told
    def export(self, access: Access | None = None, scope: Scope | None = None) -> bytes:
        """Return a ticket: with it any process can attach to this rank's memory.

        Parameters
        ----------
        access : {"r", "w", "rw"}, optional
            Rights of those who attach; by default those of the window here.
        scope : {"host", "network"}, optional
            Whose processes: those of this host, by an endpoint that listens on the loopback
            interface only, or others too, by one on the network. By default as far as the
            window's communicator reaches.

        Returns
        -------
        bytes
            For `RemoteWindow.attach`, in a process outside the communicator, of another
            job, or without any MPI job. With a version and a checksum, below 2 KB.

            It is a secret: whoever has it may use the memory, and there is no other
            check of who that is. Pass it on as you would a password: in a file that
            only you can read, not on a command line.

        Raises
        ------
        AccessError
            The window does not allow as much.
        NoProviderError
            There is no endpoint of that scope.
        ClosedError, TypeError, ValueError, Unsupported

        Notes
        -----
        Local, blocking (0.3 s if it opens an endpoint). Corresponds to ucp_rkey_pack.
        What is exported so ends with the window: when it is closed, those who are attached
        get ClosedError, and nothing more lands. `grant` is for what is to end before.
        At most 1,024 processes can ever attach to one process.

        Examples
        --------
        >>> ticket = win.export(access="r")  # pass it on as you would a password
        >>> with rmaext.RemoteWindow.attach(ticket) as there:
        ...     there.get(0, 0, 3)
        array([0., 0., 0.])
        """
        self._one_array("export")
        return _grants.export(self, access, scope)

    @told
    def grant(
        self, start: int, stop: int, access: Access | None = None, scope: Scope | None = None
    ) -> Grant:
        """Grant others the elements [start, stop) of this rank, until that is revoked.

        Parameters
        ----------
        start, stop : int
            Elements in C order.
        access, scope
            As for `export`.

        Returns
        -------
        Grant
            With `export()`, which returns a ticket, and `revoke()`. `with` revokes it.

        Raises
        ------
        BoundsError
            This rank does not have those elements.
        AccessError, NoProviderError, ClosedError, TypeError, ValueError, Unsupported

        Notes
        -----
        Local, as `export`. Corresponds to binding a memory window (ibv_bind_mw,
        IBV_ACCESS_MW_BIND). And as ibv_dereg_mr fails then, `close` of the window raises
        GrantError on all ranks while a grant of any rank is not revoked: the window stays
        open, and can be used and closed later. Where an exception ends a `with` block,
        its grants end too.

        Examples
        --------
        >>> with win.grant(4, 6) as grant:
        ...     with rmaext.RemoteWindow.attach(grant.export()) as there:
        ...         there.put([1.0, 2.0], 0)
        >>> win.local[3:7]
        array([0., 1., 2., 0.])
        """
        self._one_array("grant")
        return _grants.grant(self, start, stop, access, scope)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """This rank's grants that are not revoked, those of views included. Local."""
        return _grants.live_grants(self)

    def _one_array(self, call: str) -> None:
        if self._in_pieces or self._gaps:
            raise not_for(self, call)
