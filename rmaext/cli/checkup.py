# SPDX-License-Identifier: BSD-3-Clause
"""One of two ranks of a job: `python -m rmaext.cli.checkup SETTINGS FOLDER`, see probe.py.

SETTINGS is JSON: "providers", of which "" stands for the routes within a node, and
"patience", the seconds that each operation may take. Each rank leaves FOLDER/pid-PID. Rank 0
adds lines of JSON to FOLDER/log: each step as it begins, and what came of each provider; who
fails first leaves FOLDER/error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._memory import arrays
from .._native._lib import lib
from .._ops.atomic_ops import OPERATIONS
from .._window.window import Window

_COUNT = 1 << 16  # 512 KiB
_FLAG = _COUNT - 1


class _Log:
    """What rank 0 says of its way; rank 1 says nothing."""

    def __init__(self, folder: Path) -> None:
        self._path, self.name = folder / "log", ""

    def add(self, **what: Any) -> None:
        if MPI.COMM_WORLD.rank == 0:
            with open(self._path, "a") as file:
                file.write(f"{json.dumps({'name': self.name} | what)}\n")


def main() -> None:
    """Go through the steps; an exception on either rank ends the job."""
    settings, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    faulthandler.enable()  # a launcher may not tell that a rank crashed
    (folder / f"pid-{os.getpid()}").touch()
    log = _Log(folder)
    try:
        for number, name in enumerate(settings["providers"]):
            log.name = name
            sign = folder / f"absent-{number}"
            log.add(result=_examine(name, settings["patience"], sign, log))
    except BaseException as exc:
        # the first to fail knows why; then it is gone, as the other may say
        with contextlib.suppress(FileExistsError), open(folder / "error", "x") as file:
            file.write(f"{type(exc).__name__}: {exc}")
        MPI.COMM_WORLD.Abort(1)
        os._exit(1)


def _examine(provider: str, patience: float, sign: Path, log: _Log) -> dict[str, Any]:
    world = MPI.COMM_WORLD.Dup()  # as a communicator's routes are found once
    record = np.dtype([(f"f{i}", t) for i, t in enumerate(arrays.atomic_dtypes())], align=True)
    log.add(step="reference")
    # by memory: what the provider must give, too
    reference = Window(MPI.COMM_SELF, np.zeros(1, record))
    if provider:
        os.environ.update(RMAEXT_PROVIDER=provider, RMAEXT_ROUTE="fabric")
    log.add(step="open")
    plain = Window.allocate(world, _COUNT, "i8", timeout=patience)
    mixed = Window(world, np.zeros(1, record), timeout=patience)
    result: dict[str, Any] = {"routes": [plain.route(1 - world.rank), mixed.route(1 - world.rank)]}
    if plain.fabric is not None:
        fabric = plain.fabric
        result |= {"mr_mode": fabric.mr_mode, "key_size": fabric.key_size}
        result["guarded"] = fabric.guarded
    if world.rank == 0:
        _transfers(plain, log)
        result["updates"] = _updates(mixed, reference, log)
    plain.fence()
    if world.rank == 0:
        log.add(step="progress")
        while not sign.exists():  # the other may be in the fence still
            time.sleep(0.002)
        result["absent"] = _absence(plain)
    else:
        sign.touch()
        _be_absent(plain.local, patience)
    log.add(step="teardown")
    reference.close()
    mixed.close()
    plain.close()
    world.Free()
    return result


def _transfers(win: Window, log: _Log) -> None:
    data = np.random.default_rng(1).integers(-(2**62), 2**62, _COUNT - 1)
    for n in (1, 1000, data.size):
        log.add(step=f"put of {8 * n} bytes")
        win.put(data[:n], 1)
        win.flush(1)
        log.add(step=f"get of {8 * n} bytes")
        _same(win.get(1, 0, n), data[:n], "the data is not what was put there")


def _updates(win: Window, reference: Window, log: _Log) -> int:
    """Make each update there is of each type, here by memory and there; return how many.

    Those of a type are under way together: on a busy machine each answer may take long.
    """
    done = 0
    for name, dtype in ((name, win.dtype[name]) for name in win.dtype.names or ()):
        log.add(step=f"updates of {dtype}")
        here, there = reference.field(name), win.field(name)
        number = arrays.atomic_type(dtype)
        three, one = _value(3, dtype), _value(1, dtype)
        ops = [o for o, code in OPERATIONS.items() if lib.rmaext_update_valid(code, number)]
        theirs = [there.rget_accumulate(three, 1, op=op) for op in ops]
        for op, request in zip(ops, theirs, strict=True):
            mine, other = here.get_accumulate(three, 0, op=op), request.wait()
            _same(other, mine, f"{op} finds {other}, not {mine}")
        done += len(ops)
        if lib.rmaext_update_valid(lib.RMAEXT_CSWAP, number):
            there.accumulate(three, 1, op="replace")
            found = np.atleast_1d(there.compare_and_swap(three[0], one[0], 1))
            _same(found, three, "compare_and_swap finds other")
            _same(there.get(1, 0, 1), one, "compare_and_swap does not swap")
            done += 1
        here.close()
        there.close()
    return done


def _value(value: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.zeros(1, dtype)
    for part in [array] if dtype.names is None else [array[name] for name in dtype.names]:
        part[:] = value
    return array


def _same(is_: NDArray[Any], wanted: NDArray[Any], words: str) -> None:
    if not np.array_equal(is_, wanted):
        raise AssertionError(words)


def _absence(win: Window) -> float:
    """Operate on a rank that calls nothing; return the seconds of an operation."""
    value = np.full(100, 7)
    start = time.monotonic()
    win.put(value, 1)
    win.flush(1)
    _same(win.get(1, 0, 100), value, "the data is not what was put there")
    win.fetch_add(1, 1, 0)
    spent = (time.monotonic() - start) / 3
    win.fetch_op(1, 1, _FLAG, op="replace")
    return spent


def _be_absent(local: NDArray[Any], patience: float) -> None:
    end = time.monotonic() + 4 * patience
    while not local[_FLAG] and time.monotonic() < end:
        time.sleep(0.005)


if __name__ == "__main__":
    main()
