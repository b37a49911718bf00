# SPDX-License-Identifier: BSD-3-Clause
"""What repr says of each public object: open, closed, half made."""

from __future__ import annotations

import numpy as np
import pytest

import rmaext
import rmaext.compat

pytestmark = [pytest.mark.mpi, pytest.mark.pair]

RECORD = np.dtype([("a", "i4"), ("b", "f8")])


class Things:
    """One object of each public class, made one from another."""

    def __init__(self, comm):
        self.comm = comm
        win = rmaext.Window(comm, np.zeros((2, 3)), access="rw")
        self.windows = {
            "Window": win,
            "View": win.subwindow(1, 4),
            "JoinedWindow": rmaext.Window(comm, [np.zeros(2), np.zeros((3, 1))]),
            "DynamicWindow": rmaext.Window.dynamic(comm, "i8"),
            "records": rmaext.Window.allocate(comm, 4, RECORD),
        }
        self.windows["FieldView"] = self.windows["records"].field("b")
        if win._group.all_direct:
            self.windows["SharedWindow"] = rmaext.Window.shared(comm, 5, "f4")
        self.array = np.arange(4)
        self.windows["DynamicWindow"].attach(self.array)
        self.others = {
            "Buffer": win.register(np.ones(2)),
            "Prepared": win.prepare_put(np.ones(2), comm.rank, 1),
            "Request": win.rget(comm.rank, 0, 4),
            "ElementUpdates": win.at(0),
            "Memory": win.memory,
            "Registration": rmaext.Registration(),
        }
        self.others["Request"].wait()
        with win.lock(comm.rank) as held:
            assert held is win
        self.others["LockGuard"] = win.lock(comm.rank)
        win.unlock(comm.rank)
        self.compat = rmaext.compat.Win.Allocate(16, 8, comm=comm)
        self.compat.Set_name("halo")
        self.remote()
        if self.windows["DynamicWindow"].fabric is not None:
            self.others["Fabric"] = self.windows["DynamicWindow"].fabric

    def remote(self):
        try:
            grant = self.windows["Window"].grant(1, 5, "r")
        except rmaext.NoProviderError:
            return
        self.others["Grant"] = grant
        self.windows["RemoteWindow"] = rmaext.RemoteWindow.attach(grant.export())

    def close(self):
        if "Grant" in self.others:
            self.windows["RemoteWindow"].close()
            self.others["Grant"].revoke()
        self.windows["DynamicWindow"].detach(self.array)
        for win in self.windows.values():
            win.close()
        self.compat.Free()


SAID = {
    "Window": ["shape (2, 3)", "float64", "access 'rw'", "rank"],
    "View": ["[1:4]", "shape (3,)", "float64", "access 'rw'", "rank"],
    "FieldView": [".b", "shape (4,)", "float64", "access 'rw'", "rank"],
    "JoinedWindow": ["2 arrays of shape (2,), (3, 1)", "float64", "access 'rw'", "rank"],
    "DynamicWindow": ["1 array attached", "int64", "access 'rw'", "rank"],
    "SharedWindow": ["shape (5,)", "float32", "access 'rw'", "rank"],
    "RemoteWindow": ["shape (4,)", "float64", "access 'r'", "1 rank (1 fabric)"],
    "Grant": ["[1:5]", "float64", "access 'r'", "for the "],
    "Buffer": ["shape (2,)", "float64", "<rmaext.Window "],
    "Prepared": ["put", "shape (2,)", "float64", "offset 1", "<rmaext.Window "],
    "Request": ["done", "shape (4,)", "float64"],
    "ElementUpdates": ["rank 0", "<rmaext.Window "],
    "LockGuard": ["rank ", "<rmaext.Window "],
    "Memory": ["size=48", "access='rw'", "kind='system'"],
    "Registration": ["kind='system'"],
    "Fabric": ["libfabric ", "at "],
}


@pytest.fixture
def things(comm):
    made = Things(comm)
    yield made
    made.close()


def test_each_public_class_says_what_it_is(things):
    found = {**things.windows, **things.others}
    del found["records"]
    for name, thing in found.items():
        text = repr(thing)
        missing = [words for words in SAID[name] if words not in text]
        assert not missing, (missing, text)
        assert name in text, text
        assert "\n" not in text
        assert str(thing) == text
    errors = {name for name in rmaext.__all__ if name in rmaext.errors.__all__}
    absent = {"SharedWindow", "Grant", "RemoteWindow", "Fabric"}  # where there is no such thing
    assert set(rmaext.__all__) - errors - {"elements", "empty", "zeros"} - absent <= set(found)


def test_routes_are_those_of_the_window(things):
    win = things.windows["Window"]
    routes = [win.route(rank) for rank in range(things.comm.size)]
    for route in set(routes):
        assert f"{routes.count(route)} {route}" in repr(win)


def test_the_drop_in_says_what_it_is(things):
    text = repr(things.compat)
    for words in "rmaext.compat.Win", "allocated", "unit 8", "'halo'", "shape (16,)", "uint8":
        assert words in text
    assert repr(rmaext.compat.WIN_NULL) == "<rmaext.compat.Win: null>"


def test_closed(comm):
    things = Things(comm)
    things.close()
    for name, thing in things.windows.items():
        text = repr(thing)
        assert text.endswith("closed>"), text
        missing = [words for words in SAID.get(name, []) if words not in text]
        assert not missing or name == "DynamicWindow", (missing, text)
    assert "revoked" in repr(things.others.get("Grant", "revoked"))
    for thing in things.others.values():
        assert repr(thing)
    assert repr(things.compat) == "<rmaext.compat.Win: null>"


def test_half_made(comm):
    win = rmaext.Window.__new__(rmaext.Window)
    assert repr(win) == "<rmaext.Window: not made>"
    failed = rmaext.Window.__new__(rmaext.Window)
    with pytest.raises(TypeError):
        failed.__init__(comm, "no array")
    assert repr(failed) == "<rmaext.Window: not made>"


class Child(rmaext.Window):
    """A class of a program's own."""


def test_a_subclass_has_its_own_name(comm):
    with Child(comm, np.zeros(1)) as win:
        assert repr(win).startswith(f"<{Child.__module__}.Child ")
        assert "rmaext" not in repr(win)


def test_a_request_that_goes_on_says_what_it_does(comm):
    with rmaext.Window(comm, np.zeros(4)) as win:
        request = win.rput(np.ones(2), comm.rank, 1)
        if hasattr(request, "_call"):
            assert f"rput: window {win._name}, rank {comm.rank}, offset 1, length 2" in repr(
                request
            )
        request.wait()
        assert repr(request).endswith("done>")
        request.free()
        assert repr(request).endswith("freed>")
        with pytest.raises(rmaext.SyncError):
            request.wait()


def test_nothing_is_asked_of_anybody(things, monkeypatch):
    """Not of C either: repr is for debuggers, at any moment."""

    class Forbidden:
        def __getattr__(self, name):
            raise AssertionError(name)

    for module in (rmaext._ops.core, rmaext._window.window, rmaext._ops.request):
        known = {n: getattr(module.lib, n) for n in dir(module.lib) if n.startswith("RMAEXT_")}
        constants = type("Constants", (), known | {"__getattr__": Forbidden.__getattr__})()
        monkeypatch.setattr(module, "lib", constants)
    for thing in [*things.windows.values(), *things.others.values(), things.compat]:
        assert repr(thing)
