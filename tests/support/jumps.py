# SPDX-License-Identifier: BSD-3-Clause
"""Jumps back within a try block that its handlers do not guard, as this Python compiles them.

    python jumps.py FOLDER

Since 3.12 CPython makes two of a conditional jump back: the second is a jump of its own, which
is left out of the exception table. So end `for` loops whose last statement is an `if`, filtered
comprehensions and `any(... for ...)`; with 3.12 and 3.13 `while` loops, too. Signal handlers are
called at such a jump, and neither `finally` nor `with` ends the block after an exception of
theirs (seen with 3.13; 3.12 looks up another place of the table).
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from pathlib import Path

# What the compiler's own handlers begin with: of generators and of comprehensions.
_OWN = "CALL_INTRINSIC_1", "SWAP"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def unguarded(text: str, name: str) -> Iterator[str]:
    """Yield where they are in a program, as "name:line function"."""
    for code in _codes(compile(text, name, "exec", dont_inherit=True)):
        table = dis._parse_exception_table(code)
        instructions = list(dis.get_instructions(code))
        begins = {i.offset: i.opname for i in instructions}

        def handlers(offset: int, table=table, begins=begins) -> set[int]:
            """The handlers that an exception comes through, one after another."""
            chain: dict[int, str] = {}
            while True:
                found = [entry.target for entry in table if entry.start <= offset < entry.end]
                if not found or found[-1] in chain:
                    return {at for at, begin in chain.items() if begin not in _OWN}
                offset = found[-1]
                chain[offset] = begins[offset]

        for jump in instructions:
            if jump.opname == "JUMP_BACKWARD" and handlers(jump.argval) - handlers(jump.offset):
                yield f"{name}:{jump.positions.lineno} {code.co_qualname}"


def main() -> int:
    """Print them; the status is 1 if there are any."""
    files = sorted(Path(sys.argv[1]).rglob("*.py"))
    found = [line for file in files for line in unguarded(file.read_text(), str(file))]
    print(*found, sep="\n")
    return bool(found) or not files


if __name__ == "__main__":
    sys.exit(main())
