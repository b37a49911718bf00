# SPDX-License-Identifier: BSD-3-Clause
"""The API of mpi4py's MPI.Win, over `rmaext.Window`."""

from .win import WIN_NULL, Win

__all__ = ["WIN_NULL", "Win"]
