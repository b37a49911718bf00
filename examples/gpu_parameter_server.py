# SPDX-License-Identifier: BSD-3-Clause
"""A parameter server whose tensors lie on a GPU; workers come when they like.

    mpirun -n 4 python examples/gpu_parameter_server.py

Rank 0 has the parameters of a linear model in its GPU, and then sleeps. Each worker takes the next
batch of a counter that all share, reads the parameters into CuPy arrays, and adds its step to them:
no worker waits for another, so steps are made with parameters that are a little old. The data has
one exact model, which that finds all the same; a serial NumPy run is the reference. It has never
run on a GPU; tests run it over a simulation of one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import cupy as cp
import numpy as np
from mpi4py import MPI

import rmaext
from rmaext.containers import counter

ROWS, SHAPES = 64, {"weights": (8, 3), "bias": (3,)}


def batch(number: int) -> tuple[Any, Any]:
    """Return inputs and outputs, of the same model in all batches."""
    x = np.random.default_rng(number).standard_normal((ROWS, 8))
    return x, x @ np.arange(24.0).reshape(8, 3) + [1.0, 2.0, 3.0]


def step(x: Any, y: Any, model: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return what a batch adds to the parameters."""
    error = y - x @ model["weights"] - model["bias"]
    scale = rate / ROWS
    return {"weights": x.T @ error * scale, "bias": error.sum(axis=0) * scale}


def serial(batches: int = 200) -> dict[str, Any]:
    """Do the same in one process with NumPy."""
    model = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for number in range(batches):
        for name, change in step(*batch(number), model, 0.3).items():
            model[name] += change
    return model


def train(comm: MPI.Comm) -> dict[str, Any]:
    """Return the parameters, on all ranks. Collective."""
    cp.zeros(1)  # makes the context, which windows do not
    device, workers = f"cuda:{cp.cuda.runtime.getDevice()}", max(1, comm.size - 1)
    with ExitStack() as stack:
        tensors, batches = {}, stack.enter_context(counter(comm, 200 * workers))
        for name, shape in SHAPES.items():
            own = shape if comm.rank == 0 else 0
            tensors[name] = rmaext.Window.allocate(comm, own, float, device=device)
            stack.enter_context(tensors[name])
        model = {name: cp.zeros(shape) for name, shape in SHAPES.items()}
        if comm.rank or comm.size == 1:
            time.sleep(0.01 * comm.rank)  # comes late
            for number in batches:
                for name, tensor in tensors.items():
                    tensor.get(0, out=model[name])
                x, y = map(cp.asarray, batch(number))
                for name, change in step(x, y, model, 0.3 / workers).items():
                    tensors[name].accumulate(change, 0)
        for tensor in tensors.values():
            tensor.fence()  # the server sleeps here
        return {name: tensors[name].get(0).reshape(shape) for name, shape in SHAPES.items()}


if __name__ == "__main__":
    found, wanted = train(MPI.COMM_WORLD), serial()
    good = all(np.allclose(found[name], wanted[name], atol=1e-3) for name in SHAPES)
    if MPI.COMM_WORLD.rank == 0:
        print(f"gpu_parameter_server: {'OK' if good else 'WRONG'}")
    raise SystemExit(not good)
