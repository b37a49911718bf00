# SPDX-License-Identifier: BSD-3-Clause
"""Windows that others attach to."""

import numpy as np
import pytest

import rmaext


@pytest.fixture
def win(comm):
    """A window of 40 float64, 4 by 10, with 0, 1, 2, ... on each rank."""
    with rmaext.Window.allocate(comm, (4, 10)) as it:
        it.local[:] = np.arange(40).reshape(4, 10)
        comm.Barrier()
        yield it


@pytest.fixture
def alone():
    """A window of this process alone."""
    from mpi4py import MPI

    with rmaext.Window.allocate(MPI.COMM_SELF, 8) as win:
        win.local[:] = np.arange(8)
        yield win
