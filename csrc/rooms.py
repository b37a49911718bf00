#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check that no arrow between the rooms of csrc points upwards (`make lint`).

A file includes headers of its own room and of those below it, and uses functions and
variables that such rooms define. No headers include each other in a circle.
"""

import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# The lowest first.
ROOMS = [
    *("base", "record", "dtype", "shm", "admission", "net", "win", "exec", "xfer", "am", "api"),
    "python",
]
CSRC = Path(__file__).resolve().parent
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
NAME = re.compile(r"\b(?:rmx|rmaext)_\w+")
TAG = re.compile(r"\b(?:struct|enum|union)\s+\w+")
# At the left margin, as clang-format has it: a function's body, or a variable.
DEFINED = re.compile(
    r"^(?!static|typedef|extern|struct \w+;|#)\w[\w \t*\n]*?\b((?:rmx|rmaext)_\w+)"
    r"(?:\([^;{}]*\)\s*\{|(?:\[\w*\])*\s*(?:=|;))",
    re.M,
)


def arrows_upwards(texts: dict[str, str]) -> list[str]:
    """Say which files include, or use, what is in a room above theirs."""
    level = {file: ROOMS.index(file.split("/")[0]) for file in texts}
    code = {file: TAG.sub(" ", STRING.sub('""', text)) for file, text in texts.items()}
    home = {
        name: file
        for file in texts
        if file.endswith(".c")
        for name in DEFINED.findall(STRING.sub('""', texts[file]))
    }
    found = []
    for file, text in texts.items():
        for name in INCLUDE.findall(text):
            if level.get(name, -1) > level[file]:
                found.append(f"csrc/{file} includes {name}, of a room above it")
        for name in sorted(set(NAME.findall(code[file])) & home.keys()):
            if level[home[name]] > level[file]:
                found.append(f"csrc/{file} uses {name}, which csrc/{home[name]} above it defines")
    return found


def circle(texts: dict[str, str]) -> list[str]:
    """Say which headers include each other."""
    try:
        TopologicalSorter({file: INCLUDE.findall(text) for file, text in texts.items()}).prepare()
    except CycleError as exc:
        return ["a circle of includes: " + " -> ".join(exc.args[1])]
    return []


def main() -> int:
    """Print what is wrong, and return how much that is."""
    texts = {
        str(path.relative_to(CSRC)): COMMENT.sub(" ", path.read_text())
        for path in sorted(CSRC.glob("*/*.[ch]"))
    }
    found = arrows_upwards(texts) + circle(texts)
    for line in found:
        print(line)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
