# SPDX-License-Identifier: BSD-3-Clause
"""Windows of this process alone, of any dtype and access."""

from __future__ import annotations

from typing import Any

import pytest
from c_methods import SIZE
from mpi4py import MPI

import rmaext


class Windows(dict):
    """By dtype and access, made on first use."""

    __repr__ = object.__repr__  # hypothesis prints it

    def __missing__(self, key: tuple[str, str]) -> Any:
        self[key] = win = rmaext.Window.allocate(MPI.COMM_SELF, SIZE, *key)
        return win


@pytest.fixture(scope="module")
def windows() -> Any:
    made = Windows()
    yield made
    for win in made.values():
        win.close()
