# SPDX-License-Identifier: BSD-3-Clause
"""The process: settings, locks and forks, its end, MPI's progress, what waits report."""
