"""What allocators hold of freed memory, and how to have it given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

__all__ = ["ArenaLimit", "EmptyCaches", "find_arena_switch", "find_trim"]

_FEW = 100
"""Fewer sessions leave too little behind: who comes next would find caches cold for nothing."""
_MANY = 100
"""So many sessions may fill arenas: some 6 MB."""


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


class ArenaLimit:
    """Keeps Python from taking more arenas while many are served.

    Small objects live in arenas of 1 MB, and each goes back to the system only when the last
    object in it is gone. What a thousand sessions filled is pinned, when they are gone, by some
    dozens of objects that others left among theirs. What does not fit into the arenas comes from
    the C library, a little slower, which can give back each free page. So a few sessions have the
    quicker memory, and many do not leave theirs behind.
    """

    def __init__(self, switch: Callable[[bool], None]) -> None:
        """Make it; `switch` allows Python to take arenas (True), or not (False)."""
        self._switch = switch
        self._is_reached = False

    def look(self, count: int) -> None:
        """Note how many are served now."""
        if self._is_reached:
            is_reached = count > _MANY // 2  # not back and forth with every one
        else:
            is_reached = count >= _MANY
        if is_reached != self._is_reached:
            self._is_reached = is_reached
            self._switch(not is_reached)


class _ArenaAllocator(ctypes.Structure):
    """`PyObjectArenaAllocator` of CPython's C API."""

    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("alloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


def find_arena_switch() -> Callable[[bool], None] | None:
    """Return what allows Python to take arenas or not; None where it has none.

    Where no arena is to be had, CPython takes an object's memory from the C library, and it knows
    by the address where to give it back to. So nothing moves, and both kinds live side by side.
    """
    if sys.implementation.name != "cpython" or sys.platform != "linux":
        return None
    try:
        get = ctypes.pythonapi.PyObject_GetArenaAllocator
        put = ctypes.pythonapi.PyObject_SetArenaAllocator
        take = ctypes.pythonapi.PyMem_RawMalloc
    except AttributeError:
        return None
    get.restype = put.restype = None
    get.argtypes = put.argtypes = (ctypes.POINTER(_ArenaAllocator),)
    usual = _ArenaAllocator()
    get(ctypes.byref(usual))
    if usual.ctx is not None:  # somebody else's, who may need it
        return None
    # An allocator is called with its context and a size. This one takes the context for the size,
    # and so much is refused at once: Python allows no object of more than half of it.
    too_much = ctypes.c_size_t(-1).value
    take.restype, take.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    if take(too_much) is not None:
        return None
    refusing = _ArenaAllocator(too_much, ctypes.cast(take, ctypes.c_void_p).value, usual.free)

    def switch(is_allowed: bool) -> None:
        put(ctypes.byref(usual if is_allowed else refusing))

    return switch


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
