"""Clients of four makes that make the same calls, in bytes, and say how they ended."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError

__all__ = ["CLIENTS", "CallClient", "ClientName", "Outcome", "Plan", "client_of"]

ClientName = Literal["grpcio-aio", "grpcio-sync", "grpclib", "grpc-js"]
CLIENTS: tuple[ClientName, ...] = ("grpcio-aio", "grpcio-sync", "grpclib", "grpc-js")

WAIT_S = 20.0
_TYPESCRIPT = Path(__file__).parents[2] / "client/typescript"
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a client does in one call."""

    path: str
    requests: tuple[bytes, ...] = ()
    half_closes: bool = True
    metadata: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    compress: bool = False
    cancel_after: int | None = None
    """Cancel after so many messages."""

    @property
    def streams(self) -> tuple[bool, bool]:
        """Whether requests, and whether answers are streams."""
        name = self.path.rpartition("/")[2]
        if name in ("Connect", "ServerReflectionInfo"):
            return True, True
        return False, name in ("StreamCreate", "Watch")


@dataclass(slots=True)
class Outcome:
    """How a call ended."""

    code: str
    details: str
    messages: list[bytes] = field(default_factory=list)
    details_bin: bytes = b""

    @property
    def reason(self) -> str:
        """Reason of the `ErrorInfo` in the status details."""
        status = status_pb2.Status.FromString(self.details_bin)
        info = error_details_pb2.ErrorInfo()
        for detail in status.details:
            if detail.Unpack(info):
                return str(info.reason)
        raise AssertionError("the status has no ErrorInfo")


class CallClient(Protocol):
    """A client of one make."""

    async def call(self, target: str, plan: Plan, roots: bytes | None = None) -> Outcome:
        """Make a call to `HOST:PORT`, with TLS when `roots` (PEM) are given."""
        ...


@contextmanager
def client_of(name: ClientName) -> Iterator[CallClient | None]:
    """Make a client; None where what it needs is not installed."""
    match name:
        case "grpcio-aio":
            yield _Aio()
        case "grpcio-sync":
            yield _Sync()
        case "grpclib":
            yield _Grpclib()
        case "grpc-js":
            installed = (_TYPESCRIPT / "node_modules/@grpc/grpc-js").is_dir()
            if (shutil.which("node") is None or not installed) and "CI" not in os.environ:
                yield None
                return
            with _Node() as client:
                yield client


def _details_bin(trailers: Any) -> bytes:
    for name, value in trailers or ():
        if name == "grpc-status-details-bin":
            return bytes(value)
    return b""


def _outcome(error: Any, messages: list[bytes]) -> Outcome:
    return Outcome(
        error.code().name, error.details() or "", messages, _details_bin(error.trailing_metadata())
    )


def _call_of(channel: Any, plan: Plan, requests: Any) -> Any:
    """Return a call of either API of grpcio that yields messages."""
    options: dict[str, Any] = {"metadata": plan.metadata, "timeout": plan.timeout_s}
    if plan.compress:
        options["compression"] = grpc.Compression.Gzip
    if plan.streams == (True, True):
        return channel.stream_stream(plan.path)(requests, **options)
    if plan.streams == (False, True):
        return channel.unary_stream(plan.path)(plan.requests[0], **options)
    return channel.unary_unary(plan.path)


class _Aio:
    async def call(self, target: str, plan: Plan, roots: bytes | None = None) -> Outcome:
        if roots is None:
            channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(roots)
            channel = grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
        is_over = asyncio.Event()

        async def requests() -> Any:
            for request in plan.requests:
                yield request
            if not plan.half_closes:
                await is_over.wait()

        messages: list[bytes] = []
        async with channel, asyncio.timeout(WAIT_S):
            call = _call_of(channel, plan, requests())
            try:
                if plan.streams == (False, False):
                    call = call(
                        plan.requests[0],
                        metadata=plan.metadata,
                        timeout=plan.timeout_s,
                        compression=grpc.Compression.Gzip if plan.compress else None,
                    )
                    messages.append(await call)
                else:
                    async for message in call:
                        messages.append(message)
                        if len(messages) == plan.cancel_after:
                            call.cancel()
                return Outcome((await call.code()).name, await call.details(), messages)
            except grpc.aio.AioRpcError as error:
                return _outcome(error, messages)
            except asyncio.CancelledError:
                return Outcome("CANCELLED", "", messages)
            finally:
                is_over.set()


class _Sync:
    async def call(self, target: str, plan: Plan, roots: bytes | None = None) -> Outcome:
        return await asyncio.to_thread(self._call, target, plan, roots)

    def _call(self, target: str, plan: Plan, roots: bytes | None) -> Outcome:
        if roots is None:
            channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(roots)
            channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        messages: list[bytes] = []
        timeout = plan.timeout_s or WAIT_S
        with channel:
            holding = _Holding(plan)
            try:
                if plan.streams == (False, False):
                    method: Any = channel.unary_unary(plan.path)
                    answer, call = method.with_call(
                        plan.requests[0],
                        metadata=plan.metadata,
                        timeout=timeout,
                        compression=grpc.Compression.Gzip if plan.compress else None,
                    )
                    return Outcome(call.code().name, call.details() or "", [answer])
                call = _call_of(channel, plan, holding)
                for message in call:
                    messages.append(message)
                    if len(messages) == plan.cancel_after:
                        call.cancel()
                return Outcome(call.code().name, call.details() or "", messages)
            except grpc.RpcError as error:
                return _outcome(error, messages)
            finally:
                holding.release()


class _Holding:
    """Requests of a thread, held open until the call is over."""

    def __init__(self, plan: Plan) -> None:
        self._rest = iter(plan.requests)
        self._half_closes = plan.half_closes
        self._is_over = threading.Event()

    def __iter__(self) -> _Holding:
        return self

    def __next__(self) -> bytes:
        for request in self._rest:
            return request
        if not self._half_closes:
            self._is_over.wait(WAIT_S)
        raise StopIteration

    def release(self) -> None:
        self._is_over.set()


class _Bytes(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data


class _DetailBytes(StatusDetailsCodecBase):
    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        return bytes(details)

    def decode(self, status: Status, message: str | None, data: bytes) -> Any:
        return data


_CARDINALITY = {
    (False, False): Cardinality.UNARY_UNARY,
    (False, True): Cardinality.UNARY_STREAM,
    (True, True): Cardinality.STREAM_STREAM,
}


class _Grpclib:
    async def call(self, target: str, plan: Plan, roots: bytes | None = None) -> Outcome:
        assert not plan.compress, "grpclib cannot compress"
        host, _, port = target.rpartition(":")
        context: ssl.SSLContext | None = None
        if roots is not None:
            context = ssl.create_default_context(cadata=roots.decode())
            context.set_alpn_protocols(["h2"])
        messages: list[bytes] = []
        async with (
            asyncio.timeout(WAIT_S),
            Channel(
                host,
                int(port),
                codec=_Bytes(),
                status_details_codec=_DetailBytes(),
                ssl=context,
            ) as channel,
        ):
            request = channel.request(
                plan.path,
                _CARDINALITY[plan.streams],
                bytes,
                bytes,
                timeout=plan.timeout_s,
                metadata=plan.metadata,
            )
            try:
                async with request as stream:
                    for index, message in enumerate(plan.requests):
                        is_last = index == len(plan.requests) - 1
                        await stream.send_message(message, end=plan.half_closes and is_last)
                    if not plan.requests:
                        await stream.send_request()
                        if plan.half_closes:
                            await stream.end()
                    while (answer := await stream.recv_message()) is not None:
                        messages.append(answer)
                        if len(messages) == plan.cancel_after:
                            await stream.cancel()
                            return Outcome("CANCELLED", "", messages)
                    await stream.recv_trailing_metadata()
            except GRPCError as error:
                details = error.details if isinstance(error.details, bytes) else b""
                return Outcome(error.status.name, error.message or "", messages, details)
            except StreamTerminatedError as error:
                return Outcome("UNAVAILABLE", str(error), messages)
            except TimeoutError:
                return Outcome("DEADLINE_EXCEEDED", "", messages)
        return Outcome("OK", "", messages)


class _Node:
    """grpc-js in a process of its own."""

    def __enter__(self) -> _Node:
        self._process = subprocess.Popen(
            ["node", str(Path(__file__).with_name("grpc_js_client.cjs"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    async def call(self, target: str, plan: Plan, roots: bytes | None = None) -> Outcome:
        line = {
            **asdict(plan),
            "target": target,
            "requests": [base64.b64encode(request).decode() for request in plan.requests],
            "roots": base64.b64encode(roots).decode() if roots else None,
        }
        async with asyncio.timeout(WAIT_S):
            said = json.loads(await asyncio.to_thread(self._exchange, json.dumps(line)))
        return Outcome(
            said["code"],
            said["details"],
            [base64.b64decode(message) for message in said["messages"]],
            base64.b64decode(said["details_bin"]),
        )

    def _exchange(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()
