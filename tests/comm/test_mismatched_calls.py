# SPDX-License-Identifier: BSD-3-Clause
"""Collective calls that do not match are one error, the same on all ranks.

The tables are those of tests/comm/programs/mismatched_calls.py and random_calls.py.
"""

from __future__ import annotations

import itertools
import re

import case_table
import pytest

CALLS = case_table.names("mismatched_calls.py", "CALLS")
NATIVE, DROPIN = CALLS[:9], CALLS[9:]
NODE_ONLY = ("shared", "Allocate_shared")
FAR = [name for name in NATIVE if name not in NODE_ONLY]

FABRIC = {"RMAEXT_ROUTE": "fabric"}
MIXED = {"NODES": "2"}
ROUTES = {"direct": (2, {}), "fabric": (2, FABRIC), "three": (3, {}), "mixed": (3, MIXED)}

# Who gives up, and in what: the others come to each of these calls next.
GIVE_UP = ["exception", "late exception", "Ctrl-C in with", "leaves"]
INTERRUPTED = ["fence A", "close A", "Window", "allocate", "list", "dynamic", "Fence C", "Free C"]
NEXT = ["fence A", "fence B", "close A", "close B", "allocate"]


def check(size, env, table, timeout=100, jobs=4):
    results = case_table.table(
        size,
        "mismatched_calls.py",
        table,
        env=env,
        timeout=timeout,
        jobs=jobs,
        dead="hang or crash",
    )
    assert not case_table.bad(results), case_table.bad(results)
    assert len(results) == len(table)


def pairs(names):
    return [f"{one}|{other}" for one, other in itertools.combinations(names, 2)]


def orders(names):
    return [f"{one}|{other}" for one, other in itertools.permutations(names, 2)]


def test_the_table_is_there():
    assert NATIVE[0] == "fence A"
    assert NATIVE[-1] == "shared"
    assert [
        *("Fence C", "Fence D", "Free C", "Free D"),
        *("Create", "Allocate", "Create_dynamic", "Allocate_shared"),
    ] == DROPIN


# -- calls that do not match -----------------------------------------------------------------


@pytest.mark.timeout(200)
def test_every_pair_of_calls():
    check(2, {}, pairs(NATIVE))


@pytest.mark.matrix  # with `make test-matrix`: CI has a share of each kind
@pytest.mark.timeout(200)
def test_every_pair_over_the_network():
    check(2, FABRIC, pairs(FAR))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("env", [{}, MIXED], ids=["direct", "mixed"])
def test_three_ranks(env):
    """One of three deviates, or each calls something else."""
    some = ["fence A", "fence B", "close A", "allocate", "dynamic"]
    check(3, env, [*pairs(some), "fence A|close B|allocate", "close A|fence B|Window"])


@pytest.mark.matrix  # with `make test-matrix`: CI has a share of each kind
@pytest.mark.timeout(200)
def test_every_pair_of_the_drop_in():
    mixed = ["fence A|Fence C", "close A|Free C", "close A|Fence C", "Window|Free D"]
    check(2, {}, [*pairs(DROPIN), *mixed])


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("route", ROUTES)
def test_every_order_of_every_pair(route):
    size, env = ROUTES[route]
    far = route in ("fabric", "mixed")
    check(size, env, orders(FAR if far else NATIVE), timeout=250)
    check(size, env, orders([n for n in DROPIN if not (far and n in NODE_ONLY)]), timeout=250)


def test_mismatches_in_a_row():
    check(2, {}, ["crossed"])


# -- ranks that give up ----------------------------------------------------------------------


def give_ups(reasons, following):
    return [f"{reason}>{call}" for reason in reasons for call in following]


@pytest.mark.matrix  # with `make test-matrix`: CI has a share of each kind
@pytest.mark.timeout(200)
def test_exceptions_in_with():
    check(2, {}, give_ups(GIVE_UP, NEXT))


@pytest.mark.timeout(200)
def test_ctrl_c():
    """The same call of the others, which must not pass with the one that was given up."""
    same = [f"{call}>{call}" for call in INTERRUPTED]
    check(2, {}, [*give_ups(INTERRUPTED[:1], NEXT), *same[1:]])


@pytest.mark.timeout(200)
def test_give_up_over_the_network():
    check(2, FABRIC, ["exception>fence A", "late exception>fence B", "leaves>allocate"])
    check(2, FABRIC, [f"{call}>{call}" for call in ("fence A", "close A", "allocate")])


@pytest.mark.matrix  # with `make test-matrix`: CI has a share of each kind
@pytest.mark.timeout(200)
@pytest.mark.parametrize("env", [{}, MIXED], ids=["direct", "mixed"])
def test_give_up_of_one_of_three(env):
    """With Ctrl-C one rank waits together with the one that is interrupted."""
    check(3, env, ["late exception>fence A", "fence A>fence A", "close A>close A"])


def test_ctrl_c_in_the_first_creation():
    check(2, {}, ["first creation"], jobs=1)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("route", ROUTES)
def test_every_give_up(route):
    size, env = ROUTES[route]
    check(size, env, give_ups([*GIVE_UP, *INTERRUPTED], NEXT), timeout=250)
    check(size, env, ["first creation"])


# -- communicators that know nothing of each other ---------------------------------------------


@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_communicators_in_threads(route):
    size, env = ROUTES[route]
    check(size, env, ["threads", "threads mismatch", "other communicator"])


# -- random sequences --------------------------------------------------------------------------


def sequences(size, number, seed, env, timeout):
    done = case_table.launch.mpirun(
        size,
        case_table.PROGRAMS / "random_calls.py",
        str(seed),
        str(number),
        env=env,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"{number} sequences" in done.stdout, done.stdout + done.stderr
    found = re.search(r"(\d+) deviations, (\d+) errors", done.stdout)
    assert found, done.stdout
    assert int(found[1]) > number / 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("size", "number", "env"),
    [(2, 200, {}), (3, 20, MIXED), (2, 20, FABRIC)],  # tests/c/xfer/meetings.c tries the orders
    ids=["direct", "mixed", "fabric"],
)
def test_random_sequences(size, number, env):
    sequences(size, number, 1, env, 90)


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("route", ROUTES)
def test_ten_thousand_random_sequences(route):
    size, env = ROUTES[route]
    sequences(size, 10_000, 2, env, 1400)


# -- a rank that never comes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "env", [{}, pytest.param(FABRIC, marks=pytest.mark.matrix)], ids=["direct", "fabric"]
)
def test_a_long_wait_is_told_once(mpirun, env):
    """After 10 s: three pairs of ranks, each in another call; then the late ones come."""
    code = """
        import faulthandler, logging, sys, time
        import numpy as np
        from mpi4py import MPI
        import rmaext

        faulthandler.dump_traceback_later(45, exit=True)
        world = MPI.COMM_WORLD
        sys.excepthook = lambda *error: (sys.__excepthook__(*error), world.Abort(1))
        pair = world.Split(world.rank // 2)
        which = world.rank // 2
        told = []

        class Handler(logging.Handler):
            def emit(self, record):
                told.append((record.levelname, record.name, record.getMessage(), time.monotonic()))

        logging.getLogger().addHandler(Handler())
        win, other = rmaext.Window.allocate(pair, 4), rmaext.Window.allocate(pair, 4)
        world.Barrier()
        if pair.rank == 1:
            time.sleep(15)
        start = time.monotonic()
        if which == 0:
            other.fence()
        elif which == 1:
            other.close()
        else:
            rmaext.Window.allocate(pair, 4)
        took = time.monotonic() - start
        win.fence()
        if pair.rank == 1:
            assert not told, told
        else:
            (level, name, text, when), = told
            assert level == "WARNING" and name.partition(".")[0] == "rmaext", told
            assert 9 < when - start < 14, when - start
            assert ["fence", "close", "creat"][which] in text.lower() or which == 2, text
            assert "rank 1" in text and "rank 0" not in text, text
            assert (f"window {2 + (which == 2)}" in text), text
        world.Barrier()
        print("end", flush=True)
    """
    done = mpirun(6, code, env=env, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 6


def test_fence_against_a_barrier_of_mpi(mpirun):
    """That is for ever; the warning names who is missing."""
    code = """
        import faulthandler, logging, os, time
        from mpi4py import MPI
        import rmaext

        class Handler(logging.Handler):
            def emit(self, record):
                text = f"{record.name}: {record.getMessage()}"
                if "fence" in text and "rank 1" in text and text.startswith("rmaext"):
                    os.write(1, b"told\\n")
                    os._exit(3)

        logging.getLogger().addHandler(Handler())
        faulthandler.dump_traceback_later(30, exit=True)
        win = rmaext.Window.allocate(MPI.COMM_WORLD, 4)
        if MPI.COMM_WORLD.rank == 0:
            win.fence()
        else:
            barrier = MPI.COMM_WORLD.Ibarrier()
            while not barrier.Test():
                time.sleep(0.01)  # a Barrier would take the core
    """
    done = mpirun(2, code, timeout=40)
    assert "told" in done.stdout, done.stdout + done.stderr
