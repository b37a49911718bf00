# SPDX-License-Identifier: BSD-3-Clause
"""What a program pays once: its imports, the first window, the first operation to a peer.

A process can measure each only once. So each sample is a process or a job of its own, which
one rank starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import Window  # noqa: F401 (under `python -m` the first use would import it)
from .._runtime import launcher
from . import run
from .cases import TARGET, Maker, same, sides
from .measure import Job, WrongDataError, once
from .peers import WORD

LIMIT = 60  # seconds that a process or job may take
GUARD = 0x0123456789ABCDEF
IMPORTS = {
    "import rmaext": "rmaext",
    "import mpi4py.MPI": "mpi4py.MPI",
    "import mpi4py.MPI, numpy": "mpi4py.MPI, numpy",
}


class Fresh:
    """Something that is measured in new processes."""

    def __init__(self, name: str, take: Callable[[], float]) -> None:
        self.name, self.take = name, take

    def enter(self) -> None:
        """Nobody else takes part."""

    leave = enter


def start(job: Job) -> None:
    """Measure imports and the first window, and over the network the first get from a peer."""
    fabric = os.environ.get("RMAEXT_ROUTE") == "fabric"
    forms = job.settings["forms"]
    turns: list[tuple[str, str, list[str], dict[str, Any]]] = [
        ("first window", "first_window", forms, {})
    ]
    if fabric:
        mine = [form for form in forms if form.startswith("rmaext")]
        for where in ("asleep", "in a fence"):
            turns.append((f"first get, target {where}", "first_get", mine, {"target": where}))
    job.expect(job.rounds * sum(len(turn[2]) for turn in turns) + job.rounds * len(IMPORTS))
    if not fabric:
        # an installed package has its bytecode, which nobody may have written here
        with tempfile.TemporaryDirectory(prefix="rmaext-bytecode-") as cache:
            imports = [Fresh(name, partial(_import, what, cache)) for name, what in IMPORTS.items()]
            for each in imports:
                each.take()
            job.add("import", job.alternate(imports, lambda each: [each.take()]), "ms")
    for title, case, which, settings in turns:
        rivals = [Fresh(form, partial(_launch, job, case, form, settings)) for form in which]
        samples = job.alternate(rivals, lambda each: [each.take()])
        size = WORD if case == "first_get" else None
        job.add(title, samples, "ms", size)


def _import(what: str, cache: str) -> float:
    """Return how long an import takes in a new process, in us."""
    code = f"import time; start = time.perf_counter(); import {what}; "
    code += "print(time.perf_counter() - start)"
    command = [sys.executable, "-c", code]
    env = {**launcher.environment(), "PYTHONPYCACHEPREFIX": cache}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return float(done.stdout.split()[-1]) * 1e6


def _launch(job: Job, case: str, form: str, settings: dict[str, Any]) -> float:
    """Return what a job of two ranks measures, in us."""
    route = "fabric" if os.environ.get("RMAEXT_ROUTE") == "fabric" else "node"
    level = os.environ.get("MPI4PY_RC_THREAD_LEVEL", "multiple")
    wanted = run.Job(case, route, level, 2, {"forms": [form], **settings})
    found = run.launch(run.mpi_in_use(), wanted, LIMIT)
    job.facts.setdefault("routes", {}).update(found["facts"].get("routes", {}))
    return float(found["figures"][0]["values"][form]["value"]) * 1e3


def first_window(job: Job) -> None:
    """Make a window of 1 MiB, the first of these processes."""
    (form,) = job.settings["forms"]
    job.add("first window", {form: [[Maker(job, form).make()]]}, "ms")


def first_get(job: Job) -> None:
    """Get a word from a rank to which there is no connection yet."""
    (side,) = sides(job, 1)
    side.memory[:] = GUARD
    job.comm.Barrier()
    taken = []
    if job.is_origin:
        time.sleep(0.1)  # the target is where it shall be by now
        out = side.memory.copy() * 0
        taken = [once(lambda: side.get(1, out, TARGET, 0))]
        if wrong := same(f"{side.name}, first get", out, out * 0 + GUARD):
            raise WrongDataError(wrong)
    elif job.settings["target"] == "asleep":
        time.sleep(0.5)
    side.meet()
    job.add("first get", {side.name: [taken]}, "ms", WORD)


CASES = {"start": start, "first_window": first_window, "first_get": first_get}
