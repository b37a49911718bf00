# SPDX-License-Identifier: BSD-3-Clause
"""The reference: `public-names` documents those of one kind; one without a place is a warning."""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes
from public import is_error, is_window, public
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import rmaext

logger = logging.getLogger(__name__)


def _directive(value: Any) -> str:
    """Return what autodoc calls such a thing."""
    if is_error(value):
        return "autoexception"
    if inspect.isclass(value):
        return "autoclass"
    return "autofunction" if callable(value) else "autodata"


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
    lines = [f".. {_directive(value)}:: {name}{_arguments(value)}"]
    if is_error(value):
        lines += ["   :show-inheritance:"]
    elif inspect.isclass(value):
        lines += ["   :members:"]
        if not is_window(value):
            lines += ["   :inherited-members: object"]
    return [*lines, ""]


class PublicNames(SphinxDirective):
    """Those that autodoc documents as `autoclass`, `autoexception` ..., or one by its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return what autodoc makes of them."""
        wanted = self.arguments[0]
        names = [name for name in rmaext.__all__ if _directive(getattr(rmaext, name)) == wanted]
        names = [wanted] if wanted in rmaext.__all__ else [n for n in names if n != "Window"]
        if not names:
            raise self.error(f"rmaext has no public name of the kind {wanted}")
        lines = [".. currentmodule:: rmaext", ""]
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
