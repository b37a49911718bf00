# SPDX-License-Identifier: BSD-3-Clause
"""The targets of the containers, for table.py; their jobs are the programs beside this."""

from __future__ import annotations

import os
from pathlib import Path

from targets import (
    BOTH,
    MIB,
    MPI_ALLOCATE,
    MPI_CREATE,
    MPICH,
    OPENMPI,
    SPEED,
    TIME,
    VALUE,
    Claim,
    Library,
    Row,
    job,
)

__all__ = ["CONTAINERS", "SKIPPED"]

FOLDER = Path(__file__).resolve().parent


GLOBAL_ARRAYS = Path(os.environ.get("GLOBAL_ARRAYS", "/usr"))  # a prefix
HAS_GLOBAL_ARRAYS = (
    any(GLOBAL_ARRAYS.glob("lib/**/libarmci-*.a")) and (GLOBAL_ARRAYS / "include" / "ga.h").exists()
)
HAS_DEEPHYPER = (FOLDER.parents[1] / "build" / "dropin" / "site" / "deephyper").exists()

# what is not measured for want of a peer, and where it comes from
SKIPPED = tuple(
    f"{rows}: skipped, as {peer}"
    for there, rows, peer in (
        (
            HAS_GLOBAL_ARRAYS,
            "Array beside Global Arrays",
            "Debian's libglobalarrays-dev and libarmci-mpi-dev are not installed (GLOBAL_ARRAYS "
            "names another prefix than /usr)",
        ),
        (
            HAS_DEEPHYPER,
            "Dict, an item",
            "deephyper is not there (make test-dropin ARGS='--only deephyper' downloads it)",
        ),
    )
    if not there
)

# what Open MPI allocates is shared memory of the node whatever it is told
FORMS = {"node": (MPI_ALLOCATE, MPI_CREATE), "fabric": (MPI_CREATE,)}
PATCHES = ("get of a patch", "put of a patch", "add of a patch")

STORE, DICT, QUEUE, STATE, CHANNEL, NODE_ARRAY, ARRAY = (
    f"rmaext.containers.{name}"
    for name in ("Store", "Dict", "TaskQueue", "Published", "Channel", "NodeArray", "Array")
)


def program(name: str) -> tuple[str, ...]:
    """Return the arguments of Python for a program beside this."""
    return (str(FOLDER / name),)


def where(route: str) -> str:
    """Return a route as the table says it."""
    return "tcp" if route == "fabric" else "same node"


def taken(route: str) -> str:
    """Return by which route windows must have gone."""
    return "fabric" if route == "fabric" else "direct"


def store(route: str, forms: tuple[str, ...], loop: float, burst: float) -> Row:
    """Return the row of batches of a Store: how many times as fast as loops of MPI.Win."""
    peers = {"Lock, Get, Unlock": loop, "Lock_all, Get, Flush": burst}
    return Row(
        f"Store, {where(route)}",
        BOTH,
        job("batches", forms, route, program=program("store.py")),
        tuple(
            Claim(
                f"256 records of {size}",
                SPEED,
                target,
                tuple(f"{form}: {how}" for form in forms),
                STORE,
            )
            for size in ("1 KiB", r"0\.75 to")
            for how, target in peers.items()
        ),
        taken(route),
    )


def many_keys(route: str, forms: tuple[str, ...]) -> Row:
    """Return the row of batches of a Dict beside a table over MPI.Win."""
    claims = tuple(Claim(f"{call}_many", SPEED, 50, forms, DICT) for call in ("get", "add"))
    case = job("many", forms, route, program=program("mapping.py"))
    return Row(f"Dict, 1,024 keys, {where(route)}", BOTH, case, claims, taken(route))


def one_key(route: str, libraries: tuple[Library, ...]) -> Row:
    """Return the row of single items of a Dict beside deephyper's mapping."""
    peers = ("deephyper's mapping",)
    claims = tuple(Claim(f"{call} of an item", SPEED, 1000, peers, DICT) for call in ("get", "put"))
    case = job("single", (), route, program=program("mapping.py"))
    return Row(f"Dict, an item, {where(route)}", libraries, case, claims, taken(route))


def tasks(route: str) -> Row:
    """Return the row of a TaskQueue beside the ideal, and what is used today."""
    case = job("tasks", (), route, program=program("taskqueue.py"))
    others = ("MPI.Win: Fetch_and_op, Get", "mpi4py.futures")
    claims = (
        Claim(r"\d+ tasks", TIME, 1.05, ("by hand",), QUEUE),
        *(Claim(r"\d+ tasks", SPEED, None, (other,), QUEUE) for other in others),
        Claim("waits", VALUE, 1, (), QUEUE),
    )
    return Row(f"TaskQueue, {where(route)}", BOTH, case, claims)


def newest(route: str) -> Row:
    """Return the row of Published beside a copy and a get, and what is used today."""
    case = job("vectors", (), route, program=program("published.py"), sizes=[MIB])
    others = ("MPI.Win: sequence lock", "MPI.Comm.Bcast")
    claims = tuple(
        claim
        for figure, target in (("publish", 1.2), ("read", 1.5))
        for claim in (
            Claim(figure, TIME, target, ("copy and get",), STATE),
            *(Claim(figure, SPEED, None, (other,), STATE) for other in others),
        )
    )
    return Row(f"Published, 1 MiB, {where(route)}", BOTH, case, claims)


def million(route: str) -> Row:
    """Return the row of reads of which none may be torn: that is a failure."""
    case = job("million", (), route, program=program("published.py"), sizes=[1024])
    claim = Claim(r"\d+ reads", VALUE, None, (), STATE)
    return Row(f"Published, none is torn, {where(route)}", BOTH, case, (claim,))


def mailbox(route: str, target: float) -> Row:
    """Return the row of a Channel beside messages: batches of 100 and 1,000 records."""
    sizes = [6400, 64_000]
    case = job("records", (), route, ranks=4, program=program("channel.py"), sizes=sizes)
    claims = tuple(
        Claim(r"\d+ records", TIME, goal, (peer,), CHANNEL, size)
        for size in sizes
        for peer, goal in (("mpi4py: Send, Recv", target), ("mpi4py: Isend, Probe", None))
    )
    return Row(f"Channel, 3 writers, {where(route)}", BOTH, case, claims)


def table_of_a_node() -> Row:
    """Return the row of a NodeArray beside MPI's shared windows."""
    case = job("tables", (), ranks=4, program=program("nodearray.py"), sizes=[256 * MIB])
    claim = Claim("fill and first read", TIME, 1.0, ("MPI.Win.Allocate_shared",), NODE_ARRAY)
    return Row("NodeArray, 4 ranks, same node", BOTH, case, (claim,))


def array(case: str, figures: tuple[str, ...], route: str, peers: dict[str, float]) -> Row:
    """Return a row of an Array beside what is written by hand."""
    claims = tuple(
        Claim(figure, TIME, target, (peer,), ARRAY)
        for figure in figures
        for peer, target in peers.items()
    )
    forms = FORMS[route]
    made = job(case, forms, route, program=program("arrays.py"))
    return Row(f"Array, {case}, {where(route)}", BOTH, made, claims)


def arrays(route: str) -> tuple[Row, ...]:
    """Return the rows of an Array: patches, ghosts, other blocks."""
    windows = {f"{form}: subarrays": 0.3 for form in FORMS[route]}
    by_hand = 0.9 if route == "fabric" else 0.8
    exchanges = {"MPI.Comm.Sendrecv": by_hand, "MPI.Comm.Neighbor_alltoallw": by_hand}
    return (
        array("patches", PATCHES, route, windows),
        array("ghosts", ("ghosts of",), route, exchanges),
        array("pencils", ("pencils of",), route, {"MPI.Comm.Alltoallw": 1.0}),
    )


def beside_global_arrays(route: str) -> Row:
    """Return the row of patches of an Array beside Global Arrays in C."""
    claims = tuple(Claim(figure, TIME, 1.0, ("Global Arrays",), ARRAY) for figure in PATCHES)
    case = job("patches", (), route, ranks=1, program=program("global_arrays.py"), rounds=5)
    return Row(f"Array, Global Arrays' patches, {where(route)}", BOTH, case, claims, taken(route))


ROUTES = ("node", "fabric")
CONTAINERS = (
    store("node", (MPI_ALLOCATE, MPI_CREATE), 20, 3),
    store("fabric", (MPI_CREATE,), 10, 2),
    many_keys("node", (MPI_ALLOCATE, MPI_CREATE)),
    many_keys("fabric", (MPI_CREATE,)),
    # MPICH aborts the job: the package's Get on one node reads memory into itself
    *(
        one_key(route, libraries)
        for route, libraries in (("node", (OPENMPI,)), ("fabric", (MPICH, OPENMPI)))
        if HAS_DEEPHYPER
    ),
    *(row(route) for row in (tasks, newest) for route in ROUTES),
    million("node"),
    mailbox("node", 0.5),
    mailbox("fabric", 0.7),
    table_of_a_node(),
    *(row for route in ROUTES for row in arrays(route)),
    *(beside_global_arrays(route) for route in ROUTES if HAS_GLOBAL_ARRAYS),
)
