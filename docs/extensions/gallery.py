# SPDX-License-Identifier: BSD-3-Clause
"""The gallery: `example` runs a program of examples/ under mpiexec, and shows all of it.

`thumbnails` shows the pictures of several, each a link to its page.

For examples/NAME.py there is docs/gallery/draw_NAME.py, which runs it on each rank, checks
the answer, prints what the page shows, and has rank 0 save the picture that it is given
the path of. That rank alone imports matplotlib, which takes half a second of a core. A job
that fails is an error of the page, and so of the build.
"""

from __future__ import annotations

import functools
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
        try:
            output = job(ranks, name)
        except RuntimeError as exc:
            raise self.error(str(exc)) from None
        image = nodes.image(uri=relative(self, name), alt=self.options["alt"], width="100%")
        code = nodes.literal_block(text=source.read_text(), language="python")
        return [image, nodes.literal_block(text=output, language="text"), code]


class Thumbnails(SphinxDirective):
    """The pictures of examples; each line is PAGE EXAMPLE: words."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a grid of pictures."""
        grid = nodes.container(classes=["thumbnails"])
        for line in self.content:
            names, _, words = line.partition(": ")
            page, example = names.split()
            try:
                job(4, example)
            except RuntimeError as exc:
                raise self.error(str(exc)) from None
            link = nodes.reference(refuri=f"{page}.html", internal=True)
            link += nodes.image(uri=relative(self, example), alt=words)
            text = nodes.reference(text=words, refuri=f"{page}.html", internal=True)
            paragraph = nodes.paragraph()
            paragraph += [link, text]
            grid += paragraph
        return [grid]


def relative(directive: SphinxDirective, name: str) -> str:
    """Return where an example's picture lies, seen from the page."""
    folder = Path(directive.env.doc2path(directive.env.docname)).parent
    return os.path.relpath(PICTURES / f"{name}.png", folder)


@functools.cache
def job(ranks: int, name: str) -> str:
    """Have an example's picture drawn on so many ranks, once; return what it printed."""
    program, picture = ROOT / "docs" / "gallery" / f"draw_{name}.py", PICTURES / f"{name}.png"
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture.unlink(missing_ok=True)
    # `make docs` says how the tests launch jobs.
    launch = [*shlex.split(os.environ["LAUNCH"]), "--run", str(ranks), "--limit", "120"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}
    env["MATPLOTLIBRC"] = str(ROOT / "docs" / "gallery")
    done = subprocess.run(
        [*launch, str(program), str(picture)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode or not picture.exists():
        raise RuntimeError(f"{program.name} on {ranks} ranks: {done.stdout}{done.stderr}")
    return done.stdout.partition("\n")[2]  # behind the line with the command


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    app.add_directive("example", Example)
    app.add_directive("thumbnails", Thumbnails)
    return {"parallel_read_safe": True}
