# SPDX-License-Identifier: BSD-3-Clause
"""pyuvsim: a counter, arrays shared within the node, and visibilities of a radio telescope."""

from __future__ import annotations

import warnings

import numpy as np
from clock import REPEAT, check, took

warnings.simplefilter("ignore")  # of astropy and erfa, about dates

from pyuvsim import mpi, simsetup, uvsim  # noqa: E402
from pyuvsim.data import DATA_PATH  # noqa: E402

DRAWN = 200


def counter() -> None:
    """Draw numbers from a counter: each once over all ranks, by the sum of two steps."""
    numbers = mpi.Counter(count_rank=comm.size - 1)
    drawn = []
    for _ in range(REPEAT):
        with took(comm, f"{DRAWN} numbers of each rank"):
            drawn += [numbers.next() for _ in range(DRAWN)]
    everyone = sorted(number for some in comm.allgather(drawn) for number in some)
    total = REPEAT * DRAWN * comm.size
    check(everyone == list(range(total)), "a number drawn twice, or never")
    comm.Barrier()
    numbers.next(increment=5)
    comm.Barrier()
    check(numbers.current_value() == total + 5 * comm.size, "the counter's value")
    comm.Barrier()
    numbers.free()


def shared() -> None:
    """Share arrays of several dtypes within the node; nobody may write to them."""
    for dtype in (float, np.int32, complex, "S7", [("a", "u1"), ("b", "f8")]):
        whole = np.arange(6000).astype(np.uint8).repeat(8).view("u1")
        size = len(whole) // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
        original = whole[:size].view(dtype)
        array = mpi.shared_mem_bcast(original if comm.rank == 0 else None)
        check(array.dtype == original.dtype, f"the dtype {array.dtype}")
        check(array.tobytes() == original.tobytes(), f"what was shared as {dtype}")
        check(not array.flags.writeable, "it may be written")
    for _ in range(REPEAT):
        with took(comm, "shared array of 40 MB"):
            array = mpi.shared_mem_bcast(np.arange(5e6) if comm.rank == 0 else None)
        check(array.sum() == 5e6 * (5e6 - 1) / 2, "the sum of the shared array")
    comm.Barrier()
    mpi.free_shared()


def visibilities() -> None:
    """Simulate a telescope on all ranks, and on one without windows: the same is to come out."""
    given: list = [uvsim.UVData(), uvsim.BeamList([]), None, simsetup.SkyModelData()]
    alone = None
    if comm.rank == 0:
        file = f"{DATA_PATH}/test_config/param_10time_10chan_0.yaml"
        uv = simsetup.initialize_uvdata_from_params(file, return_beams=True)[0]
        uv.select(freq_chans=range(3))
        time, place = uvsim.Time(uv.time_array[0], format="jd"), uv.telescope.location
        sky = simsetup.create_mock_catalog(
            time, "random", array_location=place, Nsrcs=30, min_alt=20, rseed=3
        )[0]
        beams = uvsim.BeamList([simsetup.UniformBeam()])
        given = [uv, beams, dict.fromkeys(uv.telescope.antenna_names, 0), sky]
        alone = serial(*given)
    with took(comm, "visibilities"):
        out = uvsim.run_uvdata_uvsim(*given, quiet=True, block_nonroot_stdout=False)
    if comm.rank == 0:
        check(np.abs(alone).max() > 1, "no source was seen")
        check(np.allclose(out.data_array, alone, rtol=1e-12, atol=1e-12), "the visibilities")


def serial(uv: uvsim.UVData, beams: uvsim.BeamList, antennas: dict, sky: object) -> np.ndarray:
    """Return what one process computes, with the package's own engine."""
    uv, beams, catalog, _ = uvsim._run_uvdata_input_check(uv, beams, sky)
    engine = uvsim.UVEngine()
    data = np.zeros((uv.Nblts, uv.Nfreqs, uv.Npols), complex)
    tasks = range(uv.Nblts * uv.Nfreqs)
    for task in uvsim.uvdata_to_task_iter(tasks, uv, catalog, beams, antennas):
        engine.set_task(task)
        data[task.uvdata_index] += engine.make_visibility()
    return data


mpi.start_mpi(block_nonroot_stdout=False)
comm = mpi.world_comm
counter()
shared()
visibilities()
