# SPDX-License-Identifier: BSD-3-Clause
"""UCX as the transport: what is refused, what commands say of it, and the real one.

Most runs over the stub of tests/ucx; `make test-ucx` has the RMA tests over it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import launch
import pytest
from support import demanding, hung

STUB = str(demanding.FOLDER / "ucx-stub.so")
UCX = {"RMAEXT_ROUTE": "fabric", "RMAEXT_TRANSPORT": "ucx", "RMAEXT_UCX": STUB}
REAL = f"{sys.prefix}/lib/{launch.launcher()[1]}/libucp.so.0"  # MPI's
needs_the_real_one = pytest.mark.skipif(not os.path.exists(REAL), reason="MPI has no UCX")

REFUSED = """
    import os, sys
    import numpy as np
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    if sys.argv[1:] and world.rank == 1:
        os.environ["RMAEXT_TRANSPORT"] = sys.argv[1]
    import rmaext
    try:
        rmaext.Window(world, np.zeros(3))
    except (rmaext.RmaError, ValueError) as error:
        caught = f"{type(error).__name__}: {error}"
    everywhere = world.allgather(caught)
    assert len(set(everywhere)) == 1, everywhere
    if world.rank == 0:
        print(caught)
"""


@pytest.mark.parametrize(
    ("env", "other", "words"),
    [
        (
            {"STUB_DEVICE": "none"},
            [],
            r"NoProviderError: ranks 0, 1: .*No such device.*RDMA device, by rc or dc; there are: "
            r".*Unset RMAEXT_TRANSPORT, and libfabric does without",
        ),
        ({"STUB_VERSION": "1.13.1"}, [], r"LibraryError: ranks 0, 1: .*1\.13\.1.*must be 1\.20"),
        ({"RMAEXT_UCX": "/no/libucp-x.so"}, [], r"LibraryError: ranks 0, 1: UCX /no/libucp-x\.so"),
        ({"UCX_TLS": "tcp,self"}, [], r"NoProviderError: .*UCX_TLS=tcp,self leaves none"),
        (
            {"STUB_TRANSPORT": "ud_stub"},
            [],
            r"NoProviderError: .*by ud_stub/stub:1 only, where it has no RDMA",
        ),
        (
            {},
            ["libfabric"],
            r"NoProviderError: rank 1: RMAEXT_TRANSPORT=libfabric, rank 0 has ucx: all ranks need "
            "the same",
        ),
        (
            {"STUB_ADDRESS": "1025"},
            [],
            r"TooSmallError: ranks 0, 1: .*an address of 1025 bytes, and there is room for 1024: "
            "let UCX_NET_DEVICES name fewer devices",
        ),
        (
            {"STUB_FAIL": "ep_create*:2:-6"},
            [],
            r"could not be added: ucp_ep_create: Unreachable",
        ),
        ({"RMAEXT_TRANSPORT": None}, ["ucx"], r"NoProviderError: rank 1: RMAEXT_TRANSPORT=ucx, "),
        ({"RMAEXT_TRANSPORT": "ib"}, [], r"ValueError: .*'ib': must be one of libfabric, ucx"),
        ({"RMAEXT_PROVIDER": "tcp"}, [], r"ValueError: .*'tcp': names a provider of libfabric"),
    ],
    ids=[
        *("device", "version", "library", "no RDMA asked for", "no RDMA to a peer", "mixed"),
        *("address", "peer", "mixed the other way", "name", "provider"),
    ],
)
def test_refused_on_all_ranks(mpirun, env, other, words):
    done = mpirun(2, REFUSED, *other, env=UCX | env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(words, done.stdout), done.stdout


@needs_the_real_one
def test_no_second_one_beside_that_of_mpi(mpirun):
    done = mpirun(2, REFUSED, env=UCX | {"RMAEXT_UCX": "/usr/lib/x/libucp.so.0"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"MPI has loaded {REAL}, beside which it cannot be: unset it" in done.stdout


# What a scientist's program does, once each.
WORK = """
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    peer, N = (world.rank + 1) % world.size, 1 << 17
    before = (world.rank - 1) % world.size
    own = np.full(3 * N, -1, "i8")
    sums = rmaext.Window.allocate(world, 8, "i8")
    with rmaext.Window(world, own[N : 2 * N]) as win:
        for n in (1, 100, N):
            win.put(np.arange(n) + world.rank, peer)
            win.flush(peer)
            win.fence()
            assert (own[N : N + n] == np.arange(n) + before).all()
            assert (win.get(before, 0, n) == np.arange(n) + (before - 1) % world.size).all()
            win.fence()
        for _ in range(100):
            sums.accumulate(world.rank + 1, 0, 3)
        assert sums.fetch_add(7, peer, 5) == 0
        sums.fence()
        if world.rank == 0:
            assert sums.local[3] == 100 * sum(range(1, world.size + 1))
        assert sums.local[5] == 7
        assert (own[:N] == -1).all() and (own[2 * N :] == -1).all()
        print("OK", win.fabric.transport, win.fabric.version)
    sums.close()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_work(mpirun, size):
    done = mpirun(size, WORK, env=UCX)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK ucx 1.20.1") == size, done.stdout + done.stderr


def test_addresses_of_several_lengths(mpirun):
    """As where hosts have other numbers of devices."""
    lengths = "import os\nfrom mpi4py import MPI\n"
    lengths += "os.environ['STUB_ADDRESS'] = str(24 + 500 * MPI.COMM_WORLD.rank)\n"
    done = mpirun(3, lengths + textwrap.dedent(WORK), env=UCX)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK ucx 1.20.1") == 3, done.stdout + done.stderr


def test_addresses_too_long_for_other_jobs(mpirun):
    code = """
        import pytest, rmaext
        from mpi4py import MPI
        with rmaext.Window.allocate(MPI.COMM_WORLD, 4) as win:
            words = "address has 239 bytes, .* room for 238: let UCX_NET_DEVICES name fewer"
            with pytest.raises(rmaext.TooSmallError, match=words):
                win.grant(0, 4)
            print("OK")
    """
    done = mpirun(2, code, env=UCX | {"STUB_ADDRESS": "239"})
    assert done.stdout.count("OK") == 2, done.stdout + done.stderr


@needs_the_real_one
@pytest.mark.parametrize("tls", ["tcp", "all"])
def test_work_over_the_real_one(mpirun, tls):
    """Without RDMA, which nobody is to do: the interface is UCX's own."""
    env = UCX | {"RMAEXT_UCX": None, "RMAEXT_UCX_ANY": "1", "UCX_TLS": tls}
    done = mpirun(2, WORK, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK ucx 1.") == 2, done.stdout + done.stderr
    assert "not returned to mpool" not in done.stdout + done.stderr


ADVISED = """
    import rmaext
    from mpi4py import MPI
    with rmaext.Window.allocate(MPI.COMM_WORLD, 100, lazy=True) as win:
        print("taken", win.advise("willneed"), win.advise("willneed", slice(3, 9)), flush=True)
"""


def test_advice(mpirun):
    """It goes to ucp_mem_advise, whose first call fails."""
    done = mpirun(1, ADVISED, env=UCX | {"STUB_FAIL": "mem_advise:1:-5"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "taken False True" in done.stdout


# -- commands ------------------------------------------------------------------------


def command(*args, **changes):
    line = [sys.executable, "-m", "rmaext", *args]
    env = launch.environment(UCX | {"RMAEXT_ROUTE": None} | changes)
    done = subprocess.run(line, env=env, stdout=subprocess.PIPE, text=True, timeout=100)
    return done.returncode, done.stdout


def test_info():
    code, text = command("info", "--json")
    assert code == 0
    found = json.loads(text)
    assert found["libfabric"]["transport"] == "ucx"
    assert found["libfabric"]["path"] == STUB
    (only,) = found["providers"]
    assert only["name"] == "ucx"
    assert only["mr_mode"].startswith("LOCAL|RAW|VIRT_ADDR")
    assert found["environment"]["RMAEXT_TRANSPORT"] == "ucx"
    code, text = command("info")
    assert f"used: UCX, {STUB}, 1.20.1: RMAEXT_UCX" in text
    assert "provider ucx (default)" in text
    code, text = command("info", STUB_DEVICE="none")
    assert "it needs an RDMA device, by rc or dc" in text


def test_doctor():
    code, text = command("doctor", "--limit", "60")
    assert code == 0, text
    assert re.search(r"^ok +ucx \(default\): put, get, ", text, re.M), text
    code, text = command("doctor", "--limit", "60", STUB_DEVICE="none")
    assert code == 1, text
    assert re.search(r"^fails +ucx .*Unset RMAEXT_TRANSPORT to take libfabric", text, re.M), text


def test_why():
    with hung.hanging("stops", 2, **UCX) as pids:
        done = hung.why(str(pids[0]))
        assert re.search(r"^\S+hung.py stops \S+: 2 ranks, on \S+, by ucx", done.stdout), done
        assert hung.job(hung.why("--json", str(pids[0])).stdout, pids)["network"].startswith("ucx")


def test_trace(mpirun, tmp_path):
    done = mpirun(2, WORK, env=UCX | {"RMAEXT_TRACE": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    code, text = command("trace", str(tmp_path))
    assert code == 0, text
    (summary,) = tmp_path.rglob("summary.json")
    ranks = json.loads(summary.read_text())["ranks"]
    assert [rank["network"].split()[0] for rank in ranks] == ["ucx", "ucx"]


def test_headers_are_compared_or_it_is_said():
    done = subprocess.run(
        [launch.ROOT / "tests" / "ucx" / "check-abi"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"check-abi: (NOT COMPARED: .*libucx-cu12|\d+ numbers and)", done.stdout)
