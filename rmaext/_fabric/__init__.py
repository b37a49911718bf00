# SPDX-License-Identifier: BSD-3-Clause
"""libfabric: finding the library, endpoints, and the registration of memory."""
