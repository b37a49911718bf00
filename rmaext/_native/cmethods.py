# SPDX-License-Identifier: BSD-3-Clause
"""Puts the C module `cmethods`, which is in the file of `_lib`, in the place of this one."""

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader

from . import _lib

_spec = spec_from_loader(__name__, ExtensionFileLoader(__name__, _lib.__file__))
sys.modules[__name__] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
