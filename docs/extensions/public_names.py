# SPDX-License-Identifier: BSD-3-Clause
"""The reference: `public-names` documents those of one kind; one without a place is a warning."""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes
from names import SECTIONS, directive, members, named
from public import is_error, is_window, public
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import rmaext

logger = logging.getLogger(__name__)


def _arguments(value: Any) -> str:
    """Return those of a window's creation: its class is called through a metaclass."""
    if value is not rmaext.Window:
        return ""
    _, *own = inspect.signature(value.__init__).parameters.values()
    empty = inspect.Parameter.empty
    return str(inspect.Signature([parameter.replace(annotation=empty) for parameter in own]))


def _entry(name: str) -> list[str]:
    """Return the directive that documents a public name."""
    value = getattr(rmaext, name)
    lines = [f".. {directive(value)}:: {name}{_arguments(value)}"]
    if is_error(value):
        lines += ["   :show-inheritance:"]
    elif inspect.isclass(value) and value is not rmaext.Window:
        lines += ["   :members:"]
        if not is_window(value):
            lines += ["   :inherited-members: object"]
    return [*lines, ""]


def _member(name: str, value: Any) -> list[str]:
    """Return the directive that documents a name of a window."""
    if isinstance(value, property):
        return [f".. autoproperty:: {name}", ""]
    if callable(value) or isinstance(value, classmethod):
        return [f".. automethod:: {name}", ""]
    return [f".. autoattribute:: {name}", ""]


class PublicNames(SphinxDirective):
    """Those that autodoc documents as `autoclass` ..., of a section of Window, or one by name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return what autodoc makes of them."""
        wanted = self.arguments[0]
        lines = [".. currentmodule:: rmaext", ""]
        if wanted in SECTIONS:
            for name, value in members(wanted).items():
                lines += _member(name, value)
            return self.parse_text_to_nodes("\n".join(lines))
        classes = [name for name in named(wanted) if "." not in name]
        names = [wanted] if wanted in rmaext.__all__ else classes
        if not names:
            raise self.error(f"rmaext has no public name of the kind {wanted}")
        for name in names:
            lines += _entry(name)
        return self.parse_text_to_nodes("\n".join(lines))


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = env.get_domain("py").data["objects"]
    for name, _ in public():
        if f"rmaext.{name}" not in documented:
            logger.warning("the public name rmaext.%s is not documented", name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive and the check."""
    app.add_directive("public-names", PublicNames)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True}
