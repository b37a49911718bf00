# SPDX-License-Identifier: BSD-3-Clause
"""What of rmaext is public: names, what is returned, and what type checkers know of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
import rmaext.compat
import rmaext.containers
import rmaext.typing
from rmaext._memory import arrays
from rmaext._ops.atomic_ops import OPERATIONS
from rmaext._sync.waiting import COMPARISONS

ROOT = Path(rmaext.__file__).parent.parent

CLASSES = [getattr(rmaext, name) for name in rmaext.__all__]
CLASSES = [cls for cls in CLASSES if isinstance(cls, type) and not issubclass(cls, Exception)]

# Of `Window`: what each rank calls, by the sections of the reference.
WINDOW = {
    *("allocate", "shared", "dynamic", "subwindow", "dup", "field", "view"),
    *("local", "comm", "dtype", "size", "memory", "route", "fabric", "closed", "peer_view"),
    "local_as",
    *("timeout", "stats"),
    *("put", "get", "accumulate", "get_accumulate", "fetch_op", "fetch_add", "compare_and_swap"),
    *("load", "store"),
    *("put_many", "get_many", "accumulate_many", "fetch_op_many", "fetch_add_many"),
    *("compare_and_swap_many", "get_ranges", "put_ranges", "rget_ranges", "rput_ranges"),
    *("rput_many", "rget_many", "raccumulate_many", "rfetch_op_many", "rcompare_and_swap_many"),
    *("rput", "rget", "raccumulate", "rget_accumulate", "rfetch_op", "rcompare_and_swap"),
    *("put_notify", "get_notify", "rput_notify", "wait_notify", "test_notify", "notify_counts"),
    *("wait_any", "wait_some", "wait_all", "wait_until"),
    *("at", "register", "prepare_put", "prepare_get", "prepare_fetch_add", "numba", "check"),
    *("flush", "flush_all", "flush_local", "flush_local_all", "sync", "fence", "close"),
    *("lock", "unlock", "lock_all", "unlock_all"),
    *("post", "start", "complete", "wait", "test"),
    *("connect", "advise", "refresh", "writes_received", "export", "grant", "grants"),
}
NAMES = {
    "Window": WINDOW,
    "View": WINDOW,
    "FieldView": WINDOW,
    "JoinedWindow": WINDOW,
    "SharedWindow": WINDOW | {"whole"},
    "DynamicWindow": WINDOW | {"attach", "detach"},
    "RemoteWindow": WINDOW | {"attach"},
    "Buffer": {"array", "window", "put", "get", "fetch_add"},
    "Prepared": {"array", "window"},
    "ElementUpdates": {"add", "update"},
    "Request": {
        *("done", "test", "wait", "result", "cancel", "free"),
        *("waitall", "waitany", "testall", "testany"),
    },
    "Grant": {"export", "revoke"},  # and what an object has: start, stop, access, revoked
    "LockGuard": set(),
    "Memory": {"describe", "kind", "device", "ordering"},
    "Fabric": {
        *("provider", "domain", "address", "version", "library", "key_size", "auth_key_size"),
        "transport",
        *("iov_limit", "capabilities", "mr_bits", "mr_mode", "guarded", "stats"),
    },
    "Registration": {
        *("key", "auth_key", "ordering", "kind", "device", "persistent", "counts_writes"),
    },
}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_of_the_package():
    assert public(rmaext) == {*rmaext.__all__, "compat", "containers", "errors", "jit", "typing"}
    for name in rmaext.__all__:
        assert getattr(rmaext, name) is not None


def test_of_the_modules():
    assert public(rmaext.errors) == set(rmaext.errors.__all__)
    assert set(rmaext.errors.__all__) < set(rmaext.__all__)
    assert public(rmaext.compat) == {"WIN_NULL", "Win", "auto"}


def test_without_initialising_mpi():
    """As `python -m rmaext` has it, whose names are imported when they are asked for."""
    code = "import sys; sys.argv = ['-m']; import rmaext; print(*sorted(dir(rmaext)))"
    code += "; assert 'mpi4py.MPI' not in sys.modules; rmaext.Window; rmaext.typing.Access"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert not done.returncode, done.stderr
    names = {name for name in done.stdout.split() if not name.startswith("_")}
    assert names == public(rmaext)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_of_a_class(cls):
    assert public(cls) == NAMES[cls.__name__]


@pytest.mark.parametrize("module", [rmaext, rmaext.containers], ids=lambda it: it.__name__)
def test_wrong_arguments_are_told_by_its_own_name(module):
    """Of an inherited constructor, too; and of kinds of windows that other calls make."""
    for name in module.__all__:
        cls = getattr(module, name)
        if isinstance(cls, type) and not issubclass(cls, Exception) and name != "TorchDataset":
            with pytest.raises(TypeError) as told:
                cls(MPI.COMM_SELF, colour="blue")
            assert name in str(told.value) or "function takes" in str(told.value)
    kinds = [cls for cls in CLASSES if issubclass(cls, rmaext.Window) and cls is not rmaext.Window]
    for kind in kinds:
        for make in (kind, kind.allocate)[kind is rmaext.JoinedWindow :]:
            with pytest.raises(TypeError, match=f"^a {kind.__name__} is made by "):
                make(MPI.COMM_SELF, np.zeros(3))
    assert len(kinds) == 6


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_is_returned_is_public(cls):
    """Whatever the annotation of a public method or property names."""
    foreign = {"Any", "Array", "Comm", "MPI", "NDArray", "NoReturn", "None", "Self"}
    known = {*rmaext.__all__, *rmaext.typing.__all__, *foreign}
    for name in public(cls):
        member = inspect.getattr_static(cls, name)
        member = member.fget if isinstance(member, property) else member
        member = getattr(member, "__func__", member)
        annotation = str(getattr(member, "__annotations__", {}).get("return", ""))
        words = {word for word in re.findall(r"\w+", annotation) if word[0].isupper()}
        assert words <= known, name


def test_the_drop_in_has_the_names_of_the_original():
    from mpi4py import MPI

    assert public(rmaext.compat.Win) == public(MPI.Win)


def test_words_are_those_that_are_checked():
    words = {name: typing.get_args(getattr(rmaext.typing, name)) for name in rmaext.typing.__all__}
    assert set(words["Operation"]) == set(OPERATIONS)
    assert set(words["Comparison"]) == set(COMPARISONS)
    assert set(words["Access"]) == {arrays.access_name(bits) for bits in (1, 2, 3)}


def test_subscripts_cost_nothing():
    import numpy as np

    assert rmaext.Window[np.float64].__origin__ is rmaext.Window
    assert rmaext.Buffer[np.float64].__args__ == (np.float64,)
    assert typing.Generic not in rmaext.Window.__mro__


@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", ["tree", "elsewhere"])
def test_what_a_type_checker_knows(where, tmp_path):
    """In the tree, and in a user's folder: it has to find what is installed, editable or not."""
    program = ROOT / "tests" / "unit" / "programs" / "typed.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", str(program)]
    if where == "elsewhere":  # and for the oldest Python, which lacks some of typing's names
        command += ["--python-version=3.10", f"--cache-dir={ROOT / '.mypy_cache'}"]
    folder = ROOT if where == "tree" else tmp_path
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=390)
    assert not done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["Create", "create", "Allocate", "Free", "free", "Put", "Fetch_and_op"]
)
def test_a_name_of_mpi4py_says_what_it_is_here(name):
    with rmaext.Window.allocate(MPI.COMM_SELF, 3) as win:
        for owner in (win, rmaext.Window):
            assert name not in dir(owner)
            with pytest.raises(AttributeError, match=f"no {name}: it is .* here") as info:
                getattr(owner, name)
            there = re.search(r"it is (?:Window\.)?(\w+)", str(info.value))[1]
            assert hasattr(rmaext if there == "Window" else rmaext.Window, there)
        assert "local" in dir(win)


def test_the_memory_of_a_window_is_updated_in_place_and_not_replaced():
    with rmaext.Window.allocate(MPI.COMM_SELF, 3) as win:
        win.local += 2
        win.local *= 3
        assert win.get(0).tolist() == [6, 6, 6]
        for other in (np.ones(3), win.local[:2], win.local.view("i8"), 7):
            with pytest.raises(AttributeError, match=r"win\.local\[\.\.\.\] = values"):
                win.local = other
        win.close()
        with pytest.raises(rmaext.ClosedError):
            win.local += 1
    with rmaext.Window.shared(MPI.COMM_SELF, 3) as win:
        win.whole += 1
        with pytest.raises(AttributeError, match="whole"):
            win.whole = np.ones(3)
        assert win.local.tolist() == [1, 1, 1]
