# SPDX-License-Identifier: BSD-3-Clause
"""Jumps back within a try block that its handlers do not guard, as this Python compiles them.

    python jumps.py FOLDER

CPython 3.12 and 3.13 end a loop with a jump of its own behind a conditional one, which they
leave out of the exception table. Signal handlers are called at such a jump: after an exception
of theirs neither `finally` nor `with` ends the block. 3.11 and 3.14 do not do so.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

# The compiler's own handlers: of generators and of comprehensions.
_OWN = "CALL_INTRINSIC_1", "SWAP"
_NOT_LOOKED_AT = "EXTENDED_ARG", "CACHE", "NOT_TAKEN"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def unguarded(text: str, name: str) -> Iterator[str]:
    """Yield where they are in a program, as "name:line function"."""
    for code in _codes(compile(text, name, "exec", dont_inherit=True)):
        table = dis._parse_exception_table(code)
        instructions = [i for i in dis.get_instructions(code) if i.opname not in _NOT_LOOKED_AT]
        at = {i.offset: i.opname for i in instructions}

        def handler(offset: int, table=table) -> int | None:
            found = [entry.target for entry in table if entry.start <= offset < entry.end]
            return found[-1] if found else None

        for before, jump in pairwise(instructions):
            if jump.opname != "JUMP_BACKWARD" or not before.opname.startswith("POP_JUMP"):
                continue
            guard = handler(before.offset)
            if guard is None or handler(jump.offset) == guard or handler(jump.argval) != guard:
                continue
            if at.get(guard) not in _OWN:
                yield f"{name}:{jump.positions.lineno} {code.co_qualname}"


def main() -> int:
    """Print them; the status is 1 if there are any."""
    files = sorted(Path(sys.argv[1]).rglob("*.py"))
    found = [line for file in files for line in unguarded(file.read_text(), str(file))]
    print(*found, sep="\n")
    return bool(found) or not files


if __name__ == "__main__":
    sys.exit(main())
