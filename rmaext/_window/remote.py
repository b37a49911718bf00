# SPDX-License-Identifier: BSD-3-Clause
"""Memory of a process that shares no communicator with this one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from .._comm.columns import Records, Same
from .._comm.host import Beacon, Hello, pidfd_of
from .._comm.liveness import Waits
from .._comm.network import offers
from .._comm.provider_choice import choose
from .._comm.window_record import WindowRecord
from .._fabric.endpoint import CLIENTS, Endpoint
from .._fabric.library import Candidate
from .._memory import arrays
from .._native._lib import ffi, lib
from .._native.owned import owned
from .._record import writer
from .._remote.ticket import Ticket
from .._runtime import lifetime, mpi_progress
from .._runtime.config import Config, tell_of_unknown, timeout_seconds
from .._runtime.failures import from_c
from .._runtime.reports import Patience
from ..errors import NotLocalError, PeerLostError, RmaTimeout
from ..typing import ScalarT
from .refusals import NoRankHere
from .window import Window

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RemoteWindow"]

_SPIN = 50e-6  # seconds, as in a group that is not crowded


class _Owner(Waits):
    """The process that owns the memory, in place of the group of a window: this one is no rank."""

    rank, size, spin = -1, 1, _SPIN
    record_id = 0  # it has no communicator

    def __init__(self, ticket: Ticket, own: Hello) -> None:
        self.here = ticket.net == own.net  # likely; its beacon proves it
        self._beacon = ticket.beacon
        # so that pidfd_of finds the very process that the ticket names, if it lives
        alike = own._replace(pids=ticket.pids, pid=ticket.pid, started=ticket.started)
        self._alike = alike._replace(node=ticket.node)
        self._own = own

    @property
    def watch(self) -> Self:
        """As that of a group: what notices that the owner is gone."""
        return self

    def check(self, _rank: int, where: str) -> None:
        """Raise PeerLostError if it has left."""
        if self.here and Beacon.visible(self._beacon) is False:
            raise PeerLostError(errno.ENOTCONN, f"{where}: the owner has left", rank=0)

    def pidfd(self) -> int:
        """Return a descriptor that becomes readable when it ends, or -1."""
        fd = pidfd_of(self._own, self._alike) if self.here else -1
        return os.dup(fd) if fd >= 0 else -1


class RemoteWindow(NoRankHere[ScalarT], Window[ScalarT]):  # type: ignore[override]
    """Memory that a process of another job has exported; made by `RemoteWindow.attach`.

    It has one rank, 0: its owner. put, get, accumulate and all other updates, those
    on many elements, `win[0, key]`, requests, and `flush` are those of `Window`, with
    the same checks and errors. Everything goes by message to the owner's progress thread,
    which checks it once more: nothing else keeps the memory from one who comes too
    late. Updates are atomic against all others of the owner's window.

    Requests are done when they are returned. There are no locks, epochs, fences and
    notifications, no views, and no functions for compiled code. Any threads may use one at once.

    Examples
    --------
    >>> with rmaext.RemoteWindow.attach(win.export()) as there:
    ...     there.put([1.0, 2.0], rank=0)
    ...     there.flush()
    ...     there.get(0, 0, 3)
    array([1., 2., 0.])
    """

    _made_by = "RemoteWindow.attach(ticket)"
    _group: Any
    _hint = ""

    @classmethod
    def attach(cls, ticket: bytes, timeout: float | None = None) -> Self:
        """Return a window over the memory that a ticket is for.

        Parameters
        ----------
        ticket : bytes
            What `Window.export` or `Grant.export` has returned in another process, or
            in this one.
        timeout : float, optional
            Seconds without progress after which this, and later each operation, raises
            `RmaTimeout`; by default RMAEXT_TIMEOUT, or 60.

        Raises
        ------
        KeyRecordError
            It is no ticket, or damaged, or of another version or byte order.
        ClosedError
            The window there is closed, or the grant revoked.
        PeerLostError
            The owner is gone.
        RmaTimeout
            It does not answer, or is another process by now.
        BusyError
            1,024 other clients have sent it something in the last seconds: try again later.
        NotLocalError
            The ticket is for the owner's host only, and this is another one.
        NoProviderError
            This process cannot use the provider of the owner's endpoint.

        Notes
        -----
        Local, blocking: the owner is asked, but its program takes no part. No MPI is
        called, and none is needed but for the import of mpi4py (`mpi4py.rc.initialize
        = False` does). Corresponds to ucp_ep_rkey_unpack.

        Examples
        --------
        >>> ticket = win.export()  # in another process, as a rule
        >>> with rmaext.RemoteWindow.attach(ticket) as there:
        ...     there.fetch_add(1.0, rank=0)
        np.float64(0.0)
        """
        self = cls.__new__(cls)
        self._closed = True  # until it is whole
        self._timeout = timeout_seconds(timeout)
        it = Ticket.parse(ticket)
        mpi_progress.begin()
        tell_of_unknown()
        own = Hello.make(config := Config.read(), Beacon.own().name)
        self._group = owner = _Owner(it, own)
        self._name = f"{it.name} of process {it.pid}"
        where = f"attach: window {self._name}"
        if it.scope == "host" and not owner.here:
            text = f"{where}: it was exported for its own host, which is another one"
            raise NotLocalError(errno.EREMOTE, text, call="attach")
        owner.check(0, where)
        self._fabric = fabric = _endpoint(it, own, config)
        # The address may have been another process's before: the beacon tells them apart.
        address = bytes.fromhex(it.address)
        peer = fabric.peer(address, owner.pidfd(), bytes.fromhex(it.beacon))
        self._describe(it)
        self._open(it, peer)
        lifetime.on_end(self)
        self._closed = False
        try:
            self._announce(where)
        except BaseException:
            self._end()
            raise
        return self

    def _describe(self, it: Ticket) -> None:
        text = "" if isinstance(it.dtype, list) else it.dtype
        shape = tuple(it.shape)
        record = WindowRecord(it.size, 0, it.access, text, b"", it.align, shape)
        parts = (it.size, it.access, it.align)
        size, access, align = (Same(1, int(number)) for number in parts)
        self._records = Records(0, record, size, access, align, Same(1, shape), Same(1, 0))
        self._routes, self._maps = Same(1, int(lib.RMAEXT_FABRIC)), Same(1, ffi.NULL)
        self._dtype = it.element
        self._stride = self._dtype.itemsize
        self._sizes = Same(1, it.size // self._stride)
        self._atomic_type = arrays.atomic_type(self._dtype)
        self._shapes = shape

    def _open(self, it: Ticket, peer: Any) -> None:
        token = ffi.from_buffer("uint8_t[]", bytes.fromhex(it.token))
        secret = ffi.from_buffer("uint8_t[]", bytes.fromhex(it.secret))
        what = [peer, token, secret, it.size, it.access, it.align, int(self._timeout * 1e9)]
        client, handle = ffi.new("struct rmaext_client *", what), ffi.new("rmaext_window **")
        assert self._fabric is not None
        code = lib.rmaext_client_open(self._fabric.live(), client, handle)
        if code:
            raise from_c(code, f"attach: window {self._name}")
        self._handle = owned(handle[0], lib.rmaext_window_free)
        writer.begin()
        writer.window(self)

    def _announce(self, where: str) -> None:
        """Ask the owner whether what the ticket says still holds."""
        code = lib.rmaext_client_announce(self._handle)
        if code:
            raise from_c(code, where)
        wait = ffi.new("struct rmaext_wait *", [int(self._timeout * 1e9), 0, 0, 0])
        with Patience() as patience:
            while True:
                code = lib.rmaext_flush(self._handle, 0, wait)
                if code != lib.RMAEXT_PENDING:
                    break
                self._group.watch.check(0, where)
                patience.look(where, lambda: None)
        if code == -errno.ETIMEDOUT:
            text = (
                f"{where}: no answer within {self._timeout:g} s: the owner is stopped, or another "
                "process by now, or has turned many away: ask it for a new ticket, or try again"
            )
            raise RmaTimeout(errno.ETIMEDOUT, text, call="attach", rank=0)
        if code:
            raise from_c(code, where)

    # -- what it is ----------------------------------------------------------------

    def connect(self, ranks: Any = None) -> None:
        """Do nothing: the owner is connected. As `Window.connect`.

        Examples
        --------
        >>> with rmaext.RemoteWindow.attach(win.export()) as there:
        ...     there.connect()
        """
        self._check_open("connect")

    def _extent(self) -> str:
        return f"shape {self._shapes}"

    def _reach(self) -> str:
        return "1 rank (1 fabric)"

    # -- end -------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, and let go of the memory; twice is harmless. The owner takes no part.

        Raises
        ------
        RmaTimeout, PeerLostError
            As `flush`; it is closed all the same.

        Notes
        -----
        Local, blocking.

        Examples
        --------
        >>> there = rmaext.RemoteWindow.attach(win.export())
        >>> there.close()
        >>> there.closed
        True
        """
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._closed = True
        lib.rmaext_window_close(self._handle)  # C keeps it while transfers are in flight

    def _abandon(self, error: BaseException | None) -> None:
        if not self._closed:
            self._end()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._end()


def _endpoint(it: Ticket, own: Hello, config: Config) -> Endpoint:
    """Return this process's endpoint from which the owner's can be reached."""
    fabric = Endpoint.get(it.scope)
    if fabric is not None and fabric.provider == it.endpoint.provider:
        return fabric
    config = config._replace(provider=it.endpoint.provider)
    # The provider is chosen as if the two processes were a communicator.
    there: dict[str, Candidate] = {it.scope: it.endpoint}
    mine = own._replace(wanted=it.endpoint.provider, **offers(config))
    theirs = mine._replace(net=it.net, node=it.node, candidates=[it.endpoint], opened=there)
    return Endpoint.open(it.scope, choose([mine, theirs], it.scope)[0], config, _SPIN, CLIENTS)
