# SPDX-License-Identifier: BSD-3-Clause
"""What `info` and `doctor` find of CUDA: its driver, and whether processes map each other's memory.

What opens the library or makes a context is called in children; see info.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

from .._native._lib import ffi, lib
from .._runtime import config
from .._runtime.failures import from_c

__all__ = ["driver", "mapped", "owner", "words"]


def _call(name: str, *args: Any) -> None:
    """Call a function of the driver's, as a program's library of arrays does."""
    if code := getattr(_library(), name)(*args):
        raise RuntimeError(f"{name}: error {code} of CUDA")


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.fsdecode(config.cuda_library()))


def driver() -> dict[str, Any]:
    """Return the file of CUDA's driver, its version and its devices. No context is made."""
    library, device = config.cuda_library(), ffi.new("rmaext_device **")
    names: list[str] = []
    while (code := lib.rmaext_device_open(library, len(names), device)) in (0, -errno.EOPNOTSUPP):
        uuid = ctypes.create_string_buffer(16)  # unsupported: nobody has made a context there
        v2 = "_v2" * hasattr(_library(), "cuDeviceGetUuid_v2")  # not before CUDA 11.4
        _call(f"cuDeviceGetUuid{v2}", uuid, len(names))
        text = uuid.raw.hex()
        names.append("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
    if not names:
        raise from_c(code, "devices")
    version = ctypes.c_int()
    _call("cuDriverGetVersion", ctypes.byref(version))
    return {
        "cuda": len(names),
        "devices": names,
        "driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "library": _file(ctypes.cast(_library().cuInit, ctypes.c_void_p).value or 0),
    }


def _file(address: int) -> str:
    """Return the file that is mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, *_, path = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in where.split("-"))
        if first <= address < last:
            return path
    raise RuntimeError(f"nothing is mapped at {address:#x}")


def _begun() -> Any:
    """Make a context of the first device, and return the device."""
    context, device = ctypes.c_void_p(), ffi.new("rmaext_device **")
    _call("cuInit", 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    _call("cuCtxSetCurrent", context)
    if code := lib.rmaext_device_open(config.cuda_library(), 0, device):
        raise from_c(code, "open")
    return device[0]


def owner() -> dict[str, Any]:
    """Return what others can map memory of this process by, which stays."""
    device, address = _begun(), ffi.new("void **")
    exported = ffi.new("struct rmaext_export *")
    code = lib.rmaext_device_allocate(device, 1, address)
    code = code or lib.rmaext_device_export(device, address[0], 1, exported)
    if code:
        raise from_c(code, "export")
    return {"exported": bytes(ffi.buffer(exported)).hex()}


def mapped(facts: dict[str, Any]) -> dict[str, Any]:
    """Map what an owner has told, as a window does."""
    _begun()
    exported = bytes.fromhex(facts["exported"])
    if code := lib.rmaext_import_try(config.cuda_library(), ffi.from_buffer(exported), 1):
        raise from_c(code, "map")
    return {}


def words(found: dict[str, Any]) -> tuple[str, str]:
    """Return what came of it, as `doctor` marks it, and a sentence with what to do."""
    error = found.get("error", "")
    late = error or found.get("ipc_error", "")
    if late.startswith("no answer"):
        return "no time", late
    if error.startswith(("crashed", "ended")):
        what = os.fsdecode(config.cuda_library())
        return "fails", f"{what} {error}: does nvidia-smi work? Is RMAEXT_CUDA what it should be?"
    if error:
        return "none", error
    count = found["cuda"]
    text = f"{count} device{'s' * (count > 1)}, driver {found['driver']}, {found['library']}; "
    if found["ipc"]:
        text += "two processes map each other's memory (CUDA IPC); that of pools "
        return "ok", text + "(cudaMallocAsync) its owner copies for others"
    text += f"two processes do not map each other's memory: {found['ipc_error']}. Its owner copies "
    text += "for others then, which is slower; in containers --ipc=host and --pid=host may help, "
    return "fails", text + "and WSL has no CUDA IPC"
