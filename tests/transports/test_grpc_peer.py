"""A client that is gone: did it cancel, or is its connection lost? The kernel knows."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from turnwire_server.transports import grpc_peer
from turnwire_server.transports.grpc_peer import Departure, PeerConnection

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels are not asked")


class Pair:
    """A TCP connection between two sockets of this process."""

    def __init__(self, family: socket.AddressFamily, listen_on: str, connect_to: str) -> None:
        with socket.socket(family) as listener:
            if family is socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((listen_on, 0))
            listener.listen()
            port = listener.getsockname()[1]
            self.client = socket.create_connection((connect_to, port))
            self.server, _ = listener.accept()

    @property
    def peer(self) -> str:
        """What gRPC would call the client."""
        host, port = self.client.getsockname()[:2]
        return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(socket.AF_INET, "127.0.0.1", "127.0.0.1")
    yield pair
    pair.close()


def found(pair: Pair, *, silence_limit_s: float = 60.0) -> PeerConnection:
    connection = PeerConnection(pair.peer, silence_limit_s=silence_limit_s)
    assert connection.is_known
    return connection


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_a_connection_stands_while_it_is_open(pair: Pair) -> None:
    connection = found(pair)
    assert connection.stands()
    pair.client.sendall(b"x")
    assert connection.stands()
    assert pair.server.recv(10) == b"x"  # the look took nothing, and closed nothing


@pytest.mark.parametrize("how", ["hang up", "reset", "closed here too"])
def test_a_connection_that_is_over_does_not_stand(pair: Pair, how: str) -> None:
    connection = found(pair)
    if how == "reset":
        reset(pair.client)
    else:
        pair.client.close()
    if how == "closed here too":
        pair.server.close()
    assert not connection.stands()
    assert connection.is_known


def test_a_descriptor_that_is_another_connection_by_now_does_not_stand(pair: Pair) -> None:
    connection = found(pair)
    descriptor = pair.server.fileno()
    pair.close()
    with ExitStack() as exits:
        others = [Pair(socket.AF_INET, "127.0.0.1", "127.0.0.1") for _ in range(4)]
        for other in others:
            exits.callback(other.close)
        taken = {other.server.fileno() for other in others}
        taken |= {other.client.fileno() for other in others}
        assert descriptor in taken
        assert not connection.stands()


def test_a_connection_that_was_silent_for_too_long_does_not_stand(pair: Pair) -> None:
    assert not found(pair, silence_limit_s=0.0).stands()


def test_the_newest_of_many_connections_is_told_from_the_others() -> None:
    with ExitStack() as exits:
        pairs = [Pair(socket.AF_INET, "127.0.0.1", "127.0.0.1") for _ in range(20)]
        for pair in pairs:
            exits.callback(pair.close)
        connections = [found(pair) for pair in pairs]
        pairs[7].client.close()
        assert [n for n, one in enumerate(connections) if not one.stands()] == [7]


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
@pytest.mark.parametrize("connect_to", ["::1", "127.0.0.1"])
def test_every_spelling_of_an_address_is_understood(connect_to: str) -> None:
    try:
        pair = Pair(socket.AF_INET6, "::", connect_to)
    except OSError:
        pytest.skip("there is no IPv6 here")
    assert found(pair).stands()
    pair.close()


@pytest.mark.parametrize(
    "peer", ["", "unix:", "unix:/run/socket", "ipv4:127.0.0.1", "ipv4:nowhere:80", "ipv4:1.2.3.4:x"]
)
def test_what_is_no_tcp_connection_is_not_known(peer: str) -> None:
    connection = PeerConnection(peer, silence_limit_s=60.0)
    assert not connection.is_known
    assert not connection.stands()


def test_where_descriptors_cannot_be_listed_nothing_is_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_peer, "_DESCRIPTORS", "/no/such/folder")
    assert not PeerConnection(pair.peer, silence_limit_s=60.0).is_known


class Context:
    """What grpcio says of a call."""

    def __init__(self, peer: str, left: float | None = None) -> None:
        self._peer, self._left = peer, left

    def peer(self) -> str:
        """Say it once: grpcio forgets it with the end of the call."""
        peer, self._peer = self._peer, ""
        return peer

    def time_remaining(self) -> float | None:
        return self._left


def test_a_client_whose_connection_stands_has_cancelled(pair: Pair) -> None:
    departure = Departure(Context(pair.peer), silence_limit_s=60.0)
    departure.watch()
    departure.watch()
    assert not departure.was_lost()
    assert not departure.is_loss()
    pair.client.close()
    assert departure.was_lost()
    assert departure.is_loss()


def test_a_deadline_is_no_loss(pair: Pair) -> None:
    departure = Departure(Context(pair.peer, 0.0), silence_limit_s=60.0)
    departure.watch()
    pair.client.close()
    assert not departure.was_lost()


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_the_back_end_says_counts_more_than_what_is_seen(pair: Pair, is_lost: bool) -> None:
    departure = Departure(Context(pair.peer), silence_limit_s=60.0)
    departure.watch()
    if not is_lost:
        pair.client.close()
    departure.told(is_lost=is_lost)
    assert departure.was_lost() == is_lost


@pytest.mark.parametrize("context", [Context("unix:"), object()], ids=["unix", "silent"])
def test_a_client_of_which_nothing_is_known_counts_as_lost_but_may_half_close(
    context: object,
) -> None:
    departure = Departure(context, silence_limit_s=60.0)
    departure.watch()
    assert departure.was_lost()
    assert not departure.is_loss()
