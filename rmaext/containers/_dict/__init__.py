# SPDX-License-Identifier: BSD-3-Clause
"""`Dict`: from keys (hashing, values) by windows (memory) and their protocol to the operations.

slots, entries and changes are the protocol, each on the one before it; table and dict what
users call; multidict stands on two of dict.
"""

from .dict import Dict
from .items import Items
from .multidict import MultiDict

__all__ = ["Dict", "Items", "MultiDict"]
