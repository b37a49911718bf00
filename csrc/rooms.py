#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check that no arrow between the rooms of csrc points upwards (`make lint`).

A file includes headers of its own room and of those below it, and uses functions and
variables that such rooms define. No headers include each other in a circle, and the files of a
room use each other in one direction. Only the room of a transport names what its library does.
Whoever wants the time, or to sleep, asks base/clock.c, and few files draw random numbers or ask
which thread this is: in the simulated world (tests/c/world.h) a seed says all that.
"""

import re
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

# The lowest first.
ROOMS = [
    *("base", "record", "memory", "dtype", "shm", "admission", "net", "win", "exec", "xfer", "am"),
    *("net/libfabric", "net/ucx", "api", "python", "python/compat"),
]
# Names of a transport's library, by the one room that may have them. Error numbers are all
# transports'.
LIBRARIES = {
    "net/libfabric": re.compile(
        r"\b(?:fi|fid)_(?!errno\b)\w+|\bFI_(?!E[A-Z0-9]+\b)\w+|<rdma/(?!fi_errno\b)"
    ),
    "memory": re.compile(r"\bcu[A-Z]\w+"),
    "net/ucx": re.compile(r"\b(?:uc[mpst]_|UC[MPST]_)\w+"),
}
# What a seed could not say; the files that have it, and why.
CHANCE = re.compile(
    r"(?<![\w.>])(?:clock_\w+|gettimeofday|time|nanosleep|usleep|sleep|pthread_\w*timed\w+|gettid"
    r"|pthread_self|getrandom|getentropy|rand|random|[dlm]rand48)\s*\(|\bSYS_get(?:tid|random)\b"
)
TAKES_CHANCE = {
    "base/clock.c": "the clock itself",
    "record/threads.c": "the record says which thread it is about",
    "net/registration_cache.c": "the first key of a process",
}
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


def room_of(file: str) -> str:
    """Return the room of a file or header, by its path within csrc/."""
    return file.rpartition("/")[0]


def uses(texts: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return what each file uses of other files: a name, by the file that defines it."""
    home = {
        name: file
        for file in texts
        if file.endswith(".c")
        for name in DEFINED.findall(STRING.sub('""', texts[file]))
    }
    found: dict[str, dict[str, str]] = {}
    for file, text in texts.items():
        names = sorted(set(NAME.findall(TAG.sub(" ", STRING.sub('""', text)))) & home.keys())
        found[file] = {home[name]: name for name in names if home[name] != file}
    return found


def arrows_upwards(texts: dict[str, str]) -> list[str]:
    """Say which files include, or use, what is in a room above theirs."""
    level = {file: ROOMS.index(room_of(file)) for file in texts}
    found = []
    for file, used in uses(texts).items():
        for name in INCLUDE.findall(texts[file]):
            if level.get(name, -1) > level[file]:
                found.append(f"csrc/{file} includes {name}, of a room above it")
        for other, name in used.items():
            if level[other] > level[file]:
                found.append(f"csrc/{file} uses {name}, which csrc/{other} above it defines")
    return found


def circles_within(texts: dict[str, str]) -> list[str]:
    """Say which files of a room use each other in a circle."""
    arrows = {
        (file, other): name
        for file, used in uses(texts).items()
        for other, name in used.items()
        if file.endswith(".c") and room_of(file) == room_of(other)
    }
    graph: dict[str, list[str]] = {}
    for file, other in sorted(arrows):
        graph.setdefault(file, []).append(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        files = exc.args[1][::-1]
        steps = [f"{a} uses {arrows[a, b]} of {b}" for a, b in pairwise(files)]
        return ["a circle within a room: " + ", ".join(steps)]
    return []


def strange_names(texts: dict[str, str]) -> list[str]:
    """Say which files name what is in the library of a transport that is not theirs."""
    return [
        f"csrc/{file} has {name}, which is for csrc/{room}/ only"
        for room, names in LIBRARIES.items()
        for file, text in texts.items()
        if room_of(file) != room
        for name in sorted(set(names.findall(STRING.sub('""', text))))
    ]


def chances(texts: dict[str, str]) -> list[str]:
    """Say which files ask for the time, a thread or a random number past the hooks."""
    found = []
    for file, text in texts.items():
        has = sorted({name.rstrip("( ") for name in CHANCE.findall(STRING.sub('""', text))})
        if file in TAKES_CHANCE and not has:
            found.append(f"csrc/{file} is no exception any more: TAKES_CHANCE has it")
        if file not in TAKES_CHANCE:
            found += [f"csrc/{file} calls {name}: use base/clock.c, or say why not" for name in has]
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
        for path in sorted(CSRC.glob("*/**/*.[ch]"))
    }
    found = arrows_upwards(texts) + circle(texts) + circles_within(texts)
    found += strange_names(texts) + chances(texts)
    for line in found:
        print(line)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
