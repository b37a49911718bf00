# SPDX-License-Identifier: BSD-3-Clause
"""Connections that are cut, targets that are stopped, ranks that are lost.

The programs in tests/jobs/programs check; here they are started, each under a time
limit. Those with network namespaces need root.
"""

from __future__ import annotations

from collections.abc import Iterator

import launch
import pytest
from support import netns
from support.jobs import kill, passes
from support.libraries import BOTH, BOTH_IN_MATRIX


@pytest.fixture
def one_network() -> Iterator[str]:
    """The pid of a network namespace."""
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(1) as (only,):
        yield str(only.pid)


@pytest.fixture
def slow_cable() -> Iterator[list[str]]:
    """The pids of two network namespaces, joined at 8 Mbit/s."""
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(2) as (first, second):
        netns.join("cable", [(first, "10.77.0.1/24"), (second, "10.77.0.2/24")])
        first.slow("cable", "8mbit")
        yield [str(first.pid), str(second.pid)]


# -- a connection is cut -------------------------------------------------------------


def cut(library, scenarios, pids, timeout=55):
    """Run cut.py, and require that cuts were felt at all."""
    pairs = ",".join(f"{scenario}={rounds}" for scenario, rounds in scenarios.items())
    how = {"library": library, "timeout": timeout}
    said = passes(2, "jobs/programs/cut.py", pairs, *pids, oks=1, **how)
    for scenario in scenarios:
        assert f"{scenario}, libfabric" in said
    assert "'lost': " in said, "no cut hit anything"


FAST = ("idle", "between", "stopped", "race", "get")


@pytest.mark.parametrize("library", BOTH)
def test_cut_connection_is_an_error_or_new_data(one_network, library):
    cut(library, dict.fromkeys(FAST, 30), [one_network])


@pytest.mark.parametrize("library", BOTH)
def test_cut_of_a_slow_connection_is_an_error_or_new_data(slow_cable, library):
    cut(library, {"slow small": 30, "slow large": 6}, slow_cable)


@pytest.mark.stress
@pytest.mark.timeout(700)
@pytest.mark.parametrize("library", BOTH)
def test_many_cuts(one_network, slow_cable, library):
    cut(library, dict.fromkeys(FAST, 500), [one_network], timeout=300)
    cut(library, {"slow small": 500, "slow large": 200}, slow_cable, timeout=300)


def test_cut_connection_and_fetch_add(one_network):
    """It fails in time, at the time limit at the latest, and flush works again."""
    cut("", {"fetch_add": 25}, [one_network])


# -- a target is stopped -------------------------------------------------------------


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_operations_on_a_stopped_target_time_out(library):
    """And nothing writes late into memory that is in use again."""
    passes(2, "jobs/programs/stopped.py", oks=1, library=library, RMAEXT_ROUTE="fabric")


# -- a rank is lost ------------------------------------------------------------------

KILLED = ["new_operations", "in_flight 0", "in_flight 1", "fence", "close", "create"]


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("scenario", KILLED)
def test_killed_rank(scenario, library):
    """Far below the time limit of 60 s."""
    kill(scenario, library=library, RMAEXT_ROUTE="fabric")


@pytest.mark.parametrize("library", BOTH)
def test_killed_rank_while_words_wait_behind_puts(library):
    """Of 1.17 to 2.5.1 rxm crashes when an injected write fails."""
    kill("fence_behind", library=library, RMAEXT_ROUTE="fabric")


@pytest.mark.parametrize(
    ("scenario", "memory"),
    [
        *[(scenario, "arena") for scenario in ("new_operations", "fence", "close", "create")],
        ("new_operations", "own"),
        pytest.param("close", "own", marks=pytest.mark.matrix),
    ],
)
def test_killed_rank_of_this_node(scenario, memory):
    """By the routes direct and cma."""
    kill(scenario, memory)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("scenario", ["new_operations", "in_flight 1", "fence"])
def test_killed_rank_on_another_node(scenario, library):
    """There is no pidfd: the beacon and the network have to tell."""
    kill(scenario, "nodes", library=library)


@pytest.mark.parametrize("nodes", [[], pytest.param(["nodes"], marks=pytest.mark.matrix)])
def test_rank_that_leaves_by_an_exception(mpirun, nodes):
    """The others do not wait for it, though its process lives on in MPI_Finalize."""
    done = mpirun(3, launch.ROOT / "tests/jobs/programs/leave.py", *nodes)
    assert done.returncode not in (0, None)
    assert done.stdout.count("SyncError: rank 2 has left") == 2, done.stdout + done.stderr
    assert "ZeroDivisionError" in done.stderr


# -- no fault at all -----------------------------------------------------------------


def relay(library, rounds, timeout=30):
    how = {"library": library, "timeout": timeout, "RMAEXT_ROUTE": "fabric"}
    assert f"{rounds} rounds" in passes(3, "jobs/programs/relay.py", str(rounds), oks=1, **how)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_third_rank_sees_what_was_flushed(library):
    relay(library, 1000)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", BOTH)
def test_third_rank_sees_what_was_flushed_10000_times(library):
    relay(library, 10_000, timeout=240)
