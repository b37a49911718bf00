# SPDX-License-Identifier: BSD-3-Clause
"""Makes a header for csrc/python of cmethods.pyi: docstrings, signatures, names, tables.

A method, its parameters and its docstring are declared there once.
"""

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

# Types whose public methods stand before Python's, which begin with an underscore.
BEFORE = ("Window", "Request", "Locks", "Win")
HAND_ON = ("Locks", "Win")  # those of them whose methods hand on whatever they are called with
# Parameters of which C is told where they stand; Window's it takes alike in all methods.
ALIKE = {
    "Window": ("rank", "offset", "count", "op", "slot", "key"),
    "Win": ("target_rank", "rank"),
}
_KEYWORDS = "METH_FASTCALL | METH_KEYWORDS"


def make(folder: str) -> None:
    """Make declared.h in a folder, of what is declared beside this file and in rmaext.typing."""
    here = Path(__file__)
    text = header(here.with_name("cmethods.pyi").read_text())
    ops = _operations((here.parent.parent / "typing.py").read_text())
    Path(folder, "declared.h").write_text(f"{text}#define PY_DECLARED_OPS(X) {ops}\n")


def header(text: str) -> str:
    """Return the header of what a stub declares."""
    lines = ["/* Made of rmaext/_native/cmethods.pyi by declared.py. */"]
    names, methods, functions = set(), set(), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            lines += _doc(f"module_{node.name}", _signature(node), ast.get_docstring(node))
            functions.append(_row("module", node.name, f"py_{node.name}", _flags(node)))
            lines.append(_prototype(f"py_{node.name}", _flags(node)))
        if not isinstance(node, ast.ClassDef):
            continue
        kind = node.name.lower()
        members = {name: (one, doc) for name, one, doc in _members(node)}
        made, _ = members.get("__new__") or members.get("__init__") or (None, None)
        lines += _doc(kind, _signature(made, node.name), ast.get_docstring(node))
        rows = []
        for name, (one, doc) in members.items():
            lines += _doc(f"{kind}_{name}", _signature(one), doc)
            if one is None or name.startswith("__"):
                continue
            before = node.name in BEFORE and not name.startswith("_")
            flags = _KEYWORDS if before and node.name in HAND_ON else _flags(one)
            function = f"{kind}_{name.lstrip('_')}"
            if before or flags == _KEYWORDS:
                function = f"py_{function}"
            rows.append(_row(kind, name, function, flags))
            if not before:
                continue
            methods.add(name)
            given = [arg.arg for arg in (*one.args.args[1:], *one.args.kwonlyargs)]
            if given:
                names.update(given)
                lines.append(f"#define PY_SIGNATURE_{kind}_{name} {_fields(node, one, given)}")
            if node.name == "Window":
                lines.append(_prototype(function, flags))
        if any("Generic" in ast.unparse(base) for base in node.bases):
            rows.append(f"PY_GENERIC({node.name})")
        lines.append(f"#define PY_METHODS_{kind} {' '.join(rows)} {{NULL, NULL, 0, NULL}}")
    lines.append(f"#define PY_FUNCTIONS {' '.join(functions)} {{NULL, NULL, 0, NULL}}")
    lines.append(f"#define PY_DECLARED_NAMES(X) {_each(sorted(names))}")
    lines.append(f"#define PY_DECLARED_METHODS(X) {_each(sorted(methods))}")
    return "\n".join(lines) + "\n"


def _flags(one: ast.FunctionDef) -> str:
    """Return how CPython calls a function."""
    placed, either = (
        [it for it in args if it.arg != "self"] for args in (one.args.posonlyargs, one.args.args)
    )
    if either or one.args.kwonlyargs:
        return _KEYWORDS
    if one.args.vararg:
        return "METH_FASTCALL"
    return {0: "METH_NOARGS", 1: "METH_O"}.get(len(placed), "METH_VARARGS")


def _row(kind: str, name: str, function: str, flags: str) -> str:
    """Return a row of a table of methods."""
    return f"PY_ROW({kind}, {name}, {function}, {flags})"


def _prototype(function: str, flags: str) -> str:
    """Declare a function that such a table has."""
    given = "PyObject *args"
    if "FASTCALL" in flags:
        given = "PyObject *const *args, Py_ssize_t n" + ", PyObject *names" * (flags == _KEYWORDS)
    return f"PyObject *{function}(PyObject *self, {given});"


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


def _fields(node: ast.ClassDef, one: ast.FunctionDef, given: list[str]) -> str:
    """Return what a struct py_signature is initialised by."""
    named = len(one.args.kwonlyargs)
    required = len(given) - named - len(one.args.defaults)
    names = ", ".join(f"&py_names.{it}" for it in given)
    places = [
        f".{name.removeprefix('target_')} = {given.index(name) + 1}, "
        for name in ALIKE.get(node.name, ())
        if name in given
    ]
    return (
        f'.name = "{one.name}", .slow = &py_names.{one.name}, .required = {required}, '
        f".given = {len(given)}, .named = {named}, {''.join(places)}.names = {{{names}}}"
    )


def _doc(name: str, signature: str, text: str | None) -> list[str]:
    """Define a docstring as C has it."""
    if text is None:
        return []
    lines = f"{signature}{text}".replace("\\", r"\\").replace('"', r"\"").splitlines()
    literal = " ".join(f'"{line}\\n"' for line in lines[:-1]) + f' "{lines[-1]}"'
    return [f"#define PY_DOC_{name} PyDoc_STR({literal})"]


def _operations(text: str) -> str:
    """Return the names of updates' operations, as users and as C write them."""
    (declared,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "Operation"
    )
    names = [ast.literal_eval(it) for it in ast.walk(declared) if isinstance(it, ast.Constant)]
    return " ".join(f"X({name}, {name.upper()})" for name in names)


def _each(names: list[str]) -> str:
    return " ".join(f"X({name})" for name in names)
