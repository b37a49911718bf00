# SPDX-License-Identifier: BSD-3-Clause
"""Memory for other jobs: tickets, and the grants behind them."""
