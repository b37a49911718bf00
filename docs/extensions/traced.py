# SPDX-License-Identifier: BSD-3-Clause
"""`traced`: runs a program of examples/ with RMAEXT_TRACE, and shows what comes of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "build" / "docs" / "traces"
RC = str(ROOT / "docs" / "gallery")  # the folder of a matplotlibrc


class Traced(SphinxDirective):
    """The summary of an example's trace, and its pictures."""

    required_arguments = 1
    option_spec: ClassVar = {"ranks": directives.nonnegative_int}

    def run(self) -> list[nodes.Node]:
        """Run the example and `python -m rmaext trace`, and return what they have made."""
        name, ranks = self.arguments[0], self.options.get("ranks", 4)
        program = ROOT / "examples" / f"{name}.py"
        self.env.note_dependency(str(program))
        shutil.rmtree(MADE / name, ignore_errors=True)
        launch = [*shlex.split(os.environ["LAUNCH"]), "--run", str(ranks), "--limit", "120"]
        self._run([*launch, str(program)], RMAEXT_TRACE=str(MADE / name))
        command = [sys.executable, "-m", "rmaext", "trace", str(MADE / name)]
        said = self._run([*command, "--output", str(MADE / name)])
        said = said.replace(f"{ROOT}/", "").replace(f"build/docs/traces/{name}", "trace")
        made: list[nodes.Node] = [nodes.literal_block(text=said, language="text")]
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for picture, alt in (
            ("matrix", "Operations and bytes from each rank to each"),
            ("latency", "How many operations and waits lasted how long"),
        ):
            uri = os.path.relpath(MADE / name / f"{picture}.png", folder)
            made.append(nodes.image(uri=uri, alt=alt, width="100%"))
        return made

    def _run(self, command: list[str], **env: str) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MATPLOTLIBRC": RC, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise self.error(f"{shlex.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("traced", Traced)
    return {"parallel_read_safe": True}
