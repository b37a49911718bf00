# SPDX-License-Identifier: BSD-3-Clause
"""Structures over all ranks, built on windows: for programs that want no windows of their own.

They use the public names of rmaext, and its locks; import-linter holds them to it.
"""

from .._runtime import tracebacks as _tracebacks
from ._array import Array
from ._channel import Channel
from ._counter import counter
from ._dict import Dict, Items, MultiDict
from ._nodearray import NodeArray
from ._published import Published
from ._store import Prefetch, Store
from ._taskqueue import TaskQueue, TaskStats
from ._torch import TorchDataset

__all__ = [
    "Array",
    "Channel",
    "Dict",
    "Items",
    "MultiDict",
    "NodeArray",
    "Prefetch",
    "Published",
    "Store",
    "TaskQueue",
    "TaskStats",
    "TorchDataset",
    "counter",
]

_tracebacks.hide()
