# SPDX-License-Identifier: BSD-3-Clause
"""Requests: operations that are begun now and waited for later, or never."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import memory
from ._lib import ffi, lib
from .errors import ClosedError, PeerLostError, RmaTimeout, SyncError, from_c
from .operations import operation

if TYPE_CHECKING:
    import asyncio

    from .fabric import Fabric
    from .group import Group

__all__ = ["Request", "RequestOperations"]

Array = NDArray[Any]
Place = tuple[int, int, int]

_DIRECT, _FABRIC = lib.RMAEXT_DIRECT, lib.RMAEXT_FABRIC
_PENDING = lib.RMAEXT_PENDING
_SLICE = 0.1  # seconds between looks for signals and lost peers
_SLICE_NS = int(_SLICE * 1e9)

# states of a request
_GOES_ON, _DONE, _CANCELLED, _FREED = range(4)


class Request:
    """An operation that was begun: `win.rput`, `win.rget` and so on return it.

    It is done once the operation is applied at the target, and its result is
    here: for a put and an accumulate that is more than MPI's, where the origin
    may merely be used again. It goes on by itself, also when nobody waits for it,
    and when the request is dropped; flush, fence and close wait for it.

    It keeps the arrays that it uses. They may not be changed before it is done.

    An error of the operation is raised by `wait`, `result` and `await`, each time;
    flush reports it only if it comes before them. Several threads may use one
    request; while one waits, the others' `test` only looks.

    ``await request`` waits in a coroutine of asyncio, without a busy loop, and
    returns the result. A task that is cancelled there does not cancel the operation.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_error",
        "_fabric",
        "_flag",
        "_lock",
        "_next_look",
        "_op",
        "_place",
        "_result",
        "_scalar",
        "_state",
        "_window",
    )

    _call: str
    _error: Exception | None
    _fabric: Fabric
    _flag: Any
    _lock: threading.RLock
    _next_look: float
    _op: Any
    _place: Place
    _result: Any
    _scalar: bool
    _state: int
    _window: RequestOperations

    def __new__(cls) -> Request:  # noqa: D102
        raise TypeError("requests are made by Window.rput, Window.rget and so on")

    def __del__(self) -> None:
        # None: it was done at once, or C is done with it
        if self._op is not None:
            self._fabric.release(self._op)

    def __repr__(self) -> str:
        state = ("goes on", "done", "cancelled", "freed")[self._state]
        if self._state == _DONE and self._error is not None:
            state = f"failed: {self._error}"
        return f"<rmaext.Request ({state})>"

    # -- one request ---------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended, by an error or `cancel` too. Makes no progress."""
        state = self._state
        if state == _GOES_ON:
            return bool(self._flag[0])
        self._check_not_freed("done")
        return True

    def test(self) -> bool:
        """Return whether it has ended, by an error or `cancel` too.

        Local, not blocking; makes progress. Corresponds to MPI_Test, but raises no
        error of the operation, and the request may be used on.
        """
        self._check_not_freed("test")
        if self._state == _GOES_ON:
            self._look()
        return self._state != _GOES_ON

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is done, and return the result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait, 0 included. By default the time limit of the window,
            which counts from the last progress.

        Returns
        -------
        numpy.ndarray, scalar or None
            What the operation without r returns.

        Raises
        ------
        RmaTimeout
            It is not done yet, goes on, and may be waited for again.
        PeerLostError, RmaError
            The operation failed.
        SyncError
            The request was cancelled or freed.
        ClosedError
            The window was closed before it was done, after an error.

        Notes
        -----
        Local, blocking; corresponds to MPI_Wait. May be called again.
        """
        if self._state == _GOES_ON:
            self._wait(timeout)
        elif timeout is not None:
            _deadline(timeout)  # a wrong one is always an error
        self._check_not_freed("wait")
        if self._state == _CANCELLED:
            raise SyncError(errno.ECANCELED, "wait: the request was cancelled", call="wait")
        if self._error is not None:
            raise self._error
        return self._result

    def result(self) -> Any:
        """Return the result; waits for it as `wait` does."""
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
        """
        self._check_not_freed("cancel")
        if self._state == _GOES_ON and self._lock.acquire(blocking=False):
            try:
                open_ = self._state == _GOES_ON and not self._window._closed
                if open_ and lib.rmaext_op_cancel(self._op[0]):
                    self._end(_CANCELLED)
            finally:
                self._lock.release()
        return self._state == _CANCELLED

    def free(self) -> None:
        """Let go of it: the operation goes on, and any further use raises SyncError.

        Local, not blocking; corresponds to MPI_Request_free. `del` does as well.
        """
        self._check_not_freed("free")
        if self._state == _GOES_ON:
            if not self._lock.acquire(blocking=False):
                raise SyncError(errno.EBUSY, "free: a thread waits for the request", call="free")
            try:
                self._end(_FREED)
            finally:
                self._lock.release()
        self._state = _FREED

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.test():
            yield from _Watcher.of(self._fabric).future(self)
        return self.wait()

    # -- several -------------------------------------------------------------------

    @staticmethod
    def waitall(requests: Iterable[Request], timeout: float | None = None) -> list[Any]:
        """Wait until all are done, and return their results in the same order.

        If some fail, the first one's error is raised once all are done; the others'
        results are still to be had from them. Parameters and errors are those of
        `wait`; `timeout` is for all together. Corresponds to MPI_Waitall.
        """
        requests = _listed("waitall", requests)
        end = _deadline(timeout)
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

        One that failed is done: its `wait` raises. One that was done before
        counts, too: take it off the list. Parameters and errors are those of
        `wait`; ValueError if there are none. Corresponds to MPI_Waitany.
        """
        requests = _listed("waitany", requests)
        if not requests:
            raise ValueError("waitany: no requests")
        end = _deadline(timeout)
        # of each fabric, there are two at most: how many of its requests have ended
        seen: dict[Fabric, Any] = {}
        look = time.monotonic() + _SLICE
        while True:
            for index, request in enumerate(requests):
                if request.done:
                    return index
            now = time.monotonic()
            if now >= look:
                look = now + _SLICE
                late = _look_at(requests)
                if late and end is None:
                    raise next(iter(late.values()))
            if end is not None and now >= end:
                text = f"waitany: none of {len(requests)} requests is done after {timeout:g} s"
                raise RmaTimeout(errno.ETIMEDOUT, text, call="waitany")
            left = _SLICE if end is None else min(_SLICE, end - now)
            for request in requests:
                seen.setdefault(request._fabric, ffi.new("uint64_t *"))
            if len(seen) > 1:
                left = min(left, 0.001)
            for fabric, counted in seen.items():
                lib.rmaext_fabric_wait_ended(fabric.live(), counted, int(left * 1e9))

    @staticmethod
    def testall(requests: Iterable[Request]) -> bool:
        """Return whether all have ended; as `test`. Corresponds to MPI_Testall."""
        return all(request.test() for request in _listed("testall", requests))

    @staticmethod
    def testany(requests: Iterable[Request]) -> int | None:
        """Return the index of one that has ended, or None; as `test`. MPI_Testany."""
        requests = _listed("testany", requests)
        for _ in range(2):
            for index, request in enumerate(requests):
                if request.done:
                    return index
            for request in requests[:1]:
                request.test()  # the progress of one is that of all
        return None

    # -- helpers -------------------------------------------------------------------

    @classmethod
    def _begun(
        cls, window: RequestOperations, call: str, place: Place, result: Any, scalar: bool
    ) -> Request:
        """Return a request for `RequestOperations._begin` to begin."""
        assert window._fabric is not None
        request = _new(cls)
        request._op = None
        request._state = _GOES_ON
        request._window, request._call, request._place = window, call, place
        request._result, request._scalar = result, scalar
        request._error = None
        request._fabric = window._fabric
        request._flag = ffi.new("int *")
        request._lock = threading.RLock()  # a signal handler may come again
        request._next_look = 0.0
        return request

    def _check_not_freed(self, call: str) -> None:
        if self._state == _FREED:
            raise SyncError(errno.EINVAL, f"{call}: the request was freed", call=call)

    def _where(self) -> str:
        return self._window._where(self._call, self._place)

    # The lock is held by whoever looks into the C object, and thus through a wait:
    # C frees it when it has ended. `_flag` is the request's own.

    def _wait(self, timeout: float | None) -> None:
        end = _deadline(timeout)
        if not self._lock.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
            raise self._too_late(timeout)
        try:
            left = _SLICE_NS
            while self._state == _GOES_ON:
                if end is not None:
                    left = min(_SLICE_NS, max(0, int((end - time.monotonic()) * 1e9)))
                late = self._go_on(left)
                if self._state != _GOES_ON:
                    break
                if end is None:
                    if late is not None:
                        raise late
                elif time.monotonic() >= end:
                    raise self._too_late(timeout)
        finally:
            self._lock.release()

    def _too_late(self, timeout: float | None) -> RmaTimeout:
        text = f"{self._where()}: not done after {timeout:g} s"
        return RmaTimeout(errno.ETIMEDOUT, text, call=self._call, rank=self._place[0])

    def _look(self) -> Exception | None:
        """Make progress. Return the RmaTimeout of a request that goes on, if it is time."""
        if not self._lock.acquire(blocking=False):
            return None  # the thread that waits looks
        try:
            return self._go_on(0) if self._state == _GOES_ON else None
        finally:
            self._lock.release()

    def _go_on(self, ns: int) -> Exception | None:
        """Make progress for so long; returns as `_look`."""
        if self._window._closed and not self._flag[0]:  # in a forked child, too
            text = f"{self._where()}: the window was closed before the request was done"
            self._end(_DONE, ClosedError(errno.ESHUTDOWN, text, call=self._call))
            return None
        code = lib.rmaext_op_wait_for(self._op[0], ns)
        if not code:
            self._end(_DONE)
        elif code == _PENDING:
            error = self._lost()
            if error is not None:
                self._end(_DONE, error)
        else:
            error = from_c(code, self._where())
            if code == -errno.ETIMEDOUT and not self._flag[0]:
                return error
            self._end(_DONE, error)
        return None

    def _lost(self) -> Exception | None:
        """Return the error if the target has left, which C does not notice."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + _SLICE
        try:
            self._window._group.check(self._place[0], self._where())
        except PeerLostError as exc:
            return exc
        return None

    def _end(self, state: int, error: Exception | None = None) -> None:
        self._error = error
        if state != _DONE or error is not None:
            self._result = None
        elif self._scalar:
            self._result = self._result[()]
        self._state = state
        op, self._op = self._op, None
        self._fabric.release(op)


_new = object.__new__


def _ended(result: Any) -> Request:
    """Return the request of an operation that was done at once."""
    request = _new(Request)
    request._op = request._error = None
    request._state = _DONE
    request._result = result
    return request


def _listed(call: str, requests: Iterable[Any]) -> list[Request]:
    listed = list(requests)
    for request in listed:
        if not isinstance(request, Request):
            raise TypeError(f"{call}: {request!r} is no request")
    return listed


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r}: must be a number of seconds")
    if not 0 <= timeout <= 1e9:  # nan is neither
        raise ValueError(f"timeout={timeout!r}: must be from 0 to 1e9")
    return time.monotonic() + timeout


def _target(request: Request) -> tuple[int, int]:
    return id(request._window), request._place[0]


def _look_at(requests: Iterable[Request]) -> dict[tuple[int, int], Exception]:
    """Look for lost targets; return the RmaTimeout of those that do not move."""
    late = {}
    looked_at = set()
    for request in requests:
        if request._state == _GOES_ON and not request._flag[0]:
            target = _target(request)
            if target in looked_at:
                continue  # each look calls C
            error = request._look()
            if error is not None:
                late[target] = error
            if request._state == _GOES_ON:
                looked_at.add(target)
    return late


_Outcome = tuple["asyncio.Future[None]", Exception | None]


class _Watcher:
    """Completes the futures of requests that coroutines await: a thread for each fabric.

    It waits for the network like any other thread that waits, and goes when there
    has been nothing to watch for a second.
    """

    _lock = threading.Lock()

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._new = threading.Condition(threading.Lock())
        self._awaited: dict[Request, list[asyncio.Future[None]]] = {}
        self._runs = False

    @classmethod
    def of(cls, fabric: Fabric) -> _Watcher:
        with cls._lock:
            if fabric.watcher is None:
                fabric.watcher = cls(fabric)
            watcher: _Watcher = fabric.watcher
            return watcher

    def future(self, request: Request) -> asyncio.Future[None]:
        """Return a future that ends once the request has; to be called in its loop."""
        import asyncio  # takes 30 ms; who awaits has it

        future = asyncio.get_running_loop().create_future()
        with self._new:
            self._awaited.setdefault(request, []).append(future)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="rmaext requests", daemon=True).start()
            self._new.notify()
        # the thread may have looked before it was entered
        if request.done:
            _resolve([(future, None)])
        return future

    def _run(self) -> None:
        seen = ffi.new("uint64_t *")
        look = 0.0
        while True:
            with self._new:
                if not self._awaited and not self._new.wait_for(lambda: self._awaited, 1.0):
                    self._runs = False
                    return
            handle = self._fabric.handle
            closed = not handle or lib.rmaext_fabric_wait_ended(handle, seen, _SLICE_NS)
            self._tell({})
            if closed or time.monotonic() >= look:
                look = time.monotonic() + _SLICE
                with self._new:
                    requests = list(self._awaited)
                self._tell(_look_at(requests))
            if closed:
                time.sleep(_SLICE)  # what was in flight has ended

    def _tell(self, late: dict[tuple[int, int], Exception]) -> None:
        """Complete the futures of what has ended, and of what is late."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        with self._new:
            for request in list(self._awaited):
                error = None
                if request._state == _GOES_ON and not request._flag[0]:
                    error = late.get(_target(request))
                    if error is None:
                        continue
                for future in self._awaited.pop(request):
                    by_loop.setdefault(future.get_loop(), []).append((future, error))
        for loop, outcomes in by_loop.items():
            with contextlib.suppress(RuntimeError):  # it was closed: nobody waits there
                loop.call_soon_threadsafe(_resolve, outcomes)


def _resolve(outcomes: list[_Outcome]) -> None:
    for future, error in outcomes:
        if future.done():
            continue  # its task was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class RequestOperations:
    """The operations of `Window` that return a `Request`.

    On the direct route, and by cma, they are done when they return, and so they are
    where an operation is several in C.
    """

    _divided = False  # one is several in C: fields, several arrays, what is attached

    _closed: bool
    _dtype: np.dtype[Any]
    _fabric: Fabric | None
    _group: Group
    _handle: Any
    _routes: list[int]
    _stride: int

    if TYPE_CHECKING:
        # of Window
        def flush(self, rank: int | None = None) -> None: ...  # noqa: D102
        def put(self, origin: Any, rank: int, offset: int = 0) -> None: ...  # noqa: D102
        def get(  # noqa: D102
            self, rank: int, offset: int = 0, count: int | None = None, out: Array | None = None
        ) -> Array: ...
        def accumulate(  # noqa: D102
            self, origin: Any, rank: int, offset: int = 0, op: Any = "sum"
        ) -> None: ...
        def get_accumulate(  # noqa: D102
            self, origin: Any, rank: int, offset: int = 0, op: Any = "sum"
        ) -> Array: ...
        def fetch_op(self, value: Any, rank: int, offset: int = 0, op: Any = "sum") -> Any: ...  # noqa: D102
        def compare_and_swap(  # noqa: D102
            self, compare: Any, value: Any, rank: int, offset: int = 0
        ) -> Any: ...
        def _check_open(self, call: str) -> None: ...
        def _place(self, call: str, rank: Any, offset: Any, count: int) -> Place | None: ...
        def _count(
            self, call: str, rank: Any, offset: Any, count: int | None, out: Array | None
        ) -> int: ...
        def _where(self, call: str, place: Place) -> str: ...
        def _continue(self, call: str, place: Place, code: int, op: Any) -> None: ...
        def _atomic_number(self, call: str, place: Place, op: int) -> int: ...

    def rput(self, origin: Any, rank: int, offset: int = 0) -> Request:
        """Begin a put.

        Parameters are those of `put`. The origin is used where it lies, also if
        it is small: it may not be changed before the request is done. One that is
        a temporary is kept by the request.

        Returns
        -------
        Request
            Done once the data is in the target's memory. Its result is None.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused.

        Notes
        -----
        Local. Does not wait, but for this: while a thousand requests, or 64 MiB, that
        were dropped (`del`, `free`) are on their way, the next one waits for some of
        them. Corresponds to MPI_Rput, whose completion only says that the origin
        may be used again.
        """
        try:
            at_once = self._routes[rank] != _FABRIC
        except (IndexError, TypeError):
            at_once = False
        if at_once:
            self.put(origin, rank, offset)
            return _ended(None)
        if self._divided:
            self.put(origin, rank, offset)
            self.flush(rank)
            return _ended(None)
        self._check_open("rput")
        array = memory.origin(origin, self._dtype)
        place = self._place("rput", rank, offset, array.size)
        if place is None:
            return _ended(None)
        return self._begin("rput", place, lib.RMAEXT_PUT, operand=array)

    def rget(
        self, rank: int, offset: int = 0, count: int | None = None, out: Array | None = None
    ) -> Request:
        """Begin a get.

        Parameters are those of `get`; `out` may not be used before the request is
        done.

        Returns
        -------
        Request
            Its result is the array: `out`, if that was given.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused.

        Notes
        -----
        Local; waits as `rput` does. Corresponds to MPI_Rget.
        """
        try:
            at_once = self._routes[rank] != _FABRIC
        except (IndexError, TypeError):
            at_once = False
        if at_once or self._divided:
            return _ended(self.get(rank, offset, count, out))
        self._check_open("rget")
        count = self._count("rget", rank, offset, count, out)
        place = self._place("rget", rank, offset, count)
        if out is None:
            out = np.empty(0 if place is None else count, self._dtype)
        if place is None:
            return _ended(out)
        return self._begin("rget", place, lib.RMAEXT_GET, result=out)

    def raccumulate(self, origin: Any, rank: int, offset: int = 0, op: Any = "sum") -> Request:
        """Begin an accumulate; `rput` with the parameters of `accumulate`.

        The result is None. Corresponds to MPI_Raccumulate. Updates of one origin
        apply in the order in which they are begun, whatever they are.
        """
        if self._fabric is None or self._divided:
            self.accumulate(origin, rank, offset, op)
            self.flush(rank)
            return _ended(None)
        self._check_open("raccumulate")
        return self._begin_update("raccumulate", operation(op), origin, rank, offset, fetch=False)

    def rget_accumulate(self, origin: Any, rank: int, offset: int = 0, op: Any = "sum") -> Request:
        """Begin a get_accumulate; `rput` with the parameters of `get_accumulate`.

        The result is the previous values. Corresponds to MPI_Rget_accumulate.
        """
        if self._fabric is None or self._divided:
            return _ended(self.get_accumulate(origin, rank, offset, op))
        self._check_open("rget_accumulate")
        return self._begin_update("rget_accumulate", operation(op), origin, rank, offset)

    def rfetch_op(self, value: Any, rank: int, offset: int = 0, op: Any = "sum") -> Request:
        """Begin a fetch_op; `rput` with the parameters of `fetch_op`.

        The result is the previous value. MPI_Fetch_and_op has no request-based form.
        """
        if self._fabric is None or self._divided:
            return _ended(self.fetch_op(value, rank, offset, op))
        self._check_open("rfetch_op")
        if np.ndim(value):
            raise ValueError(f"rfetch_op: value has shape {np.shape(value)}; use rget_accumulate")
        return self._begin_update("rfetch_op", operation(op), value, rank, offset, scalar=True)

    def rcompare_and_swap(self, compare: Any, value: Any, rank: int, offset: int = 0) -> Request:
        """Begin a compare_and_swap; `rput` with the parameters of `compare_and_swap`.

        The result is the previous values. MPI_Compare_and_swap has no request-based
        form.
        """
        if self._fabric is None or self._divided:
            return _ended(self.compare_and_swap(compare, value, rank, offset))
        call = "rcompare_and_swap"
        self._check_open(call)
        wanted = memory.origin(compare, self._dtype)
        new = memory.origin(value, self._dtype)
        if wanted.shape != new.shape:
            raise ValueError(f"{call}: shapes {wanted.shape} and {new.shape} differ")
        return self._begin_update(
            call, lib.RMAEXT_CSWAP, new, rank, offset, compare=wanted, scalar=True
        )

    # -- helpers -------------------------------------------------------------------

    def _begin_update(
        self,
        call: str,
        op: int,
        value: Any,
        rank: int,
        offset: int,
        *,
        compare: Array | None = None,
        fetch: bool = True,
        scalar: bool = False,
    ) -> Request:
        operand = memory.origin(value, self._dtype)
        place = self._place(call, rank, offset, operand.size)
        if place is None:
            return _ended(None if scalar or not fetch else np.empty(0, self._dtype))
        return self._begin(
            call,
            place,
            lib.RMAEXT_UPDATE,
            op,
            self._atomic_number(call, place, op),
            operand=operand,
            compare=compare,
            result=np.empty(operand.shape, self._dtype) if fetch else None,
            scalar=scalar,
        )

    def _begin(
        self,
        call: str,
        place: Place,
        kind: int,
        op: int = 0,
        type_: int = 0,
        *,
        operand: Array | None = None,
        compare: Array | None = None,
        result: Array | None = None,
        scalar: bool = False,
    ) -> Request:
        """Begin an operation. The request, or the fabric, keeps the arrays."""
        rank, first, count = place
        itemsize = self._dtype.itemsize
        what = ffi.new("struct rmaext_call *")
        what.kind, what.op, what.type = kind, op, type_
        what.rank, what.offset = rank, first * self._stride
        what.count = count if kind == lib.RMAEXT_UPDATE else count * itemsize
        if operand is not None:
            what.operand = memory.address(operand)
        if compare is not None:
            what.compare = memory.address(compare)
        if result is not None:
            what.result = memory.address(result)
        fabric = self._fabric
        assert fabric is not None, "all of it is done at once"
        fabric.settle()
        request = Request._begun(self, call, place, result, scalar)
        what.ended = flag = request._flag
        # from here on the request's __del__ looks after the buffers, whatever raises
        request._op = fabric.hold(self._handle, (operand, compare, result, flag))
        code = lib.rmaext_begin(self._handle, what, request._op)
        if code == -errno.EAGAIN and request._op[0]:
            self._continue(call, place, _PENDING, request._op)
            code = 0
        if code != _PENDING:
            request._end(_DONE)
            if code:
                raise from_c(code, self._where(call, place))
        return request
