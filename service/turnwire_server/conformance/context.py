"""What a scenario has: the server, a transport of it, and creates that suit any model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from turnwire_server.conformance.checks import Failure, Json, Profile, Skip, Transport
from turnwire_server.conformance.clients.grpc import GrpcClient
from turnwire_server.conformance.clients.http import (
    Answer,
    HttpClient,
    HttpExchanges,
    SseExchanges,
)
from turnwire_server.conformance.clients.persistent import NoAnswer, PersistentConnection
from turnwire_server.conformance.clients.turn import Turn
from turnwire_server.conformance.clients.websocket import WebSocketConnection
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.official import OfficialTypes
from turnwire_server.conformance.open_responses import OpenResponses
from turnwire_server.conformance.stream import StreamJudge

__all__ = [
    "CUSTOM_TOOL",
    "TOOL",
    "WHOLE_CALL",
    "Context",
    "Exchange",
    "Server",
    "SuiteSettings",
    "hint",
]

TOOL: Final[Json] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": None,
}
CUSTOM_TOOL: Final[Json] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Applies a patch that is given as text.",
}
_ENOUGH: Final = 32
"""Most tokens of a turn whose text does not matter."""
WHOLE_CALL: Final = 128
"""Most tokens of a turn that must hold a whole call."""


def hint(**members: Any) -> dict[str, str]:
    """Return metadata that tells a simulated engine what to do; other servers only echo it."""
    return {"turnwire.sim": json.dumps(members)}


@dataclass(frozen=True, slots=True)
class SuiteSettings:
    """How a server is examined."""

    base_url: str
    """Base URL of HTTP, for example `http://127.0.0.1:8080/v1`."""
    grpc_target: str | None = None
    """`host:port` of gRPC; None leaves it out."""
    api_key: str | None = None
    model: str | None = None
    """Name of the model; the first that the server lists when None."""
    profile: Profile = "turnwire"
    timeout_s: float = 60.0
    """Most seconds that a turn may keep silent, or an exchange may take."""
    parallel: int = 4
    """Checks that run at once."""
    transports: tuple[Transport, ...] = ("http", "sse", "websocket", "grpc")
    """What to examine."""


class Exchange(Protocol):
    """What carries creates on any transport."""

    async def turn(self, create: Mapping[str, Any]) -> Turn:
        """Send a create and return what came of it."""

    async def close(self) -> None:
        """Leave."""


@dataclass(slots=True)
class Server:
    """The server that is examined, and who judges it."""

    settings: SuiteSettings
    model: str
    http: HttpClient
    grpc: GrpcClient | None
    official: OfficialTypes | None
    open_responses: OpenResponses

    def judge_event(self, findings: Findings, event: Json) -> None:
        """Ask the judges from outside about an event."""
        if self.official is not None:
            self.official.judge(findings, event)
        self.open_responses.judge(findings, event)

    def judge_response(self, findings: Findings, response: Json) -> None:
        """Ask them about a response object."""
        if self.official is not None:
            self.official.judge_response(findings, response)
        self.open_responses.judge_response(findings, response)


class Context:
    """One run of one scenario on one transport."""

    def __init__(
        self, server: Server, transport: Transport, findings: Findings, used_ids: set[str]
    ) -> None:
        self.server = server
        self.transport: Transport = transport
        self.findings = findings
        self._used_ids = used_ids
        self._opened: list[Exchange] = []

    @property
    def http(self) -> HttpClient:
        """Plain requests."""
        return self.server.http

    @property
    def timeout_s(self) -> float:
        """Most seconds for one thing."""
        return self.server.settings.timeout_s

    @property
    def is_persistent(self) -> bool:
        """Whether a connection carries many turns here."""
        return self.transport in ("websocket", "grpc")

    def create(self, text: object = "Say hello.", **members: Any) -> Json:
        """Return a create that any model can do at little cost.

        Args:
            text: The input: text or items.
            **members: Members to add or to replace; None takes one away.
        """
        create: Json = {
            "type": "response.create",
            "model": self.server.model,
            "input": text,
            "metadata": hint(text="Hello."),
            "max_output_tokens": _ENOUGH,
            **members,
        }
        return {name: value for name, value in create.items() if value is not None}

    async def connect(self) -> Exchange:
        """Open what carries turns on this transport; closed when the scenario is over."""
        exchange: Exchange
        match self.transport:
            case "http":
                exchange = HttpExchanges(
                    self.http, self.findings, self._used_ids, (self._judge_response,)
                )
            case "sse":
                exchange = SseExchanges(self.http, self.findings, self._judge, self.timeout_s)
            case _:
                return await self.session()
        self._opened.append(exchange)
        return exchange

    async def session(self) -> PersistentConnection:
        """Open a persistent connection."""
        if self.transport == "websocket":
            return await self.websocket()
        assert self.transport == "grpc" and self.server.grpc is not None
        connection = self.server.grpc.open(self.findings, self._judge(), self.timeout_s)
        self._opened.append(connection)
        return connection

    async def websocket(self, **options: Any) -> WebSocketConnection:
        """Open a WebSocket.

        Args:
            **options: Those of `HttpClient.upgrade`.
        """
        try:
            socket = await self.http.upgrade(**options)
        except aiohttp.WSServerHandshakeError as error:
            raise Failure(f"the upgrade was answered with {error.status}") from None
        connection = WebSocketConnection(socket, self.findings, self._judge(), self.timeout_s)
        self._opened.append(connection)
        return connection

    async def turn(self, text: object = "Say hello.", **members: Any) -> Turn:
        """Run one turn on a connection of its own."""
        exchange = await self.connect()
        try:
            return await exchange.turn(self.create(text, **members))
        finally:
            self._opened.remove(exchange)
            await exchange.close()

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        """Make a plain HTTP request.

        Raises:
            Failure: There is no answer.
        """
        try:
            return await self.http.request(method, path, body, **more)
        except NoAnswer as late:
            raise Failure(str(late)) from None

    async def close(self) -> None:
        """Close what the scenario opened."""
        while self._opened:
            await self._opened.pop().close()

    def skip_unless(self, condition: object, reason: str) -> None:
        """Skip the check unless the server can be asked.

        Raises:
            Skip: It cannot.
        """
        if not condition:
            raise Skip(reason)

    # Private.

    def _judge(self) -> StreamJudge:
        return StreamJudge(self.findings, self._used_ids, (self._judge_event,))

    def _judge_event(self, event: Json) -> None:
        self.server.judge_event(self.findings, event)

    def _judge_response(self, response: Json) -> None:
        self.server.judge_response(self.findings, response)
