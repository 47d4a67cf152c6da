"""What processes used: CPU time and memory of a process and of all that it started.

Linux only; elsewhere both are None, and the figures that need them are left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["cpu_seconds", "memory_kb", "process_tree"]

_PROCESS_CLOCK: Final = 2
"""Linux: the kind of clock that counts a whole process at the scheduler's precision."""


def process_tree(pid: int) -> list[int]:
    """Return a process and all processes below it that still run."""
    found = [pid]
    for parent in found:  # grows while it is walked
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text(encoding="ascii").split()]
            except OSError:
                continue  # the thread ended meanwhile
    return found


def cpu_seconds(pids: Iterable[int]) -> float | None:
    """Return the CPU seconds of process trees, user and system, ended threads included.

    Processes that ended are missing from it. None where the system does not say.
    """
    if sys.platform != "linux":
        return None
    total = 0
    for pid in pids:
        for member in process_tree(pid):
            try:
                total += time.clock_gettime_ns(~member << 3 | _PROCESS_CLOCK)
            except OSError:
                continue
    return total / 1e9


def memory_kb(pid: int) -> float | None:
    """Return the memory that belongs to a process tree alone, in kB; None where it is not said.

    That is resident anonymous memory: what files share between processes is left out.
    """
    if sys.platform != "linux":
        return None
    total = 0
    for member in process_tree(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
    return float(total)
