# SPDX-License-Identifier: BSD-3-Clause
"""The programs of others that `make test-dropin` runs, and how they are had."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build" / "dropin"
SITE = FOLDER / "site"
MPI4PY = FOLDER / "mpi4py-4.1.2"
CHANNELS = FOLDER / "mpi-channels-0.1.4"
SPPY = SITE / "mpisppy" / "tests"


@dataclass(frozen=True)
class Program:
    """A program, at some sizes.

    Attributes
    ----------
    name : str
        What the table calls it.
    arguments : tuple of str
        As they follow `python`.
    sizes : tuple of int
        The numbers of ranks that it is run on.
    tests : int, optional
        The number of its tests that must pass on each rank, by unittest's own
        count; None for one that only has to leave with 0.
    limit : float
        Seconds.
    tries : int
        Above 1 for tests that sometimes fail with any windows, as they depend on
        which cylinder is faster.
    types : str
        What rank 0 reads from the standard input.
    says : str
        What rank 0 must write.
    alone : bool
        On route fabric MPI is kept off shared memory, too, which changes what its
        Split_type and Allocate_shared do.
    """

    name: str
    arguments: tuple[str, ...]
    sizes: tuple[int, ...]
    tests: int | None = None
    limit: float = 120
    tries: int = 1
    types: str = ""
    says: str = ""
    alone: bool = False


def _suite(module: str, tests: int) -> Program:
    # main.py leaves with 1 when a test fails; the test's own file would leave with 0
    arguments = (str(MPI4PY / "test" / "main.py"), "-v", "-i", f"{module}[.]py$")
    return Program(f"mpi4py {module}", arguments, (1, 2, 3), tests, limit=1200)


def _demo(path: str, types: str = "", says: str = "") -> Program:
    arguments = (str(MPI4PY / "demo" / f"{path}.py"),)
    return Program(f"mpi4py {path}", arguments, (2, 5), types=types, says=says)


def _adopter(package: str, sizes: tuple[int, ...], *chosen: str) -> Program:
    # ours: packages without tests that several ranks can run, or whose tests are for one MPI
    script = str(HERE / "adopters" / f"use_{package.replace('-', '_')}.py")
    name = " ".join((package, *chosen))
    return Program(name, (script, *chosen), sizes, limit=180, says="took ", alone=True)


def _sppy(module: str, size: int, tests: int | None, *chosen: str) -> Program:
    arguments = (str(SPPY / f"{module}.py"), *chosen)
    return Program(f"mpi-sppy {module}", arguments, (size,), tests, limit=300, tries=3)


# Not here, as they often fail with any windows on a loaded machine: all of
# test_flexible_rank_xhat_multistage, and test_wheel_sign_flip_equivalence of the
# following; nor two more of test_with_cylinders, whose data files are not on PyPI; nor
# test_fwph of test_cg_with_cylinders, whose bound depends on how far one rank comes before
# the other has converged, after 60 ms: the faster the windows, the worse it is.
FARMER = (
    *("xhatxbar_extended", "xhatshuffle_extended", "xhatshuffle_coverage"),
    *("lagrangian", "lagrangian_max"),
)
FARMER_TESTS = (
    *(f"Test_farmer_with_cylinders.test_{name}" for name in FARMER),
    "Test_farmer_cvar_with_cylinders",
)
CG = ("cg_hub_runs", "xhatshuffler", "ph_xfeas_spoke", "subgradient_bounder")
CG_TESTS = tuple(f"Test_farmer_with_cylinders.test_{name}" for name in CG)

# Their scripts check results themselves, and say how long it took: --times N.
ADOPTERS = (
    _adopter("mpilock", (2, 4), "pump"),
    _adopter("mpilock", (3,), "still"),
    _adopter("bsb", (2, 4)),
    _adopter("deephyper", (2, 3)),
    _adopter("pyuvsim", (3,)),
    _adopter("mpi-channels", (2, 4)),
)

PROGRAMS: Sequence[Program] = (
    _suite("test_win", 100),
    _suite("test_rma", 36),
    _suite("test_rma_nb", 14),
    _suite("test_util_sync", 78),
    *map(_demo, ("nxtval/nxtval-onesided", "nxtval/nxtval-scalable", "nxtval/nxtval-mpi3")),
    _demo("compute-pi/cpi-rma", "100\n1000\n0\n", "pi is approximately 3.1415927"),
    Program("pshmem", ("-c", "import pshmem.test; pshmem.test.run()"), (2, 3), 13, limit=600),
    _sppy("test_spwindow_partial_get", 1, 8),
    _sppy("test_spwindow_multisource", 6, 2),
    _sppy("test_with_cylinders", 2, 7, *FARMER_TESTS),
    _sppy("test_cg_with_cylinders", 2, 4, *CG_TESTS),
    _sppy("test_dualcg_with_cylinders", 2, 5),
    _sppy("test_cg_multirank_hub", 4, 1),
    _sppy("test_flexible_rank_cylinders", 6, 1),
    _sppy("test_flexible_rank_duals", 6, 1),
    _sppy("test_flexible_rank_extension_fields", 6, 1),
    _sppy("test_flexible_rank_xfeas", 6, 1),
    _sppy("test_flexible_rank_xhat", 6, 1),
    _sppy("test_mrp_cylinders", 3, None),
    _sppy("test_xhat_file_multistage", 4, 1),
    *ADOPTERS,
)


def install() -> None:
    """Download all of it into build/dropin, unless that is done; pip checks the sums."""
    names = ("requirements.txt", "adopters.txt", "sdist.txt")
    wanted = [HERE / name for name in names]
    state = hashlib.sha256(b"".join(path.read_bytes() for path in wanted)).hexdigest()
    stamp = FOLDER / "installed"
    if stamp.exists() and stamp.read_text() == state:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    checked = ["--no-deps", "--require-hashes"]
    packages = ["install", *checked, "--only-binary", ":all:", "--target", str(SITE)]
    subprocess.run([*pip, *packages, "-r", str(wanted[0]), "-r", str(wanted[1])], check=True)
    sdist = ["download", *checked, "--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run([*pip, *sdist, "-d", str(FOLDER), "-r", str(wanted[2])], check=True)
    for folder in (MPI4PY, CHANNELS):
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    shutil.copytree(CHANNELS / "mpi_channels", SITE / "mpi_channels")
    stamp.write_text(state)
