# SPDX-License-Identifier: BSD-3-Clause
"""Requests: operations that are begun now and waited for later, or never."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._memory.devices import Landing, landed
from .._native import cmethods
from .._native._lib import ffi, lib
from .._native.cmethods import Owner
from .._record import tracing
from .._runtime import locks
from .._runtime.config import deadline
from .._runtime.copies import Unique
from .._runtime.failures import advised, again, from_c
from .._runtime.reports import OF_A_DEVICE, Patience, copying, numbers, until_copied
from ..errors import ClosedError, PeerLostError, RmaError, RmaTimeout, SyncError

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

    from .._fabric.endpoint import Endpoint
    from .core import Array, WindowCore

__all__ = ["SLICE", "Request", "done_at_once", "look_at"]

Place = tuple[int, int, int]

_PENDING = lib.RMAEXT_PENDING
SLICE = 0.1  # seconds between looks for signals and lost peers
_KNOWN = 0.2  # seconds after which the record says this wait, and no longer the one before
_NS = int(SLICE * 1e9)
_NAP = 1e-3  # seconds between looks at what a device copies

# states of a request, as C makes it and after that
_DONE, _GOES_ON, _CANCELLED, _FREED = range(4)


class Request(Unique, cmethods.Request):
    """An operation that was begun: `win.rput`, `win.rget` and so on return it.

    It is done once the operation is applied at the target, and its result is
    here: for a put and an accumulate that is more than MPI's, where the origin
    may merely be used again. It goes on by itself, also when nobody waits for it,
    and when the request is dropped; flush, fence and close wait for it.

    It keeps the arrays that it uses. They may not be changed before it is done.

    An error of the operation is raised by `wait`, `result` and `await`, each time;
    flush reports it only if it comes before them. Several threads may use one
    request; while one waits, `test` of the others only looks, and `cancel` is False.

    ``await request`` waits in a coroutine of asyncio, without a busy loop, and
    returns the result. A task that is cancelled there does not cancel the operation.

    Examples
    --------
    >>> request = win.rget(rank=0, offset=0, count=3)
    >>> request.wait()
    array([0., 0., 0.])
    >>> request.done
    True
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        tracing.follow(cls)

    __slots__ = (
        "__weakref__",
        "_born",
        "_call",
        "_fabric",
        "_next_look",
        "_place",
        "_scalar",
        "_window",
    )

    _born: int  # how many forks lie between the first process and the one that began it
    _call: str
    _fabric: Any  # an Endpoint; None: it was done at once
    _next_look: float
    _place: Place | int
    _scalar: bool
    _window: WindowCore[Any]

    def __new__(cls) -> Request:
        raise TypeError("requests are made by Window.rput, Window.rget and so on")

    def __repr__(self) -> str:
        state = ("done", "goes on", "cancelled", "freed")[self._state]
        if self._state == _DONE and self._error is not None:
            state = f"failed: {self._error}"
        # a request that was done at once does not know its operation
        what = f" {self._where()}" if hasattr(self, "_call") else ""
        result = self._result
        if isinstance(result, (np.ndarray, np.generic)):
            state += f", result of shape {result.shape}, {result.dtype}"
        return f"<rmaext.Request{what}: {state}>"

    # -- one request ---------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended, by an error or `cancel` too. Makes no progress."""
        state = self._state
        if state == _GOES_ON:
            if self._goes_on():
                return self._is_inherited()
            if type(self._result) is Landing:
                self._look()  # it is done once that is there
                return self._state != _GOES_ON
            return True
        self._check_not_freed("done")
        return True

    def test(self) -> bool:
        """Return whether it has ended, by an error or `cancel` too.

        Returns
        -------
        bool
            Once it is True, `wait` does not block.

        Raises
        ------
        SyncError
            The request was freed. No error of the operation: the request may be used on.

        Notes
        -----
        Local, not blocking; makes progress, also of MPI. Corresponds to MPI_Test.

        Examples
        --------
        >>> request = win.rput(np.ones(2), 0)
        >>> while not request.test():
        ...     pass  # something useful
        >>> request.done
        True
        """
        self._check_not_freed("test")
        if self._state == _GOES_ON:
            self._look()
        return self._state != _GOES_ON

    def _wait(self, timeout: float | None = None) -> Any:
        """Do what `wait` does where C has no result."""
        if self._state == _GOES_ON:
            self._look_until(timeout)
        elif timeout is not None:
            deadline(timeout)  # which raises if it is no number of seconds
        self._check_not_freed("wait")
        if self._state == _CANCELLED:
            raise SyncError(errno.ECANCELED, "wait: the request was cancelled", call="wait")
        if self._error is not None:
            raise again(self._error)
        return self._result

    def result(self) -> Any:
        """Return the result; waits for it as `wait` does.

        Returns
        -------
        numpy.ndarray, scalar or None
            What the operation without r returns.

        Notes
        -----
        Local, blocking; the name that concurrent.futures and asyncio have for it.

        Examples
        --------
        >>> win.rget(0, 0, 3).result()
        array([0., 0., 0.])
        """
        return self.wait()

    def cancel(self) -> bool:
        """Give the operation up if nothing of it was sent yet.

        Returns
        -------
        bool
            True if it will never be applied: `wait` raises SyncError then. False if
            it is done or goes on.

        Notes
        -----
        Local, not blocking; corresponds to MPI_Cancel.

        Examples
        --------
        >>> win.rput(1.0, 0).cancel()  # it was done at once
        False
        """
        self._check_not_freed("cancel")
        op = self._op
        open_ = self._goes_on() and not self._is_inherited() and not self._window._closed
        if open_ and op.cancel():
            self._end(_CANCELLED)
        return self._state == _CANCELLED

    def free(self) -> None:
        """Let go of the request: the operation goes on, and nobody learns of its end.

        Raises
        ------
        SyncError
            The request was freed before, or a thread waits for it, which may have this error
            instead. Any use after this raises SyncError, too.

        Notes
        -----
        Local, not blocking; corresponds to MPI_Request_free. `del` does as well. `flush`
        completes the operation.

        Examples
        --------
        >>> win.rput(np.ones(2), 0).free()
        >>> win.flush()
        """
        self._check_not_freed("free")
        if self._state == _GOES_ON and not self._is_inherited():
            op, result, end = self._op, self._result, partial(self._end, _FREED)
            busy = op is not None and op.busy
            if busy or (type(result) is Landing and not result.give_up(end)):
                text = "free: a thread waits for the request: free it after that"
                raise SyncError(errno.EBUSY, text, call="free")
            end()
        self._state = _FREED

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.test():
            import asyncio  # late, also by the other

            if self._goes_on():
                from .watcher import Watcher

                yield from Watcher.of(self._fabric).future(self)
            self._overdue()  # at an earlier look
            while not self.test():  # the result is copied to a device
                late = self._overdue()
                if late is not None:
                    raise late
                yield from asyncio.sleep(_NAP).__await__()
        return self.wait()

    def _then(self, function: Callable[[Exception | None], None]) -> None:
        """Have a thread call a function at the end of the request, or with RmaTimeout if late."""
        from .watcher import Watcher

        Watcher.of(self._fabric).call(self, function)

    # -- several -------------------------------------------------------------------

    @staticmethod
    def waitall(requests: Iterable[Request], timeout: float | None = None) -> list[Any]:
        """Wait until all are done, and return their results in the same order.

        Parameters
        ----------
        requests : iterable of Request
            Of any windows.
        timeout : float, optional
            Seconds for all together, 0 included; by default as for `wait`.

        Returns
        -------
        list
            What `wait` of each returns.

        Raises
        ------
        RmaTimeout
            Not all are done yet; they go on.
        PeerLostError, RmaError, SyncError, ClosedError
            If some fail, the first one's error once all are done; the others' results are still
            to be had from them.

        Notes
        -----
        Local, blocking; corresponds to MPI_Waitall.

        Examples
        --------
        >>> rmaext.Request.waitall([win.rput(1.0, 0), win.rget(0, 0, 2)])
        [None, array([1., 0.])]
        """
        requests = _listed("waitall", requests)
        end = deadline(timeout)
        first = None
        results = []
        for request in requests:
            try:
                left = None if end is None else max(0.0, end - time.monotonic())
                results.append(request.wait(left))
            except Exception as exc:
                if request._state == _GOES_ON:
                    raise  # RmaTimeout
                first = first or exc
        if first is not None:
            raise first
        return results

    @staticmethod
    def waitany(requests: Iterable[Request], timeout: float | None = None) -> int:
        """Wait until one is done, and return its index.

        Parameters
        ----------
        requests : iterable of Request
            At least one, of any windows. One that was done before counts, too: take it off the
            list.
        timeout : float, optional
            Seconds, 0 included; by default as for `wait`.

        Returns
        -------
        int
            Its place in `requests`. One that failed is done: its `wait` raises.

        Raises
        ------
        RmaTimeout
            None is done yet; they go on.
        ValueError
            There are no requests.

        Notes
        -----
        Local, blocking; corresponds to MPI_Waitany.

        Examples
        --------
        >>> requests = [win.rget(0, 0, 2), win.rput(1.0, 0)]
        >>> requests.pop(rmaext.Request.waitany(requests)).wait()
        array([0., 0.])
        """
        requests = _listed("waitany", requests)
        if not requests:
            raise ValueError("waitany: no requests")
        end = deadline(timeout)
        for request in requests:
            request._overdue()  # at an earlier look
        # For each endpoint, of which a process has two at most: how many requests have ended.
        seen: dict[Endpoint, Any] = {}
        look, patience, what = time.monotonic() + SLICE, Patience(), ""
        said = ExitStack()
        try:
            while True:
                index = _first_done(requests)
                if index is not None:
                    return index
                now = time.monotonic()
                if now >= look:
                    look = now + SLICE
                    _say_of(requests)
                    what = what or _say_copying(requests, said)
                    patience.look(what or "waitany", lambda: [one._rank() for one in requests])
                    late = look_at(requests)
                    if end is None:
                        errors = *late.values(), *map(Request._overdue, requests)
                        error = next(filter(None, errors), None)
                        if error is not None:
                            raise error
                if end is not None and now >= end:
                    ranks = numbers(sorted({one._rank() for one in requests}))
                    text = f"waitany: none of {len(requests)} requests, to {ranks}, is done"
                    text = _late(text, timeout)
                    raise RmaTimeout(errno.ETIMEDOUT, text, call="waitany")
                left = SLICE if end is None else min(SLICE, end - now)
                going = list(filter(Request._goes_on, requests))
                for request in going:
                    seen.setdefault(request._fabric, ffi.new("uint64_t *"))
                if len(seen) > 1 or len(going) < len(requests):
                    left = min(left, _NAP)
                if not seen:
                    lib.rmaext_mpi_nap(int(left * 1e9))
                for fabric, counted in seen.items():
                    lib.rmaext_fabric_wait_ended(fabric.live(), counted, int(left * 1e9))
        finally:
            lib.rmaext_record_waited(lib.RMAEXT_IN_REQUEST, 0)
            said.close()

    @staticmethod
    def testall(requests: Iterable[Request]) -> bool:
        """Return whether all have ended, by an error or `cancel` too.

        Parameters
        ----------
        requests : iterable of Request
            Of any windows.

        Notes
        -----
        Local, not blocking; makes progress, as `test`. Corresponds to MPI_Testall.

        Examples
        --------
        >>> requests = [win.rput(1.0, 0), win.rput(2.0, 0, 1)]
        >>> while not rmaext.Request.testall(requests):
        ...     pass  # something useful
        """
        return all(request.test() for request in _listed("testall", requests))

    @staticmethod
    def testany(requests: Iterable[Request]) -> int | None:
        """Return the index of one that has ended, or None.

        Parameters
        ----------
        requests : iterable of Request
            Of any windows.

        Notes
        -----
        Local, not blocking; makes progress, as `test`. Corresponds to MPI_Testany.

        Examples
        --------
        >>> rmaext.Request.testany([win.rget(0, 0, 2)])  # by memory it is done at once
        0
        """
        requests = _listed("testany", requests)
        index = _first_done(requests)
        if index is None and requests:
            requests[0].test()  # which makes progress for all of them
            index = _first_done(requests)
        return index

    # -- helpers -------------------------------------------------------------------

    @classmethod
    def _begun(
        cls,
        window: WindowCore[Any],
        call: str,
        place: Place | int,
        what: Any,
        buffers: tuple[Array | None, ...],
        error: Callable[[int, int], Exception],
        *,
        scalar: bool = False,
    ) -> Self:
        """Begin what C is asked to; local. The request keeps the buffers, the last is its result.

        Parameters
        ----------
        place : tuple or int
            Where one operation is; or of how many places it is, which may be of all ranks.
        what : cdata
            C's call.
        error : callable
            Returns what to raise for C's code and the index of the place at fault, or -1.
        """
        fabric = window._fabric
        if fabric is not None:
            fabric.settle()
        request = _new(cls)
        request._op = request._error = None
        request._born = locks.forks()
        request._state = _GOES_ON
        request._window, request._call, request._place = window, call, place
        request._result, request._scalar = buffers[-1], scalar
        request._fabric = fabric
        request._next_look = 0.0
        request._op = op = Owner(fabric, window._handle, buffers, True)
        code = (op.start_many if isinstance(place, int) else op.start)(what)
        if code == -errno.EAGAIN and op.goes_on:
            # an update by memory, whose guard others hold, or what the kernel or a device copies
            # for long: it does not go on by itself
            where = window._where(call, place) if isinstance(place, tuple) else request._where()
            code = window._group.watch.wait(op, where, lambda: (request._rank(),))
            op.release()
        if code and code != _PENDING:
            request._end(_FREED)
            raise error(code, op.bad)
        if not code:  # all is there when the call returns
            request._end()
            result = request._result
            if request._state == _GOES_ON and type(result) is Landing:
                until_copied(result.number, request._lands)
        return request

    def _lands(self) -> bool:
        """Go on with copying the result to a device; return whether that has ended it."""
        self._end(ns=_NS)
        late = self._overdue()
        if late is not None:
            raise late
        return self._state != _GOES_ON

    def _goes_on(self) -> bool:
        """Return whether nothing has ended it; makes no progress, and never raises."""
        op = self._op
        return self._state == _GOES_ON and op is not None and not op.ended

    def _is_inherited(self) -> bool:
        """Whether this process was forked from the one that began the request; then end it."""
        if self._born == locks.forks():
            return False
        if self._state == _GOES_ON:
            text = f"{self._where()}: begun by a process that this one was forked from"
            self._end(_DONE, ClosedError(errno.ESHUTDOWN, text, call=self._call))
        return True

    def _check_not_freed(self, call: str) -> None:
        if self._state == _FREED:
            raise SyncError(errno.EINVAL, f"{call}: the request was freed", call=call)

    def _rank(self) -> int:
        """Return the rank that it waits for; -1: of all ranks, none in particular."""
        if not isinstance(self._place, int):
            return self._place[0]
        op = self._op
        return -1 if op is None else int(op.rank)

    def _target(self) -> tuple[int, int]:
        """Return what tells its target from others: a window and a rank.

        One that has several is looked at by itself.
        """
        several = isinstance(self._place, int)
        return (id(self), -1) if several else (id(self._window), self._rank())

    def _where(self) -> str:
        if not isinstance(self._place, int):
            return self._window._where(self._call, self._place)
        rank = self._rank()
        place = f", rank {rank}" if rank >= 0 else ""
        return f"{self._call}: window {self._window._name}{place}, {self._place} places"

    # One thread at a time is in C's wait, see Owner: others wait for the end of any request.

    def _look_until(self, timeout: float | None) -> None:
        end = deadline(timeout)
        if self._is_inherited():
            return
        if end is None:
            self._overdue()  # at an earlier look
        with Patience() as patience, ExitStack() as said:
            left, what = _NS, ""
            while True:  # see tests/support/jumps.py
                if self._state != _GOES_ON:
                    break
                if end is not None:
                    left = min(_NS, max(0, int((end - time.monotonic()) * 1e9)))
                late = self._go_on(left)
                if self._state != _GOES_ON:
                    break
                if end is None:
                    late = late or self._overdue()
                    if late is not None:
                        raise late
                elif time.monotonic() >= end:
                    text = _late(f"{self._where()}: not done", timeout)
                    rank = self._rank()
                    raise RmaTimeout(errno.ETIMEDOUT, text, call=self._call, rank=rank)
                what = what or _say_copying([self], said)
                patience.look(what or self._where(), lambda: [self._rank()])

    def _look(self) -> Exception | None:
        """Make progress. Return the RmaTimeout of a request that goes on, if it is time."""
        if self._is_inherited() or self._state != _GOES_ON:
            return None
        return self._go_on(0)

    def _go_on(self, ns: int) -> Exception | None:
        """Make progress for so long; returns as `_look`."""
        op = self._op
        if op is None:
            return None  # a signal handler that waits for it too was faster, here and below
        if self._window._closed and not op.ended:
            text = f"{self._where()}: the window was closed before the request was done"
            self._end(_DONE, ClosedError(errno.ESHUTDOWN, text, call=self._call))
            return None
        if op.busy:
            if ns:
                seen = ffi.new("uint64_t *")
                lib.rmaext_fabric_wait_ended(self._fabric.live(), seen, 0)
                if not op.ended:
                    lib.rmaext_fabric_wait_ended(self._fabric.live(), seen, ns)
            return None
        code = op.wait(ns)
        if self._state != _GOES_ON:
            return None
        if not code:
            self._end(_DONE, ns=ns)
        elif code == _PENDING:
            error = self._lost()
            if error is not None:
                lib.rmaext_record_quit()
                self._end(_DONE, error)
        else:
            error = from_c(code, self._where())
            if code == -errno.ETIMEDOUT and not op.ended:
                return error
            if code == -errno.ECANCELED and getattr(error, "call", "") == "cancel":
                self._end(_CANCELLED)  # a signal handler has raised amid that call
            else:  # networks have that code as well
                self._end(_DONE, error)
        return None

    def _lost(self) -> Exception | None:
        """Return the error if the target has left, which C does not notice."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + SLICE
        try:
            self._window._group.watch.check(self._rank(), self._where())
        except PeerLostError as exc:
            return exc
        return None

    def _overdue(self) -> RmaTimeout | None:
        """Return, once, the RmaTimeout of a copy to a device that was late at any look."""
        result = self._result
        return result.overdue() if type(result) is Landing else None

    def _end(self, state: int = _DONE, error: Exception | None = None, ns: int = 0) -> None:
        """End it, once a result for a device is there, to which it is copied for `ns` at most."""
        result = self._result if state == _DONE and error is None else None
        if type(result) is Landing:
            try:
                if not result.copy_there(ns):
                    return
                result = result.given  # what else it raises is the array's, or a handler's: again
            except RmaTimeout as exc:
                result.late = exc.with_traceback(None)  # which would keep this frame
                return
            except RmaError as exc:
                result, error = None, exc
        # the traceback would keep the frames, and so the buffers, alive
        error = None if error is None else error.with_traceback(None)
        if self._scalar and result is not None:
            result = result[()]
        op = None
        if self._state == _GOES_ON:
            # All of it or nothing: no thread, no signal handler comes between, nor since that
            # look. With Python 3.10 they do at a jump, so this is where the look falls through.
            self._error, self._result, self._state = error, result, state
            op, self._op = self._op, None
        if op is not None:
            op.release()


_new = object.__new__


def done_at_once(result: Any) -> Request:
    """Return the request of an operation that was done at once."""
    request = _new(Request)
    request._op = request._error = None
    request._state = _DONE
    request._result = landed(result)
    return request


def _first_done(requests: list[Request]) -> int | None:
    return next((index for index, request in enumerate(requests) if request.done), None)


def _listed(call: str, requests: Iterable[Any]) -> list[Request]:
    listed = list(requests)
    for request in listed:
        if not isinstance(request, Request):
            raise TypeError(f"{call}: {request!r} is no request")
    return listed


def _say_of(requests: Iterable[Request]) -> None:
    """Have the record say that this thread waits for the first of them that goes on."""
    one = next((request for request in requests if request._goes_on()), None)
    if one is not None:
        where = one._window._handle, lib.RMAEXT_IN_REQUEST
        lib.rmaext_record_waits(*where, one._rank(), 0)


def _say_copying(requests: list[Request], said: ExitStack) -> str:
    """Have the record say so until `said` ends if all that goes on is a copy; return the words."""
    results = [request._result for request in requests if not request._goes_on()]
    number = next((it.number for it in results if type(it) is Landing), None)
    if number is None or len(results) < len(requests):
        return ""
    said.enter_context(copying(number))
    return f"{OF_A_DEVICE}cuda:{number}"


def _late(what: str, timeout: float | None) -> str:
    """Return the text of a wait that was too short."""
    limit = float(timeout or 0)
    text = f"{what} after {limit:g} s"
    return advised(text, late=True) if limit > _KNOWN else text


def look_at(requests: Iterable[Request]) -> dict[tuple[int, int], Exception]:
    """Look for lost targets; return the RmaTimeout of those that do not move."""
    late = {}
    looked_at = set()
    for request in requests:
        if request._goes_on():
            target = request._target()
            if target in looked_at:
                continue  # one look for each target is enough, as each calls C
            error = request._look()
            if error is not None:
                late[target] = error
            if request._state == _GOES_ON:
                looked_at.add(target)
    return late


tracing.follow(Request, cmethods.Request)
