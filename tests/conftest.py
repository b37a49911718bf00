# SPDX-License-Identifier: BSD-3-Clause
"""What all tests share: communicators, time limits, and ranks that fail together.

A test is either *serial* or marked `mpi` (one that uses `comm` or `world` is
so by itself). Under mpiexec only the latter run, on all ranks together, and
after each test, and after a set-up or an end that did not pass, the ranks
tell each other how it went:

- a failure on any rank is a failure on all, and rank 0 reports it with the
  text of every rank that failed;
- a rank that failed while others still wait for it in the test prints its
  report and ends the job, and so does one that runs into the time limit, after
  all have printed where they are.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
import zlib
from array import array
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import launch
import pytest

os.environ.setdefault("RMAEXT_TRACEBACK", "full")  # whoever tests rmaext wants its frames
UNDER_MPIEXEC = launch.under_mpiexec()
GRACE = 5.0  # seconds that a rank which failed waits for the others

PASSED, SKIPPED, FAILED = range(3)
OUTCOMES = {"passed": PASSED, "skipped": SKIPPED, "failed": FAILED}


class State:
    """This process's part of the run."""

    rank = 0
    size = 1
    stderr = 2  # past pytest's capturing
    executed = 0
    folder = ""  # what tmp_path is in
    timer: threading.Timer | None = None


# -- communicators and processes ---------------------------------------------


def _mpi() -> Any:
    # Serial tests should not initialise MPI unless they use it.
    from mpi4py import MPI

    return MPI


@pytest.fixture
def world() -> Any:
    """MPI.COMM_WORLD."""
    return _mpi().COMM_WORLD


@pytest.fixture(params=["self", "world"])
def comm(request: pytest.FixtureRequest) -> Any:
    """MPI.COMM_SELF (with two ranks only), then MPI.COMM_WORLD."""
    return _mpi().COMM_SELF if request.param == "self" else _mpi().COMM_WORLD


@pytest.fixture
def node(world: Any, monkeypatch: pytest.MonkeyPatch) -> Generator[Any, None, None]:
    """A communicator whose ranks share this node, whatever the run pretends."""
    from rmaext._comm.group import Group

    Group.of(world)  # other tests' windows over it are to be as the run has them
    monkeypatch.delenv("RMAEXT_ROUTE", raising=False)
    monkeypatch.delenv("RMAEXT_NODE", raising=False)
    comm = world.Dup()  # routes are chosen once a communicator
    yield comm
    comm.Free()


@pytest.fixture
def run_python() -> Callable[..., Any]:
    """launch.run_python: a Python process of its own, under a time limit."""
    return launch.run_python


@pytest.fixture
def mpirun() -> Callable[..., Any]:
    """launch.mpirun: an MPI job of its own, under a time limit; for serial tests."""
    return launch.mpirun


# -- collection --------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "node: has the fixture node, whatever the run pretends")
    if UNDER_MPIEXEC:
        State.rank, State.size = _mpi().COMM_WORLD.rank, _mpi().COMM_WORLD.size
        # In a folder of all ranks pytest's clean-up fails, if two come to it at once.
        State.folder = tempfile.mkdtemp(prefix=f"rmaext-rank-{State.rank}-")
        os.environ["PYTEST_DEBUG_TEMPROOT"] = State.folder
        if launch.test_route() == "fabric":
            os.environ["RMAEXT_ROUTE"] = "fabric"
        elif launch.test_route() == "mixed":
            os.environ["RMAEXT_NODE"] = f"node {State.rank % 2}"
    State.stderr = os.dup(2)
    if State.rank:
        # The terminal reporter is made with this; rank 0 reports for all.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


@pytest.hookimpl(trylast=True, specname="pytest_configure")
def pytest_configure_last(config: pytest.Config) -> None:
    if State.rank:
        sys.stdout = sys.__stdout__
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "MPIPlugin":
            plugin._is_testing_mpi = False  # only its closing report of 30 lines


def pytest_itemcollected(item: pytest.Item) -> None:
    fixtures = set(getattr(item, "fixturenames", ()))
    if {"comm", "world"} & fixtures:
        item.add_marker("mpi")
    if "node" in fixtures:
        item.add_marker("node")
    for mark in item.iter_markers("mpi"):
        wrong = [*map(repr, mark.args), *(set(mark.kwargs) - {"min_size", "max_size"})]
        if wrong:
            raise pytest.UsageError(f"{item.nodeid}: mark mpi does not take {', '.join(wrong)}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--with-mpi"):
        raise pytest.UsageError("--with-mpi is missing: tests marked mpi would be skipped")
    if UNDER_MPIEXEC:
        dropped = [item for item in items if not wanted(item)]
        items[:] = [item for item in items if wanted(item)]
        config.hook.pytest_deselected(items=dropped)


def pytest_collection_finish() -> None:
    forget()


def forget() -> None:
    """Spare tests that collect garbage what pytest has: its objects, one for each test and more."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    done = yield  # fixtures of a module have gone, too
    if nextitem and nextitem.path != item.path:
        forget()
    return done


def wanted(item: pytest.Item) -> bool:
    """Whether ranks of this number run it: COMM_SELF is the same beside any others.

    By network it is the world of one rank, at size 1:fabric.
    """
    if item.get_closest_marker("pair") and State.size != 2:
        return False
    alone = getattr(item, "callspec", None) and item.callspec.params.get("comm") == "self"
    beside = State.size == 2 and launch.test_route() != "fabric"
    return bool(item.get_closest_marker("mpi")) and (beside or not alone)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("mpi"):
        most = mark.kwargs.get("max_size")
        if most is not None and State.size > most:
            pytest.skip(f"for {most} MPI processes at most")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    State.executed += report.when == "call" and not report.skipped


def pytest_internalerror(excrepr: object) -> None:
    if State.size > 1:
        abort(f"pytest itself failed here:\n{excrepr}")  # the others would wait for it


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and not State.executed:
        # All of them skipped: that must not look like success.
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_unconfigure(config: pytest.Config) -> None:
    if State.folder:
        shutil.rmtree(State.folder, ignore_errors=True)


# -- ranks that fail together ------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A set-up or an end that passes is not told: a rank that waits costs more than most tests.
    if State.size > 1 and (report.when == "call" or not report.passed):
        share(report)
    return report


def share(report: pytest.TestReport) -> None:
    """Make one report of all ranks' reports. Collective."""
    world = _mpi().COMM_WORLD
    mine = (OUTCOMES[report.outcome], zlib.crc32(f"{report.nodeid} {report.when}".encode()))
    others = gather(world, mine, report)
    if any(test != mine[1] for _, test in others):
        abort(
            f"this rank is at {report.nodeid} ({report.when}), others are elsewhere\n"
            + report.longreprtext
            + sections(report)
        )
    outcomes = [outcome for outcome, _ in others]
    if FAILED not in outcomes and len(set(outcomes)) == 1:
        return
    # Two ranks' reports often differ in addresses only.
    text = re.sub("0x[0-9a-f]+", "0x...", report.longreprtext + sections(report))
    texts = world.allgather(text if report.failed else None)
    words = [f"{name} on rank {ranks(outcomes, o)}" for name, o in OUTCOMES.items()]
    lines = [", ".join(word for o, word in enumerate(words) if o in outcomes)]
    for text in dict.fromkeys(text for text in texts if text):
        lines += [f"------ rank {ranks(texts, text)}", text]
    report.outcome = "failed"
    report.longrepr = "\n".join(lines)
    report.sections.clear()
    vars(report).pop("wasxfail", None)


def gather(world: Any, mine: tuple[int, int], report: pytest.TestReport) -> list[tuple[int, int]]:
    """Gather two integers from all ranks; end the job if this one failed and others do not come."""
    receive = array("q", bytes(16 * State.size))
    request = world.Iallgather(array("q", mine), receive)
    start = time.monotonic()
    while not request.Test():
        waited = time.monotonic() - start
        if report.failed and waited > GRACE:
            abort(
                f"{report.nodeid} ({report.when}) failed here, and others are still in it:\n"
                + report.longreprtext
                + sections(report)
            )
        time.sleep(min(waited, 0.002))
    return list(zip(receive[::2], receive[1::2], strict=True))


def ranks(values: list[Any], value: Any) -> str:
    return ", ".join(str(rank) for rank, other in enumerate(values) if other == value)


def sections(report: pytest.TestReport) -> str:
    return "".join(f"\n--- {name}\n{text}" for name, text in report.sections)


def say(text: str) -> None:
    """Print at once, past capturing, in one piece."""
    os.write(State.stderr, f"\n*** rank {State.rank} of {State.size}: {text}\n".encode())


def abort(text: str) -> NoReturn:
    say(text)
    _mpi().COMM_WORLD.Abort(1)
    raise AssertionError("unreachable")


# -- time limits -------------------------------------------------------------
# A hang is mostly inside C, where no exception reaches. So under mpiexec a
# thread prints the stacks and leaves without ceremony, which ends the job. If
# it cannot run, as the GIL is held, faulthandler's own thread does so 5 s later.


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    faulthandler.dump_traceback_later(settings.timeout + 5, exit=True, file=State.stderr)
    if State.size == 1:
        return None  # pytest-timeout raises an exception in the test
    State.timer = threading.Timer(settings.timeout, expire, (item.nodeid, settings.timeout))
    State.timer.daemon = True
    State.timer.start()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    # Not in pytest_timeout_cancel_timer: a failure calls that, before teardown.
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if State.timer:
            State.timer.cancel()


def expire(nodeid: str, limit: float) -> NoReturn:
    lines = [f"{nodeid} is not done after {limit:g} s\n"]
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            lines.append(f"Thread {thread:#x}\n")
            lines += traceback.format_list(
                entry
                for entry in traceback.extract_stack(frame)
                if not re.search("pytest|pluggy|runpy", entry.filename)
            )
    say("".join(lines).rstrip())
    time.sleep(2)  # the other ranks print theirs
    os._exit(1)
