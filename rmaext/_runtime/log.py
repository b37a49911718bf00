# SPDX-License-Identifier: BSD-3-Clause
"""What goes to `logging`, which is imported once there is something to tell: it takes 4 ms."""

from __future__ import annotations

import sys
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
        return "logging" in sys.modules and self._logger().isEnabledFor(10)

    def _tell(self, level: int, text: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if level >= 30 or "logging" in sys.modules:
            self._logger().log(level, text, *args, stacklevel=3, **options)

    def _logger(self) -> Any:
        import logging

        return logging.getLogger("rmaext")


log = Log()
