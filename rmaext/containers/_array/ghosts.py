# SPDX-License-Identifier: BSD-3-Clause
"""How the ghost cells of an `Array` are filled: one notified put to each neighbour, no barrier.

Each rank has room for what comes, twice, apart from the ghosts: exchange k goes to room k % 2, and
counts in notification slot k % 2. Who takes part in exchange k + 2 has ended exchange k + 1, for
which it had what its neighbours sent when they began that; so they had ended exchange k and taken
their data out of the room that it now writes to. (Two ranks are neighbours of each other or not
at all.) So nobody has to ask whether it may put, and ghosts change only within a rank's own call.

What a message of the network has room for is one, with its notification. What is longer is a write
to each neighbour, all at a time, which notifies once it is there (`rput_notify`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import PeerLostError, Request, Window
from ..._runtime.failures import again
from .._windows import MESSAGE
from .blocks import Blocks, Piece

__all__ = ["Ghosts", "room"]

_LINE = 64  # bytes: each room begins at a multiple
Pair = tuple[Any, Any]  # arrays: to, from


def room(blocks: Blocks, rank: int, itemsize: int) -> int:
    """Return the bytes of one of the two rooms of a rank."""
    ghosts = math.prod(blocks.padded(rank)) - math.prod(blocks.lengths(rank))
    return -(-ghosts * itemsize // _LINE) * _LINE


def _shape(piece: Piece) -> tuple[int, ...]:
    return tuple(it.stop - it.start for it in piece.place)


class Ghosts:
    """The exchanges of one rank, in turn.

    Parameters
    ----------
    padded : numpy.ndarray
        The block of this rank with its ghosts.
    rooms : Window of uint8
    blocks : Blocks
    """

    def __init__(self, padded: Any, rooms: Window[Any], blocks: Blocks) -> None:
        self._rooms, self._turn, self._begun = rooms, 0, False
        rank, dtype = rooms.comm.rank, padded.dtype
        mine = sorted(blocks.halo(rank))
        own = [piece for piece in mine if piece.rank == rank]
        self._own = [(padded[piece.place], padded[piece.key]) for piece in own]
        self._sources = sorted({piece.rank for piece in mine} - {rank})
        self._arrived: tuple[list[Pair], list[Pair]] = ([], [])
        self._sections: list[tuple[int, Any, list[Pair], tuple[int, int], bool]] = []
        size = room(blocks, rank, dtype.itemsize)
        for turn in 0, 1:
            at = turn * size
            for piece in mine:
                if piece.rank != rank:
                    part, at = _part(rooms.local, at, piece, dtype)
                    self._arrived[turn].append((padded[piece.place], part))
        for target in self._sources:
            theirs = sorted(piece for piece in blocks.halo(target) if piece.rank != target)
            before = sum(math.prod(_shape(it)) for it in theirs if it.rank < rank)
            theirs = [piece for piece in theirs if piece.rank == rank]
            count = sum(math.prod(_shape(piece)) for piece in theirs)
            buffer = np.empty(count * dtype.itemsize, np.uint8)
            pairs, at = [], 0
            for piece in theirs:
                part, at = _part(buffer, at, piece, dtype)
                pairs.append((part, padded[piece.key]))
            first = before * dtype.itemsize
            other = room(blocks, target, dtype.itemsize)
            short = buffer.nbytes <= MESSAGE or rooms.route(target) == "direct"
            self._sections.append((target, buffer, pairs, (first, other + first), short))
        self._sent: list[Request | None] = []  # of this exchange, by section: what was begun
        self._came: list[int] = [] if self._sources else [0]
        self._lost: PeerLostError | None = None

    def begin(self) -> None:
        """Send this rank's part; what was begun and has not ended is not sent again."""
        if self._begun:
            return
        turn, rooms = self._turn, self._rooms
        for target, buffer, pairs, offsets, short in self._sections[len(self._sent) :]:
            for here, there in pairs:
                here[...] = there
            put: Any = rooms.put_notify if short else rooms.rput_notify
            to = buffer, target, offsets[turn], turn
            try:
                # No step of Python's comes between the put and its note where C carries it out.
                # Where it declines, as for the first of a slot or in a full line, an exception
                # of a signal handler there may have the next call put it once more.
                self._sent.extend(map(put, *zip(to)))
            except PeerLostError as exc:  # the other neighbours get theirs
                self._lost = exc
                self._sent.append(None)
        for here, there in self._own:
            here[...] = there
        self._begun = True

    def end(self) -> None:
        """Wait for what the neighbours send, and take it."""
        if not self._begun:
            return
        if self._lost is not None:
            raise again(self._lost)
        told: set[int] = set()
        while not self._came:  # an exception may have ended the copying below: once only
            wait: Any = self._rooms.wait_notify
            try:
                # No step of Python's comes between what it counts off and its note.
                self._came.extend(map(wait, (self._turn,), (len(self._sources),)))
            except PeerLostError as exc:
                # Of each rank that is lost once; it may be no neighbour, so those live.
                if exc.rank is None or exc.rank in told.union(self._sources):
                    raise
                told.add(exc.rank)
                for rank in self._sources:
                    self._rooms.flush_local(rank)  # raises if it is lost, too
        for here, there in self._arrived[self._turn]:
            here[...] = there
        # Their buffers are free again. The answers come with what the neighbours send, or later.
        for request in filter(None, self._sent):
            request.wait()
        self._begun, self._sent, self._turn = False, [], 1 - self._turn
        self._came = [] if self._sources else [0]


def _part(memory: Any, at: int, piece: Piece, dtype: np.dtype[Any]) -> tuple[Any, int]:
    """Return an array for a piece in some bytes, and where the next one begins."""
    shape = _shape(piece)
    end = at + math.prod(shape) * dtype.itemsize
    return memory[at:end].view(dtype).reshape(shape), end
