# SPDX-License-Identifier: BSD-3-Clause
"""What tests of remote windows share."""

from __future__ import annotations

from dataclasses import fields

import pytest

import rmaext
from rmaext._remote.ticket import Ticket


def refuses(call, error=rmaext.ClosedError, match=None):
    with pytest.raises(error, match=match) as caught:
        call()
    return caught.value


def forge(it: Ticket, **changes) -> bytes:
    record = {field.name: getattr(it, field.name) for field in fields(it)} | changes
    return Ticket(**record).pack()
