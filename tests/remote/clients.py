# SPDX-License-Identifier: BSD-3-Clause
"""What tests of remote windows share."""

from __future__ import annotations

import pytest

import rmaext
from rmaext._remote.ticket import Ticket


def refuses(call, error=rmaext.ClosedError, match=None):
    with pytest.raises(error, match=match) as caught:
        call()
    return caught.value


def forge(it: Ticket, **changes) -> bytes:
    return it._replace(**changes).pack()
