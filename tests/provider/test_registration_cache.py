# SPDX-License-Identifier: BSD-3-Clause
"""Origins where the provider demands FI_MR_LOCAL: what is registered, when, and for how long.

Each test is a job of its own over the demanding provider, which refuses a buffer that no
registration covers, and counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from support import demanding

pytestmark = pytest.mark.skipif(
    not (demanding.FOLDER / "demand-fi.so").exists(), reason="no build/provider/demand-fi.so"
)

BEGIN = """
import gc, json, mmap, os, weakref
import numpy as np
import rmaext
from mpi4py import MPI

comm, n = MPI.COMM_SELF, 1 << 17
win = rmaext.Window(comm, np.zeros(4 * n))
first = np.ones(n)
win.put(first, 0)  # registers what copies go through
del first

def counts():
    return win.fabric.stats

def since(before):
    return {name: value - before[name] for name, value in counts().items()}
"""


def run(tmp_path, text, mode="verbs", **environment):
    """Run a program on one rank; returns what it prints."""
    changes = demanding.environment(mode, tmp_path) | environment
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(text) + "win.close()\n"],
        env=os.environ | changes | {"RMAEXT_ROUTE": "fabric"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not list(demanding.complaints(tmp_path, 1))
    return json.loads(done.stdout) if done.stdout else None


def test_steady_state_registers_nothing(tmp_path):
    """The same live arrays again and again, and any parts of them: found, not registered."""
    counted = run(
        tmp_path,
        """
        a, out = np.arange(n, dtype=float), np.empty(n)
        def round(k):
            win.put(a, 0, k); win.put(a[k:k + 8000], 0, 2 * n); win.flush()
            win.get(0, k, out=out)
            assert (out == a).all(), k
            win.rput(a, 0, n).wait()
            win.accumulate(a, 0, 2 * n); win.flush()
            win.put(a[:8], 0, 3 * n); win.get(0, 0, out=out[:100])
        round(0)
        before = counts()
        for k in range(1, 20):
            round(k)
        print(json.dumps(since(before)))
        """,
    )
    assert counted["registrations"] == counted["deregistrations"] == counted["misses"] == 0
    assert counted["hits"] >= 19 * 4
    assert counted["bounced"] >= 19 * 2
    # the provider has seen no more: two arrays, and what is registered once
    assert demanding.calls(tmp_path, "regattr")[0] < 30


def test_goes_with_the_array(tmp_path):
    """Deregistered before the memory is freed; what comes to lie there is another."""
    counted = run(
        tmp_path,
        """
        before = counts()
        for k in range(10):
            a = np.full(n, k, dtype=float)
            win.put(a, 0); win.flush()
            assert (win.local[:n] == k).all()
            view = a[1:]
            del a
            win.put(view, 0)
            del view
            done = since(before)
            assert done["registrations"] == done["deregistrations"] == k + 1, done
        print(json.dumps(since(before)))
        """,
    )
    assert counted["hits"] == 10
    assert counted["misses"] == 10


def test_stays_where_it_is(tmp_path):
    """NumPy does not move an array that is known; one whose data is exchanged is another."""
    run(
        tmp_path,
        """
        a = np.ones(n)
        win.put(a, 0)
        for check in (True, False):
            try:
                a.resize(2 * n, refcheck=check)
            except ValueError:
                continue
            raise AssertionError("moved")
        """,
    )


@pytest.mark.parametrize("kind", ["bytes", "mmap"])
def test_memory_without_an_owner(tmp_path, kind):
    """Registered for one operation: nobody says when it goes."""
    counted = run(
        tmp_path,
        f"""
        kind = {kind!r}
        data = bytes(8 * n) if kind == "bytes" else mmap.mmap(-1, 8 * n)
        a = np.frombuffer(data)
        before = counts()
        for k in range(3):
            win.put(a, 0)
        print(json.dumps(since(before)))
        """,
    )
    assert counted["registrations"] == counted["deregistrations"] == 3
    assert counted["hits"] == 0


def test_arena(tmp_path):
    """Memory of rmaext.empty stays registered as long as arrays are over it."""
    counted = run(
        tmp_path,
        """
        a = rmaext.zeros(n)
        before = counts()
        for k in range(3):
            win.put(a, 0)
        del a
        print(json.dumps(since(before)))
        """,
    )
    assert counted["registrations"] == counted["deregistrations"] == 1
    assert counted["hits"] == 2


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [("COUNT", "2", 2), ("COUNT", "0", 0), ("SIZE", str(3 << 20), 3), ("SIZE", "1000", 0)],
)
def test_limits(tmp_path, name, value, kept):
    """The one that was not used for the longest time gives way."""
    counted = run(
        tmp_path,
        """
        arrays = [np.full(n, k, dtype=float) for k in range(5)]
        before = counts()
        for a in arrays + arrays[::-1]:
            win.put(a, 0); win.flush()
            assert win.local[0] == a[0]
        print(json.dumps(since(before)))
        """,
        **{f"FI_MR_CACHE_MAX_{name}": value},
    )
    assert counted["hits"] == kept
    assert counted["registrations"] - counted["deregistrations"] == kept
    assert counted["evictions"] == (10 - 2 * kept if kept else 0)


def test_nothing_where_it_is_not_demanded(tmp_path):
    run(
        tmp_path,
        """
        assert win._fabric.origins is None
        a = np.ones(n)
        win.put(a, 0)
        done = counts()
        assert not any(done[name] for name in ("hits", "misses", "evictions", "bounced"))
        a.resize(2 * n, refcheck=False)
        """,
        mode="efa",
    )


def test_threads_put_one_array(tmp_path):
    """That nobody has put before: it is known once, and its registration goes with it."""
    run(
        tmp_path,
        """
        import sys, threading
        sys.setswitchinterval(1e-6)
        before = counts()
        for k in range(30):
            a, start = np.full(n, k, dtype=float), threading.Barrier(6)
            def work():
                start.wait()
                win.put(a, 0)
            threads = [threading.Thread(target=work) for _ in range(6)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            win.flush()
            assert (win.local[:n] == k).all()
            del work, a
            done = since(before)
            assert done["registrations"] == done["deregistrations"], (k, done)
        assert not win._fabric.origins._known
        """,
    )
