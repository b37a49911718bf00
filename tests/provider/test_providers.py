# SPDX-License-Identifier: BSD-3-Clause
"""Every provider and libfabric there is: put, get, atomics or a typed refusal, close.

A quick choice runs always, the rest with `make test-matrix`.
"""

from __future__ import annotations

import os
import re

import launch
import pytest
from support.libraries import LIBRARIES, MRAIL, SYSTEM, WHEEL

# Two ranks move data both ways, small and large, contiguous and strided, then
# try the atomics.
WORK = """
    import os
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    os.environ["RMAEXT_NODE"] = f"node {world.rank}"

    peer, N = 1 - world.rank, 1 << 17  # 1 MiB
    rng = [np.random.default_rng(seed) for seed in (0, 1)]
    small, large = ([r.integers(-2**62, 2**62, n) for r in rng] for n in (100, N))
    guard = np.full(3 * N, -1, "i8")
    array = guard[N : 2 * N]
    other = rmaext.Window.allocate(world, 2 * N, "i4")
    with rmaext.Window(world, array) as win:
        fabric = win.fabric
        assert win.route(peer) == "fabric", win.route(peer)
        if world.rank == 0:
            print(fabric.provider, fabric.version, fabric.mr_mode, fabric.key_size, sep="\\t")
        for _ in range(3):
            win.put(large[world.rank], peer)
            win.fence()
            assert (array == large[peer]).all()
            win.fence()
            win.put(small[world.rank], peer, 7)
            win.put(small[world.rank][::2], peer, 1000)
            win.put(np.asfortranarray(small[world.rank].reshape(10, 10)), peer, N - 100)
            win.flush(peer)
            assert (win.get(peer, 7, 100) == small[world.rank]).all()
            win.fence()
            expected = large[peer].copy()
            expected[7:107] = small[peer]
            expected[1000:1050] = small[peer][::2]
            expected[N - 100 :] = small[peer]
            assert (array == expected).all()
            out = np.zeros(N, "i8")
            assert win.get(peer, out=out) is out
            expected = large[world.rank].copy()
            expected[7:107] = small[world.rank]
            expected[1000:1050] = small[world.rank][::2]
            expected[N - 100 :] = small[world.rank]
            assert (out == expected).all()
            win.fence()
        other.put(np.arange(2 * N, dtype="i4"), peer)
        other.fence()
        assert (other.local == np.arange(2 * N)).all()

        # atomics, or Unsupported and the next operation works
        win.local[:5] = 0
        win.fence()
        refused = set()
        for _ in range(20):
            for target in 0, 1:
                try:
                    win.fetch_add(3, target, 1)
                    win.fetch_add(np.arange(3), target, 2)
                    while (old := win.get(target, 0, 1)[0]) != win.compare_and_swap(
                        int(old), int(old) + 1, target, 0
                    ):
                        pass
                except rmaext.Unsupported as error:
                    assert error.rank == target, error
                    refused.add(target)
        assert (win.get(peer, 7, 100) == small[world.rank]).all()
        win.fence()
        ranks = 2 - (peer in refused) - (world.rank in refused)
        assert win.local[:5].tolist() == [20 * ranks, 60 * ranks, 0, 20 * ranks, 40 * ranks]
        assert world.rank not in refused or win.route(world.rank) == "fabric"
        try:
            win.put(large[0], peer, 1)
        except rmaext.BoundsError:
            pass
        win.fence()
        everywhere = world.allgather(peer in refused)
        assert len(set(everywhere)) == 1, everywhere
    other.close()
    assert (guard[:N] == -1).all() and (guard[2 * N :] == -1).all()
    print("no atomics" if refused else "atomics")
"""


def work(library, env):
    """Run it; returns provider, mr_mode, key size and whether there are atomics."""
    if not os.path.exists(LIBRARIES[library]):
        pytest.skip(f"no {LIBRARIES[library]}")
    env = {"RMAEXT_LIBFABRIC": LIBRARIES[library]} | env
    done = launch.mpirun(2, WORK, timeout=60, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    described = next(line for line in done.stdout.splitlines() if "\t" in line)
    provider, version, mr_mode, key_size = described.split("\t")
    assert version.startswith("2.") or library == "system"
    assert done.stdout.count("atomics") == 2
    return provider, mr_mode, int(key_size), "no atomics" not in done.stdout


# environment, what of it: provider, mr_mode, key size, atomics
CASES = {
    "default": ({}, "tcp;ofi_rxm", "none", 8, True),
    "rxm": ({"RMAEXT_PROVIDER": "tcp;ofi_rxm"}, "tcp;ofi_rxm", "none", 8, True),
    "rxm basic": (
        {"RMAEXT_PROVIDER": "tcp;ofi_rxm", "RMAEXT_MR_MODE": "basic"},
        *("tcp;ofi_rxm", "BASIC|VIRT_ADDR|ALLOCATED|PROV_KEY", 8, True),
    ),
    "mrail": (MRAIL, "tcp;ofi_rxm;ofi_mrail", "RAW", 32, True),
    "sockets": ({"RMAEXT_PROVIDER": "sockets"}, "sockets", "none", 8, True),
    "sockets basic": (
        {"RMAEXT_PROVIDER": "sockets", "RMAEXT_MR_MODE": "basic"},
        *("sockets", "BASIC|VIRT_ADDR|ALLOCATED|PROV_KEY", 8, True),
    ),
    "rxd": ({"RMAEXT_PROVIDER": "udp;ofi_rxd"}, "udp;ofi_rxd", "none", 8, True),
    "shm": ({"RMAEXT_PROVIDER": "shm"}, "shm", "VIRT_ADDR", 8, True),
    "net": ({"RMAEXT_PROVIDER": "net"}, "net", "none", 8, True),
    "tcp": ({"RMAEXT_PROVIDER": "tcp"}, "tcp", "none", 8, True),
}
ABSENT = {
    ("mrail", "wheel"),
    ("net", "wheel"),
    ("tcp", "system"),
    ("sockets", "wheel"),
    ("sockets basic", "wheel"),
}
QUICK = {("default", "system"), ("default", "wheel"), ("mrail", "system")}


@pytest.mark.parametrize(
    ("name", "library"),
    [
        pytest.param(name, library, marks=[] if (name, library) in QUICK else pytest.mark.matrix)
        for name in CASES
        for library in LIBRARIES
        if (name, library) not in ABSENT
    ],
)
def test_provider(name, library):
    _, *expected = CASES["tcp" if (name, library) == ("default", "wheel") else name]
    assert list(work(library, CASES[name][0])) == expected


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["default", "mrail"])
def test_every_rank_by_the_fabric(name):
    env, *expected = CASES[name]
    assert [*work("system", env | {"RMAEXT_ROUTE": "fabric"})] == expected


SHORT = """
    import os
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    os.environ["RMAEXT_NODE"] = f"node {world.rank}"

    peer, N = 1 - world.rank, (4 << 20) + 1  # a chunk, and a byte
    data = np.random.default_rng(1).integers(0, 256, N).astype("u1")
    out = np.zeros(1, "u1")
    with rmaext.Window(world, np.zeros(N, "u1")) as win, rmaext.Window(world, out.copy()) as one:
        assert win.route(peer) == one.route(peer) == "fabric"
        for i, byte in enumerate(b"bytes"):
            win.put(np.uint8(byte), peer, i)
        win.flush()
        assert bytes(win.get(peer, 0, 5)) == b"bytes"
        assert bytes(win.get(peer, 1, 1)) == b"y"
        win.rput(out + np.uint8(65), peer, 2).wait()
        win.flush()
        win.rget(peer, 2, out=out).wait()
        assert out[0] == 65
        one.put(np.uint8(7), peer)
        one.fence()
        assert one.local[0] == one.get(peer)[0] == 7
        for n in N, N - 1, N - 2:
            win.fence()
            win.put(data[:n], peer)
            win.fence()
            assert (win.local[:n] == data[:n]).all(), n
            assert (win.get(peer, 0, n) == data[:n]).all(), n
        win.fence()
        # and an update of more than a message to mrail may have
        assert (win.get_accumulate(np.ones(100000, "u1"), peer) == data[:100000]).all()
        win.fence()
        assert (win.local[:100000] == data[:100000] + np.uint8(1)).all()
    print("done")
"""


def test_fewer_bytes_than_rails():
    env = {**MRAIL, "RMAEXT_LIBFABRIC": SYSTEM}
    done = launch.mpirun(2, SHORT, timeout=60, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["done"] * 2


# A libfabric with the provider ucx: neither Debian's 1.17 nor the MPIs' 2.5.1 is one.
UCX = os.environ.get("RMAEXT_TEST_UCX", "")

TRANSFERS = """
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    peer, N = 1 - world.rank, 1 << 17
    data = [np.random.default_rng(r).integers(-2**62, 2**62, N) for r in (0, 1)]
    with rmaext.Window(world, np.zeros(N, "i8")) as win:
        assert win.route(peer) == "fabric", win.route(peer)
        for n in 1, 100, N:
            win.put(data[world.rank][:n], peer)
            win.flush()
            assert (win.get(peer, 0, n) == data[world.rank][:n]).all()
            win.fence()
            assert (win.local[:n] == data[peer][:n]).all()
            win.fence()
        if world.rank == 0:
            print(win.fabric.provider, win.fabric.mr_mode, win.fabric.key_size)
"""


@pytest.mark.matrix
@pytest.mark.skipif(not UCX, reason="RMAEXT_TEST_UCX names no libfabric with the provider ucx")
def test_transfers_over_ucx():
    """Not its messages: libfabric 2.5.1 loses some, so there are no updates over it."""
    env = {
        **{"RMAEXT_LIBFABRIC": UCX, "RMAEXT_PROVIDER": "ucx", "RMAEXT_ROUTE": "fabric"},
        "FI_UCX_DEVICES": "lo",  # by itself it wants a NIC
    }
    done = launch.mpirun(2, TRANSFERS, timeout=60, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[:1] == ["ucx"]
    assert "RAW|VIRT_ADDR" in done.stdout


# -- the whole of what programs may rely on ------------------------------------------

SEMANTICS = [
    *(
        "sync/test_memory_model.py",
        "sync/test_conformance_epochs.py",
        "window/test_misuse.py",
        "sync/test_sync_misuse.py",
    ),
    *("ops/test_conformance_updates.py", "sync/test_conformance_calls.py"),
    *("ops/test_concurrent_updates.py", "ops/test_updates.py"),
]
FULLY = [
    *[
        (name, library, size)
        for name in ("default", "rxm")
        for library in LIBRARIES
        for size in (2, 4)
    ],
    *[("mrail", "system", size) for size in (2, 4)],
    *[("net", "system", 2), ("rxm basic", "system", 2)],
]


@pytest.mark.matrix
@pytest.mark.timeout(820)
@pytest.mark.parametrize(("name", "library", "size"), FULLY)
def test_semantics(name, library, size):
    """All goes by this provider, to the own rank as well."""
    if not os.path.exists(LIBRARIES[library]):
        pytest.skip(f"no {LIBRARIES[library]}")
    env = CASES[name][0] | {"RMAEXT_LIBFABRIC": LIBRARIES[library]}
    done = launch.mpirun_tests(size, SEMANTICS, "-q", "-x", timeout=800, route="fabric", env=env)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout[-2000:]


# -- what cannot be ------------------------------------------------------------------

REFUSED = """
    import os, sys
    from mpi4py import MPI
    import numpy as np
    world = MPI.COMM_WORLD
    if sys.argv[1:]:
        os.environ["FI_PROVIDER"] = sys.argv[1]
    import rmaext
    for make in lambda: rmaext.Window(world, np.zeros(3)), lambda: rmaext.Window.allocate(world, 3):
        try:
            make()
        except LookupError as error:
            caught = f"{type(error).__name__}: {error}"
        everywhere = world.allgather(caught)
        assert len(set(everywhere)) == 1, everywhere
    if world.rank == 0:
        print(caught)
"""


@pytest.mark.parametrize(
    ("env", "filtered", "words"),
    [
        pytest.param(
            {"RMAEXT_PROVIDER": "nonsense"},
            [],
            r"NoProviderError: .*'nonsense'.*libfabric \d+\.\d+ offers: .*tcp;ofi_rxm",
            marks=pytest.mark.matrix,  # test_collective_errors has a quick one
        ),
        ({}, ["udp"], r"NoProviderError: none of cxi, .*tcp;ofi_rxm.*FI_PROVIDER=udp may hide it"),
        pytest.param(
            {"RMAEXT_LIBFABRIC": "/nonexistent/libfabric.so.1"},
            [],
            r"LibraryError: ranks 0, 1: .*/nonexistent/libfabric\.so\.1.*RMAEXT_LIBFABRIC",
            marks=pytest.mark.matrix,  # test_config has a quick one
        ),
        (
            {"RMAEXT_LIBFABRIC": f"/lib/{os.uname().machine}-linux-gnu/libm.so.6"},
            [],
            r"LibraryError: ranks 0, 1: .*libm\.so\.6.*fi_getinfo.* not a libfabric",
        ),
        pytest.param(
            {"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": WHEEL} | MRAIL,
            [],
            r"NoProviderError: .*ofi_mrail: takes some 2,048 messages only in libfabric 2\.x",
            marks=pytest.mark.skipif(not os.path.exists(WHEEL), reason="no libfabric 2.x"),
        ),
    ],
    ids=["provider", "filter", "missing library", "other library", "rails that run dry"],
)
def test_refused_on_all_ranks(mpirun, env, filtered, words):
    env = {"RMAEXT_LIBFABRIC": SYSTEM} | env
    done = mpirun(2, REFUSED, *filtered, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(words, done.stdout), done.stdout


@pytest.mark.skipif(not os.path.exists(WHEEL), reason="no libfabric 2.x")
def test_ranks_with_different_libfabrics_are_told(mpirun):
    code = """
        import os, sys
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        os.environ["RMAEXT_LIBFABRIC"] = sys.argv[1 + comm.rank]
        import rmaext
        with rmaext.Window.allocate(comm, 3) as win:
            win.put(1.0, 1 - comm.rank)
            win.fence()
            assert win.local[0] == 1
    """
    done = mpirun(2, code, SYSTEM, WHEEL, env={"RMAEXT_ROUTE": "fabric"})
    assert done.returncode == 0, done.stderr
    assert re.findall(r"rank 0 has libfabric \S+, but rank 1 another", done.stderr), done.stderr


def test_another_provider_later(run_python):
    """One process has one endpoint of a kind: it says so, and goes on."""
    code = """
        import os
        import numpy as np, rmaext
        from mpi4py import MPI
        memory = np.zeros(3)
        win = rmaext.Window(MPI.COMM_SELF, memory)
        os.environ["RMAEXT_PROVIDER"] = "udp;ofi_rxd"
        try:
            rmaext.Window(MPI.COMM_SELF.Dup(), np.zeros(3))
        except rmaext.NoProviderError as error:
            print(error)
        win.put(1.0, 0)
        win.close()
        assert memory[0] == 1
    """
    done = run_python(code, env={"RMAEXT_ROUTE": "fabric"})
    assert done.returncode == 0, done.stderr
    assert "udp;ofi_rxd" in done.stdout
    assert " tcp already" in done.stdout


# -- which libfabric -----------------------------------------------------------------


def test_opening_leaves_the_process_as_it_was(run_python):
    """What FI_* is set for libfabric's start, and the signals that its helpers take."""
    code = """
        import ctypes, os, signal, subprocess
        import numpy as np
        from mpi4py import MPI
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        names = ["FI_OFI_RXM_MSG_RX_SIZE", "FI_OFI_RXM_MSG_TX_SIZE", "FI_PROVIDER_PATH"]

        def environment():
            inherited = subprocess.check_output(["env"], text=True).splitlines()
            return [getenv(name.encode()) for name in names], sorted(
                line for line in inherited if line.startswith("FI_"))

        def signals(task=os.getpid()):
            lines = open(f"/proc/self/task/{task}/status").read().splitlines()
            return [line.split()[1] for line in lines if line.startswith(("SigCgt", "SigBlk"))]

        before = environment(), signals()
        assert before[0][0][:2] == [None, b"256"]
        tasks = set(os.listdir("/proc/self/task"))
        import rmaext
        with rmaext.Window(MPI.COMM_SELF, np.zeros(3)) as win:
            win.put(1.0, 0)
            assert (environment(), signals()) == before
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                print("interrupted")
            threads = set(os.listdir("/proc/self/task")) - tasks
            assert threads, "no progress thread"
            for task in threads:  # none of them takes a signal of ours
                blocked = int(signals(task)[0], 16)
                assert blocked >> (signal.SIGINT - 1) & 1
                assert not blocked >> (signal.SIGSEGV - 1) & 1  # else faulthandler is silent
        assert (environment(), signals()) == before
    """
    env = {"FI_OFI_RXM_MSG_TX_SIZE": "256", "FI_OFI_RXM_MSG_RX_SIZE": None}
    done = run_python(code, env=env | {"RMAEXT_ROUTE": "fabric"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"
