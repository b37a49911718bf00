# SPDX-License-Identifier: BSD-3-Clause
"""What a window asks of the registration of its memory: keys, rights, kinds, pieces."""

from __future__ import annotations

import errno
import sys
import tempfile

import launch
import numpy as np
import pytest
from support.collectives import fails_alike, names, works
from support.guarded import neighbour
from support.libraries import MRAIL, SYSTEM, WHEEL

import rmaext
from rmaext._fabric.library import _of_2

pytestmark = pytest.mark.pair

W, A = rmaext.Window, rmaext.Window.allocate
KEY = 0x1234_5678_9ABC_DE00


def number(key):
    return int.from_bytes(key, sys.byteorder)


# -- arguments ---------------------------------------------------------------------

BAD = {
    "unknown": (TypeError, "colour.*key, auth_key", {"colour": 3}),
    "key type": (TypeError, "key='7'", {"key": "7"}),
    "key float": (TypeError, "key=7.0", {"key": 7.0}),
    "key negative": (ValueError, "key=-1", {"key": -1}),
    "key too long": (ValueError, "2\\*\\*64", {"key": 1 << 64}),
    "no key": (ValueError, "2\\*\\*64", {"key": (1 << 64) - 1}),  # libfabric's word for that
    "auth_key type": (TypeError, "auth_key: must be bytes, not str", {"auth_key": "secret"}),
    "ordering": (ValueError, "strict, relaxed", {"ordering": "none"}),
    "ordering type": (TypeError, "ordering=None", {"ordering": None}),
    "kind": (ValueError, "system, cuda, rocr, ze, neuron, synapseai", {"kind": "gpu"}),
    "kind type": (TypeError, "kind=1", {"kind": 1}),
    "device type": (TypeError, "device=0.5", {"kind": "cuda", "device": 0.5}),
    "device negative": (ValueError, "device=-1", {"kind": "cuda", "device": -1}),
    "device of none": (ValueError, "kind='system'", {"device": 1}),
    "persistent": (TypeError, "persistent=1", {"persistent": 1}),
    "counts_writes": (TypeError, "counts_writes='no'", {"counts_writes": "no"}),
}


@pytest.mark.parametrize("make", ["array", "list", "allocate"])
@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(world, name, make):
    """On all ranks, which says whose it is, and before anything is registered."""
    error, words, how = BAD[name]
    calls = {
        "array": lambda c, **how: W(c, np.zeros(3), **how),
        "list": lambda c, **how: W(c, [np.zeros(3), np.zeros(2)], **how),
        "allocate": lambda c, **how: A(c, 3, **how),
    }
    call, last = calls[make], world.size - 1
    with pytest.raises(error, match=words):
        rmaext.Registration(**how) if name != "unknown" else call(world, **how)
    message = fails_alike(world, {last}, error, lambda c: call(c, **how), call)
    if world.size > 1:
        names(message, [last])
    works(world)


def test_it_is_told_what_it_is():
    one = rmaext.Registration(key=np.uint64(7), auth_key=bytearray(b"ab"), kind="ze", device=2)
    assert one == rmaext.Registration(7, b"ab", "strict", "ze", 2)
    assert one._needs_network
    assert hash(one)
    assert not rmaext.Registration(ordering="relaxed", persistent=True)._needs_network
    with pytest.raises(AttributeError):
        one.key = 8


def test_ordering_is_a_hint(comm):
    """What was granted is said: nobody grants the relaxed one."""
    with W(comm, np.zeros(3), ordering="relaxed") as win:
        assert win.memory.ordering == "strict"
        win.put(1.0, neighbour(comm))
        win.fence()
        assert win.local[0] == 1


# -- keys --------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["array", "allocate"])
def test_key(comm, make):
    """Also where all ranks are reached by memory."""
    key = KEY + comm.rank
    how = {"key": key}
    with W(comm, np.zeros(4), **how) if make == "array" else A(comm, 4, **how) as win:
        assert number(win.memory.key) == key
        assert win.fabric is not None
        peer = neighbour(comm)
        win.put(np.arange(4.0), peer)
        assert win.fetch_add(2.0, peer, 3) == 3
        win.fence()
        assert win.local.tolist() == [0, 1, 2, 5]
        win.fence()
    with W(comm, np.zeros(4), key=key) as win:  # it was given back
        assert number(win.memory.key) == key


def test_route_is_what_it_is_without_a_key(comm):
    with A(comm, 4) as plain, A(comm, 4, key=KEY) as win:
        ranks = range(comm.size)
        assert [win.route(rank) for rank in ranks] == [plain.route(rank) for rank in ranks]


@pytest.mark.parametrize("whose", ["one", "all"])
def test_key_that_is_taken(world, whose):
    last = world.size - 1
    faulty = {last} if whose == "one" else set(range(world.size))
    with W(world, np.zeros(3), key=KEY + world.rank) as first:

        def again(comm):
            return W(comm, np.zeros(3), key=KEY + comm.rank)

        def right(comm):
            return W(comm, np.zeros(3))

        message = fails_alike(world, faulty, rmaext.NoKeyError, again, right)
        assert "fi_mr_regattr" in message
        assert f"provider {first.fabric.provider}" in message
        assert f"{KEY + min(faulty):#x}" in message
        if world.size > 1:
            names(message, sorted(faulty))
        works(world)


def test_rank_without_elements_needs_no_key(world):
    array = np.zeros(0 if world.rank == 0 else 3)
    with W(world, array, key=KEY) as win:
        assert number(win.memory.key) == (0 if world.rank == 0 else KEY)


REFUSED = """
    import numpy as np, rmaext
    from mpi4py import MPI
    how = dict({how})
    try:
        rmaext.Window(MPI.COMM_SELF, np.zeros(3), **how)
    except rmaext.RmaError as error:
        print(type(error).__name__, error.errno, error.call, error, sep="\\t")
    with rmaext.Window(MPI.COMM_SELF, np.zeros(3)) as win:
        win.put(1.0, 0)
        win.flush()
        assert win.local[0] == 1
"""


def refused(run_python, how, env):
    code = REFUSED.replace("{how}", how)
    done = run_python(code, env={"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": SYSTEM} | env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("\t")


def test_providers_that_choose_keys(run_python):
    kind, code, call, words = refused(run_python, "key=5", {"RMAEXT_MR_MODE": "basic"})
    assert (kind, call) == ("KeyRejectedError", "fi_mr_regattr")
    assert int(code) == errno.EKEYREJECTED
    assert "key=0x5" in words
    assert f"{'tcp' if _of_2(SYSTEM) else 'tcp;ofi_rxm'} chooses the keys" in words
    assert "PROV_KEY" in words


@pytest.mark.skipif(_of_2(SYSTEM), reason="mrail takes no messages in 2.x")
def test_raw_keys_cannot_be_chosen(run_python):
    kind, _, _, words = refused(run_python, "key=5", MRAIL)
    assert kind == "KeyRejectedError"
    assert "RAW" in words


# -- what the providers at hand do not have ----------------------------------------

LACKING = {
    "auth_key": ({"auth_key": b"secret"}, "{} has no authorization keys"),
    "counts_writes": ({"counts_writes": True}, "{} does not count"),
    "kind": ({"kind": "cuda"}, "kind='cuda': .*{}.*FI_HMEM"),
    "device": ({"kind": "rocr", "device": 1}, "kind='rocr': .*FI_HMEM"),
}


@pytest.mark.parametrize("name", LACKING)
def test_unsupported(world, name):
    """Said in words, on all ranks, and nothing is left registered."""
    how, words = LACKING[name]
    with W(world, np.zeros(3), key=KEY) as other:
        fabric = other.fabric
        before = fabric.stats
        message = fails_alike(
            world, {0}, rmaext.Unsupported, lambda c: W(c, np.zeros(3), **how), lambda c: A(c, 3)
        )
        assert words.split(".*")[0].format(fabric.provider) in message, message
        names(message, [0])
        counts = fabric.stats
        opened = counts["registrations"] - before["registrations"]
        assert opened == counts["deregistrations"] - before["deregistrations"]
    works(world)


class Cuda:
    """What the arrays of CuPy, Numba and PyTorch have."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (1,), "typestr": "<f8", "data": (0x10000, False), "version": 3}


class Tensor:
    """What the arrays of other libraries have."""

    def __init__(self, kind):
        self.kind = kind

    def __dlpack__(self):
        raise AssertionError("nobody shall ask for it")

    def __dlpack_device__(self):
        return self.kind, 0


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (Cuda(), rmaext.LibraryError, r"Cuda on a device: .*RMAEXT_CUDA"),
        (Tensor(2), rmaext.LibraryError, r"Tensor on a device: .*RMAEXT_CUDA"),
        (Tensor(10), rmaext.Unsupported, r"device \(rocr\)"),
        (Tensor(14), rmaext.Unsupported, r"device \(ze\)"),
        (Tensor(7), rmaext.Unsupported, r"device \(DLPack's number 7\)"),
        (Tensor(1), TypeError, r"numpy\.from_dlpack"),
        (Tensor(13), TypeError, r"numpy\.from_dlpack"),
    ],
)
def test_arrays_of_devices(comm, array, error, words, monkeypatch):
    monkeypatch.setenv("RMAEXT_CUDA", "/no/libcuda.so")
    with pytest.raises(error, match=words):
        W(comm, array)
    if error is rmaext.LibraryError:  # of several arrays none may lie there
        error, words = rmaext.Unsupported, r"device \(cuda\)"
    with pytest.raises(error, match=words):
        W(comm, [np.zeros(3), array])
    works(comm)


def test_devices_that_are_not_there(run_python):
    """Where a provider does FI_HMEM, and where none does."""
    code = """
    import numpy as np, rmaext
    from mpi4py import MPI
    with rmaext.Window(MPI.COMM_SELF, np.zeros(3)) as win:
        for kind in "cuda", "rocr", "ze":
            try:
                rmaext.Window(MPI.COMM_SELF, np.zeros(3), kind=kind)
            except rmaext.RmaError as error:
                print(error.call, error, sep="\\t")
        win.put(1.0, 0)
        assert win.get(0)[0] == 1
    """
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_MR_MODE": "hmem"}
    done = run_python(code, env=env | {"RMAEXT_PROVIDER": "shm", "RMAEXT_LIBFABRIC": WHEEL})
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [call for call, _ in lines] == ["fi_mr_regattr"] * 3, lines
    assert all("provider shm" in words for _, words in lines)
    done = run_python(code, env=env | {"RMAEXT_LIBFABRIC": SYSTEM})
    assert "NoProviderError" in done.stderr
    assert "FI_HMEM" in done.stderr


# -- rights ------------------------------------------------------------------------


@pytest.fixture
def file():
    """One of 32 zeros, of this rank alone."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(32))
        file.flush()
        yield file


def test_rights_are_some_of_those_of_the_memory(comm, file):
    """ibv_reg_mr(3): what nobody may write cannot be registered for writing."""
    mapped = np.memmap(file, "f8", "r")
    strings = np.frombuffer(bytes(32))
    peer = neighbour(comm)
    for array in mapped, strings:
        for access in "w", "rw":
            with pytest.raises(rmaext.AccessError, match="read-only"):
                W(comm, array, access=access)
        with W(comm, array) as win:
            assert win.memory.access == "r"
            assert not win.get(peer).any()
            for call in (
                lambda win=win: win.put(1.0, peer),
                lambda win=win: win.accumulate(1.0, peer),
                lambda win=win: win.fetch_add(1.0, peer),
            ):
                with pytest.raises(rmaext.AccessError):
                    call()


def test_maps_that_are_written(comm, file):
    """The second is private to the process: the file stays as it is."""
    for mode in "r+", "c":
        with W(comm, np.memmap(file, "f8", mode)) as win:
            win.put(2.0 if mode == "r+" else 3.0, neighbour(comm), 3)
            win.fence()
            assert win.local[3] == (2 if mode == "r+" else 3)
            win.fence()
    file.seek(24)
    assert np.frombuffer(file.read())[0] == 2


# -- other pages, and counts -------------------------------------------------------


def test_refresh(comm):
    """Nobody here wants to be told: nothing happens, but to bad arguments."""
    with W(comm, np.zeros((2, 3))) as win, W(comm, [np.zeros(3), np.zeros(2)]) as pair:
        view = win.subwindow(2, 5)
        for window in win, view, pair:
            for part in None, slice(None), slice(1, 2), slice(-2, None), slice(2, 1), slice(9, 99):
                window.refresh(part)
            with pytest.raises(TypeError, match="a slice, not int"):
                window.refresh(3)
            with pytest.raises(TypeError):
                window.refresh(slice("a", "b"))
            with pytest.raises(ValueError, match="without a step"):
                window.refresh(slice(0, 3, 2))
    with pytest.raises(rmaext.ClosedError):
        win.refresh()


def test_writes_received_is_asked_for(comm):
    with W(comm, np.zeros(3)) as win, W(comm, [np.zeros(3), np.zeros(3)]) as pair:
        for window in win, win.subwindow(0, 2), pair:
            with pytest.raises(rmaext.Unsupported, match="counts_writes=True"):
                window.writes_received  # noqa: B018
    with pytest.raises(rmaext.ClosedError):
        win.writes_received  # noqa: B018


def test_writes_received(mpirun):
    """Of the providers at hand, sockets counts."""
    code = """
        import os
        import numpy as np, rmaext
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        with rmaext.Window(world, np.zeros(8, "i8"), counts_writes=world.rank == 1) as win:
            if world.rank == 0:
                for i in range(5):
                    win.put(i, 1, i)
                win.flush()
                win.get(1)
            win.fence()
            if world.rank == 1:
                assert win.local[4] == 4
                print(win.writes_received, win.subwindow(0, 2).writes_received)
        arrays = [np.zeros(4), np.zeros(4)]
        with rmaext.Window(world, arrays, counts_writes=True) as win:
            win.put(np.ones(8), 1 - world.rank)
            win.fence()
            assert win.writes_received == 2, win.writes_received
    """
    env = {"RMAEXT_PROVIDER": "sockets", "RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": SYSTEM}
    done = mpirun(2, code, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "5 5\n"


# -- several arrays ----------------------------------------------------------------


def test_arrays_in_several_regions(comm):
    """These providers take one piece at a time, and one key is for one region."""
    arrays = [np.zeros(3), np.zeros(0), np.zeros(2)]
    with W(comm, np.zeros(3), key=KEY - 1) as other:
        before = other.fabric.stats["registrations"]
        direct = launch.test_route() == "direct" or comm.size == 1
        with W(comm, arrays) as win:
            assert other.fabric.iov_limit == 1
            if not direct or launch.test_route() == "fabric":
                assert other.fabric.stats["registrations"] == before + 2
            win.put(np.arange(5.0), neighbour(comm))
            win.fence()
            assert arrays[2].tolist() == [3, 4]
            win.fence()
    with pytest.raises(rmaext.KeyRejectedError, match="2 registrations"):
        W(comm, arrays, key=KEY)
    with W(comm, arrays[:2], key=KEY) as win:
        assert [number(part.key) for part in win.memory] == [KEY, 0]
        win.put(np.full(3, 7.0), neighbour(comm))
        win.fence()
        assert (arrays[0] == 7).all()
        win.fence()
