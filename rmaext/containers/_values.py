# SPDX-License-Identifier: BSD-3-Clause
"""What containers are given, as elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import elements

__all__ = ["taken"]


def taken(
    given: Any, dtype: np.dtype[Any], what: str, *, exact: bool = False, convert: bool = False
) -> NDArray[Any]:
    """Return what `rmaext.elements` makes of it; its errors begin with what it is.

    Raises
    ------
    TypeError, OverflowError, ValueError
    """
    if type(given) is np.ndarray and given.dtype == dtype:
        return given
    try:
        return elements(given, dtype, exact=exact, convert=convert)
    except OverflowError as exc:
        raise OverflowError(f"{what}: {exc}") from None
    except TypeError as exc:
        raise TypeError(f"{what}: {exc}") from None
    except ValueError as exc:
        raise ValueError(f"{what}: {exc}") from None
