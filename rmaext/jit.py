# SPDX-License-Identifier: BSD-3-Clause
"""Operations for functions compiled by numba; needs numba.

In a function under `@numba.njit`, with `handle = win.numba` and `x` a C-contiguous
array of the window's dtype:

    put(handle, rank, index, x.ctypes.data, count)
    get(handle, rank, index, x.ctypes.data, count)
    fetch_add_int64(handle, rank, index, value, address)
    fetch_add_float64(handle, rank, index, value, address)
    compare_and_swap_int64(handle, rank, index, compare, value, address)
    compare_and_swap_float64(handle, rank, index, compare, value, address)
    compare_and_swap(handle, rank, index, y.ctypes.data, z.ctypes.data, address)
    flush(handle, rank)

`index` and `count` are elements; the previous value goes to `address`, or nowhere
if that is 0; rank -1 flushes to all. The last `compare_and_swap` takes its elements,
the one to compare with in `y` and the new one in `z`, by their addresses: so it is
for every dtype that `Window.compare_and_swap` takes. Each function returns 0, or a
negative code that `win.check(code)` turns into the exception. Rank, offset, rights and
the type of an atomic are checked as everywhere; the address and the dtype behind it are
the caller's. Once the window is closed, or its object gone, a handle is still safe to
use: each call returns the code of ClosedError. (A few hundred bytes a rank of each
window whose handle was asked for stay for that until the process ends.) A call that
waits cannot be interrupted by Ctrl-C before the window's time limit.

Examples
--------
A largest value, which every rank may raise; an element of it was last seen as `seen`:

>>> import numba
>>> from rmaext.jit import compare_and_swap_float64
>>> @numba.njit
... def at_least(handle, rank, index, value):
...     seen, old = 0.0, np.empty(1)
...     while seen < value:
...         code = compare_and_swap_float64(handle, rank, index, seen, value, old.ctypes.data)
...         if code or old[0] == seen:
...             return code
...         seen = old[0]
...     return 0
>>> for value in 2.5, 1.5:
...     win.check(at_least(win.numba, 0, 4, value))
>>> win.local[3:6]
array([0. , 2.5, 0. ])
"""

from numba.core.typing import cffi_utils as _cffi_utils

from ._native import _lib

_cffi_utils.register_module(_lib)

put = _lib.lib.rmaext_nb_put
get = _lib.lib.rmaext_nb_get
fetch_add_int64 = _lib.lib.rmaext_nb_fetch_add_int64
fetch_add_float64 = _lib.lib.rmaext_nb_fetch_add_float64
compare_and_swap = _lib.lib.rmaext_nb_compare_and_swap
compare_and_swap_int64 = _lib.lib.rmaext_nb_compare_and_swap_int64
compare_and_swap_float64 = _lib.lib.rmaext_nb_compare_and_swap_float64
flush = _lib.lib.rmaext_nb_flush

__all__ = [
    "compare_and_swap",
    "compare_and_swap_float64",
    "compare_and_swap_int64",
    "fetch_add_float64",
    "fetch_add_int64",
    "flush",
    "get",
    "put",
]
