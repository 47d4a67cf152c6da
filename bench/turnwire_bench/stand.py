"""The test stand: the processes of a run, and the ways through them from client to server."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from turnwire_bench.certificates import Certificate, make_certificate
from turnwire_bench.network import Profile
from turnwire_bench.processes import Child, child
from turnwire_bench.scenario import Scenario
from turnwire_bench.usage import cpu_seconds, memory_kb

__all__ = ["Server", "Stand", "Tls", "notes_of", "wire_of"]

Tls = Literal["none", "stateless", "all"]
"""Which rows are encrypted: none, the one that connects anew for each call, or all."""


class Server:
    """A server process and where it listens."""

    def __init__(self, process: Child, *, is_secure: bool = False) -> None:
        self.pid = process.pid
        self.ready = process.ready
        self.is_secure = is_secure
        """Whether it speaks TLS."""
        self.http_port = _port(process.ready["http"])
        self.grpc_port = _port(process.ready["grpc"])

    def port(self, wire: str) -> int:
        """Return the port of `http`, `ws` or `grpc`."""
        return self.grpc_port if wire == "grpc" else self.http_port

    def memory_kb(self) -> float | None:
        """Return what it holds."""
        return memory_kb(self.pid)

    def cpu_seconds(self) -> float | None:
        """Return what it used so far."""
        return cpu_seconds([self.pid])


class Stand:
    """Starts processes as they are needed, and stops them all at the end."""

    def __init__(self, *, tls: Tls = "none", hops: int = 0) -> None:
        """Make an empty stand.

        Args:
            tls: Which rows are encrypted.
            hops: Pass-through services in the way of `http_stateless`; TLS is then ended by one
                more in front of them, and else by the server.
        """
        self._tls = tls
        self._hops = hops
        self._stack = ExitStack()
        self._relay: Child | None = None
        self._sink: Child | None = None
        self._certificate: Certificate | None = None
        self._links: dict[tuple[int, str], int] = {}
        self._fronts: dict[int, Child] = {}
        self._chains: dict[int, tuple[int, list[int]]] = {}

    def __enter__(self) -> Self:
        """Begin; processes come when they are needed."""
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop all processes."""
        self._stack.close()

    # Processes.

    def server(
        self,
        *,
        is_secure: bool = False,
        has_slow_sink: bool = False,
        scenario: Scenario | None = None,
        rate: float = 0.0,
        workers: int = 1,
    ) -> Server:
        """Start a server on the simulated engine, on free ports, with a data folder of its own.

        Args:
            is_secure: Whether it speaks TLS.
            has_slow_sink: Whether its usage records go to a receiver that takes its time.
            scenario: A trajectory to replay.
            rate: Its tokens per second.
            workers: How many processes serve.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        variables = {"XDG_DATA_HOME": str(folder)}
        if is_secure:
            certificate = self._own_certificate()
            variables["TURNWIRE_TLS_CERTIFICATE"] = str(certificate.chain)
            variables["TURNWIRE_TLS_KEY"] = str(certificate.key)
        if has_slow_sink:
            if self._sink is None:
                self._sink = self._stack.enter_context(child("turnwire_bench.slow_sink"))
            port = self._sink.ready["port"]
            variables["TURNWIRE_USAGE_WEBHOOK_URL"] = f"http://127.0.0.1:{port}/"
            variables["TURNWIRE_USAGE_WEBHOOK_SECRET"] = secrets.token_hex(16)
        listen = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--until-stdin-closes"]
        model = ["--engine", "sim"]
        if scenario is not None and scenario.recorded:
            (folder / "trace.jsonl").write_text(scenario.trace(), encoding="utf-8")
            config = folder / "turnwire.toml"
            config.write_text(
                '[[models]]\nname = "sim"\nengine = "sim"\ntrace_path = "trace.jsonl"\n'
                f"tokens_per_second = {float(rate)}\n",
                encoding="utf-8",
            )
            model = ["--config", str(config)]
        shared = ["--workers", str(workers)] if workers > 1 else []
        process = child("turnwire", ["serve", *listen, *model, *shared], environment=variables)
        return Server(self._stack.enter_context(process), is_secure=is_secure)

    def wants_tls(self, transport: str) -> bool:
        """Return whether a transport needs a server that speaks TLS."""
        if transport == "http_stateless":
            return self._tls != "none" and not self._hops
        return self._tls == "all"

    def echo(self) -> Child:
        """Start the yardstick."""
        return self._stack.enter_context(child("turnwire_bench.echo"))

    def worker(self) -> Child:
        """Start a process for the load."""
        return self._stack.enter_context(child("turnwire_bench.worker"))

    # Ways.

    def place(self, server: Server, transport: str, profile: Profile) -> dict[str, Any]:
        """Return where a transport's client connects to, as a job has it."""
        wire = wire_of(transport)
        port, is_secure = server.port(wire), server.is_secure
        if transport == "http_stateless" and self._hops:
            port = self._through_hops(port)[0]
            if self._tls != "none":
                port, is_secure = self._front(port).ready["port"], True
        certificate = None
        if is_secure:
            certificate = self._own_certificate().chain.read_text(encoding="ascii")
        port = self.through(port, profile)
        scheme = f"{wire}{'s' if is_secure else ''}"
        path = {"http": "/v1", "ws": "/v1/responses", "grpc": ""}[wire]
        return {"url": f"{scheme}://127.0.0.1:{port}{path}", "certificate": certificate}

    def through(self, port: int, profile: Profile) -> int:
        """Return the port that leads to `port` through a network."""
        if not profile.is_modelled:
            return port
        key = (port, profile.name)
        if key not in self._links:
            if self._relay is None:
                self._relay = self._stack.enter_context(child("turnwire_bench.relay"))
            wanted = {
                "port": port,
                "round_trip_s": profile.round_trip_s,
                "bits_per_second": profile.bits_per_second,
            }
            answer = self._relay.ask({"open": wanted})
            self._links[key] = answer["port"]
        return self._links[key]

    def server_pids(self, server: Server, transport: str) -> list[int]:
        """Return the processes that work for the server's side of a row."""
        pids = [server.pid]
        port = server.port(wire_of(transport))
        if transport == "http_stateless" and port in self._chains:
            port, hops = self._chains[port]
            pids += hops
        if port in self._fronts:
            pids.append(self._fronts[port].pid)
        return pids

    def round_trips(self, transport: str) -> int:
        """Return how often a turn crosses the network and back at least.

        On a kept connection that is once; a fresh one adds TCP's handshake, and that of TLS 1.3.
        """
        if transport != "http_stateless":
            return 1
        return 2 if self._tls == "none" else 3

    def cpu_seconds(self, pids: Iterable[int]) -> float | None:
        """Return the CPU seconds of processes."""
        return cpu_seconds(pids)

    # Private.

    def _through_hops(self, port: int) -> tuple[int, list[int]]:
        if port not in self._chains:
            onward, pids = port, list[int]()
            for _ in range(self._hops):
                hop = self._stack.enter_context(child("turnwire_bench.hop", ["--to", str(onward)]))
                onward = hop.ready["port"]
                pids.append(hop.pid)
            self._chains[port] = (onward, pids)
        return self._chains[port]

    def _front(self, port: int) -> Child:
        if port not in self._fronts:
            certificate = self._own_certificate()
            arguments = ["--to", str(port), "--certificate", str(certificate.chain)]
            arguments += ["--key", str(certificate.key)]
            self._fronts[port] = self._stack.enter_context(child("turnwire_bench.front", arguments))
        return self._fronts[port]

    def _own_certificate(self) -> Certificate:
        if self._certificate is None:
            self._certificate = make_certificate(self._folder)
        return self._certificate


def wire_of(transport: str) -> str:
    """Return the wire of a transport: `http`, `ws` or `grpc`."""
    if transport.startswith("http") or transport == "sdk_plain":
        return "http"
    return "ws" if transport.startswith("ws") else "grpc"


def notes_of(tls: Tls, hops: int, profiles: Sequence[Profile]) -> list[str]:
    """Return what a reader of the figures has to know of how they came about."""
    notes = []
    if tls == "stateless":
        notes.append(
            "TLS is on http_stateless alone, whose connections are fresh; the other rows connect "
            "once, without it."
        )
    if hops:
        front = " behind one more that ends TLS" if tls != "none" else ""
        notes.append(
            f"http_stateless goes through {hops} pass-through services{front}, each a process; "
            "their CPU counts as the server's."
        )
    if any(profile.is_modelled for profile in profiles):
        notes.append(
            "The networks are a relay process that delays both directions, limits the rate, and "
            "charges a round trip for each TCP connect. It does not model slow start, loss or "
            "jitter; without slow start the rows that resend their history look better than they "
            "are."
        )
    return notes


def _port(url: str) -> int:
    return int(url.split("/")[2].rpartition(":")[2])
