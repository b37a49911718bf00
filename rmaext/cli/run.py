# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext run: run a program, unchanged, on rmaext.compat.Win instead of MPI.Win."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import importlib.util
import io
import os
import pkgutil
import re
import runpy
import shutil
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from .._runtime import config

__all__ = ["add", "replace_at_import"]

MPI = "mpi4py.MPI"
_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].*")  # of Python, before a program
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


def add(commands: Any) -> None:
    """Add the command `run` to the parser's subcommands."""
    parser = commands.add_parser(
        "run",
        allow_abbrev=False,
        usage="python -m rmaext run (SCRIPT | -m MODULE | -c CODE) [argument ...]",
        help="run a program with MPI.Win replaced",
        description="Run a program as python would, with MPI.Win replaced by "
        "rmaext.compat.Win. As with `python -m mpi4py`, a rank that ends with an "
        "exception, or a status other than 0, aborts the job. "
        "RMAEXT_COMPAT=warn in the environment reports the calls that do not do "
        "exactly what MPI's do.",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a file, a folder or a zip file")
    parser.set_defaults(function=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Run the program that the command line names; return if it does."""
    program: Callable[[str], None]
    if options.module:
        program, argv = _module, ["-m", *options.module[1:]]
        what = options.module[0]
    elif options.code:
        program, argv = _code, ["-c", *options.code[1:]]
        what = options.code[0]
    elif options.script:
        program, argv = _script, options.script
        what = options.script[0]
    else:
        options.parser.error("a script, -m MODULE or -c CODE is missing")
    replace_at_import()
    sys.argv[:] = argv
    # The name __main__ is the program's, and stays so until the interpreter ends.
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        program(what)
    except BaseException as exc:
        # This one knows whether MPI runs; MPI_Abort is called when Python has ended.
        from mpi4py.run import set_abort_status

        set_abort_status(exc)
        if not isinstance(exc, SystemExit):
            _hide_own_frames(exc)
        raise
    return 0


# -- what python does with its own command line ------------------------------------


def _script(path: str) -> None:
    # As Modules/main.c: a folder or a zip file goes into sys.path, and has a __main__.
    full = os.path.join(os.getcwd(), path)
    if pkgutil.get_importer(path) is not None:
        _search(full)
        _as_main("__main__", False)
        return
    _search(os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(full) as file:
            content = file.read()
    except OSError as exc:
        why = f"[Errno {exc.errno}] {exc.strerror}"
        print(f"{sys.executable}: can't open file {full!r}: {why}", file=sys.stderr)
        sys.exit(2)
    _execute(compile(content, full, "exec", dont_inherit=True), full)


def _code(text: str) -> None:
    _search("")
    _execute(compile(text, "<string>", "exec", dont_inherit=True))


def _module(name: str) -> None:
    _as_main(name, True)


def _as_main(name: str, alter_argv: bool) -> None:
    # what python -m itself calls; run_module() takes __main__ away at the end
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _search(folder: str) -> None:
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder  # python -m put the current one there


def _execute(code: types.CodeType, path: str | None = None) -> None:
    names = sys.modules["__main__"].__dict__
    if path is not None:
        names["__file__"] = path
        names["__loader__"] = SourceFileLoader("__main__", path)
    exec(code, names)


def _hide_own_frames(exc: BaseException) -> None:
    """Let python report an exception as if the program had been started by itself."""
    own = {__file__, "<frozen runpy>", runpy.__file__}
    trace = exc.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    hook = sys.excepthook

    def report(kind: type[BaseException], value: BaseException, _: object) -> None:
        hook(kind, value.with_traceback(trace), trace)

    sys.excepthook = report


# -- MPI.Win replaced ------------------------------------------------------------


def replace_at_import() -> None:
    """Replace MPI.Win as soon as mpi4py.MPI is imported, and no sooner.

    The import initialises MPI, as mpi4py.rc says then.
    """
    if MPI in sys.modules:
        _replace()
    else:
        sys.meta_path.insert(0, _Watch())


def _replace() -> None:
    importlib.import_module("rmaext.compat.auto")
    hand_on()
    if config.checks():
        importlib.import_module("rmaext._check.install").install()


# -- programs that this one spawns ---------------------------------------------------


def hand_on() -> None:
    """Let Spawn and Spawn_multiple start Python programs by `python -m rmaext run`, too.

    The windows of a program and of those that it spawns would else be of two kinds, and each
    side would wait for the other.
    """
    from mpi4py import MPI

    kind = MPI.Intracomm
    members = gc.get_referents(kind.__dict__)[0]  # an extension type takes no assignments
    spawn, several = members["Spawn"], members["Spawn_multiple"]

    @functools.wraps(spawn)
    def one(self: Any, command: Any, args: Any = None, *more: Any, **keywords: Any) -> Any:
        return spawn(self, command, handed_on(command, args), *more, **keywords)

    @functools.wraps(several)
    def many(self: Any, command: Any, args: Any = None, *more: Any, **keywords: Any) -> Any:
        commands = list(command)
        each = [None] * len(commands) if args is None else list(args)
        if len(each) == len(commands):
            args = [handed_on(it, its) or [] for it, its in zip(commands, each, strict=True)]
        return several(self, commands, args, *more, **keywords)

    members["Spawn"], members["Spawn_multiple"] = one, many
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def handed_on(command: Any, args: Any) -> Any:
    """Return the arguments of a command, with `-m rmaext run` before a program of Python."""
    if not isinstance(command, str) or not _PYTHON.fullmatch(os.path.basename(command)):
        return args
    found = shutil.which(command)  # of another installation, which may have no rmaext: not so
    if found is None or os.path.dirname(os.path.abspath(found)) != os.path.dirname(sys.executable):
        return args
    words = [args] if isinstance(args, str) else list(args or ())
    at = 0
    while at < len(words) and _OPTION.fullmatch(words[at]):
        at += 2 if words[at] in ("-W", "-X") else 1  # those of the interpreter
    rest = words[at:]
    unknown = not rest or (rest[0].startswith("-") and rest[0] not in ("-m", "-c"))
    if unknown or rest[:3] == ["-m", "rmaext", "run"]:
        return args
    return [*words[:at], "-m", "rmaext", "run", *words[at:]]


class _Watch:
    """Finds mpi4py.MPI as all the others would, and is called when it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, _: Any = None) -> ModuleSpec | None:
        if name != MPI:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = _and_replace(spec.loader)
        return spec


def _and_replace(loader: Any) -> Callable[[types.ModuleType], None]:
    original = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        del loader.exec_module
        original(module)
        _replace()

    return exec_module
