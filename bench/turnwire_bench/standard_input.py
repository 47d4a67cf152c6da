"""Waiting for the end of the standard input, which ends a process of the benchmark."""

from __future__ import annotations

import asyncio
import os
import sys

__all__ = ["standard_input_closed"]


async def standard_input_closed() -> None:
    """Wait for the end of the standard input; what comes before is dropped."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    number = sys.stdin.fileno()

    def read() -> None:
        if not os.read(number, 4096):
            loop.remove_reader(number)
            closed.set()

    loop.add_reader(number, read)
    await closed.wait()
