# SPDX-License-Identifier: BSD-3-Clause
"""A job in which rank 1 waits for a device: waiting.py HOW FOLDER, as tests/inside's hung.py.

A comment "# NAME" marks each line that tests/device/test_seen.py expects to be told.
"""

import os
import sys
import threading
from pathlib import Path

import numpy as np
from device import device_array as cuda
from mpi4py import MPI

import rmaext
from rmaext.containers import Store

how, folder = sys.argv[1], Path(sys.argv[2])
world = MPI.COMM_WORLD
cuda.begin()
stream = cuda.Stream()
array = cuda.Array.from_numpy(np.zeros((1, 4)), stream)
store = Store(world, cuda.Array.from_numpy(np.zeros((2, 4))), device="cuda:0")
win = rmaext.Window(world, cuda.Array.from_numpy(np.zeros(4)))
win.fence()
(folder / str(world.rank)).write_text(f"{os.getpid()}")
never = threading.Event()
if how == "owner" and world.rank == 0:
    cuda.cuda.device_hang(1)
world.Barrier()
if world.rank == 1 and how in ("mapped", "places"):
    cuda.cuda.device_hang(2)
    if how == "mapped":
        win.put(np.ones(4), 0)  # mapped
    win.put_many([0] * 2, [1, 3], [1.0, 2.0])  # places
elif world.rank == 1:
    array.launch(lambda values: never.wait(1000))
    if how == "put":
        win.put(array, 0)  # put
    elif how == "result":
        win.get(0, out=array)  # result
    elif how == "request":
        win.rget(0, out=array).wait()  # request
    elif how == "any":
        rmaext.Request.waitany([win.rget(0, out=array)])  # any
    elif how == "store":
        store.get([0], out=array)  # store
    else:
        win.get(0, 0, 4)  # owner
win.fence()  # others
