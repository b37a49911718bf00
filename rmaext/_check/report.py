# SPDX-License-Identifier: BSD-3-Clause
"""What was found: told once each through `logging`, and counted at the end of the program."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Finding", "Report", "report"]

_log = logging.getLogger("rmaext.check")
_KINDS = {
    "race": ("race", "races"),
    "request": ("request never waited for", "requests never waited for"),
    "window": ("window never closed", "windows never closed"),
    "container": ("container never closed", "containers never closed"),
    "buffer": ("buffer used too early", "buffers used too early"),
}
_SHOWN = 100  # findings of a kind whose text is shown


class Finding(NamedTuple):
    """A mistake: of which kind, what makes it another than those known, and in words."""

    kind: str
    key: str
    text: str


class Report:
    """What this process has told; `count`: the mistakes of all ranks, once that is known."""

    count = 0

    def __init__(self) -> None:
        self.told: dict[str, Finding] = {}
        self.notes: set[str] = set()

    def tell(self, findings: Iterable[Finding]) -> None:
        """Log those that were not known."""
        for finding in findings:
            if finding.key in self.told:
                continue
            self.told[finding.key] = finding
            count = sum(it.kind == finding.kind for it in self.told.values())
            if count <= _SHOWN:
                _log.error("%s", finding.text)

    def note(self, text: str) -> None:
        """Say once what the mode could not follow."""
        if text not in self.notes:
            self.notes.add(text)
            _log.warning("rmaext check: %s", text)

    def summarise(self, everyone: Iterable[dict[str, Finding]]) -> int:
        """Log how many mistakes of each kind all ranks have found; return their number."""
        found = {key: finding for told in everyone for key, finding in told.items()}
        counts = Counter(finding.kind for finding in found.values())
        words = [
            f"{counts[kind]} {names[counts[kind] != 1]}"
            for kind, names in _KINDS.items()
            if counts[kind]
        ]
        if words:
            _log.error("rmaext check: %s", ", ".join(words))
        else:
            _log.info("rmaext check: nothing was found")
        return len(found)


report = Report()
