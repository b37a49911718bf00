# SPDX-License-Identifier: BSD-3-Clause
"""What tools in other processes read of a job: why it hangs, how fast it is, what it did.

Nothing here initialises MPI, nor asks the processes for anything: they may be stopped.
"""
