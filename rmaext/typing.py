# SPDX-License-Identifier: BSD-3-Clause
"""Types for annotations: what arguments of a few words may be, and what windows are generic in.

Each alias lists the strings that the calls take; they check them at run time all the same.
`Window[numpy.float64]` is a window whose elements are float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with default=, as Python 3.13 has it

    ScalarT = TypeVar("ScalarT", bound=np.generic, default=Any)
else:
    from typing import TypeVar

    ScalarT = TypeVar("ScalarT", bound=np.generic)

__all__ = [
    "Access",
    "Advice",
    "ArrayLibrary",
    "Comparison",
    "HugePages",
    "MemoryKind",
    "Operation",
    "Ordering",
    "Route",
    "ScalarT",
    "Scope",
]

Access: TypeAlias = Literal["r", "w", "rw"]
"""What origins may do with the memory of a window: read, write, or both."""

Operation: TypeAlias = Literal[
    "sum",
    "prod",
    "min",
    "max",
    "land",
    "lor",
    "lxor",
    "band",
    "bor",
    "bxor",
    "replace",
    "no_op",
    "minloc",
    "maxloc",
]
"""What an update does with an element of the target and one of the origin."""

Comparison: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
"""How `Window.wait_until` compares an element with a value."""

Route: TypeAlias = Literal["direct", "cma", "fabric", "ipc"]
"""How a rank is reached: by loads and stores, by the kernel, or by libfabric."""

Scope: TypeAlias = Literal["host", "network"]
"""Whose processes a ticket is for: those of this host, or others too."""

Advice: TypeAlias = Literal["willneed", "normal"]
"""What `Window.advise` tells the system about pages."""

ArrayLibrary: TypeAlias = Literal["cupy", "torch", "numba"]
"""Of whose arrays `Window.local_as` makes one."""

HugePages: TypeAlias = Literal["require"] | bool
"""Whether memory is to lie in huge pages: if there are enough, or for certain."""

Ordering: TypeAlias = Literal["strict", "relaxed"]
"""The order in which what is written to registered memory becomes visible."""

MemoryKind: TypeAlias = Literal["system", "cuda", "rocr", "ze", "neuron", "synapseai"]
"""Who has allocated the memory: the system, or a device's library."""
