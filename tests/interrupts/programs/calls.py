# SPDX-License-Identifier: BSD-3-Clause
"""All public calls, interrupted: see `support/interrupted.py` and its `main`."""

import arrays_and_channels
import dropin
import shared_data
import synchronisation
import windows
from known import KNOWN
from support.interrupted import main

ROOMS = windows, synchronisation, dropin, shared_data, arrays_and_channels
main([case for room in ROOMS for case in room.cases()], KNOWN)
