# SPDX-License-Identifier: BSD-3-Clause
"""Makes a header for csrc/python of cmethods.pyi: docstrings, signatures, names.

A method, its parameters and its docstring are declared there once.
"""

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

# Types whose public methods stand before Python's, which begin with an underscore.
BEFORE = ("Window", "Request", "Locks", "Win")


def make(folder: str) -> None:
    """Make declared.h in a folder, of what is declared beside this file."""
    text = Path(__file__).with_name("cmethods.pyi").read_text()
    Path(folder, "declared.h").write_text(header(text))


def header(text: str) -> str:
    """Return the header of what a stub declares."""
    lines = ["/* Made of rmaext/_native/cmethods.pyi by declared.py. */"]
    names, methods = set(), set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            lines += _doc(node.name, _signature(node), ast.get_docstring(node))
        if not isinstance(node, ast.ClassDef):
            continue
        kind = node.name.lower()
        members = {name: (one, doc) for name, one, doc in _members(node)}
        made, _ = members.get("__new__") or members.get("__init__") or (None, None)
        lines += _doc(kind, _signature(made, node.name), ast.get_docstring(node))
        before = []
        for name, (one, doc) in members.items():
            lines += _doc(f"{kind}_{name}", _signature(one), doc)
            if one is None or node.name not in BEFORE or name.startswith("_"):
                continue
            methods.add(name)
            given = [arg.arg for arg in (*one.args.args[1:], *one.args.kwonlyargs)]
            if given:
                before.append(name)
                names.update(given)
                lines.append(f"#define PY_SIGNATURE_{kind}_{name} {_fields(name, one, given)}")
        lines.append(f"#define PY_METHODS_{kind}(X) {_each(before)}")
    lines.append(f"#define PY_DECLARED_NAMES(X) {_each(sorted(names))}")
    lines.append(f"#define PY_DECLARED_METHODS(X) {_each(sorted(methods))}")
    return "\n".join(lines) + "\n"


def _members(node: ast.ClassDef) -> Iterator[tuple[str, ast.FunctionDef | None, str | None]]:
    """Return names, methods (None: an attribute) and docstrings."""
    for one, behind in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(one, ast.FunctionDef):
            is_property = any(ast.unparse(it) == "property" for it in one.decorator_list)
            yield one.name, None if is_property else one, ast.get_docstring(one)
        elif isinstance(one, ast.AnnAssign) and isinstance(behind, ast.Expr):
            yield ast.unparse(one.target), None, ast.literal_eval(behind.value)


def _signature(one: ast.FunctionDef | None, name: str = "") -> str:
    """Return how CPython has it in front of a docstring; with a name as a type's."""
    if one is None:
        return ""
    bare = copy.deepcopy(one.args)
    for arg in ast.walk(bare):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    first = [*bare.posonlyargs, *bare.args][:1]
    if name:
        del (bare.posonlyargs or bare.args)[0]
    given = ast.unparse(bare)
    if not name and first and first[0].arg == "self":
        mark = "$self" if bare.posonlyargs else "$self, /"
        given = given.replace("self", mark, 1)
    return f"{name or one.name}({given})\n--\n\n"


def _fields(name: str, one: ast.FunctionDef, given: list[str]) -> str:
    """Return what a struct py_signature is initialised by."""
    named = len(one.args.kwonlyargs)
    required = len(given) - named - len(one.args.defaults)
    names = ", ".join(f"&py_names.{it}" for it in given)
    return (
        f".slow = &py_names.{name}, .required = {required}, .given = {len(given)}, "
        f".named = {named}, .names = {{{names}}}"
    )


def _doc(name: str, signature: str, text: str | None) -> list[str]:
    """Define a docstring as C has it."""
    if text is None:
        return []
    lines = f"{signature}{text}".replace("\\", r"\\").replace('"', r"\"").splitlines()
    literal = " ".join(f'"{line}\\n"' for line in lines[:-1]) + f' "{lines[-1]}"'
    return [f"#define PY_DOC_{name} PyDoc_STR({literal})"]


def _each(names: list[str]) -> str:
    return " ".join(f"X({name})" for name in names)
