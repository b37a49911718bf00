# SPDX-License-Identifier: BSD-3-Clause
"""The commands of `python -m rmaext`, and what starts jobs for them."""
