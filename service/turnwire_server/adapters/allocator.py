"""The C library's allocator: what it holds of freed memory, and how to have it given back."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

__all__ = ["find_trim"]


def find_trim() -> Callable[[], None] | None:
    """Return what gives freed memory back to the system; None where it cannot be asked to.

    Only glibc has such a call. It takes some milliseconds for each 50 MB that it gives back and
    next to nothing when there is nothing to give; other threads wait for it when they need memory.
    """
    if sys.platform != "linux":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another C library
        return None
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int

    def give_back() -> None:
        trim(0)

    return give_back
