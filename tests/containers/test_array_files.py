# SPDX-License-Identifier: BSD-3-Clause
"""Arrays to files and back, on any number of ranks."""

from __future__ import annotations

import importlib
import io
import math
import os
import random
import sys

import numpy as np
import pytest
from support.arrays import DTYPES, drawn
from support.guarded import noise, same
from support.jobs import PRELUDE, clean, start

from rmaext.containers import Array
from rmaext.containers._array import files


@pytest.fixture
def folder(world, tmp_path):
    """One folder for all ranks; pytest's is one for each."""
    yield world.bcast(str(tmp_path))
    world.Barrier()


def package(suffix):
    name = files._KINDS[suffix]
    if name:
        pytest.importorskip(name)


def read(path):
    """Read a file without rmaext."""
    suffix = os.path.splitext(path)[1]
    if suffix == ".npy":
        return np.load(path)
    if suffix == ".zarr":
        return importlib.import_module("zarr").open_array(path, mode="r")[...]
    with importlib.import_module("h5py").File(path) as file:
        return file["array"][()]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("suffix", files._KINDS)
def test_there_and_back(world, folder, suffix, monkeypatch):
    """What was saved is what numpy.load reads, and is loaded in other blocks."""
    package(suffix)
    draw = random.Random(1)
    for i in range(12 if suffix == ".npy" else 6):
        monkeypatch.setattr(files, "_MOST", draw.choice([1, 40, 1 << 24]))  # bytes
        case = drawn(draw, world.size)
        dtype = np.dtype(draw.choice(DTYPES if suffix == ".npy" else ["f8", "i4", "?"]))
        whole = noise(dtype, math.prod(case.shape), i).reshape(case.shape)
        path = f"{folder}/{i}{suffix}"
        with Array(world, case.shape, dtype, *case[1:]) as field:
            if world.rank == world.size - 1:
                field[...] = whole  # save begins with a fence
            field.save(path)
            assert same(read(path), whole)
            assert not os.path.exists(f"{path}.part")
            grid = tuple(reversed(field.grid))
        with Array.load(world, path, grid=grid, ghosts=1) as again:
            assert again.grid == grid
            assert same(again[...], whole)
            again.fence()
            if world.rank == 0 and whole.size:
                again[...] = np.zeros((), dtype)
            again.save(path)  # over the old one
            assert same(read(path), np.zeros_like(whole))


@pytest.mark.parametrize("order", ["C", "F"])
def test_files_of_numpy(world, folder, order):
    whole = np.arange(2 * 3 * 50.0).reshape(2, 3, 50)
    path = f"{folder}/numpy.npy"
    if world.rank == 0:
        np.save(path, np.asarray(whole, order=order))
    world.Barrier()
    with Array.load(world, path) as field:
        assert same(field[...], whole)


def test_hdf5_with_one_data_set_of_any_name(world, folder):
    h5py = pytest.importorskip("h5py")
    if world.rank == 0:
        with h5py.File(f"{folder}/one.h5", "w") as file:
            file["temperature"] = np.arange(12).reshape(3, 4)
        with h5py.File(f"{folder}/two.hdf5", "w") as file:
            file["a"] = file["b"] = np.arange(3)
    world.Barrier()
    with Array.load(world, f"{folder}/one.h5") as field:
        assert same(field[...], np.arange(12).reshape(3, 4))
    with pytest.raises(ValueError, match="not one data set"):
        Array.load(world, f"{folder}/two.hdf5")


def test_what_cannot_be_written_or_read(world, folder, monkeypatch):
    """The same error on all ranks; the old file stays, and nothing else."""
    with Array(world, (8, 3)) as field:
        field.local[...] = 7
        field.save(f"{folder}/a.npy")
        for path, error in (
            (f"{folder}/none/a.npy", FileNotFoundError),
            (f"{folder}/a.txt", ValueError),
            (f"{folder}/a", ValueError),
        ):
            with pytest.raises(error):
                field.save(path)
            with pytest.raises(error):
                Array.load(world, path)
        if world.size > 1:
            with pytest.raises(ValueError, match="paths differ"):
                field.save(f"{folder}/{world.rank}.npy")
            with pytest.raises(ValueError, match="paths differ"):
                Array.load(world, f"{folder}/{'a' if world.rank else './a'}.npy")
            with pytest.raises(TypeError, match=f"rank {world.size - 1}"):
                field.save(f"{folder}/a.npy" if world.rank < world.size - 1 else 3)

        def full(self, key, values):
            raise OSError(28, "No space left on device")

        if world.rank == world.size - 1:
            monkeypatch.setattr(files._Npy, "__setitem__", full)
        field.local[...] = 8
        with pytest.raises(OSError, match="No space left"):
            field.save(f"{folder}/a.npy")
        monkeypatch.undo()
        world.Barrier()
        assert os.listdir(folder) == ["a.npy"]
        assert (np.load(f"{folder}/a.npy") == 7).all()
        field.fence()
        assert (field[...] == 8).all()  # and goes on
    if world.rank == 0:
        np.save(f"{folder}/objects.npy", np.array([None]), allow_pickle=True)
        with open(f"{folder}/a.npy", "r+b") as file:
            file.truncate(150)
        np.savez(f"{folder}/several.npz", np.zeros(3))
        os.rename(f"{folder}/several.npz", f"{folder}/several.npy")
        with open(f"{folder}/text.npy", "w") as file:
            file.write("1 2 3")
    world.Barrier()
    for name in "several.npy", "text.npy":
        with pytest.raises(ValueError, match="magic"):
            Array.load(world, f"{folder}/{name}")
    for name in "objects.npy", "a.npy":
        with pytest.raises(ValueError):  # noqa: PT011 - in the words of NumPy
            Array.load(world, f"{folder}/{name}")


def test_a_group_of_zarr_stays(world, folder):
    """It may hold much else."""
    zarr = pytest.importorskip("zarr")
    if world.rank == 0:
        group = zarr.open_group(f"{folder}/run.zarr", mode="w")
        group.create_array("other", shape=3, dtype="f8")[:] = 5
    world.Barrier()
    with Array(world, 4) as field, pytest.raises(ValueError, match="group"):
        field.save(f"{folder}/run.zarr")
    world.Barrier()
    assert os.listdir(folder) == ["run.zarr"]
    assert (zarr.open_array(f"{folder}/run.zarr/other", mode="r")[:] == 5).all()


def test_a_folder_is_not_replaced_by_a_file(world, folder):
    if world.rank == 0:
        os.makedirs(f"{folder}/run.npy/results")
    world.Barrier()
    with Array(world, 4) as field, pytest.raises(OSError, match=r"run\.npy"):
        field.save(f"{folder}/run.npy")
    world.Barrier()
    assert os.listdir(folder) == ["run.npy"]
    assert os.path.isdir(f"{folder}/run.npy/results")


def test_without_the_packages(world, folder, monkeypatch):
    with Array(world, 4) as field:
        for name, path in ("zarr", "a.zarr"), ("h5py", "a.h5"):
            monkeypatch.setitem(sys.modules, name, None)
            for call in (
                lambda path=path: field.save(f"{folder}/{path}"),
                lambda path=path: Array.load(world, f"{folder}/{path}"),
            ):
                with pytest.raises(ImportError, match=f"pip install {name}"):
                    call()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_how_far_it_is(world, folder, monkeypatch):
    """Rank 0 says it, on a terminal only."""
    monkeypatch.setattr(files, "_MOST", 80)
    with Array(world, 100) as field:
        for stream, says in (Terminal(), world.rank == 0), (io.StringIO(), False):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", stream)
                field.save(f"{folder}/shown.npy")
            text = stream.getvalue()
            assert ("Array.save" in text and text.endswith(" 100 %\n")) == says


SAVE = """
from rmaext.containers import Array
with Array(world, (50, 30), "i8", ghosts=1) as field:
    field.local[...] = np.arange(1500).reshape(50, 30)[field.where]
    field.save("checkpoint.npy")
print("end")
"""
LOAD = """
from rmaext.containers import Array
with Array.load(world, "checkpoint.npy", grid=(1, 0), ghosts=2) as field:
    assert field.grid == (1, size)
    assert (field.local == np.arange(1500).reshape(50, 30)[field.where]).all()
    assert len(np.load("checkpoint.npy", mmap_mode="r")) == 50
print("end")
"""


def test_of_another_number_of_ranks(tmp_path):
    """A job saves, another one goes on."""
    move = f"os.chdir({str(tmp_path)!r})\n"
    clean(start(3, PRELUDE + move + SAVE), ends=3)
    for size in 1, 2:
        clean(start(size, PRELUDE + move + LOAD), ends=size)
