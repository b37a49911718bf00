# SPDX-License-Identifier: BSD-3-Clause
"""`python -m rmaext bench`: rmaext next to MPI.Win, by turns in one job."""
