"""Client of Turnwire: the Responses API over gRPC, WebSocket and HTTP, with one face.

::

    async with turnwire.connect("grpc://127.0.0.1:50051", model="smollm2") as session:
        async for event in session.create("Say hello."):
            print(event.delta or "", end="")
        result = await session.run("What time is it?", tools={"clock": read_clock})

Scripts use `turnwire.connect_sync` in the same way without `async` and `await`. Errors are in
`turnwire.errors`, and here by name; messages as the server sends them are in `turnwire.v1`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwire import errors
    from turnwire._agent import RunResult
    from turnwire._connect import connect
    from turnwire._event import Event
    from turnwire._json import JSONValue
    from turnwire._request import CreateOptions, InputItem, RequestInput, RunOptions, ToolChoice
    from turnwire._response import FunctionCall, Response, Timing, TimingTokens, Usage
    from turnwire._session import Session
    from turnwire._steer import Steer
    from turnwire._sync import SyncSession, SyncSteer, SyncTurn, connect_sync
    from turnwire._tools import Tool, Tools, tool
    from turnwire._turn import Turn, TurnStats
    from turnwire._unary_client import UnaryClient
    from turnwire._unary_values import ItemPage, ModelInfo
    from turnwire.errors import (
        AuthenticationFailed,
        ConnectionFailed,
        ConnectionLost,
        InvalidRequest,
        NotFound,
        OutputLost,
        PreviousResponseNotFound,
        ProtocolViolation,
        RateLimited,
        RequestCancelled,
        ResponseRejected,
        ServerFailed,
        ServerOverloaded,
        SessionClosed,
        Timeout,
        TurnFailed,
        TurnwireError,
    )

__all__ = [
    "AuthenticationFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "CreateOptions",
    "Event",
    "FunctionCall",
    "InputItem",
    "InvalidRequest",
    "ItemPage",
    "JSONValue",
    "ModelInfo",
    "NotFound",
    "OutputLost",
    "PreviousResponseNotFound",
    "ProtocolViolation",
    "RateLimited",
    "RequestCancelled",
    "RequestInput",
    "Response",
    "ResponseRejected",
    "RunOptions",
    "RunResult",
    "ServerFailed",
    "ServerOverloaded",
    "Session",
    "SessionClosed",
    "Steer",
    "SyncSession",
    "SyncSteer",
    "SyncTurn",
    "Timeout",
    "Timing",
    "TimingTokens",
    "Tool",
    "ToolChoice",
    "Tools",
    "Turn",
    "TurnFailed",
    "TurnStats",
    "TurnwireError",
    "UnaryClient",
    "Usage",
    "connect",
    "connect_sync",
    "errors",
    "tool",
]

# Loaded when first asked for: a server and its engine processes come through this module on their
# way to `turnwire.v1` and must not load a client, its event loop and gRPC for that.
_HOMES = {
    "AuthenticationFailed": "turnwire.errors",
    "ConnectionFailed": "turnwire.errors",
    "ConnectionLost": "turnwire.errors",
    "CreateOptions": "turnwire._request",
    "Event": "turnwire._event",
    "FunctionCall": "turnwire._response",
    "InputItem": "turnwire._request",
    "InvalidRequest": "turnwire.errors",
    "ItemPage": "turnwire._unary_values",
    "JSONValue": "turnwire._json",
    "ModelInfo": "turnwire._unary_values",
    "NotFound": "turnwire.errors",
    "OutputLost": "turnwire.errors",
    "PreviousResponseNotFound": "turnwire.errors",
    "ProtocolViolation": "turnwire.errors",
    "RateLimited": "turnwire.errors",
    "RequestCancelled": "turnwire.errors",
    "RequestInput": "turnwire._request",
    "Response": "turnwire._response",
    "ResponseRejected": "turnwire.errors",
    "RunOptions": "turnwire._request",
    "RunResult": "turnwire._agent",
    "ServerFailed": "turnwire.errors",
    "ServerOverloaded": "turnwire.errors",
    "Session": "turnwire._session",
    "SessionClosed": "turnwire.errors",
    "Steer": "turnwire._steer",
    "SyncSession": "turnwire._sync",
    "SyncSteer": "turnwire._sync",
    "SyncTurn": "turnwire._sync",
    "Timeout": "turnwire.errors",
    "Timing": "turnwire._response",
    "TimingTokens": "turnwire._response",
    "Tool": "turnwire._tools",
    "ToolChoice": "turnwire._request",
    "Tools": "turnwire._tools",
    "Turn": "turnwire._turn",
    "TurnFailed": "turnwire.errors",
    "TurnStats": "turnwire._turn",
    "TurnwireError": "turnwire.errors",
    "UnaryClient": "turnwire._unary_client",
    "Usage": "turnwire._response",
    "connect": "turnwire._connect",
    "connect_sync": "turnwire._sync",
    "tool": "turnwire._tools",
}


def __getattr__(name: str) -> object:
    if name in ("agents", "errors", "openai"):
        return import_module(f"turnwire.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
