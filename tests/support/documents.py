# SPDX-License-Identifier: BSD-3-Clause
"""The programs in the documents."""

from __future__ import annotations

import re
from pathlib import Path

# A comment is what a reader need not see of a page's program.
BLOCK = re.compile(r"^(?:```python|<!-- python)\n(.*?)^(?:```|-->)$", re.DOTALL | re.MULTILINE)


def programs(page: Path) -> list[str]:
    """Return the page's programs: each begins with a block that begins with an import."""
    found: list[str] = []
    for block in BLOCK.findall(page.read_text()):
        if re.match(r"(import|from) ", block):
            found.append("")
        assert found, f"{page}: no import before:\n{block}"
        found[-1] += block
    return found
