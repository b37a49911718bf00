# SPDX-License-Identifier: BSD-3-Clause
"""What errors of arguments say: the call, the window, the place in elements, and what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.guarded import guarded, neighbour
from support.operations import OPERATIONS

import rmaext

pytestmark = pytest.mark.pair

SIZE = 10


def refused(error, call):
    """Return what was raised says; nothing else may be raised."""
    with pytest.raises(error) as info:
        call()
    return str(info.value)


def test_what_is_not_read_to_the_end(comm):
    """Without a count the rest is counted; the error is that of the call."""
    with guarded(comm, SIZE) as win:
        for name in ("get", "rget", "get_notify"):
            text = refused(rmaext.BoundsError, lambda name=name: getattr(win, name)(99))
            assert text == f"{name}: window {win._name} has ranks 0 to {comm.size - 1}, not 99"
        win.fence()


def test_others(comm):
    """Each names its call and window, and says what would do."""
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win, rmaext.Window.dynamic(comm) as dynamic:
        f4 = np.ones(2, "f4")
        calls = {
            "accumulate": [(ValueError, lambda: win.accumulate(1.0, peer, 0, "summ"), "sum, prod")],
            "accumulate_many": [
                (ValueError, lambda: win.accumulate_many(peer, 0, 1.0, "no"), "sum")
            ],
            "put_notify": [
                (rmaext.BoundsError, lambda: win.put_notify(1.0, peer, 0, 256), "slots 0 to 255"),
                (TypeError, lambda: win.put_notify(1.0, peer, 0, 1.5), "slot must be an integer"),
            ],
            "wait_notify": [
                (rmaext.BoundsError, lambda: win.wait_notify(300), "slots 0 to 255"),
                (TypeError, lambda: win.wait_notify("a"), "slot must be an integer"),
                (ValueError, lambda: win.wait_notify(3, 0), "count 0 is not positive"),
                (TypeError, lambda: win.wait_notify(3, 1.5), "count must be an integer"),
                (TypeError, lambda: win.wait_notify(3, 1, "a"), "timeout='a'"),
            ],
            "wait_any": [(ValueError, lambda: win.wait_any([]), "no slots")],
            "wait_until": [
                (rmaext.BoundsError, lambda: win.wait_until(99, "==", 1.0), "offset 99"),
                (ValueError, lambda: win.wait_until(9, "=>", 1.0), "none of =="),
                (TypeError, lambda: win.wait_until(9, "==", "a"), "str"),
            ],
            "get": [
                (ValueError, lambda: win.get(peer, 0, -1), "count -1 is negative"),
                (TypeError, lambda: win.get(peer, 0, 1.5), "count must be an integer"),
                (TypeError, lambda: win.get(peer, (0, 1)), "win[rank, 1, 2] takes an index"),
                (TypeError, lambda: win.get(peer, 0, out=f4), "out has dtype float32"),
                (ValueError, lambda: win.get(peer, 0, 3, out=np.ones(2)), "out has 2 elements"),
            ],
            "get_many": [
                (ValueError, lambda: win.get_many(peer, [1, 2], np.ones(3)), "shape (3,)")
            ],
            "put_many": [(ValueError, lambda: win.put_many(peer, [1, 2], np.ones(3)), "broadcast")],
            "register": [
                (TypeError, lambda: win.register([1.0]), "NumPy array"),
                (TypeError, lambda: win.register(f4), "float32"),
                (ValueError, lambda: win.register(np.ones((4, 4))[:, 0]), "C-contiguous"),
            ],
            "flush": [
                (rmaext.BoundsError, lambda: win.flush(99), "not 99"),
                (TypeError, lambda: win.flush("a"), "as an integer; the call is flush(rank=None"),
            ],
            "size": [(rmaext.BoundsError, lambda: win.size(99), "not 99")],
            "route": [(rmaext.BoundsError, lambda: win.route(99), "not 99")],
            "peer_view": [(rmaext.BoundsError, lambda: win.peer_view(99), "not 99")],
            "connect": [(rmaext.BoundsError, lambda: win.connect([99]), "not 99")],
            "lock": [(rmaext.BoundsError, lambda: win.lock(99), "not 99")],
            "unlock": [(rmaext.SyncError, lambda: win.unlock(0), "has not locked rank 0")],
            "post": [(rmaext.BoundsError, lambda: win.post([99]), "99")],
            "start": [(rmaext.BoundsError, lambda: win.start([99]), "99")],
            "subwindow": [
                (rmaext.BoundsError, lambda: win.subwindow(3, 99), f"outside the {SIZE} elements"),
                (rmaext.BoundsError, lambda: win.subwindow(3, 1), "[3:1]: the bounds"),
            ],
            "dup": [(ValueError, lambda: win.dup("x"), "must be 'r', 'w', 'rw' or None")],
            "field": [(TypeError, lambda: win.field("x"), "without fields")],
            "view": [(TypeError, lambda: win.view("f16x"), "not understood")],
            "export": [(ValueError, lambda: win.export("x"), "must be 'r', 'w', 'rw' or None")],
            "grant": [(rmaext.BoundsError, lambda: win.grant(3, 99), f"[3:99] of the {SIZE} elem")],
            "advise": [
                (ValueError, lambda: win.advise("x"), "'willneed' or 'normal'"),
                (TypeError, lambda: win.advise("normal", 3), "a slice, not int"),
            ],
            "at": [
                (rmaext.BoundsError, lambda: win.at(99), "not 99"),
                (rmaext.BoundsError, lambda: win.at(peer).add(SIZE, 1.0), "axis 0 with size 10"),
                (TypeError, lambda: win.at(peer).add(0, f4), "float32"),
            ],
            "__getitem__": [
                (IndexError, lambda: win[peer, "a"], "only integers"),
                (TypeError, lambda: win["a"], "the first index is the rank"),
            ],
            "__setitem__": [
                (TypeError, lambda: win.__setitem__((peer, slice(0, 2)), f4), "float32"),
                (ValueError, lambda: win.__setitem__((peer, slice(0, 2)), np.ones(3)), "broadcast"),
            ],
            "compare_and_swap": [
                (ValueError, lambda: win.compare_and_swap([1.0], 1.0, peer), "shapes (1,) and ()"),
            ],
            "fetch_op": [(ValueError, lambda: win.fetch_op([1.0, 2.0], peer), "get_accumulate")],
            "attach": [
                (TypeError, lambda: dynamic.attach([1.0]), "NumPy array"),
                (TypeError, lambda: dynamic.attach(f4), "float32"),
            ],
            "detach": [(rmaext.AttachError, lambda: dynamic.detach(np.ones(2)), "not attached")],
        }
        for name, refusals in calls.items():
            for error, call, words in refusals:
                text = refused(error, call)
                begin = rf"{name}: window ({win._name}|{dynamic._name})\b"
                assert re.match(begin, text), text
                assert words in text, text
                assert text.count("window ") <= 2, text
        dynamic.fence()
        win.fence()
        assert not win.local.any()


def test_what_the_program_raises_stays_as_it_is(comm):
    """Errors of functions of the program that a call has called."""

    class Wrong:
        def __index__(self):
            raise ValueError("mine")

    class Array:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("mine")

    with guarded(comm, SIZE) as win:
        assert refused(ValueError, lambda: win.put(1.0, Wrong())) == "mine"
        assert refused(ValueError, lambda: win.get(0, Wrong())) == "mine"
        assert refused(TypeError, lambda: win.put(Array(), 0)) == "mine"
        assert refused(TypeError, lambda: win.rput(1.0)).startswith("Window.rput()")
        assert refused(TypeError, lambda: win.put(1.0)).startswith("Window.put() missing")
        win.fence()


def test_a_rank_of_the_world_in_a_smaller_communicator(world):
    hint = ", which is a rank of MPI.COMM_WORLD, not of the window's communicator"
    with guarded(world.Split(world.rank), SIZE) as win:
        for call in (it.call for it in OPERATIONS.values()):
            assert refused(rmaext.BoundsError, lambda call=call: call(win, 1.0, 1, 0)).endswith(
                hint
            )
            assert hint not in refused(rmaext.BoundsError, lambda call=call: call(win, 1.0, 99, 0))
