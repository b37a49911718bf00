# SPDX-License-Identifier: BSD-3-Clause
"""The start of programs that tests run as jobs of their own."""

PRELUDE = """
import gc, os, random, signal, subprocess, sys, threading, time, warnings, weakref
import numpy as np
from mpi4py import MPI
import rmaext

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
peer = (rank + 1) % size

def exercise(win):
    "put, get and update the peer's window, and be updated"
    world.Barrier()
    win.put(np.full(500, rank + 1.0), peer)
    win.flush()
    assert win.fetch_add(1.0, peer, 999) == 0
    assert (win.get(peer, 0, 500) == rank + 1).all()
    world.Barrier()
    assert (win.local[:500] == (rank - 1) % size + 1).all() and win.local[999] == 1
    world.Barrier()

def refuses(call, error=rmaext.ClosedError):
    try:
        call()
    except error as caught:
        assert str(caught)
        return str(caught)
    raise AssertionError(f"{call} did not raise {error}")
"""
