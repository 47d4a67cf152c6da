"""Ports for servers that are started, or started again, by somebody else."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

_FIRST = 20_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_END = 32_768
_TRIES = 200


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now.

    It is none of those that the kernel gives to outgoing connections: one of those may be taken
    between two starts of a server, even by a client that connects to itself while it tries.

    Raises:
        OSError: There is none.
    """
    for _ in range(_TRIES):
        port = random.randrange(_FIRST, max(_ephemeral(), _FIRST + 1_000))
        with socket.socket() as probe:
            # As servers do: what a dead one has left in TIME_WAIT is in nobody's way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port was found")


def _ephemeral() -> int:
    """Return the lowest port of outgoing connections."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _USUAL_END
