# SPDX-License-Identifier: BSD-3-Clause
"""Programs that tests run as jobs of their own: how they begin, and that they ended well."""

from __future__ import annotations

import functools
import inspect
import subprocess
import textwrap
from collections.abc import Callable
from typing import Any

import launch
import pytest

PRELUDE = """
import gc, os, random, signal, subprocess, sys, threading, time, warnings, weakref
import numpy as np
from mpi4py import MPI
import rmaext

class World(MPI.Intracomm):
    "Whoever waits long leaves the core to others: MPI's own calls poll"

    apart = MPI.COMM_WORLD.Dup()  # no interrupted call of rmaext's is on this one

    def Barrier(self):
        self._until(self.apart.Ibarrier().Test)

    def recv(self, buf=None, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=None):
        self._until(lambda: self.Iprobe(source, tag))
        return super().recv(buf, source, tag, status)

    def _until(self, condition):
        start = time.monotonic()
        while not condition():
            time.sleep(0 if time.monotonic() - start < 0.01 else 0.001)

world = World(MPI.COMM_WORLD)
rank, size = world.rank, world.size
peer = (rank + 1) % size

def exercise(win):
    "put, get and update the peer's window, and be updated"
    world.Barrier()
    win.put(np.full(500, rank + 1.0), peer)
    win.flush()
    assert win.fetch_add(1.0, peer, 999) == 0
    assert (win.get(peer, 0, 500) == rank + 1).all()
    world.Barrier()
    assert (win.local[:500] == (rank - 1) % size + 1).all() and win.local[999] == 1
    world.Barrier()

def refuses(call, error=rmaext.ClosedError):
    try:
        call()
    except error as caught:
        assert str(caught)
        return str(caught)
    raise AssertionError(f"{call} did not raise {error}")

def interrupted(call, most=2):
    "call() is ended within so many seconds by a SIGINT, which comes once it has waited for 0.3 s"
    from support.processes import waits
    sent, end = [], time.monotonic() + 8
    def send():
        while not waits(os.getpid()) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Thread(target=send)
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        late = time.monotonic() - sent[0]
        assert late < most, f"{late} s late"
        return
    finally:
        timer.join()
    raise AssertionError("not interrupted")
"""


def start(size: int, code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program on that many ranks; size 0 is one process without mpiexec."""
    options["env"] = {"PYTHONPATH": launch.PYTHONPATH} | (options.get("env") or {})
    if size:
        return launch.mpirun(size, code, **options)
    return launch.run_python(code, **options)


def clean(done: subprocess.CompletedProcess[str], ends: int = 0) -> None:
    """Require that it ended well on all ranks: nothing on stderr, and each said "end"."""
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    assert not done.stderr, done.stderr
    assert done.stdout.count("end") == ends, done.stdout


# One that fails ends the job at once.
_EACH = """
import traceback
from mpi4py import MPI
for program in PROGRAMS:
    try:
        exec(program, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
"""


def together(
    prelude: str, size: int, **env: str
) -> Callable[[Callable[..., str]], Callable[..., None]]:
    """Have tests that return a program share a job: a decorator for those of a file.

    Nobody dies in their programs, each of which ends by `print("end")` and leaves nothing that
    another would notice. They run one after the other, and all have passed if that job is clean;
    if not, each has a job of its own, so that each has its own verdict.
    """

    @functools.cache
    def passed(programs: tuple[str, ...]) -> bool:
        try:
            done = start(size, f"PROGRAMS = {programs!r}{_EACH}", env=env, timeout=60)
            clean(done, size * len(programs))
        except AssertionError:
            return False
        return True

    def code(test: Any) -> str:
        arguments = test.callspec.params if hasattr(test, "callspec") else {}
        return prelude + textwrap.dedent(test.function.program(**arguments))

    def share(program: Callable[..., str]) -> Callable[..., None]:
        @functools.wraps(program)
        def test(request: pytest.FixtureRequest, **arguments: Any) -> None:
            tests = [
                it for it in request.session.items if getattr(it.function, "alike", None) is share
            ]
            if len(tests) == 1 or not passed(tuple(map(code, tests))):
                clean(start(size, code(request.node), env=env, timeout=45), size)

        own = inspect.signature(program).parameters.values()
        fixture = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.Signature([fixture, *own])
        vars(test).update(program=program, alike=share, __signature__=signature)
        return test

    return share


def passes(
    size: int,
    program: str,
    *args: str,
    oks: int,
    library: str | None = None,
    survive: bool = False,
    timeout: float = 40,
    **env: str,
) -> str:
    """Run a program of tests/ with an MPI; require that it ends well, and so many times "OK".

    `library` is the path of a libfabric. Returns what the program printed.
    """
    changes = {"PYTHONPATH": launch.PYTHONPATH, "RMAEXT_LIBFABRIC": library or None} | env
    path = launch.ROOT / "tests" / program
    done = launch.mpirun(size, path, *args, env=changes, survive=survive, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK") == oks, done.stdout + done.stderr
    return done.stdout


def kill(scenario: str, *args: str, **options: Any) -> None:
    """Run jobs/programs/killed.py: the last of three ranks is lost, the others go on."""
    args = (*scenario.split(), *args)
    passes(3, "jobs/programs/killed.py", *args, oks=2, survive=True, timeout=45, **options)
