# SPDX-License-Identifier: BSD-3-Clause
"""All public calls, interrupted: see `support/interrupted.py` and its `main`."""

import dropin
import shared_data
import synchronisation
import windows
from known import KNOWN
from support.interrupted import main

main([*windows.cases(), *synchronisation.cases(), *dropin.cases(), *shared_data.cases()], KNOWN)
