# SPDX-License-Identifier: BSD-3-Clause
"""The demanding provider of tests/provider/demand: how a job gets it, and what it found.

Its modes are those of DEMAND_MODE, as "verbs" or "raw+local"; ":N" behind one is
the size of its keys, "@N" behind that keeps completions back for N microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "build" / "provider"

# What real providers demand together, each bit by itself, and keys of all sizes.
MODES = (
    *("verbs", "efa", "cxi", "local", "raw", "virt_addr", "allocated", "prov_key"),
    *("mmu_notify", "rma_event", "endpoint", "hmem", "collective", "async", "pmem"),
    *("none:1", "none:2", "none:4", "raw:1", "raw:4096", "raw+verbs:64", "verbs+endpoint+async"),
    "efa@300",
)


def environment(mode: str, folder: str | Path) -> dict[str, str]:
    """Return the variables for a job that runs over it; `folder` gets the reports."""
    rest, _, delay = mode.partition("@")
    bits, _, size = rest.partition(":")
    return {
        "RMAEXT_PROVIDER": "demand",
        "FI_PROVIDER_PATH": str(FOLDER),
        "DEMAND_MODE": bits,
        "DEMAND_REPORT": str(Path(folder, "report")),
        **({"DEMAND_KEY_SIZE": size} if size else {}),
        **({"DEMAND_DELAY_US": delay} if delay else {}),
    }


def reports(folder: str | Path) -> list[list[dict[str, Any]]]:
    """Return the events of each process."""
    files = sorted(Path(folder).glob("report.*[0-9]"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def calls(folder: str | Path, name: str) -> list[int]:
    """Return how often each process has made a call."""
    return [events[-1]["calls"].get(name, 0) for events in reports(folder)]


def complaints(folder: str | Path, processes: int) -> Iterator[str]:
    """Yield what was wrong; nothing if each of so many processes kept all rules to its end."""
    found = reports(folder)
    if len(found) != processes:
        yield f"{len(found)} processes of {processes} used the provider"
    for events in found:
        for event in events:
            if event["event"] == "violation":
                yield f"violation: {event['kind']}: {event['text']}"
        if events[-1]["event"] != "exit":
            yield f"no report at exit, after {events[-1]}"
        elif events[-1]["left"]:
            yield f"{events[-1]['left']} domains left open at exit"
