# SPDX-License-Identifier: BSD-3-Clause
"""A short run of strangers.py: nobody's hello is answered, and the job goes on."""

from __future__ import annotations

import os
import sys
import tempfile

import launch
import pytest


@pytest.mark.parametrize(
    ("source", "library"),
    [
        ("user", "system"),
        ("host", "wheel"),
        pytest.param("user", "wheel", marks=pytest.mark.matrix),
        pytest.param("host", "system", marks=pytest.mark.matrix),
    ],
)
def test_strangers_are_kept_out(source, library):
    if os.geteuid():
        pytest.skip("other users and namespaces need root")
    command = [sys.executable, str(launch.ROOT / "tests" / "fuzz" / "strangers.py")]
    command += ["--minutes", "0.2", "--seed", "1", "--failures", "1", "--refused"]
    command += ["--source", source, "--libfabric", library]
    with tempfile.TemporaryFile() as output:
        code = launch.supervise(command, launch.environment(), 100, output, output)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code == 77:
        pytest.skip(text)
    assert code == 0, text
