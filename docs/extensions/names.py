# SPDX-License-Identifier: BSD-3-Clause
"""What pages list of the reference: each name and its first sentence.

    python docs/extensions/names.py            writes the lists into the pages
    python docs/extensions/names.py --check    tells whether all of them are up to date

A list stands in a page between `<!-- names KIND -->` and `<!-- end -->`. KIND is a section of
Window (SECTIONS), what autodoc calls such names (autoclass, autofunction, autoexception), or the
names of containers; a class is followed by its members. So a page is of use where it lies, on a
forge, too; the site has all of each docstring below the list.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from public import is_error, public

import rmaext
import rmaext.containers

DOCS = Path(__file__).resolve().parents[1]

PAGES = sorted([*DOCS.glob("reference/**/*.md"), *DOCS.glob("containers/*.md")])

# The sections of the reference of Window: a page each.
SECTIONS = {
    "create": "allocate shared dynamic",
    "move": "put get put_many get_many put_ranges get_ranges rput rget rput_many rget_many "
    "rput_ranges rget_ranges register prepare_put prepare_get connect",
    "update": "accumulate get_accumulate fetch_add fetch_op compare_and_swap load store "
    "accumulate_many fetch_add_many fetch_op_many compare_and_swap_many at raccumulate "
    "rget_accumulate rfetch_op rcompare_and_swap raccumulate_many rfetch_op_many "
    "rcompare_and_swap_many prepare_fetch_add",
    "synchronise": "fence flush flush_all flush_local flush_local_all sync lock unlock lock_all "
    "unlock_all post start complete wait test",
    "notify": "put_notify get_notify rput_notify wait_notify test_notify wait_any wait_some "
    "wait_all notify_counts wait_until writes_received",
    "views": "local local_as peer_view subwindow field view dup grant grants export numba check",
    "life": "comm dtype size route timeout closed memory fabric stats advise refresh close",
}


def directive(value: Any) -> str:
    """Return what autodoc calls such a thing."""
    if is_error(value):
        return "autoexception"
    if inspect.isclass(value):
        return "autoclass"
    return "autofunction" if callable(value) else "autodata"


def members(section: str) -> dict[str, Any]:
    """Return names and values of a section of Window."""
    every = {name: value for name, value in public() if name.startswith("Window.")}
    placed = [f"Window.{name}" for names in SECTIONS.values() for name in names.split()]
    if wrong := set(every) ^ set(placed):
        raise ValueError(f"not in exactly one section, or none: {sorted(wrong)}")
    return {f"Window.{name}": every[f"Window.{name}"] for name in SECTIONS[section].split()}


def named(kind: str) -> dict[str, Any]:
    """Return names and values of a kind."""
    if kind in SECTIONS:
        return members(kind)
    names = [f"containers.{name}" for name in kind.split()]
    if kind.startswith("auto"):
        found = {name: getattr(rmaext, name) for name in rmaext.__all__}
        names = [name for name, it in found.items() if directive(it) == kind and name != "Window"]
    every = dict(public())
    return {
        name.removeprefix("containers."): value
        for one in names
        for name, value in every.items()
        if f"{name}.".startswith(f"{one}.")
    }


def sentence(value: Any) -> str:
    """Return the first sentence of what a docstring says, without roles."""
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return re.sub(r":[\w:]+:(?=`)", "", first)


def arguments(value: Any) -> str:
    """Return the names of the parameters, and which have a default, as people write them."""
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    if inspect.isclass(value) or not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "()"
    empty = inspect.Parameter.empty
    own = [it.replace(annotation=empty) for it in signature.parameters.values()]
    own = [it for it in own if it.name not in ("self", "cls")]
    kept = signature.replace(parameters=own, return_annotation=empty)
    text = re.sub(r"<class '(\w+)'>", r"\1", str(kept))
    text = re.sub(r"<object object at \w+>", "...", text)
    return re.sub(r"\*, |/, |, /|/", "", text)


def listing(kind: str) -> str:
    """Return the list of a kind, as Markdown."""
    lines = []
    for name, value in named(kind).items():
        own = name.startswith("Window.") and not isinstance(value, classmethod)
        call = name.replace("Window", "win") if own else name
        for first, text in (("- ", f"`{call}{arguments(value)}`\\"), ("  ", sentence(value))):
            lines += textwrap.wrap(text, 99, initial_indent=first, subsequent_indent="  ")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """Return a page with its lists as they should be."""
    pattern = r"(<!-- names ([\w ]+) -->\n).*?(<!-- end -->)"
    return re.sub(
        pattern, lambda it: f"{it[1]}\n{listing(it[2])}\n\n{it[3]}", text, flags=re.DOTALL
    )


def main() -> int:
    """Write the lists, or look at them."""
    stale = []
    for page in PAGES:
        if (new := renewed(text := page.read_text())) != text:
            stale.append(page)
            if "--check" not in sys.argv:
                page.write_text(new)
    for page in stale:
        print(f"{page.relative_to(DOCS.parent)}: {'stale' if '--check' in sys.argv else 'written'}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
