# SPDX-License-Identifier: BSD-3-Clause
"""The ranks of a communicator: how they meet, what they tell each other, who is gone."""
