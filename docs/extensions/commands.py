# SPDX-License-Identifier: BSD-3-Clause
"""What commands say of themselves: `command-help` runs each with --help."""

from __future__ import annotations

import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandHelp(SphinxDirective):
    """`python -m rmaext COMMAND --help`, for each of the commands."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return a block of text for each."""
        made: list[nodes.Node] = []
        for name in self.arguments[0].split():
            command = ["-m", "rmaext", name, "--help"]
            done = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, timeout=60
            )
            if done.returncode:
                raise self.error(f"{' '.join(command)}: {done.stderr}")
            made.append(nodes.literal_block(text=done.stdout, language="text"))
        return made


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
