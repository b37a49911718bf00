# SPDX-License-Identifier: BSD-3-Clause
"""What an `Array` is: its windows, and which rank holds what."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ... import Window
from ..._comm.group import together
from ..._runtime.reports import dtype_name
from .._agreement import Opening, bracketed, common, exchange
from .._windows import Closing, rank_of
from .blocks import Blocks, Plan
from .ghosts import Ghosts, room

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self  # Python 3.11

__all__ = ["Held", "Splits", "Widths"]

Widths = int | Sequence[int] | None
Splits = Sequence[Sequence[int] | None] | None


class Held(Closing):
    """The blocks of an `Array`."""

    _win: Window[Any]

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        shape: int | Sequence[int],
        dtype: DTypeLike = float,
        grid: Widths = None,
        splits: Splits = None,
        ghosts: Widths = None,
        periodic: bool | Sequence[bool] = False,
        timeout: float | None = None,
        *,
        device: str | None = None,
    ) -> None:
        if hasattr(self, "_win"):
            raise RuntimeError("this array was made before; make another one")

        def tell() -> tuple[Plan, np.dtype[Any]]:
            found = np.dtype(dtype)
            if found.subdtype is not None:
                text = f"Array: dtype {dtype_name(found)} has dimensions: make them axes of the "
                raise TypeError(text + "array, or a field")
            return Plan.make(comm.size, shape, grid, splits, ghosts, periodic), found

        told = exchange(comm, "Array", tell, timeout)
        common([found for _, found in told], TypeError, "Array: the dtypes differ", dtype_name)
        for part in Plan._fields:
            every = [getattr(plan, part) for plan, _ in told]
            what = "where axes are cut" if part == "cuts" else part
            common(every, ValueError, f"Array: the ranks differ in {what}")
        self._open(comm, *told[0], timeout, device)

    def _open(
        self,
        comm: MPI.Comm,
        plan: Plan,
        dtype: np.dtype[Any],
        timeout: float | None,
        device: str | None = None,
    ) -> None:
        """Make the windows. Collective; all ranks say the same."""
        self._comm, self._plan, self._timeout = comm, plan, timeout
        self._blocks = blocks = Blocks(plan)
        self._ghosts: Ghosts | None = None
        nbytes = 2 * room(blocks, comm.rank, dtype.itemsize)  # for what comes for the ghosts
        with Opening() as stack:
            # All pages at once: so a lack of memory is an error, and not a signal.
            padded = blocks.padded(comm.rank)
            how: dict[str, Any] = {"lazy": False} if device is None else {"device": str(device)}
            win = Window.allocate(comm, padded, dtype, None, timeout, **how)
            stack.enter_context(win)
            rooms = Window.allocate(comm, nbytes, np.uint8, None, timeout, lazy=False)
            stack.enter_context(rooms)
            stack.pop_all()
        self._win, self._windows, self._device = win, (win, rooms), device

    def _made(self, plan: Plan, dtype: Any) -> Self:
        """Return another array over the same ranks. Collective."""
        made = self.__new__(type(self))
        opened = functools.partial(made._open, self._comm, plan, dtype, self._timeout)
        together(self._comm, "the creation of an Array", opened)
        return made

    # -- what it is ------------------------------------------------------------------

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"<rmaext.containers.Array: shape {self.shape}, {dtype_name(self.dtype)}, "
            f"in a grid of {self.grid} blocks on {self._comm.size} ranks{state}>"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an Array without axes")
        return self.shape[0]

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self._plan.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self._plan.shape)

    @property
    def size(self) -> int:
        """How many elements it has, on all ranks together."""
        return math.prod(self._plan.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return self._win.dtype

    @property
    def grid(self) -> tuple[int, ...]:
        """How many blocks there are along each axis."""
        return self._blocks.grid

    @property
    def closed(self) -> bool:
        """Whether reading raises ClosedError."""
        return self._win.closed

    @property
    def padded(self) -> NDArray[Any]:
        """This rank's block with its ghosts: its own memory, not a copy. Local.

        Ghosts beyond an end of the array are the program's: nothing else writes to them. A
        block without elements has no ghosts.
        """
        return self._win.local

    @property
    def local(self) -> NDArray[Any]:
        """This rank's block: its own memory, not a copy. Local.

        It is `field[field.where]`, and has no elements on a rank without a block. What is stored
        in it is an ordinary store, which `fence` orders.
        """
        return self._win.local[self._blocks.inside(self._comm.rank)]

    def _block(self) -> NDArray[Any]:
        """Return this rank's block as a NumPy array: what lies on a device is copied."""
        if self._device is None:
            return self.local
        rank = self._comm.rank
        block: NDArray[Any] = self._win[(rank, *self._blocks.inside(rank))]
        return block

    @property
    def where(self) -> tuple[slice, ...]:
        """Which slices of the whole array this rank's block is. Local."""
        return self._blocks.where(self._comm.rank)

    def where_of(self, rank: int) -> tuple[slice, ...]:
        """Return which slices of the whole array a rank's block is.

        Parameters
        ----------
        rank : int

        Returns
        -------
        tuple of slice
            One for each axis; empty ones of a rank without a block.

        Raises
        ------
        BoundsError
            The communicator does not have that rank.

        Notes
        -----
        Local.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     field.where_of(0)
        (slice(0, 4, None), slice(0, 6, None))
        """
        return self._blocks.where(rank_of(self._comm, rank, "Array.where_of"))

    def owner(self, index: int | Sequence[int]) -> int:
        """Return which rank holds an element.

        Parameters
        ----------
        index : int or tuple of int
            One for each axis; negative ones count from the end.

        Raises
        ------
        BoundsError, IndexError

        Notes
        -----
        Local.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     field.owner((3, -1))
        0
        """
        rank: int = self._element("Array.owner", index)[0]
        return rank

    def _element(self, call: str, index: Any) -> tuple[int, int]:
        """Return rank and offset of an element."""
        key = tuple(index) if np.iterable(index) else (index,)
        if len(key) != self.ndim:
            text = f"{call}: {index!r} has {len(key)} indices, for shape {self.shape}"
            raise IndexError(f"{text}: one for each axis")
        key = tuple(self._blocks.index(call, it, axis) for axis, it in enumerate(key))
        rank, offset = self._blocks.places(key)
        return int(rank), int(offset)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Wait for all ranks, and free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError, RmaTimeout
            As `rmaext.Window.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block. What was taken of `local`
        and `padded` stays.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> field = Array(MPI.COMM_SELF, 3)
        >>> field.close()
        >>> field.closed
        True
        """
        self.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self.closed:
                self._ghosts = None  # which has arrays over the memory
