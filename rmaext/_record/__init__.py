# SPDX-License-Identifier: BSD-3-Clause
"""What a process says of itself to others: its own record and trace, and how to read records.

`writer` and `tracing` are of the process itself. The rest reads the records of any process, and
neither initialises MPI nor asks the processes for anything: they may be stopped.
"""
