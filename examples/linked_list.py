# SPDX-License-Identifier: BSD-3-Clause
"""A list that all ranks extend at once, its nodes in whosever memory they are.

    mpirun -n 4 python examples/linked_list.py

The list of MPI-4.1, example 12.22. A node is made where it is needed, and attached to a
dynamic window; nobody else takes part. A link is one integer, so that one compare and
swap hangs a node in: the target's rank and offset, or -1 at the end.
"""

from __future__ import annotations

import sys
import traceback

import numpy as np
from mpi4py import MPI

import rmaext

NODES = 16  # of each rank
VALUE, NEXT = 0, 1  # words of a node


class List:
    """A stack without locks: the newest node comes first.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Whose ranks share it; rank 0 has the head. Collective.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.win = rmaext.Window.dynamic(comm, np.int64)
        head = self.win.attach(np.array([-1])) if comm.rank == 0 else 0
        self.head = int(comm.bcast(head))

    def push(self, value: int) -> None:
        """Hang in a node of this rank. Local."""
        node = np.array([value, -1])  # the window keeps it
        link = self.win.attach(node) * self.comm.size + self.comm.rank
        first = int(self.win.load(0, self.head))
        while True:
            node[NEXT] = first  # nobody can see it yet
            found = int(self.win.compare_and_swap(first, link, 0, self.head))
            if found == first:
                return
            first = found

    def values(self) -> list[int]:
        """Walk along the list. Local."""
        values, link = [], int(self.win.get(0, self.head, 1)[0])
        while link != -1:
            offset, rank = divmod(link, self.comm.size)
            node = self.win.get(rank, offset, 2)
            values.append(int(node[VALUE]))
            link = int(node[NEXT])
        return values

    def close(self) -> None:
        """Collective."""
        self.win.close()


def run(comm: MPI.Comm) -> list[int]:
    """Let each rank push NODES numbers of its own; return what is in the list then."""
    numbers = List(comm)
    for k in range(NODES):
        numbers.push(comm.rank * NODES + k)
    numbers.win.fence()  # all have pushed
    values = numbers.values()
    numbers.close()
    return values


def main() -> int:
    """Check that no number is lost, and each rank's are in order."""
    comm = MPI.COMM_WORLD
    values = run(comm)
    right = sorted(values) == list(range(comm.size * NODES))
    for rank in range(comm.size):
        mine = [value for value in values if value // NODES == rank]
        right = right and mine == sorted(mine, reverse=True)
    if comm.rank == 0:
        print(f"{len(values)} nodes of {comm.size} ranks: {'right' if right else 'WRONG'}")
    return 0 if comm.allreduce(right, MPI.LAND) else 1


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # else the other ranks would wait for this one
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(code)
