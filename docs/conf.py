# SPDX-License-Identifier: BSD-3-Clause
"""The site: `make docs` builds it, strictly, in build/docs/html."""

import builtins
import re
import sys
import urllib.request
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import rmaext

project = "rmaext"
author = "rmaext developers"
copyright = "rmaext developers"
version = release = rmaext.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "commands",
    "gallery",
    "public_names",
    "rooms",
    "traced",
]
html_theme = "furo"
html_title = f"rmaext {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]

myst_heading_anchors = 3
default_role = "code"  # what docstrings have between single backticks

autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the docstrings have the types, and more than those
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes that have a docstring of their own are there already

# -- names of others -------------------------------------------------------------
# With a network they are links. Without one, as in CI, they are only names.

_OTHERS = {
    "python": ("https://docs.python.org/3", {*dir(builtins), "asyncio", "types", "typing"}),
    "numpy": ("https://numpy.org/doc/stable", {"numpy", "np"}),
    "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", {"mpi4py", "MPI"}),
}


def _is_reachable(site: str) -> bool:
    try:
        with urllib.request.urlopen(f"{site}/objects.inv", timeout=3):
            return True
    except OSError:
        return False


intersphinx_mapping = {}
# Types in docstrings are words, too: only what looks like a name of ours must be one.
nitpick_ignore_regex = [(r"py:.*", r"(?![A-Z]\w*$)[^.]*"), (r"py:.*", r".*\s.*")]
for _name, (_site, _roots) in _OTHERS.items():
    if _is_reachable(_site):
        intersphinx_mapping[_name] = (_site, None)
    else:
        nitpick_ignore_regex.append((r"py:.*", rf"({'|'.join(sorted(_roots))})(\..*)?"))


def _copy_sources(app: Sphinx, failed: Exception | None) -> None:
    """Lay each page's source beside it, where llms.txt says."""
    for name in app.env.found_docs if app.builder.name == "html" and not failed else ():
        source, target = Path(app.env.doc2path(name)), Path(app.outdir, f"{name}.md")
        text = source.read_text()
        if included := re.match(r"```{include} (\S+)", text):  # a page of its own elsewhere
            text = (source.parent / included[1]).read_text()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("build-finished", _copy_sources)
