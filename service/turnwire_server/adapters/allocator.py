"""What allocators hold of freed memory, and how to have it given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

__all__ = ["EmptyCaches", "find_trim"]

_FEW = 100
"""Fewer sessions leave too little behind: who comes next would find caches cold for nothing."""


class EmptyCaches:
    """Frees what Python itself keeps for later, once most of what was served is gone.

    That is the free lists of its types, some thousand blocks, and up to 512 copies of each name
    that a C extension looks up by its text, in the cache of methods. They lie amid the memory of
    all the sessions there were, so that little of that can be given back.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        """Make it; `count` returns how many sessions are served."""
        self._count = count
        self._most = 0
        """How many there were since it emptied them last, as far as it saw."""
        self._is_rest = False
        """Whether what was left then is among these."""

    def look(self) -> bool:
        """Note how many there are; return whether fewer than a quarter of many is left.

        Of what is left then, it is a quarter again, and so on: the last ones leave as much behind.
        """
        count = self._count()
        if count > self._most:
            self._is_rest = self._is_rest and self._most > 0  # some are still there
            self._most = count
        return 4 * count < self._most and (self._is_rest or self._most >= _FEW)

    def __call__(self) -> None:
        """Empty them if it is due.

        Only a full collection does it, and that looks at all who are left: so each of them is
        paid for by three that are gone.
        """
        if not self.look():
            return
        self._most, self._is_rest = self._count(), True
        gc.collect()
        if hasattr(sys, "_clear_type_cache"):
            sys._clear_type_cache()


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
