# SPDX-License-Identifier: BSD-3-Clause
"""The examples of docstrings: every public name has one, and it runs, on this rank alone.

An example finds np, MPI and rmaext, and `win`, a window of ten float64 zeros over
MPI.COMM_SELF: so rank 0 is this one. Exceptions and properties are shown by others' examples.
"""

import doctest
import inspect
import re
import sys

import numpy as np
import pytest
from launch import ROOT
from mpi4py import MPI

import rmaext

sys.path.insert(0, str(ROOT / "docs" / "extensions"))
from public import is_error, public

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _callables():
    for name, value in public():
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if callable(value) and not is_error(value):
            yield name, value


EXAMPLES = dict(_callables())
CLASSES = [name for name, it in EXAMPLES.items() if inspect.isclass(it)]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_says_what_threads_may_do(name):
    """At once; tests/window/test_threads.py, and those of the containers, hold it to that."""
    assert re.search(r"\bthreads?\b", inspect.getdoc(EXAMPLES[name]) or "", re.IGNORECASE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    text = inspect.getdoc(EXAMPLES[name]) or ""
    with rmaext.Window.allocate(MPI.COMM_SELF, 10) as win:
        known = {"np": np, "MPI": MPI, "rmaext": rmaext, "win": win}
        example = doctest.DocTestParser().get_doctest(text, known, name, None, None)
        assert example.examples, f"rmaext.{name} has no example"
        report = []
        doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.append, clear_globs=False)
        others = [it for it in known.values() if isinstance(it, rmaext.Window) and it is not win]
        for other in others:
            other.close()
    assert not report, "".join(report)
