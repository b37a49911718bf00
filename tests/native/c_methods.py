# SPDX-License-Identifier: BSD-3-Clause
"""What tests of the C methods share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.ma  # else by numpy.unique, the first time that a call waits

SIZE = 12


class Child(np.ndarray):
    pass


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array
