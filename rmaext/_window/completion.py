# SPDX-License-Identifier: BSD-3-Clause
"""Flush, fence and close: when operations are complete, and how a window ends."""

from __future__ import annotations

import operator
import threading
import time
import warnings
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from .._comm.agreement import failed, settle, succeeded
from .._comm.meeting import BID_BITS
from .._native import cmethods
from .._native._lib import ffi, lib
from .._ops.arguments import behind
from .._ops.core import WindowCore
from .._remote.grants import check_grants, end_grants
from .._runtime import lifetime
from .._runtime.failures import from_c, is_of_all
from .._runtime.log import log
from .._runtime.reports import Patience, tell
from .._sync.epochs import Epochs
from .._sync.messages import FAILURES
from .._sync.waiting import Waits
from ..errors import GrantError, SyncError
from ..typing import ScalarT
from . import storage

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Completion"]

_ANSWERS = 0.1  # seconds at the end of a program, in which answers may come that nobody has read


class Completion(cmethods.With, Epochs[ScalarT], Waits[ScalarT]):
    """`flush`, `fence` and `close` of `Window`.

    flush and fence are those of csrc/python, which come here with all that is not plain.
    fence and close are collective: no rank raises before all ranks know of the error, and
    no rank frees memory before all have said that they do not write to it any more.
    """

    _views: weakref.WeakValueDictionary[int, WindowCore[Any]] | None = None  # that may be open
    _is_abandoned = False  # by this rank, without the others
    _file: storage.File | None = None  # who writes it, if this rank's memory is a file's

    @behind
    def _flush(self, rank: int | None = None, *, persist: bool = False) -> None:
        self._check_open("flush")
        if rank is not None and operator.index(rank) == self._null:
            return
        target = -1 if rank is None else self._rank(rank, "flush")
        wait = ffi.new("struct rmaext_wait *", [int(self._timeout * 1e9), 0, 0, 0])
        with Patience() as patience:
            while True:
                code = lib.rmaext_flush(self._handle, target, wait)
                if not code:
                    break
                if code != lib.RMAEXT_PENDING:
                    self._flush_failed(code, target)
                patience.look(f"flush: window {self._name}", lambda: [int(wait.rank)])
        if persist:
            storage.persist(self, None if rank is None else target)

    def _flush_failed(self, code: int, target: int) -> NoReturn:
        whom = "all ranks" if target < 0 else f"rank {target}"
        raise from_c(code, f"flush: window {self._name}, {whom}")

    @behind
    def _fence(self) -> None:
        self._check_open("fence")
        with self._group.collective("fence", self._name):
            self._check_open("fence")
            failure, *_ = self._meet(self._try_flush())
        if failure is not None:
            raise failure

    def _fence_on(self, failure: Exception | None) -> None:
        """Go on with a fence of C: its flush has failed, or it has come to the meeting."""
        with self._group.collective("fence", self._name, failure is None):
            failure, *_ = self._meet(failure)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, wait for all ranks, and deregister. Twice is harmless.

        Raises
        ------
        RmaTimeout, PeerLostError
            As `flush`. If it fails on one rank, it raises the same error on all; the window is
            closed all the same, but its memory is kept until all ranks have freed the
            communicator, since peers may still write there.
        SyncError
            A lock is held, or an epoch is open. And on all ranks, if they are in different
            collective calls: the window stays open. If a rank has given up a call of this
            communicator, the window is closed on this rank.
        GrantError
            A grant is not revoked: the window stays open.

        Notes
        -----
        Collective, blocking; corresponds to MPI_Win_free. `with` does it at the end of its block.

        Examples
        --------
        >>> other = rmaext.Window(MPI.COMM_SELF, np.zeros(4))
        >>> other.close()
        >>> other.closed
        True
        """
        if self._closed:
            return
        try:
            self._close()
        except SyncError:
            if self._group.meetings.over:
                self._shut(keep=True)
            raise

    def _close(self) -> None:
        hint = self._advised()
        with self._group.collective("close", self._name):
            if self._closed:  # another thread was faster
                return
            failure = self._unfinished() or self._try_flush() or check_grants(self)
            was_open = list(filter(lambda window: not window._closed, (self, *self._family())))
            # Memory is freed once all ranks have met. So this rank's threads must have stopped
            # writing before it meets the others; if an operation that was given up may still
            # reach its target, this rank is busy, and all ranks keep their memory.
            try:
                busy = self._shut_calls() or self._in_doubt()
                pending = [lib.rmaext_window_pending(part._handle) for part in self._parts()]
                busy = any(pending) or busy
                failure, keep, speaks = self._meet(failure, busy, bool(hint))
            except BaseException as exc:
                # The ranks are in different calls, or this rank has not met any: nothing is closed.
                if self._group.meetings.all_have(exc) and not self._group.meetings.over:
                    _reopen(was_open)
                raise
            if isinstance(failure, GrantError):
                _reopen(was_open)
            else:
                self._shut(keep)
        if failure is not None:
            raise failure
        if speaks:
            tell([hint])

    def _shut_calls(self) -> bool:
        """Let no thread of this rank begin an operation; return whether one does not end."""
        codes = [lib.rmaext_window_shut(window._handle) for window in self._mark_closed()]
        return any(codes)

    def _mark_closed(self) -> list[WindowCore[Any]]:
        """Refuse operations from now on; return the window with its parts and views."""
        self._closed = True
        # Another thread may make a view right now: it sees that the window is closed.
        windows = self._family()
        for window in windows:
            window._closed = True
        return windows

    def _family(self) -> list[WindowCore[Any]]:
        views = [] if self._views is None else [ref() for ref in self._views.valuerefs()]
        return [*self._parts(), *(view for view in views if view is not None)]

    def _settle_routes(self) -> None:
        """Take from C how ranks are reached: a close lets go of what it has mapped of devices."""
        if self._root is self:
            self._region.ways.look(self._handle)

    def _try_flush(self) -> Exception | None:
        try:
            self.flush()
        except FAILURES as exc:  # not a signal handler's, which ends the call
            return exc
        return None

    def _meet(
        self, failure: Exception | None, busy: bool = False, wants: bool = False
    ) -> tuple[Exception | None, bool, bool]:
        """Wait for all ranks. Collective.

        Return the error that one of them brings, and whether any has an error
        or is busy: then no rank may free memory. A GrantError only if there is no other.
        And whether this rank is to say what it wants to, as none before it wants to.
        """
        group = self._group
        level = 0 if failure is None else 2 if isinstance(failure, GrantError) else 3
        try:
            bid = group.meetings.bid(wants)
            most = group.reduce((level or int(busy)) << BID_BITS | bid)
            worst, said = most >> BID_BITS, most & (1 << BID_BITS) - 1
            speaks = wants and bid > 0 and said == bid
            if worst >= 2:
                record = failed(failure) if failure and level == worst else succeeded()
                received = group.gather(record)
        except SyncError:
            raise
        except BaseException as exc:
            if not group.meetings.all_have(exc):
                self._shut(keep=True)  # this rank is out of step with the others
            raise
        if worst < 2:
            return None, worst == 1, speaks
        try:
            settle(received, failure if level == worst else None)
        except Exception as exc:
            return exc, True, False
        return None, True, False

    def _shut(self, keep: bool) -> None:
        """End this rank's part. Without `keep`, to which all ranks agree, free the memory too."""
        self._mark_closed()
        self._forget_locks()
        self._group.meetings.venue.windows.pop(self._name, None)
        ended = end_grants(self)
        if keep:
            for part in self._parts():
                lib.rmaext_record_abandon(part._handle)
            if not self._is_abandoned:
                self._is_abandoned = True
                self._group.count_out(self)
            return
        file, self._file = self._file, None
        storage.end(file)
        codes = [lib.rmaext_window_close(part._handle) for part in self._parts()]
        if self._block is not None:
            self._group.controls.give(self._block)
        if ended and not any(codes):
            self._region.release()
            for window in self._family():
                window._let_go()
            self._group.count_out()

    # When all ranks have closed or abandoned all windows of the communicator, and freed that,
    # nobody writes to a window's memory any more but for what is still under way.

    def _may_write(self) -> bool:
        """Tell whether this rank, which has abandoned the window, may still write to others'."""
        busy = self._shut_calls() or self._in_doubt() or not end_grants(self)
        return busy or any(lib.rmaext_window_pending(part._handle) for part in self._parts())

    def _free_abandoned(self) -> None:
        """Free the memory of a window that all ranks have abandoned."""
        codes = [lib.rmaext_window_close(part._handle) for part in self._parts()]
        if not any(codes):
            self._region.release()
            for window in self._family():
                window._let_go()

    # What `with` calls, see csrc/python/with.c: an exception that is this rank's ends the
    # window here, whether it comes within the block or at its ends.

    def _enter(self) -> Self:
        self._check_open("with")
        return self

    def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon(error)

    def _forsake(self, error: BaseException) -> None:
        """After an exception of the two: one of all ranks says what becomes of the window."""
        if not is_of_all(error):
            self._abandon(error)

    def _abandon(self, error: BaseException | None) -> None:
        if not self._closed:
            # Not a collective close: the other ranks may never come to it.
            if error is not None:
                self._group.meetings.abandoned.abandon_window(self._name, error)
            self._shut(keep=True)

    def _is_pending(self) -> bool:
        return any(lib.rmaext_window_pending(part._handle) for part in self._parts())

    def _undone(self) -> str:
        """Say what was begun and never ended, as far as others may suffer from it; or ""."""
        words = []
        if (open_ := self._unfinished()) is not None:
            words.append(str(open_).removeprefix(f"close: window {self._name}: "))
        pending = sum(lib.rmaext_window_pending(part._handle) for part in self._parts())
        if pending and threading.active_count() == 1:  # else a thread may be about to wait
            words.append(f"{pending} operations were never flushed, and may be lost: call flush")
        return "; ".join(words)

    def __del__(self) -> None:
        if self._block is not None and not getattr(self, "_closed", True):
            undone = self._undone()
            warnings.warn(
                f"{self!r} was not closed; its memory is kept until the process ends"
                f"{undone and f'; {undone}'}",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _forget(self) -> None:
        """After the end of MPI, or in a forked child: there is no window."""
        self._closed = True


def _report_undone() -> None:
    """At the end of the program, before it waits for others: name what was never ended.

    Another rank may wait for the lock, and a put that no flush has waited for may be lost.
    """
    found = []
    open_ = [window for window in lifetime.mortal(Completion) if window._block is not None]
    open_ = [window for window in open_ if window._root is window and not window._closed]
    end = time.monotonic() + _ANSWERS
    for window in open_:
        while window._is_pending() and time.monotonic() < end:
            window._serve()
            time.sleep(1e-4)
        if hint := window._advised():
            window._group.last_hints.append(hint)
        undone = window._undone()
        if undone:
            found.append((window._group.rank, f"window {window._name}: {undone}"))
    if found:
        text = "; ".join(words for _, words in sorted(found))
        log.warning("rank %d has come to the end of its program: %s", found[0][0], text)


lifetime.on_finalize(_report_undone, first=True)


def _reopen(windows: list[WindowCore[Any]]) -> None:
    """Undo what has refused operations of windows."""
    for window in windows:
        lib.rmaext_window_reopen(window._handle)
        window._settle_routes()
        window._closed = False
