# SPDX-License-Identifier: BSD-3-Clause
"""Operations on windows: nonblocking ones, updates, vectors, and requests."""
