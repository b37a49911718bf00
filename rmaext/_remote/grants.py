# SPDX-License-Identifier: BSD-3-Clause
"""Memory of a window for processes of other jobs: `export`, and grants that can be revoked."""

from __future__ import annotations

import errno
import operator
import os
from types import TracebackType
from typing import Any, get_args

from .._comm.host import Beacon, Hello
from .._comm.network import offers
from .._comm.provider_choice import choose
from .._fabric.endpoint import CLIENTS, Endpoint
from .._memory import arrays
from .._native._lib import ffi, lib
from .._native.owned import owned
from .._ops.core import WindowCore
from .._runtime import lifetime
from .._runtime.config import Config
from .._runtime.copies import Unique
from .._runtime.failures import from_c
from ..errors import AccessError, BoundsError, BusyError, ClosedError, GrantError
from ..typing import Access, Scope
from .ticket import ORDER, Ticket, describe_dtype

__all__ = ["Grant", "check_grants", "end_grants", "export", "grant", "live_grants"]


class Grant(Unique):
    """Some of this rank's memory in a window, for whoever has a ticket; made by `Window.grant`.

    It ends with `revoke`, or with the block of `with`. Any threads may use one at once.

    Attributes
    ----------
    start, stop : int
        Elements of this rank's part of the window.
    access : str
        Rights: "r", "w" or "rw".
    revoked : bool

    Examples
    --------
    >>> with win.grant(4, 6, access="r") as grant:
    ...     grant.start, grant.stop, grant.access, grant.revoked
    (4, 6, 'r', False)
    """

    def __init__(
        self,
        window: WindowCore[Any],
        start: int,
        stop: int,
        access: int,
        scope: Scope | None,
        call: str,
    ) -> None:
        name = f"window {window._name}"
        if scope not in (None, *get_args(Scope)):
            raise ValueError(f"{call}: scope={scope!r}: must be 'host', 'network' or None")
        group = window._group
        self._scope = scope or ("host" if group.one_host else "network")
        self._window, self._name = window, name
        self.start, self.stop, self.access = start, stop, arrays.access_name(access)
        self.revoked = False
        self._token = os.urandom(16)
        self._fabric = _open(self._scope, group.spin)
        unit = window._dtype.itemsize
        token = ffi.from_buffer("uint8_t[]", self._token)
        what = ffi.new(
            "struct rmaext_grant *", [token, start * unit, (stop - start) * unit, access]
        )
        handle = ffi.new("rmaext_window **")
        code = lib.rmaext_grant_open(self._fabric.live(), window._handle, what, handle)
        if code:
            raise from_c(code, f"{call}: {name}")
        self._handle = owned(handle[0], lib.rmaext_window_free)
        lifetime.on_end(self)

    def __repr__(self) -> str:
        words = [str(self._window._dtype), f"access {self.access!r}", f"for the {self._scope}"]
        words += ["revoked"] * self.revoked
        return f"<rmaext.Grant {self._name}[{self.start}:{self.stop}]: {', '.join(words)}>"

    def export(self) -> bytes:
        """Return a ticket for the elements of the grant.

        Returns
        -------
        bytes
            For `RemoteWindow.attach`; a secret, as that of `Window.export`.

        Raises
        ------
        ClosedError
            The grant was revoked.

        Notes
        -----
        Local, not blocking. Corresponds to ucp_rkey_pack.

        Examples
        --------
        >>> with win.grant(4, 6) as grant:
        ...     ticket = grant.export()
        ...     len(ticket) < 2048
        True
        """
        if self.revoked:
            text = f"export: {self._name}: the grant was revoked"
            raise ClosedError(errno.ESHUTDOWN, text, call="export")
        window, fabric = self._window, self._fabric
        whole = self.stop - self.start == window._array.size
        own = Hello.make(Config.read(), Beacon.own().name)
        address = int(window._array.__array_interface__["data"][0])
        return Ticket(
            order=ORDER,
            scope=self._scope,
            net=own.net,
            node=own.node,
            pids=own.pids,
            pid=own.pid,
            started=own.started,
            beacon=own.beacon,
            endpoint=fabric.candidate,
            address=fabric.name().hex(),
            secret=fabric.secret().hex(),
            token=self._token.hex(),
            name=str(window._name),
            size=(self.stop - self.start) * window._dtype.itemsize,
            access=arrays.access_bits(self.access, True),
            align=(address + self.start * window._dtype.itemsize) % 64,
            dtype=describe_dtype(window._dtype),
            shape=list(window._array.shape) if whole else [self.stop - self.start],
        ).pack()

    def revoke(self) -> None:
        """End the grant; twice is harmless.

        Once it returns, nothing more is done to the memory by those who attached
        to it: their operations raise ClosedError. Local; waits only for an operation that
        is being carried out.

        Raises
        ------
        BusyError
            Such an operation has not ended in time. The grant is revoked all the
            same; call it again before the window is closed.

        Examples
        --------
        >>> grant = win.grant(0, 5)
        >>> grant.revoke()
        >>> grant.revoked
        True
        """
        handle = self._handle  # another thread may end it meanwhile
        if handle is None:
            return
        self.revoked = True
        code = lib.rmaext_window_close(handle)
        if code:
            raise from_c(code, f"revoke: {self._name}")
        self._handle = None
        _of(self._window).pop(id(self), None)

    def __enter__(self) -> Grant:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.revoke()

    def _forget(self) -> None:
        """After the end of MPI, or in a forked child: there is none."""
        self.revoked, self._handle = True, None


def _open(scope: str, spin: float) -> Endpoint:
    """Return this process's endpoint of a scope, which admits clients. Local."""
    fabric = Endpoint.get(scope)
    if fabric is None:
        config = Config.read()
        own = Hello.make(config, "", **offers(config))
        fabric = Endpoint.open(scope, choose([own], scope)[0], config, spin, CLIENTS)
    fabric.secret()
    return fabric


def grant(window: Any, start: int, stop: int, access: Access | None, scope: Scope | None) -> Grant:
    """See `Window.grant`."""
    window._check_open("grant")
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop <= window._array.size:
        text = f"grant: window {window._name}: [{start}:{stop}] of the "
        raise BoundsError(errno.ERANGE, f"{text}{window._array.size} elements here", call="grant")
    made = Grant(window, start, stop, _rights(window, "grant", access), scope, "grant")
    _of(window)[id(made)] = made
    return made


def export(window: Any, access: Access | None, scope: Scope | None) -> bytes:
    """See `Window.export`."""
    window._check_open("export")
    rights = _rights(window, "export", access)
    exports = vars(window._root).setdefault("_exports", {})
    key = (id(window._handle), rights, scope)
    if key not in exports:
        exports[key] = Grant(window, 0, window._array.size, rights, scope, "export")
    made: Grant = exports[key]
    return made.export()


def _rights(window: Any, call: str, access: Access | None) -> int:
    """Return the rights asked for, by default those of the window; AccessError if they are more."""
    there = arrays.access_bits(window.memory.access, True)
    wanted = there if access is None else arrays.access_bits(access, True)
    if wanted & ~there:
        name = arrays.access_name(there)
        text = f"{call}: window {window._name}: it allows {name!r}, not {access!r}"
        raise AccessError(errno.EACCES, text, call=call)
    return wanted


def _of(window: Any) -> dict[int, Grant]:
    """Return the live grants of a window and its views, by id."""
    grants: dict[int, Grant] = vars(window._root).setdefault("_grants", {})
    return grants


def live_grants(window: Any) -> tuple[Grant, ...]:
    """Return those that are not revoked."""
    return tuple(vars(window._root).get("_grants", {}).values())


def check_grants(window: Any) -> GrantError | None:
    """Return the error of closing a window with grants that live."""
    live = live_grants(window)
    if not live:
        return None
    which = ", ".join(f"[{it.start}:{it.stop}]" for it in live[:4]) + (", ..." * (len(live) > 4))
    text = f"close: window {window._name}: grants are not revoked: {which}: revoke them first"
    return GrantError(errno.EBUSY, text, call="close")


def end_grants(window: Any) -> bool:
    """End all of a window's; False if one is still being used, and its memory must stay."""
    ended = True
    for made in (*live_grants(window), *vars(window).get("_exports", {}).values()):
        try:
            made.revoke()
        except BusyError:
            ended = False
    return ended
