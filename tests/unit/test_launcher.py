# SPDX-License-Identifier: BSD-3-Clause
"""The launcher that is found for mpi4py's MPI; all other jobs of the suite use it."""

from __future__ import annotations

import subprocess
import sys

import launch
import pytest

# What each says of itself; the last two are not of any MPI that is known.
SAYS = {
    "MPICH": "HYDRA build details:\n    Version:  4.0.2\n",
    "Open MPI": "mpiexec (Open MPI) 4.1.4\n\nReport bugs to ...\n",
    "OpenRTE": "mpiexec (OpenRTE) 4.1.4\n",  # Debian's, under that name
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626\n",
    "": "mpiexec version 1.4.0\n",
}

# The launchers in a folder, and MPI as mpi4py would name it: there is one MPI here only.
FIND = """
    import sys, types
    sys.argv[:1] = ["-m"]
    from rmaext._runtime import launcher
    folder, vendor = sys.argv[1], (sys.argv[2], tuple(map(int, sys.argv[3].split("."))))
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    MPI.get_vendor = lambda: vendor
    sys.executable = folder + "/python"
    read = open
    launcher.open = lambda path: read("/dev/null" if path == "/proc/self/maps" else path)
    try:
        path, name = launcher.find()
        print(*launcher.command(name, path, 3))
    except launcher.LauncherError as error:
        print("none:", error)
"""


def find(tmp_path, vendor, version, launchers, **env):
    """Return what is found where only these launchers are: name -> what it says."""
    for name, text in launchers.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\nprintf '\\377%s' '{text}'\n")  # one byte is no UTF-8
        path.chmod(0o755)
    code = FIND.replace("sys.argv[1]", repr(str(tmp_path)))
    code = code.replace("sys.argv[2]", repr(vendor)).replace("sys.argv[3]", repr(version))
    done = launch.run_python(code, env={"PATH": str(tmp_path), **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("vendor", "version", "more"),
    [
        ("MPICH", "5.0.2", ""),
        ("Intel MPI", "2021.18.1", ""),
        ("Open MPI", "4.1.6", " --map-by :OVERSUBSCRIBE --bind-to none"),
        ("OpenRTE", "4.1.6", " --map-by :OVERSUBSCRIBE --bind-to none"),
    ],
)
@pytest.mark.parametrize("name", ["mpiexec", "mpirun", "mpiexec.hydra"])
def test_finds_it_among_others(tmp_path, name, vendor, version, more):
    names = [n for n in ("mpiexec", "mpirun", "mpiexec.mpich", "mpiexec.openmpi") if n != name]
    own, vendor = SAYS[vendor], vendor.replace("OpenRTE", "Open MPI")
    others = [text for its, text in SAYS.items() if its not in (vendor, "OpenRTE")]
    found = find(tmp_path, vendor, version, dict(zip(names, others, strict=False)) | {name: own})
    assert found == f"{tmp_path}/{name} -n 3{more}"


def test_says_what_there_is_where_none_fits(tmp_path):
    assert find(tmp_path, "MPICH", "5.0.2", {}) == (
        "none: no launcher of MPICH 5.0.2, which mpi4py uses: "
        "there is no mpiexec beside Python, beside MPI or in PATH"
    )
    launchers = {"mpiexec": SAYS["Open MPI"], "mpirun": SAYS[""], "mpiexec.hydra": SAYS["MPICH"]}
    assert find(tmp_path, "Open MPI", "5.0.11", launchers) == (
        "none: no launcher of Open MPI 5.0.11, which mpi4py uses: "
        f"{tmp_path}/mpiexec is that of Open MPI 4.1; {tmp_path}/mpirun is unknown; "
        f"{tmp_path}/mpiexec.hydra is that of MPICH 4.0"
    )
    assert "no way known to launch jobs of Fujitsu MPI, only of" in find(
        tmp_path, "Fujitsu MPI", "1.0", {}
    )


@pytest.mark.parametrize(
    ("vendor", "way"), [("MPICH", "pmi2"), ("Intel MPI", "pmi2"), ("Open MPI", "pmix")]
)
def test_srun_where_no_mpiexec_fits(tmp_path, vendor, way):
    launchers = {"srun": "slurm 22.05.8\n", "mpiexec": SAYS[""]}
    assert find(tmp_path, vendor, "5.0", launchers).startswith("none: ")  # outside of a job
    found = find(tmp_path, vendor, "5.0", launchers, SLURMD_NODENAME="n1")
    assert found == f"{tmp_path}/srun --mpi={way} -N 1 -w n1 --overlap --overcommit -n 3"


def test_is_the_one_of_this_mpi():
    path, kind = launch.launcher()
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    sign = {"mpich": "HYDRA", "openmpi": "Open MPI", "intelmpi": "Intel"}[kind]
    assert sign in said.stdout
    # as a program it loads nothing of the package
    line = [sys.executable, "-v", launch.ROOT / "rmaext" / "_runtime" / "launcher.py"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == path
    assert "import 'rmaext" not in done.stderr
