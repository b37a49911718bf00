# SPDX-License-Identifier: BSD-3-Clause
"""What owns windows, buffers, locks or operations is neither copied nor pickled.

Every public class is here: a new one is made in `MAKE`, or its objects are values.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext import containers

VALUES = {  # numbers, words and arrays; and one that has stores, which refuse
    "Registration": lambda: rmaext.Registration(kind="system"),
    "Items": lambda: containers.Items(np.arange(3), np.arange(3)),
    "TaskStats": lambda: containers.TaskStats(1, 2, 0.5),
    "TorchDataset": None,
}


@contextlib.contextmanager
def window(dtype="f8"):
    with rmaext.Window.allocate(MPI.COMM_SELF, 8, dtype) as win:
        yield win


@contextlib.contextmanager
def of_window(make, dtype="f8"):
    with window(dtype) as win:
        yield make(win)


@contextlib.contextmanager
def locked():
    with window() as win, win.lock(0):
        yield rmaext.LockGuard(win, 0)


@contextlib.contextmanager
def granted():
    with window() as win, win.grant(0, 4) as grant:
        yield grant


@contextlib.contextmanager
def remote():
    with granted() as grant, rmaext.RemoteWindow.attach(grant.export()) as far:
        yield far


@contextlib.contextmanager
def prefetched():
    with containers.Store(MPI.COMM_SELF, np.zeros((4, 2))) as store:
        yield store.prefetch([0, 1])


@contextlib.contextmanager
def fabric():
    with rmaext.Window.dynamic(MPI.COMM_SELF) as win:
        yield win.fabric


PAIR = [("a", "f8"), ("b", "i8")]
MAKE = {
    "Buffer": lambda: of_window(lambda win: win.register(np.zeros(4))),
    "DynamicWindow": lambda: rmaext.Window.dynamic(MPI.COMM_SELF),
    "ElementUpdates": lambda: of_window(lambda win: win.at(0)),
    "Fabric": fabric,
    "FieldView": lambda: of_window(lambda win: win.field("a"), PAIR),
    "Grant": granted,
    "JoinedWindow": lambda: rmaext.Window(MPI.COMM_SELF, [np.zeros(2), np.zeros(3)]),
    "LockGuard": locked,
    "Memory": lambda: of_window(lambda win: win.memory),
    "Prepared": lambda: of_window(lambda win: win.prepare_put(np.ones(2), 0)),
    "RemoteWindow": remote,
    "Request": lambda: of_window(lambda win: win.rput(1.0, 0)),
    "SharedWindow": lambda: rmaext.Window.shared(MPI.COMM_SELF, 4),
    "View": lambda: of_window(lambda win: win.subwindow(0, 4)),
    "Window": window,
    "Array": lambda: containers.Array(MPI.COMM_SELF, 3),
    "Dict": lambda: containers.Dict(MPI.COMM_SELF, "i8", "i8", 10),
    "Channel": lambda: containers.Channel(MPI.COMM_SELF, "i8", 10),
    "MultiDict": lambda: containers.MultiDict(MPI.COMM_SELF, "i8", "i8", 10),
    "NodeArray": lambda: containers.NodeArray(MPI.COMM_SELF, 3, fill=lambda array: None),
    "Prefetch": prefetched,
    "Published": lambda: containers.Published(MPI.COMM_SELF, 3),
    "Store": lambda: containers.Store(MPI.COMM_SELF, np.zeros((4, 2))),
    "TaskQueue": lambda: containers.TaskQueue(MPI.COMM_SELF, "i8", 10),
    "counter": lambda: containers.counter(MPI.COMM_SELF, 10),
}


def public_classes():
    for module in rmaext, containers:
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind) and not issubclass(kind, BaseException):
                yield name, kind


def test_every_public_class_is_here():
    assert {name for name, _ in public_classes()} == {*MAKE, *VALUES}


def refuses(it):
    for call in copy.copy, copy.deepcopy:
        with pytest.raises(TypeError, match="pickle"):
            call(it)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(it, protocol)


@pytest.mark.parametrize(("name", "kind"), [it for it in public_classes() if it[0] in MAKE])
def test_copies(name, kind):
    with MAKE[name]() as it:
        assert isinstance(it, kind)
        refuses(it)


def test_requests_of_other_kinds():
    with window() as win:
        for request in win.rget(0, key=[1, 2]), win.rput_many([0, 0], [1, 2], np.ones(2)):
            refuses(request)
    refuses(win)  # that is closed


@pytest.mark.parametrize("name", [name for name in VALUES if VALUES[name]])
def test_values(name):
    it = VALUES[name]()
    for other in copy.copy(it), copy.deepcopy(it), pickle.loads(pickle.dumps(it)):
        assert repr(other) == repr(it)
