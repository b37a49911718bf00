# SPDX-License-Identifier: BSD-3-Clause
"""Where the ranks of a communicator meet, and what they see there of one another.

Ranks of one node meet in shared memory (csrc/shm/node_barrier.c), those that share none by puts
over the network (csrc/xfer/network_barrier.c) once they have a window, others by MPI.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .._memory.node import Team
from .._native._lib import ffi, lib
from .._runtime.steps import Step
from ..errors import RmaError
from .network_barrier import NetworkBarrier

if TYPE_CHECKING:
    from .control import Block

__all__ = ["Venue"]


class Venue:
    """What `Meetings`, `Abandoned`, `End` and `LongWait` share. It knows none of them."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        # what C's fence needs, too, which makes a call of its own: their numbers, and whose turn
        self.numbers = ffi.new("struct rmaext_meetings *")
        self.address = int(ffi.cast("uintptr_t", self.numbers))
        self.windows: dict[Any, Block] = {}  # those that are open here, by number
        places = ffi.new("struct rmaext_places *")
        lib.rmaext_block_places(self.size, places)
        self._words = int(places.calls)  # where they are in a block
        self.meet_at(None)

    def meet_at(self, barrier: Team | NetworkBarrier | None) -> None:
        """Meet there from the next meeting on, or by MPI; all ranks do."""
        self.barrier, numbers = barrier, self.numbers
        self.team = barrier if isinstance(barrier, Team) else None
        self.far = barrier if isinstance(barrier, NetworkBarrier) else None
        numbers.team = ffi.NULL if self.team is None else self.team.handle
        numbers.far = ffi.NULL if self.far is None else self.far.handle
        numbers.meets = barrier is not None or self.size == 1

    @property
    def others(self) -> Iterator[int]:
        """The other ranks."""
        return (rank for rank in range(self.size) if rank != self.rank)

    def words(self, block: Block, rank: int | None = None) -> Any:
        """Return two words of a window's control block: abandoned, number of its last call."""
        mapped = block.maps[self.rank if rank is None else rank]
        return ffi.cast("int64_t *", mapped) + self._words

    def first(self) -> Block | None:
        """Return the block of the first open window, the same on all ranks: it has that number."""
        return next(iter(self.windows.values()), None)

    def missing(self, step: Step) -> list[int] | None:
        """Return the ranks that have not come to a step; None if that cannot be known."""
        if self.team is not None:
            return [r for r in self.others if lib.rmaext_node_barrier_awaits(self.team.handle, r)]
        if self.far is not None:
            return self.far.missing(self.others)
        if (block := self.first()) is None:
            return None
        offset, found = block.base + self._words + 1, []
        for rank in self.others:
            with suppress(RmaError):  # one that is lost is noticed elsewhere
                if block.window.get(rank, offset, 1)[0] < step.number:
                    found.append(rank)
        return found
