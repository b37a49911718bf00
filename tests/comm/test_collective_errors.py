# SPDX-License-Identifier: BSD-3-Clause
"""A collective call fails on all ranks or on none, with the same error."""

from __future__ import annotations

import re

import numpy as np
import pytest
from mpi4py import MPI
from support.collectives import fails_alike, names, works
from support.guarded import descriptors, guarded, neighbour

import rmaext
from rmaext._comm import agreement, window_record

W, A = rmaext.Window, rmaext.Window.allocate


def read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


# error, call of a rank at fault; the others pass three float64
FAULTS = {
    "object": (TypeError, lambda c: W(c, np.zeros(3, object))),
    "strided": (ValueError, lambda c: W(c, np.zeros(6)[::2])),
    "Fortran": (ValueError, lambda c: W(c, np.zeros((2, 2), order="F"))),
    "list": (TypeError, lambda c: W(c, [0.0] * 3)),
    "None": (TypeError, lambda c: W(c, None)),
    "rw over read-only": (rmaext.AccessError, lambda c: W(c, read_only(), "rw")),
    "access": (ValueError, lambda c: W(c, np.zeros(3), "wrong")),
    "timeout": (ValueError, lambda c: W(c, np.zeros(3), timeout=-1)),
    "allocate object": (TypeError, lambda c: A(c, 3, object)),
    "allocate dtype": (TypeError, lambda c: A(c, 3, "nonsense")),
    "allocate negative": (ValueError, lambda c: A(c, -3)),
    "allocate too much": (MemoryError, lambda c: A(c, 2**60, "u1")),
}
# Each call is right by itself, but not like those of the others.
MISMATCHES = {
    "f4": lambda c: W(c, np.zeros(3, "f4")),
    "i8": lambda c: W(c, np.zeros(3, "i8")),
    "byte order": lambda c: W(c, np.zeros(3, ">f8")),
    "structured": lambda c: W(c, np.zeros(3, "f4,f4")),
    "empty i8": lambda c: W(c, np.zeros(0, "i8")),
    "allocate i8": lambda c: A(c, 3, "i8"),
}


def faulty_sets(size):
    return [s for s in ({0}, {size - 1}, {0, size - 1}, set(range(size))) if s]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_on_some_ranks(world, name):
    error, call = FAULTS[name]
    good = A if name.startswith("allocate") else (lambda c, n: W(c, np.zeros(n)))
    with guarded(world, 5, "i4", 7) as before:
        for faulty in faulty_sets(world.size):
            message = fails_alike(world, faulty, error, call, lambda c: good(c, 3))
            if len(faulty) < world.size:
                names(message, sorted(faulty))
            works(world)
        assert before.get(neighbour(world)).tolist() == [7] * 5
        before.fence()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch(world, name):
    def right(comm):
        return A(comm, 3) if name.startswith("allocate") else W(comm, np.zeros(3))

    odd = world.size - 1
    error = (TypeError, ValueError)
    message = fails_alike(world, {odd}, error, MISMATCHES[name], right)
    assert "dtype" in message
    names(message, [odd])
    works(world)


@pytest.mark.mpi(min_size=2)
def test_different_faults_at_once(world):
    """One of the errors, the same on all ranks."""
    calls = [FAULTS[name][1] for name in ("object", "strided", "access", "list")]
    message = fails_alike(
        world,
        range(world.size),
        (TypeError, ValueError),
        lambda c: calls[c.rank % 4](c),
        None,
    )
    assert re.search(r"\brank", message), message
    works(world)


@pytest.mark.mpi(min_size=2)
def test_fault_in_a_sub_communicator_names_its_ranks(world):
    sub = world.Split(0, -world.rank)
    message = fails_alike(sub, {0}, *FAULTS["object"], lambda c: W(c, np.zeros(3)))
    names(message, [0])
    works(sub)
    sub.Free()


def test_fault_elsewhere_is_no_matter(world):
    """Only the ranks of the communicator are concerned."""
    sub = world.Split(world.rank % 2)
    if world.rank % 2:
        with pytest.raises(TypeError):
            W(sub, np.zeros(3, object))
    else:
        works(sub)
    sub.Free()
    works(world)


def test_hundred_failures_leave_nothing_behind(world):
    faulty = {world.size - 1}
    works(world)
    before = descriptors()
    for i in range(100):
        name = ["object", "rw over read-only", "allocate negative"][i % 3]
        fails_alike(world, faulty, *FAULTS[name], lambda c: W(c, np.zeros(3)))
    assert descriptors() <= before + 1
    works(world)


# What a rank sends instead of its record, whose frame agreement.encode makes.
MANGLED = {
    "nothing": lambda r: b"",
    "cut in the frame": lambda r: r[:7],
    "cut": lambda r: r[:-1],
    "too long": lambda r: r + b"x",
    "oversized": lambda r: r + bytes(agreement.LIMIT),
    "not ours": lambda r: b"GET / HTTP/1.1\r\n\r\n",
    "magic": lambda r: b"rmx9" + r[4:],
    "byte order": lambda r: r[:4] + bytes([3 - r[4]]) + r[5:],
    "word size": lambda r: r[:5] + bytes([4]) + r[6:],
    "status": lambda r: r[:6] + bytes([77]) + r[7:],
    "failed without words": lambda r: agreement.encode(b"[]", failed=True),
    "other payload": lambda r: r[:-1] + bytes([r[-1] ^ 1]),
    "empty payload": lambda r: agreement.encode(b""),
    "noise": lambda r: agreement.encode(np.random.default_rng(1).bytes(200)),
}


@pytest.mark.parametrize("mangle", MANGLED.values(), ids=MANGLED)
def test_malformed_record(world, monkeypatch, mangle):
    works(world)
    real, odd = agreement.encode, world.size - 1
    if world.rank == odd:

        def encode(*args, **kwargs):
            with monkeypatch.context() as patch:
                patch.setattr(agreement, "encode", real)
                return mangle(real(*args, **kwargs))

        monkeypatch.setattr(agreement, "encode", encode)
    message = fails_alike(
        world,
        {odd},
        rmaext.KeyRecordError,
        lambda c: W(c, np.zeros(3)),
        lambda c: W(c, np.zeros(3)),
    )
    names(message, [odd])
    monkeypatch.undo()
    works(world)


def test_decoders_refuse_anything_else():
    """Mutations of a good record: the same record again, or KeyRecordError."""
    record = window_record.WindowRecord(
        800, 0, 3, "<f8", bytes(range(32)), 16, (100,), (5, 6, 7, 8)
    )
    good = agreement.encode(record.pack())
    assert window_record.WindowRecord.unpack(agreement.decode(good)[1]) == record
    rng, refused = np.random.default_rng(7), 0
    for i in range(4000):
        payload = bytearray(record.pack())
        if i % 2:
            del payload[rng.integers(len(payload)) :]
        for _ in range(rng.integers(1, 4)):
            if payload:
                payload[rng.integers(len(payload))] ^= 1 << rng.integers(8)
        frame = bytearray(agreement.encode(bytes(payload)) if i % 4 < 2 else good)
        if i % 4 >= 2:
            frame[rng.integers(len(frame))] ^= 1 << rng.integers(8)
        try:
            failed, inside = agreement.decode(bytes(frame))
            if i % 4 >= 2:
                assert failed or inside == record.pack()  # only the pad or the status differ
            window_record.WindowRecord.unpack(inside)
        except rmaext.KeyRecordError:
            refused += 1
    assert refused > 2000


@pytest.mark.parametrize("make", [W, A], ids=["Window", "allocate"])
@pytest.mark.parametrize(
    "name", ["None", "0", "'world'", "MPI.INFO_NULL", "MPI.Comm", "MPI.Comm()"]
)
def test_no_communicator(world, make, name):
    comm = eval(name)
    with pytest.raises((TypeError, ValueError)):
        make(comm, np.zeros(3) if make is W else 3)
    works(world)


def test_null_communicator(world):
    with pytest.raises(ValueError, match=r"(?i)null"):
        W(MPI.COMM_NULL, np.zeros(3))
    works(world)


@pytest.mark.mpi(min_size=2)
def test_intercommunicator(world):
    half = world.Split(world.rank % 2)
    inter = half.Create_intercomm(0, world, 1 - world.rank % 2)
    for make, what in (W, np.zeros(3)), (A, 3):
        with pytest.raises((TypeError, ValueError), match=r"(?i)inter-?comm"):
            make(inter, what)
    inter.Free()
    half.Free()
    works(world)


ONE_RANK_WITHOUT = """
    import os, sys
    from mpi4py import MPI
    import numpy as np, rmaext
    world = MPI.COMM_WORLD
    good = {k: os.environ.get(k) for k in [sys.argv[1]]}
    if world.rank == 1:
        os.environ[sys.argv[1]] = sys.argv[2]
    try:
        rmaext.Window(world, np.zeros(3))
        caught = "nothing"
    except Exception as error:
        caught = f"{type(error).__name__}: {error}"
    everywhere = world.allgather(caught)
    if world.rank == 0:
        assert len(set(everywhere)) == 1, everywhere
        print(caught)
    for key, value in good.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    with rmaext.Window(world, np.zeros(3)) as win:
        win.put(np.full(3, 5.0), 1 - world.rank)
        win.fence()
        assert win.local.tolist() == [5] * 3
    print("works")
"""


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("RMAEXT_PROVIDER", "nonsense", "NoProviderError"),
        ("RMAEXT_LIBFABRIC", "/nonexistent/libfabric.so", "LibraryError"),
    ],
)
def test_fabric_that_opens_on_one_rank_only(mpirun, name, value, error):
    env = {"RMAEXT_ROUTE": "fabric"}
    done = mpirun(2, ONE_RANK_WITHOUT, name, value, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    # two ranks may print into one line
    message = next(line for line in lines if line.replace("works", ""))
    assert message.startswith(error), message
    assert value in message
    names(message, [1])
    assert done.stdout.count("works") == 2


def test_another_build_of_rmaext(mpirun):
    """All ranks are told, at the first window."""
    code = """
        from mpi4py import MPI
        from rmaext._native import cmethods
        import rmaext
        if MPI.COMM_WORLD.rank == 1:
            cmethods.BUILD ^= 1
        try:
            rmaext.Window.allocate(MPI.COMM_WORLD, 3)
        except rmaext.KeyRecordError as error:
            print(error, flush=True)
    """
    done = mpirun(3, code)
    assert done.returncode == 0, done.stderr
    told = sorted(done.stdout.splitlines())
    assert len(told) == 3, done.stdout
    version = re.escape(rmaext.__version__)
    words = rf"runs rmaext {version}-\w+, this rank {version}-\w+ at /.*: install the same one"
    assert re.search(f"rank 1: {words}", told[1]), told
    assert re.search(f"ranks 0, 2: {words}", told[2]), told


@pytest.mark.parametrize("size", [1, 2])
def test_unknown_provider_lists_those_there_are(mpirun, size):
    code = """
        import numpy as np, rmaext
        from mpi4py import MPI
        try:
            rmaext.Window(MPI.COMM_WORLD, np.zeros(3))
        except rmaext.NoProviderError as error:
            print("caught", isinstance(error, LookupError), error)
    """
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_PROVIDER": "nonsense"}
    done = mpirun(size, code, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("caught True") == size
    assert "nonsense" in done.stdout
    assert "tcp" in done.stdout


def test_missing_libfabric(run_python):
    code = """
        import numpy as np, rmaext
        from mpi4py import MPI
        try:
            rmaext.Window(MPI.COMM_WORLD, np.zeros(3))
        except rmaext.LibraryError as error:
            print("caught", error)
    """
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": "/nonexistent/libfabric.so"}
    done = run_python(code, env=env)
    assert done.returncode == 0, done.stderr
    assert "caught" in done.stdout
    assert "/nonexistent/libfabric.so" in done.stdout
