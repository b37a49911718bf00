# SPDX-License-Identifier: BSD-3-Clause
"""Epochs of post, start, complete and wait, between the members of groups."""

from __future__ import annotations

import errno
import functools
import operator
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from mpi4py import MPI

from .._native._lib import lib
from .._ops.arguments import told
from .._runtime.config import deadline
from .._runtime.reports import Patience
from ..errors import BoundsError, PeerLostError, RmaTimeout
from ..typing import ScalarT
from .entering import NS, State
from .sync import Synchronisation

__all__ = ["Epochs"]

_drain = deque[Any](maxlen=0).extend


class Epochs(Synchronisation[ScalarT]):
    """`post`, `start`, `complete`, `wait` and `test` of `Window`."""

    @told
    def post(self, group: MPI.Group | Iterable[int]) -> None:
        """Let the ranks of a group begin to access this rank's window.

        Parameters
        ----------
        group : mpi4py.MPI.Group or iterable of int
            Origins; may be empty.

        Raises
        ------
        SyncError
            The `post` before has no `wait` yet.
        BoundsError, ValueError
            Of a rank that the window has not, or twice.

        Notes
        -----
        Local; corresponds to MPI_Win_post. To be ended by `wait` or `test`.

        Examples
        --------
        >>> win.post([0])  # rank 0, which is this one, may access my memory
        >>> win.start([0])
        >>> win.put(1.0, rank=0)
        >>> win.complete()
        >>> win.wait()  # its data is here
        """
        state, ranks = self._state("post"), self._members("post", group)
        if state.exposure is not None:
            self._misused("post", "the post before has no wait yet: call wait first")
        self._tell("post", state, state.places.posted, ranks, lambda: state.expose(ranks))

    @told
    def start(self, group: MPI.Group | Iterable[int]) -> None:
        """Wait until all ranks of a group have called `post` with this one.

        Parameters
        ----------
        group : mpi4py.MPI.Group or iterable of int
            Targets; may be empty. They may call `post` later.

        Raises
        ------
        SyncError
            The `start` before has no `complete` yet.
        BoundsError, ValueError
            Of a rank that the window has not, or twice.
        PeerLostError
            One of them is gone, and has not posted.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_start. After an exception there
        is no epoch, and no `post` is used up.

        Examples
        --------
        >>> win.post([0])
        >>> win.start([0])  # rank 0 has posted
        >>> win.complete()
        >>> win.wait()
        """
        state, ranks = self._state("start"), self._members("start", group)
        if state.access is not None:
            self._misused("start", "the start before has no complete yet: call complete first")
        posted = state.places.posted
        started = self._await_words("start", state, posted, state.started, ranks, None)
        state.started = started  # no signal handler runs between these lines
        state.access = ranks

    def complete(self) -> None:
        """Flush to the ranks of `start`, and tell them.

        Raises
        ------
        SyncError
            There was no `start`.
        RmaTimeout, PeerLostError
            As `flush`; the epoch is over, and the others are told.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_complete. If Ctrl-C interrupts
        the flush, the epoch goes on: call it again.

        Examples
        --------
        >>> win.post([0])
        >>> win.start([0])
        >>> win.put(1.0, rank=0)
        >>> win.complete()  # flushed, and rank 0 is told
        >>> win.wait()
        """
        state = self._state("complete")
        ranks = state.access
        if ranks is None:
            self._misused("complete", "there was no start")
        failure: Exception | None = None
        for rank in ranks:
            try:
                self.flush(rank)
            except Exception as exc:
                failure = failure or exc
        self._tell("complete", state, state.places.completed, ranks, state.end_access)
        if failure is not None:
            raise failure

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all ranks of `post` have called `complete`.

        What they put is in this rank's memory then.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as long as those live that are waited for.

        Raises
        ------
        SyncError
            There was no `post`.
        RmaTimeout
            The epoch goes on; so it does after Ctrl-C.
        PeerLostError
            One of them is gone and has not completed; the epoch is over.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_wait.

        Examples
        --------
        >>> win.post([0])
        >>> win.start([0]), win.put(1.0, rank=0), win.complete()
        (None, None, None)
        >>> win.wait()
        >>> win.local[0]
        np.float64(1.0)
        """
        state = self._state("wait")
        ranks = state.exposure
        if ranks is None:
            self._misused("wait", "there was no post")
        try:
            completed = state.places.completed
            waited = self._await_words("wait", state, completed, state.waited, ranks, timeout)
        except PeerLostError:
            # A `complete` of the ranks that live counts for this epoch, even if it comes later.
            alive = set(ranks) - state.living.gone()
            state.waited = state.waited | {r: state.waited.get(r, 0) + 1 for r in alive}
            state.exposure = None
            raise
        state.waited = waited
        state.exposure = None

    def test(self) -> bool:
        """Tell whether all ranks of `post` have called `complete`; then the epoch is over.

        Returns
        -------
        bool
            True once, as `wait` would return; call neither again then.

        Raises
        ------
        SyncError
            There was no `post`.
        PeerLostError
            One of the ranks is gone and has not completed; the epoch is over.

        Notes
        -----
        Local, not blocking; corresponds to MPI_Win_test.

        Examples
        --------
        >>> win.post([0])
        >>> win.test()
        False
        >>> win.start([0]), win.complete(), win.test()
        (None, None, True)
        """
        try:
            self.wait(timeout=0)
        except RmaTimeout:
            return False
        return True

    def _members(self, call: str, group: Any) -> list[int]:
        if isinstance(group, MPI.Group):
            if group == MPI.GROUP_NULL:
                raise ValueError(f"{call}: group is MPI.GROUP_NULL")
            own = self._group.comm.Get_group()
            given = list(range(group.size))
            group = MPI.Group.Translate_ranks(group, given, own)
            own.Free()
            if MPI.UNDEFINED in group:
                text = f"{call}: window {self._name}: a member of the group has no part in it"
                raise BoundsError(errno.ERANGE, text, call=call)
        numbers = map(operator.index, group)
        ranks = [self._rank(rank, call) for rank in numbers if rank != self._null]
        if len(set(ranks)) < len(ranks):
            raise ValueError(f"{call}: a rank is named twice in {ranks}")
        return ranks

    def _tell(
        self, call: str, state: State, place: int, ranks: list[int], done: Callable[[], None]
    ) -> None:
        """Raise this rank's word at each rank, and note it; no signal handler divides that."""
        place, sleepers = place + self._group.rank, state.places.sleepers
        gone = state.living.gone()
        near = [rank for rank in ranks if state.block.maps[rank]]
        far = [rank for rank in ranks if not state.block.maps[rank] and rank not in gone]
        raises = map(
            lib.rmaext_word_raise,
            [state.words(rank, sleepers) for rank in near],
            [state.words(rank, place) for rank in near],
        )

        def steps() -> Generator[list[tuple[int, int]], list[int], None]:
            _drain(raises)  # an iterator: the second time it raises no word
            if far:
                yield [(place, 1)] * len(far)
            done()

        interrupt = state.messages.tell(far, steps, done)
        if interrupt is not None:
            raise interrupt
        if len(near) + len(far) < len(ranks):
            self._raise_lost(call, min(set(ranks) - {*near, *far}), "the rank is gone")

    def _await_words(
        self,
        call: str,
        state: State,
        place: int,
        counts: dict[int, int],
        ranks: list[int],
        timeout: float | None,
    ) -> dict[int, int]:
        """Wait until each rank has raised its word in the own block once more; return counts."""
        me = self._group.rank
        sleepers = state.words(me, state.places.sleepers)
        end = deadline(timeout)
        what, root = f"{call}: window {self._name}", self._root._handle
        behind = functools.partial(self._behind, state, place, counts, ranks)
        with Patience() as patience:
            for rank in ranks:
                word, least, spin = (
                    state.words(me, place + rank),
                    counts.get(rank, 0) + 1,
                    state.spin,
                )
                while True:
                    nap = state.nap
                    if end is not None:
                        nap = min(nap, int((end - time.monotonic()) * NS))
                    if lib.rmaext_word_await(sleepers, word, least, spin if nap > 0 else 0, nap):
                        break
                    lib.rmaext_record_waits(root, lib.RMAEXT_IN_EPOCH, rank, 0)
                    self._check_open(call)
                    spin = 0
                    self._serve()
                    patience.look(what, behind)
                    self._look_for_lost(call, state, place, counts, ranks)
                    self._check_time(call, rank, end)
                lib.rmaext_record_waited(lib.RMAEXT_IN_EPOCH, 0)
        return counts | {rank: counts.get(rank, 0) + 1 for rank in ranks}

    def _check_time(self, call: str, rank: int, end: float | None) -> None:
        if end is not None and time.monotonic() >= end:
            self._timed_out(call, rank)

    def _look_for_lost(
        self, call: str, state: State, place: int, counts: dict[int, int], ranks: list[int]
    ) -> None:
        """Raise if a rank is gone that has not raised its word."""
        me = self._group.rank
        sleepers = state.words(me, state.places.sleepers)
        for other in state.living.gone().intersection(ranks):
            # The lost rank may have raised its word before.
            its, wanted = state.words(me, place + other), counts.get(other, 0) + 1
            if not lib.rmaext_word_await(sleepers, its, wanted, 0, 0):
                self._raise_lost(call, other, "the rank is gone")

    def _behind(
        self, state: State, place: int, counts: dict[int, int], ranks: list[int]
    ) -> list[int]:
        """Return the ranks that have not raised their words once more."""
        me = self._group.rank
        words = [(rank, state.words(me, place + rank)) for rank in ranks]
        return [rank for rank, word in words if word[0] <= counts.get(rank, 0)]
