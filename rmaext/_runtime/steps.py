# SPDX-License-Identifier: BSD-3-Clause
"""What a collective call is, in words and in a word of 62 bits; it needs no MPI."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AGREEMENT", "END", "EXPLAIN", "FIRST", "Step"]

AGREEMENT = "agreement of the ranks"
END = "end of the program"
EXPLAIN = "explanation"
FIRST = "creation of the communicator's first window"
_CALLS = (
    *(EXPLAIN, FIRST, "creation of a window", "creation of a shared window"),
    *("creation of a dynamic window", "creation of a compat.Win", "fence", "close", END, AGREEMENT),
)
_NUMBERS = {name: number for number, name in enumerate(_CALLS)}


class Step(NamedTuple):
    """What a rank takes a meeting for."""

    call: str
    window: int  # its number; 0: of none
    number: int  # in the sequence of the communicator's calls
    abandoned: int = 0  # how many windows the rank has abandoned

    def word(self) -> int:
        """Return all of it in 62 bits."""
        number, window = self.number % (1 << 24), self.window % (1 << 24)
        return _NUMBERS[self.call] << 56 | self.abandoned % 256 << 48 | window << 24 | number

    @staticmethod
    def of(word: int) -> Step:
        """Return what `word` returned it for; another version's call is "collective call"."""
        call = _CALLS[word >> 56] if word >> 56 < len(_CALLS) else "collective call"
        return Step(call, word >> 24 & 0xFFFFFF, word & 0xFFFFFF, word >> 48 & 0xFF)

    def __str__(self) -> str:
        if not self.window:
            return self.call
        if self.call.startswith("creation"):
            return f"{self.call.replace('of a ', 'of ')} {self.window}"
        return f"{self.call} of window {self.window}"
