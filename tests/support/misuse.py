# SPDX-License-Identifier: BSD-3-Clause
"""Windows to misuse, and cases of wrong use.

A case is a function of a `Room`: it calls what is wrong through `room.refuses`, which wants the
error given, and leaves no epoch open. All ranks run it at the same time.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support.guarded import Guarded, neighbour, same

import rmaext

COUNT = 6
ONE = np.ones(1, "i8")


class Cases(list):
    """Functions, which it is the decorator of."""

    def __call__(self, function):
        self.append(function)
        return function

    def each(self):
        return pytest.mark.parametrize("case", self, ids=lambda case: case.__name__)


class Room(contextlib.ExitStack):
    """Windows to misuse, between guard bytes, which it closes at its end."""

    def __init__(self, world):
        super().__init__()
        self.world, self.me, self.peer = world, world.rank, neighbour(world)
        self.left = (world.rank - 1) % world.size
        self.size = world.size
        self.memory, self.refused = [], 0
        self.win = self.make(COUNT, "i8", 5)

    def make(self, shape, dtype="i8", fill=0, shift=0, **options):
        self.memory.append(Guarded(shape, dtype, shift))
        self.memory[-1].array[...] = fill
        return self.enter_context(rmaext.Window(self.world, self.memory[-1].array, **options))

    def dynamic(self):
        return self.enter_context(rmaext.Window.dynamic(self.world, dtype="i8"))

    def array(self, count=COUNT):
        """An array to attach."""
        self.memory.append(Guarded(count, "i8"))
        return self.memory[-1].array

    def refuses(self, error, call, *args, **kwargs):
        with pytest.raises(error) as caught:
            call(*args, **kwargs)
        assert str(caught.value)
        self.refused += 1

    def check(self):
        """Nothing was written, and all still works."""
        assert self.refused
        self.world.Barrier()
        for memory in self.memory:
            memory.check()
        win, me, peer = self.win, self.me, self.peer
        assert same(win.local, np.full(COUNT, 5))
        assert not np.any(win.notify_counts())
        win.fence()
        win.put(np.arange(2), peer)
        win.flush(peer)
        assert same(win.get(peer, 0, 3), np.array([0, 1, 5]))
        win.accumulate(1, peer, 2)
        assert win.fetch_op(1, peer, 2) == 6
        assert win.rget(peer, 2, 1).result()[0] == 7
        with win.lock(peer, exclusive=True):
            win.put(8, peer, 3)
        with win.lock_all():
            assert win.get(peer, 3, 1)[0] == 8
        win.post([self.left])
        win.start([peer])
        win.put(9, peer, 4)
        win.complete()
        win.wait()
        win.put_notify(np.array([10]), peer, 5, 0)
        win.wait_notify(0)
        assert win.local.tolist() == [0, 1, 7, 8, 9, 10]
        win.fence()
        assert win.get(me, 5, 1)[0] == 10
        win.fence()


def run(world, case):
    with Room(world) as room:
        case(room)
        room.check()
    for memory in room.memory:
        memory.check()
