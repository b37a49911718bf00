# SPDX-License-Identifier: BSD-3-Clause
"""Where py-spy sees a process: which frames are rmaext's, and what its errors are."""

from __future__ import annotations

import time

import pytest

from rmaext.inside import lines


def frames(*names):
    return [{"filename": name, "line": 7, "name": "step"} for name in names]


@pytest.mark.parametrize("package", ["/other/checkout/rmaext", "/venv/site-packages/rmaext"])
def test_a_rank_of_another_checkout(package):
    stack = frames(f"{package}/_ops/core.py", f"{package}/compat/win.py", "/home/me/app.py")
    assert lines._of_program(stack) == ("/home/me/app.py:7 (step)", True)


def test_a_program_in_a_folder_of_that_name():
    stack = frames("/home/me/rmaext/examples/app.py", "/home/me/main.py")
    assert lines._of_program(stack) == ("/home/me/rmaext/examples/app.py:7 (step)", False)


def test_the_name_of_a_file_is_shown_in_one_line():
    assert lines._of_program(frames("a\x1bb\n.py")) == ("a\ufffdb\ufffd.py:7 (step)", False)


def test_the_error_is_told_and_no_backtrace(tmp_path, monkeypatch):
    spy = tmp_path / "py-spy"
    spy.write_text(
        "#!/bin/sh\n"
        'echo "Error: no permission$RUST_BACKTRACE$RUST_LIB_BACKTRACE" >&2\n'
        'echo "Reason: a policy" >&2\n'
        'echo "  11: main" >&2\n'
        "exit 1\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr(lines, "spy", lambda: str(spy))
    monkeypatch.setenv("RUST_BACKTRACE", "full")
    monkeypatch.setenv("RUST_LIB_BACKTRACE", "1")
    assert lines.lines([1], time.monotonic() + 20) == ({}, "py-spy: Error: no permission")
