# SPDX-License-Identifier: BSD-3-Clause
"""What the job, its strangers and their supervisor tell each other: a file that all map."""

from __future__ import annotations

import ipaddress
import os

import numpy as np
from streams import Peer

RANKS = 3
STRANGERS = 4
COUNTS = ("cases", "answered", "refused", "errors")  # of a stranger


class Board:
    """Numbers in a file; opened before a process gives up its rights."""

    def __init__(self, path: str) -> None:
        with open(path, "ab") as file:
            file.truncate(8 * (2 + 4 * RANKS + len(COUNTS) * STRANGERS))
        self._all = np.memmap(path, np.int64, "r+")
        self._ranks = self._all[2 : 2 + 4 * RANKS].reshape(RANKS, 4)  # pid, address, port, rounds
        self.counts = self._all[2 + 4 * RANKS :].reshape(STRANGERS, len(COUNTS))

    @property
    def stop(self) -> bool:
        """Whether the job is to end."""
        return bool(self._all[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._all[0] = value

    @property
    def attack(self) -> int:
        """The number of the job that may be attacked; 0: none."""
        return int(self._all[1])

    @attack.setter
    def attack(self, value: int) -> None:
        self._all[1] = value

    @property
    def rounds(self) -> list[int]:
        """How many each rank has done."""
        return [int(it) for it in self._ranks[:, 3]]

    @property
    def peers(self) -> list[Peer]:
        """The ranks that have said where they are."""
        rows = self._ranks.tolist()
        return [Peer(str(ipaddress.ip_address(it[1])), it[2], it[0]) for it in rows if it[2]]

    def clear(self) -> None:
        """Forget the job."""
        self._all[:2] = 0
        self._ranks[:] = 0

    def tell(self, rank: int, address: str) -> None:
        """Say where a rank is: "fi_sockaddr_in://127.0.0.1:1234"."""
        host, _, port = address.rpartition("/")[2].rpartition(":")
        self._ranks[rank, :3] = os.getpid(), int(ipaddress.ip_address(host)), int(port)

    def did(self, rank: int, rounds: int) -> None:
        """Say how many rounds a rank has done."""
        self._ranks[rank, 3] = rounds
