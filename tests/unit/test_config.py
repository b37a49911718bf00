# SPDX-License-Identifier: BSD-3-Clause
"""The environment variables: what each does, and that none is taken for another."""

from __future__ import annotations

import math
import operator
import os
import re
import textwrap
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rmaext._runtime.config import (
    PROVIDERS,
    Config,
    deadline,
    preferred,
    seconds,
    timeout_seconds,
)

ROOT = Path(__file__).parents[2]
DEFAULT = {
    "timeout": 60.0,
    "provider": "",
    "route": "",
    "node": "",
    "iface": "",
    "library": "",
    "progress": True,
    "mr_basic": False,
    "hmem": False,
    "cache_count": 1024,
    "cache_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4,
    "ptracer": True,
    "transport": "libfabric",
    "ucx": "",
    "ucx_any": False,
}


VARIABLES = (
    "TRANSPORT",
    "UCX",
    "UCX_ANY",
    "PROVIDER",
    "ROUTE",
    "NODE",
    "IFACE",
    "LIBFABRIC",
    "PROGRESS",
    "MR_MODE",
    "TIMEOUT",
    "PTRACER",
    "ADMIT",
    "SECRET",
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"RMAEXT_{name}", raising=False)
    for name in ("MAX_COUNT", "MAX_SIZE", "MONITOR"):
        monkeypatch.delenv(f"FI_MR_CACHE_{name}", raising=False)


def fields(config):
    return {name: value for name, value in config._asdict().items() if name in DEFAULT}


def test_defaults():
    assert fields(Config.read()) == DEFAULT
    assert timeout_seconds(None) == 60


@pytest.mark.parametrize(
    ("name", "value", "field", "read"),
    [
        ("PROVIDER", "udp;ofi_rxd", "provider", "udp;ofi_rxd"),
        ("TRANSPORT", "ucx", "transport", "ucx"),
        ("TRANSPORT", "", "transport", "libfabric"),
        ("UCX", "/opt/ucx/libucp.so.0", "ucx", "/opt/ucx/libucp.so.0"),
        ("UCX_ANY", "1", "ucx_any", True),
        ("ROUTE", "fabric", "route", "fabric"),
        ("NODE", "a name with spaces", "node", "a name with spaces"),
        ("IFACE", "10.0.0.0/8", "iface", "10.0.0.0/8"),
        ("LIBFABRIC", "/opt/lib/libfabric.so.1", "library", "/opt/lib/libfabric.so.1"),
        ("PROGRESS", "0", "progress", False),
        ("PROGRESS", "1", "progress", True),
        ("MR_MODE", "basic", "mr_basic", True),
        ("MR_MODE", "hmem", "hmem", True),
        ("PTRACER", "0", "ptracer", False),
        *((name, "", field, DEFAULT[field]) for name, field in [("ROUTE", "route")]),
        ("PROGRESS", "", "progress", True),
        ("MR_MODE", "", "mr_basic", False),
    ],
)
def test_value(monkeypatch, name, value, field, read):
    """It changes its own field and no other."""
    monkeypatch.setenv(f"RMAEXT_{name}", value)
    assert fields(Config.read()) == DEFAULT | {field: read}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ROUTE", value) for value in ("cma", "direct", "Fabric", "fabric ", "1")),
        *(("TRANSPORT", value) for value in ("UCX", "verbs")),
        *(("PROGRESS", value) for value in ("2", "no", "true", "-1", "00")),
        *(("MR_MODE", value) for value in ("scalable", "BASIC", "0")),
    ],
)
def test_wrong_value(monkeypatch, name, value):
    monkeypatch.setenv(f"RMAEXT_{name}", value)
    with pytest.raises(ValueError, match=f"RMAEXT_{name}={value!r}: must be one of"):
        Config.read()


def test_networks(monkeypatch):
    four = bytes(10) + b"\xff\xff"
    for text, read in (
        ("", ()),
        ("10.1.2.3", ((four + bytes([10, 1, 2, 3]), 128),)),
        ("10.1.2.3/8,", ((four + bytes([10, 0, 0, 0]), 104),)),
        ("fe80::/10, 0.0.0.0/0", ((b"\xfe\x80" + bytes(14), 10), (four + bytes(4), 96))),
        ("everyone", None),
    ):
        monkeypatch.setenv("RMAEXT_ADMIT", text)
        assert Config.read().admit == read
    for text in ("nobody", "10.0.0.0/33", "10.0.0", "everyone,10.0.0.1"):
        monkeypatch.setenv("RMAEXT_ADMIT", text)
        with pytest.raises(ValueError, match=f"RMAEXT_ADMIT='{text}': must be addresses"):
            Config.read()


def test_secret(monkeypatch, tmp_path):
    path = tmp_path / "secret"
    monkeypatch.setenv("RMAEXT_SECRET", str(path))
    for text, mode in ((None, 0), (b"too short", 0o600), (bytes(32), 0o644)):
        if text:
            path.write_bytes(text)
            path.chmod(mode)
        with pytest.raises(ValueError, match="RMAEXT_SECRET"):
            Config.read()
    path.chmod(0o600)
    config = Config.read()
    assert len(config.secret) == 64
    assert str(config.secret) not in repr(config)
    assert config.signature
    path.write_bytes(bytes(33))
    assert Config.read().signature != config.signature
    monkeypatch.delenv("RMAEXT_SECRET")
    assert not Config.read().signature


@pytest.mark.parametrize(("what", "field"), [("COUNT", "cache_count"), ("SIZE", "cache_bytes")])
def test_cache_limits(monkeypatch, what, field):
    """libfabric's own variables, as fi_mr(3) has them."""
    for text, value in (("0", 0), ("77", 77), ("0x10", 16), ("", DEFAULT[field])):
        monkeypatch.setenv(f"FI_MR_CACHE_MAX_{what}", text)
        assert fields(Config.read()) == DEFAULT | {field: value}
    for text in ("-1", "many", "1.5", str(1 << 64)):
        monkeypatch.setenv(f"FI_MR_CACHE_MAX_{what}", text)
        with pytest.raises(ValueError, match=f"FI_MR_CACHE_MAX_{what}"):
            Config.read()
    monkeypatch.setenv("FI_MR_CACHE_MONITOR", "disabled")
    assert getattr(Config.read(), field) == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("0.25", 0.25), ("1e3", 1000), ("inf", 1e9), ("1e300", 1e9)]
)
def test_timeout(monkeypatch, text, seconds):
    monkeypatch.setenv("RMAEXT_TIMEOUT", text)
    assert timeout_seconds(None) == Config.read().timeout == seconds
    assert timeout_seconds(7) == 7.0


@pytest.mark.parametrize("text", ["", "abc", "5s", "0", "-1", "nan", "-inf", "0x5"])
def test_wrong_timeout(monkeypatch, text):
    monkeypatch.setenv("RMAEXT_TIMEOUT", text)
    with pytest.raises(ValueError, match=r"timeout|TIMEOUT"):
        timeout_seconds(None)


class Index:
    def __index__(self):
        return 3


NUMBERS = [1, 0.5, np.float64(2), np.float32(0.5), np.int8(3), np.array(4), Fraction(1, 2), Index()]
ENDLESS = [math.inf, np.float32("inf"), 10**10, 10**400, 1e300]
NEGATIVE = [-1, -1e-9, -math.inf, math.nan, np.float64("nan"), np.int64(-1), -(10**400)]
NO_NUMBERS = ["5", b"5", [5], 5j, object(), True, False, np.True_, np.array(0.5), Decimal(5)]


@pytest.mark.parametrize("rule", [seconds, timeout_seconds, deadline], ids=lambda f: f.__name__)
def test_timeout_argument(rule):
    """One rule, wherever there is a time limit."""
    now = time.monotonic() if rule is deadline else 0
    for value in NUMBERS:
        got = rule(value) - now
        assert 0 <= got - float(operator.index(value) if type(value) is Index else value) < 5
    for value in ENDLESS:
        assert 1e9 <= rule(value) - now < 1e9 + 5
    for value in NEGATIVE:
        with pytest.raises(ValueError, match="timeout"):
            rule(value)
    for value in NO_NUMBERS:
        with pytest.raises(TypeError, match="timeout"):
            rule(value)
    if rule is timeout_seconds:
        with pytest.raises(ValueError, match="timeout"):
            rule(0)
    else:
        assert rule(0) - now < 5
        assert deadline(None) is None


def test_default_order_avoids_what_hangs():
    assert PROVIDERS[-2:] == ("tcp", "tcp;ofi_rxm")
    assert preferred(["2.5", "1.17"])[-2:] == ["tcp;ofi_rxm", "tcp"]
    assert not {"shm", "sm2", "lnx", "sockets"} & set(PROVIDERS)


def test_exactly_the_variables_that_are_read_are_documented():
    sources = [p.read_text() for p in ROOT.glob("rmaext/**/*.py")]
    read = set(re.findall(r'"(RMAEXT_[A-Z_]+)"', "".join(sources)))
    table = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert read == set(re.findall(r"^\| `(RMAEXT_[A-Z_]+)`", table, re.M))


WRONG_ON_ONE_RANK = """
    import os
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    for name, value in [
        ("ROUTE", "x"), ("PROGRESS", "x"), ("MR_MODE", "x"), ("TIMEOUT", "x"), ("TIMEOUT", "-3"),
        ("IFACE", "nonsense0"), ("IFACE", "203.0.113.0/24"), ("PROVIDER", "nonsense"),
        ("LIBFABRIC", "/nonsense"),
    ]:
        comm = world.Dup()
        if world.rank == 1:
            os.environ["RMAEXT_" + name] = value
        try:
            rmaext.Window(comm, np.zeros(3))
            caught = "nothing"
        except (ValueError, LookupError) as error:
            caught = f"{type(error).__name__}: {error}"
        everywhere = world.allgather(caught)
        assert len(set(everywhere)) == 1, everywhere
        assert "rank 1" in caught and name in caught and value in caught, (name, caught)
        os.environ.pop("RMAEXT_" + name, None)
        comm.Free()
    with rmaext.Window(world, np.zeros(3)) as win:
        win.put(np.full(3, 5.0), 1 - world.rank)
        win.fence()
        assert win.local.tolist() == [5] * 3
    print("end")
"""


def test_wrong_on_one_rank_is_an_error_on_all(mpirun):
    done = mpirun(2, WRONG_ON_ONE_RANK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 2


# For jobs of two ranks.
EFFECTS = """
    import os, time
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    peer = 1 - world.rank

    def make(**variables):
        "a window over a new communicator, made under these variables"
        for name, value in variables.items():
            os.environ["RMAEXT_" + name] = value
        win = rmaext.Window(world.Dup(), np.zeros(3))
        for name in variables:
            del os.environ["RMAEXT_" + name]
        return win

    def absent(win, until_it_fails=False):
        # A get whose target is away: it sleeps, or waits in MPI until the get has failed.
        # How long it took, the error if any, and whether it ended while the target was away.
        win.fence()  # serves the network, as MPI does not
        taken = error = early = None
        if world.rank == 0:
            world.recv(source=1)  # the target has left the fence, too
            start = time.monotonic()
            try:
                win.get(1)
            except rmaext.RmaError as caught:
                error = caught
            end = time.monotonic()
            taken = end - start
            if not until_it_fails:
                early = end < world.recv(source=1)
        else:
            world.send(None, 0)
            if not until_it_fails:
                time.sleep(0.8)
                world.send(time.monotonic(), 0)
        if until_it_fails:
            world.Barrier()
        win.fence()
        return taken, error, early
"""


def effects(mpirun, body, env=None):
    done = mpirun(2, textwrap.dedent(EFFECTS) + textwrap.dedent(body) + "\nprint('end')", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 2


def test_progress_and_timeout(mpirun):
    """Without the thread a target that sleeps is not reached, and the limit is kept."""
    body = """
        threads = len(os.listdir("/proc/self/task"))
        win, hasty = make(PROGRESS="0", ROUTE="fabric"), make(TIMEOUT="0.3", ROUTE="fabric")
        assert win.fabric.stats["thread_wakeups"] == 0
        taken, error, early = absent(win)
        assert not error and not early, (taken, error)
        assert hasty.timeout == 0.3
        taken, error, _ = absent(hasty, until_it_fails=True)
        if world.rank == 0:
            assert isinstance(error, rmaext.RmaTimeout) and 0.3 < taken < 5, (taken, error)
        assert len(os.listdir("/proc/self/task")) == threads
        win.fence(); hasty.fence()
        win.close(); hasty.close()
    """
    effects(mpirun, body)


def test_route_node_and_interface(mpirun):
    body = """
        rank = world.rank
        plain, forced = make(), make(ROUTE="fabric")
        apart = make(NODE=f"node {rank}")
        assert (plain.route(rank), plain.route(peer)) == ("direct", "cma")
        assert (apart.route(rank), apart.route(peer)) == ("direct", "fabric")
        assert (forced.route(rank), forced.route(peer)) == ("fabric", "fabric")
        assert absent(plain)[1] is None
        for win in plain, forced, apart:
            assert "//127.0.0.1:" in win.fabric.address, win.fabric
            for target in 0, 1:
                win.put(rank + 1.0, target, rank)
            win.fence()
            assert win.local.tolist() == [1, 2, 0]
            win.close()
    """
    effects(mpirun, body)


def test_unknown_variables_are_reported_once(run_python):
    """With the nearest name, if there is one."""
    code = """
        import numpy as np, rmaext
        from mpi4py import MPI
        for comm in MPI.COMM_SELF, MPI.COMM_WORLD:
            with rmaext.Window(comm, np.zeros(3)) as win:
                assert rmaext.RemoteWindow.attach(win.export()).get(0, 0, 1)[0] == 0
    """
    wrong = {"RMAEXT_TIMEOUTS": "5", "RMAEXT_ROUT": "fabric", "RMAEXT_XYZZY": "", "RMAEXTRA": "1"}
    done = run_python(code, env=wrong)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("which rmaext does not know") == 3
    assert "RMAEXT_TIMEOUTS is set, which rmaext does not know: did you mean RMAEXT_TIMEOUT?" in (
        done.stderr
    )
    assert "did you mean RMAEXT_ROUTE?" in done.stderr
    assert "RMAEXT_XYZZY is set, which rmaext does not know: there are RMAEXT_PROVIDER" in (
        done.stderr
    )


def test_unknown_variables_are_not_reported_by_children(run_python):
    """A job that a tool begins does not repeat what the tool has said."""
    code = """
        from rmaext.bench.run import Job, _environment, mpi_in_use
        env = _environment(mpi_in_use(), Job("x", 1, ["x"]))
        assert env["RMAEXT_TIMEOUT"] == "5" and "RMAEXT_TIMEOUTS" not in env
    """
    done = run_python(code, env={"RMAEXT_TIMEOUTS": "5", "RMAEXT_TIMEOUT": "5"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("iface", ["127.0.0.0/8", pytest.param("::1", marks=pytest.mark.matrix)])
def test_interface(run_python, iface):
    code = """
        import numpy as np, rmaext, sys
        from mpi4py import MPI
        with rmaext.Window(MPI.COMM_SELF, np.zeros(3)) as win:
            win.put(1.0, 0)
            win.fence()
            assert win.local[0] == 1
            print(win.fabric.address)
    """
    done = run_python(code, env={"RMAEXT_ROUTE": "fabric", "RMAEXT_IFACE": iface})
    assert done.returncode == 0, done.stderr
    assert ("[::1]" if ":" in iface else "127.0.0.1") in done.stdout


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "mpi", ["OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK", "PMI_SIZE=3 PMI_RANK"]
)
def test_a_launcher_of_another_mpi_is_told_once(run_python, mpi, first):
    """By the first of the processes that it has started, each of which is alone."""
    code = """
        import rmaext
        from mpi4py import MPI
        for comm in MPI.COMM_SELF, MPI.COMM_WORLD:
            rmaext.Window.allocate(comm, 3).close()
    """
    size, rank = mpi.split()
    done = run_python(code, env=dict([size.split("="), (rank, "0" if first else "1")]))
    assert done.returncode == 0, done.stderr
    words = "each process is rank 0 of 1, though a launcher has started 3"
    assert done.stderr.count(words) == first, done.stderr
    assert not first or re.search(r"Start the program by /.*mpiexec", done.stderr), done.stderr
