"""What the kernel and the server's own metrics say about a server process. Linux only."""

from __future__ import annotations

from pathlib import Path

import aiohttp

__all__ = ["gauge", "gauges", "resident_bytes"]

_KIB = 1024


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * _KIB
    raise ProcessLookupError(f"process {pid} is over")


async def gauges(client: aiohttp.ClientSession, origin: str) -> str:
    """Return the server's metrics in the Prometheus text format."""
    async with client.get(f"{origin}/metrics") as answer:
        answer.raise_for_status()
        return await answer.text()


def gauge(text: str, name: str) -> float:
    """Return the sum over the labels of a metric, 0 when it is not there."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            total += float(line.rpartition(" ")[2])
    return total
