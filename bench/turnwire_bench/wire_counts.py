"""Bytes that this process exchanged with a port, as the kernel counts them."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["WireCounts", "wire_counts"]

# Of `struct tcp_info`: bytes received, and bytes sent without what was sent again.
_SIZE: Final = 216
_RECEIVED: Final = 128
_SENT: Final = 200


@dataclass(frozen=True, slots=True)
class WireCounts:
    """Bytes of open connections: TLS and framing are in them, headers of TCP and IP are not."""

    up: int = 0
    down: int = 0

    def __add__(self, other: WireCounts) -> WireCounts:
        return WireCounts(self.up + other.up, self.down + other.down)


def wire_counts(port: int) -> WireCounts | None:
    """Return the bytes of all this process's open connections to `port`.

    The sockets are found among the open files, so that those of libraries count as well. None
    where the system has no such list.
    """
    if sys.platform != "linux":
        return None
    total = WireCounts()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.getpeername()[1] != port:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
                if len(info) < _SIZE:
                    return None  # an older kernel
                received = struct.unpack_from("=Q", info, _RECEIVED)[0]
                sent, sent_again = struct.unpack_from("=QQ", info, _SENT)
                total += WireCounts(sent - sent_again, received)
    return total
