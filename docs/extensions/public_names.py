# SPDX-License-Identifier: BSD-3-Clause
"""The reference: `public-names` documents those of one kind; a name that no page has is a warning.

What is public is what rmaext.__all__ names, and of its classes each attribute without an
underscore.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import rmaext
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)

_WINDOW = rmaext.Window


def _directive(value: Any) -> str:
    """Return what autodoc calls such a thing."""
    if not inspect.isclass(value):
        return "autofunction" if callable(value) else "autodata"
    return "autoexception" if issubclass(value, BaseException) else "autoclass"


def _entry(name: str) -> list[str]:
    """Return the directive that documents a public name."""
    value = getattr(rmaext, name)
    lines = [f".. {_directive(value)}:: {name}"]
    if _directive(value) == "autoexception":
        lines += ["   :show-inheritance:"]
    elif _directive(value) == "autoclass":
        lines += ["   :members:"]
        if not issubclass(value, _WINDOW) or value is _WINDOW:
            lines += ["   :inherited-members: object"]
    return [*lines, ""]


class PublicNames(SphinxDirective):
    """Those that autodoc documents as `autoclass`, `autoexception` ..., or one by its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return what autodoc makes of them."""
        wanted = self.arguments[0]
        names = [
            name
            for name in rmaext.__all__
            if wanted in (name, _directive(getattr(rmaext, name)))
            and (name != "Window" or wanted == "Window")
        ]
        if not names:
            raise self.error(f"rmaext has no public name of the kind {wanted}")
        lines = [".. currentmodule:: rmaext", ""]
        for name in names:
            lines += _entry(name)
        return self.parse_text_to_nodes("\n".join(lines))


def _public() -> Iterator[str]:
    """All public names, with those of classes behind a dot."""
    for name in rmaext.__all__:
        yield f"rmaext.{name}"
        value = getattr(rmaext, name)
        if _directive(value) != "autoclass":
            continue
        inherited = dir(_WINDOW) if issubclass(value, _WINDOW) and value is not _WINDOW else []
        for attribute in dir(value):
            if not attribute.startswith("_") and (
                attribute in vars(value) or attribute not in inherited
            ):
                yield f"rmaext.{name}.{attribute}"


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = env.get_domain("py").data["objects"]
    for name in _public():
        if name not in documented:
            logger.warning("the public name %s is not documented", name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive and the check."""
    app.add_directive("public-names", PublicNames)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True}
