# SPDX-License-Identifier: BSD-3-Clause
"""What goes to `logging`, which is imported once there is something to tell: it takes 4 ms."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

__all__ = ["log"]


class Log:
    """The logger "rmaext".

    Unless the program has imported `logging`, nobody has asked for what is below a warning.
    """

    def debug(self, text: str, *args: Any, **options: Any) -> None:
        """Tell those who debug."""
        self._tell(10, text, args, options)

    def info(self, text: str, *args: Any, **options: Any) -> None:
        """Tell those who want to know all."""
        self._tell(20, text, args, options)

    def warning(self, text: str, *args: Any, **options: Any) -> None:
        """Tell everyone."""
        self._tell(30, text, args, options)

    def error(self, text: str, *args: Any, **options: Any) -> None:
        """Tell everyone of what is wrong."""
        self._tell(40, text, args, options)

    def debugs(self) -> bool:
        """Tell whether anybody debugs."""
        logger = self._logger()
        return logger is not None and logger.isEnabledFor(10)

    def _tell(self, level: int, text: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        logger = self._logger()
        if logger is None and level >= 30:
            try:
                import_module("logging")
            except (ImportError, OSError):  # no descriptor may be left
                with suppress(AttributeError, OSError, ValueError):  # nor a stderr
                    sys.stderr.write((text % args if args else text) + "\n")
            logger = self._logger()
        if logger is not None:
            logger.log(level, text, *args, stacklevel=3, **options)

    def _logger(self) -> Any:
        """Return it; None if `logging` is not imported, or not to its end."""
        logging: Any = sys.modules.get("logging")
        return logging.getLogger("rmaext") if hasattr(logging, "getLogger") else None


log = Log()
