"""How a gRPC client went: it cancelled its call, or its connection is lost.

grpc.aio says both in the same way. What tells them apart is the TCP connection below the call:
after a cancel it stands, and bytes have just come over it (the RST_STREAM); of a lost one the
kernel, whose knowledge is older than the core's, has no open connection any more; one that
answers no ping has been silent for as long as a ping may take.

Where the connection cannot be seen (no Linux, a Unix socket) a client counts as lost. Behind a
proxy that ends HTTP/2 the connection is the proxy's: there a loss looks like a cancel. A client
that cancels and hangs up in the same moment looks lost when its hang-up has arrived already.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
from typing import Final
from urllib.parse import unquote

__all__ = ["PeerConnection"]

_DESCRIPTORS: Final = "/proc/self/fd"
_TCP_INFO: Final = struct.Struct("8B24I")
"""`struct tcp_info` of Linux up to `tcpi_last_ack_recv` and a bit."""
_STATE: Final = 0
_LAST_DATA_RECV: Final = 8 + 11
"""Milliseconds since bytes came."""
_ESTABLISHED: Final = 1

Endpoint = tuple[str, int]


class PeerConnection:
    """The TCP connection that a call came over, found while it stands."""

    def __init__(self, peer: str, *, silence_limit_s: float) -> None:
        """Look for it.

        Args:
            peer: `context.peer()` of the call.
            silence_limit_s: Silence before the end that only a dead connection shows.
        """
        self._silence_limit_ms = silence_limit_s * 1000
        self._endpoint = _endpoint_of(peer)
        self._descriptor = None if self._endpoint is None else _find(self._endpoint)

    @property
    def is_known(self) -> bool:
        """Whether it can be seen at all."""
        return self._descriptor is not None

    def stands(self) -> bool:
        """Return whether it is seen to be open, and alive. A few system calls."""
        if self._descriptor is None or self._endpoint is None:
            return False
        info = _info(self._descriptor, self._endpoint)
        return (
            info is not None
            and info[_STATE] == _ESTABLISHED
            and info[_LAST_DATA_RECV] < self._silence_limit_ms
        )


class Departure:
    """How the client of one call leaves. Nothing is looked at unless `watch` is called."""

    def __init__(self, context: object, *, silence_limit_s: float) -> None:
        """Make it for a call, whose context is grpcio's own or says nothing."""
        self._context = context
        self._silence_limit_s = silence_limit_s
        self._connection: PeerConnection | None = None
        self._told_lost: bool | None = None

    def told(self, *, is_lost: bool) -> None:
        """Note what the back end says of a client that left: nothing has to be guessed then."""
        self._told_lost = is_lost

    def watch(self) -> None:
        """Find the connection while it stands; it may matter how it ends."""
        if self._connection is None and (peer := getattr(self._context, "peer", None)) is not None:
            self._connection = PeerConnection(peer(), silence_limit_s=self._silence_limit_s)

    def was_lost(self) -> bool:
        """Return whether a client that is gone went without a word."""
        if self._told_lost is not None:
            return self._told_lost
        time_remaining = getattr(self._context, "time_remaining", None)
        left = time_remaining() if time_remaining is not None else None
        if left is not None and left <= 0:
            return False  # its own deadline
        return self._connection is None or not self._connection.stands()

    def is_loss(self) -> bool:
        """Return whether the end of what the client sends is no half-close: it is seen gone."""
        connection = self._connection
        return connection is not None and connection.is_known and not connection.stands()


def _endpoint_of(peer: str) -> Endpoint | None:
    """Return address and port of `ipv4:HOST:PORT` or `ipv6:[HOST]:PORT`, None of anything else."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    try:
        return _plain(host.strip("[]")), int(port)
    except ValueError:
        return None


def _plain(host: str) -> str:
    """Return an address in one spelling, that of IPv4 where it is one."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _find(endpoint: Endpoint) -> int | None:
    """Return the descriptor of the connection to `endpoint`: mostly one of the newest."""
    try:
        descriptors = sorted(map(int, os.listdir(_DESCRIPTORS)), reverse=True)
    except OSError:
        return None
    for descriptor in descriptors:
        try:
            is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        except OSError:  # that of the listing itself, or closed by now
            continue
        if is_socket and _info(descriptor, endpoint) is not None:
            return descriptor
    return None


def _info(descriptor: int, endpoint: Endpoint) -> tuple[int, ...] | None:
    """Return what the kernel knows of the connection, None when it is not that to `endpoint`."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        name = borrowed.getpeername()
        if not isinstance(name, tuple) or (_plain(name[0].partition("%")[0]), name[1]) != endpoint:
            return None
        data = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        return _TCP_INFO.unpack(data.ljust(_TCP_INFO.size, b"\0"))
    except (OSError, ValueError):
        return None
    finally:
        borrowed.detach()  # it is the core's
