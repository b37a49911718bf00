# SPDX-License-Identifier: BSD-3-Clause
"""Print the program of README's "In ten lines", as a reader would copy it."""

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent.parent / "README.md"
section = README.read_text().partition("\n## In ten lines\n")[2]
found = re.search(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
assert found, 'README.md has no program under "In ten lines"'
print(found[1], end="")
