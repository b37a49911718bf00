# SPDX-License-Identifier: BSD-3-Clause
"""Importing this replaces MPI.Win and MPI.WIN_NULL by those of rmaext.compat.

Before any `from mpi4py.MPI import Win` of the program's own. `python -m rmaext run`
does it by itself.
"""

from __future__ import annotations

from mpi4py import MPI

from . import WIN_NULL, Win

MPI.Win = Win  # type: ignore[assignment, misc]
MPI.WIN_NULL = WIN_NULL  # type: ignore[assignment, misc]
