# SPDX-License-Identifier: BSD-3-Clause
"""What containers are given, as elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._device import made_of

__all__ = ["taken"]


def taken(
    given: Any,
    dtype: np.dtype[Any],
    what: str,
    *,
    exact: bool = False,
    convert: bool = False,
    limit: float | None,
) -> NDArray[Any]:
    """Return what `rmaext.elements` makes of it; its errors begin with what it is.

    `limit`: seconds that a device with it may take; None: RMAEXT_TIMEOUT.

    Raises
    ------
    TypeError, OverflowError, ValueError
    """
    if type(given) is np.ndarray and given.dtype == dtype:
        return given
    try:
        return made_of(given, dtype, exact, convert, limit=limit)
    except OverflowError as exc:
        raise OverflowError(f"{what}: {exc}") from None
    except TypeError as exc:
        raise TypeError(f"{what}: {exc}") from None
    except ValueError as exc:
        raise ValueError(f"{what}: {exc}") from None
