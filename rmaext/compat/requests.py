# SPDX-License-Identifier: BSD-3-Clause
"""Requests of rmaext as requests of MPI."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

__all__ = ["begun"]


def begun(win: Any, requests: list[Any]) -> MPI.Request:
    """Return a request of MPI that is done when those of rmaext are."""
    for request in requests:
        request.wait()
    made = MPI.Grequest.Start()
    made.Complete()
    return made
