# SPDX-License-Identifier: BSD-3-Clause
"""Objects of which there is one: those that own memory, operations or locks of the library."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex

__all__ = ["Unique"]


class Unique:
    """Refuses copy.copy, copy.deepcopy and pickle, which all ask for what this method returns.

    A second object over the same windows or buffers would free them twice, or use them when
    they are gone; in another process they are not there.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        kind: Any = type(self)
        name = f"{kind.__module__.partition('._')[0]}.{kind.__qualname__}"
        text = f"a {name} cannot be pickled or copied: pass the object itself to threads; "
        raise TypeError(text + "each process of the job makes its own")
