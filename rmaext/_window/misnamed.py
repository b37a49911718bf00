# SPDX-License-Identifier: BSD-3-Clause
"""Names of mpi4py's windows, and others that programs try: each says what it is called here."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["Misnamed"]

_CALLED = {
    "Create": "Window(comm, array)",
    "create": "Window(comm, array)",
    "Allocate": "Window.allocate(comm, shape, dtype)",
    "Allocate_shared": "Window.shared(comm, shape, dtype)",
    "Create_dynamic": "Window.dynamic(comm, dtype)",
    "Shared_query": "peer_view(rank)",
    "Free": "close()",
    "free": "close()",
    "Fetch_and_op": "fetch_op(value, rank, offset, op), or fetch_add",
    "tomemory": "local",
    "Get_group": "comm.group",
}
_CALLED |= {
    name: f"{name.lower()}()"
    for name in (
        *("Put", "Get", "Accumulate", "Get_accumulate", "Compare_and_swap"),
        *("Rput", "Rget", "Raccumulate", "Rget_accumulate", "Attach", "Detach"),
        *("Fence", "Post", "Start", "Complete", "Wait", "Test", "Sync"),
        *("Lock", "Unlock", "Lock_all", "Unlock_all"),
        *("Flush", "Flush_all", "Flush_local", "Flush_local_all"),
    )
}


class _Name:
    """An attribute that is not there. A `__getattr__` would slow down those that are."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        text = f"{owner.__name__} has no {self._name}: it is {_CALLED[self._name]} here. "
        text += "rmaext.compat.Win has mpi4py's names"
        # Python itself would suggest names that are like it, and ours that are private
        raise AttributeError(text, name=self._name, obj=None)


class WindowType(type):
    """Of windows: their `dir` is without the names that they do not have."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in _CALLED]


class Misnamed(metaclass=WindowType):
    """What `Window` is not: `dir` does not show it."""

    vars().update({name: _Name() for name in _CALLED})

    def __dir__(self) -> list[str]:
        return dir(type(self)) + list(vars(self))
