# SPDX-License-Identifier: BSD-3-Clause
"""The gallery: `example` runs a program of examples/ under mpiexec, and shows all of it.

For examples/NAME.py there is docs/gallery/draw_NAME.py, which runs it on each rank, checks
the answer, prints what the page shows, and has rank 0 save the picture that it is given
the path of. A job that fails is an error of the page, and so of the build.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "docs" / "pictures"


class Example(SphinxDirective):
    """The picture of an example, what it printed, and its source."""

    required_arguments = 1
    option_spec: ClassVar = {
        "ranks": directives.nonnegative_int,
        "alt": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Run the example, and return what the page shows of it."""
        name, ranks = self.arguments[0], self.options.get("ranks", 4)
        source = ROOT / "examples" / f"{name}.py"
        drawing = ROOT / "docs" / "gallery" / f"draw_{name}.py"
        for path in (source, drawing):
            self.env.note_dependency(str(path))
        picture = PICTURES / f"{name}.png"
        output = self._job(ranks, drawing, picture)
        folder = Path(self.env.doc2path(self.env.docname)).parent
        image = nodes.image(
            uri=os.path.relpath(picture, folder), alt=self.options["alt"], width="100%"
        )
        code = nodes.literal_block(text=source.read_text(), language="python")
        return [image, nodes.literal_block(text=output, language="text"), code]

    def _job(self, ranks: int, program: Path, picture: Path) -> str:
        """Run a program on so many ranks; return what it printed."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        picture.unlink(missing_ok=True)
        # `make docs` says how the tests launch jobs.
        launch = [*shlex.split(os.environ["LAUNCH"]), "--run", str(ranks), "--limit", "120"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}
        done = subprocess.run(
            [*launch, str(program), str(picture)],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode or not picture.exists():
            raise self.error(f"{program.name} on {ranks} ranks: {done.stdout}{done.stderr}")
        return done.stdout.partition("\n")[2]  # behind the line with the command


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("example", Example)
    return {"parallel_read_safe": True}
