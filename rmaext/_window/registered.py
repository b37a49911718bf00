# SPDX-License-Identifier: BSD-3-Clause
"""What a window offers about the registration of its memory."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from .._fabric.registration import one_part
from .._memory import arrays
from .._native._lib import ffi
from ..errors import Unsupported

if TYPE_CHECKING:
    from .._comm.region import Region
    from .._fabric.endpoint import Fabric

__all__ = ["Registered"]


class Registered:
    """What a window has to offer about the registration of its memory."""

    _array: NDArray[Any]
    _fabric: Fabric | None
    _name: int | str
    _region: Region

    if TYPE_CHECKING:
        # of Window
        def _check_open(self, call: str) -> None: ...

    def refresh(self, part: slice | None = None) -> None:
        """Tell the provider that other pages than before back this rank's memory.

        Parameters
        ----------
        part : slice of int, optional
            Elements that this is about, in C order, as for `advise`; all by default.

        Raises
        ------
        ClosedError, TypeError, ValueError
        RmaError
            The provider refuses.

        Notes
        -----
        Local; fi_mr_refresh. Needed after the first touch, or after munmap and mmap, of
        memory that was registered without pages, where `win.fabric.mr_mode` has
        MMU_NOTIFY; elsewhere it does nothing. Operations of peers on this memory fail
        meanwhile: let there be a `fence` before it, and after.
        """
        self._check_open("refresh")
        start, stop = one_part("refresh", part, self._array.size)
        root = getattr(self, "_root", self)
        if start < stop and self._fabric is not None and root._region.registered is not None:
            unit = self._array.strides[-1] if self._array.ndim else self._array.itemsize
            first = _start(self._array) - _start(root._array) + root._region.shift
            length = (stop - start - 1) * unit + self._array.itemsize
            where = f"refresh: window {self._name}"
            self._fabric.refresh(root._region.registered, first + start * unit, length, where)

    @property
    def writes_received(self) -> int:
        """How many writes and atomics of peers have modified this rank's memory. Local.

        Of a window that was made with `counts_writes=True`. Those that come by the
        network as such count; not what the ranks of the same node do to the memory
        itself, nor updates that are carried out for others by this rank's progress
        thread. With RMAEXT_ROUTE=fabric all puts come by the network.

        Raises
        ------
        Unsupported
            The window was made without `counts_writes=True`.

        Notes
        -----
        fi_mr_bind of a counter, with FI_REMOTE_WRITE. A put in several pieces may count
        as several writes.
        """
        self._check_open("writes_received")
        region = getattr(self, "_root", self)._region
        if not region.registration.counts_writes:
            text = f"window {self._name}: made without counts_writes=True"
            raise Unsupported(errno.EOPNOTSUPP, text, call="writes_received")
        if self._fabric is None or region.registered is None:  # it has no elements
            return 0
        return self._fabric.writes(region.registered)


def _start(array: NDArray[Any]) -> int:
    return int(ffi.cast("uintptr_t", arrays.address(array)))
