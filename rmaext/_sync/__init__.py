# SPDX-License-Identifier: BSD-3-Clause
"""Synchronisation: locks, epochs, notifications, and waits for memory."""
