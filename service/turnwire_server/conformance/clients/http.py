"""The HTTP client: JSON answers and server-sent events, each create an exchange of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from turnwire_server.conformance.checks import Json, Skip, bounded
from turnwire_server.conformance.clients.persistent import NoAnswer
from turnwire_server.conformance.clients.turn import Turn, turn_of
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.members import check_end, check_error, check_members
from turnwire_server.conformance.stream import TERMINAL, StreamJudge

__all__ = ["Answer", "HttpClient", "HttpExchanges", "ResponseJudge", "SseExchanges"]

ResponseJudge = Callable[[Json], None]
"""Judges a whole response object by itself."""

_JSON_TYPE: Final = {"content-type": "application/json"}
_STATUS: Final = {"completed", "incomplete", "failed", "cancelled"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def content_type(self) -> str:
        """The media type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def json(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class HttpClient:
    """Requests to a base URL."""

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float) -> None:
        """Open a client; call it inside the running loop."""
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make a request and return its whole answer.

        Args:
            method: The method.
            path: Below the base URL, for example `/responses`.
            body: Sent as JSON unless None.
            data: Sent as it is, as if it were JSON.
            headers: In place of the client's own.

        Raises:
            NoAnswer: There was none in time, or the exchange broke.
        """
        if body is not None:
            data = json.dumps(body).encode()
        more = {} if data is None else _JSON_TYPE
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.request(
                    method,
                    self._base_url + path,
                    data=data,
                    headers={**self._headers, **more, **(headers or {})},
                    allow_redirects=False,
                ) as answer,
            ):
                names = {name.lower(): value for name, value in answer.headers.items()}
                return Answer(answer.status, names, await answer.read())
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise NoAnswer(f"the exchange broke: {type(error).__name__}") from None

    def stream(self, body: Json) -> Any:
        """Return the context manager of a create that is streamed."""
        return self._session.post(
            f"{self._base_url}/responses",
            data=json.dumps(body).encode(),
            headers={**self._headers, **_JSON_TYPE, "accept": "text/event-stream"},
            allow_redirects=False,
        )

    async def upgrade(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        protocols: tuple[str, ...] = (),
        query: str = "",
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        """Open a WebSocket.

        Raises:
            aiohttp.WSServerHandshakeError: The server refuses.
            aiohttp.ClientError: It cannot be reached.
        """
        url = f"ws{self._base_url.removeprefix('http')}/responses{query}"
        return await self._session.ws_connect(
            url,
            headers={**self._headers, **(headers or {})},
            protocols=protocols,
            autoping=False,
            max_msg_size=0,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def refusal_of(findings: Findings, answer: Answer) -> Turn:
    """Return the turn that an error answer refused, and judge its body."""
    body = answer.json
    shown = body if isinstance(body, dict) else {}
    findings.require(
        "error.body",
        400 <= answer.status <= 599,
        f"HTTP status {answer.status} instead of 200 or an error",
        shown,
    )
    findings.require(
        "error.body",
        answer.content_type == "application/json",
        f"content type {answer.content_type!r}",
        shown,
    )
    check_error(
        findings, "error.body", shown.get("error"), shown or answer.body[:100].decode("latin-1")
    )
    error = shown.get("error")
    if isinstance(error, dict):
        findings.require("error.body", "param" in error, "`error.param` is missing", shown)
    return Turn(refusal={"status": answer.status, **shown})


class HttpExchanges:
    """Creates that are answered by one JSON body."""

    def __init__(
        self,
        client: HttpClient,
        findings: Findings,
        used_ids: set[str],
        response_judges: tuple[ResponseJudge, ...],
    ) -> None:
        self._client = client
        self._findings = findings
        self._used_ids = used_ids
        self._judges = response_judges

    async def turn(self, create: Mapping[str, Any]) -> Turn:
        """Post a create and return what came of it."""
        body = {name: value for name, value in create.items() if name != "type"}
        try:
            answer = await self._client.request("POST", "/responses", body)
        except NoAnswer as late:
            self._findings.require("order.ends", False, str(late))
            raise NoAnswer(f"{late}, see order.ends") from None
        self._findings.require("order.ends", True, "")
        if answer.status != 200:
            return refusal_of(self._findings, answer)
        response = answer.json
        self._findings.require(
            "http.content_type",
            answer.content_type == "application/json",
            f"content type {answer.content_type!r}",
        )
        if not self._findings.require(
            "response.members", isinstance(response, dict), "the body is not an object"
        ):
            raise Skip("the body is not a response, see response.members")
        self._judge(response)
        return Turn(response=response)

    async def close(self) -> None:
        """Do nothing: each exchange is over."""

    def _judge(self, response: Json) -> None:
        findings, before = self._findings, self._findings.violations
        check_members(findings, response, response)
        status = response.get("status")
        findings.require(
            "response.status", status in _STATUS, f"status {bounded(status)} in an answer", response
        )
        check_end(findings, response, response)
        identifier = str(response.get("id"))
        new = identifier not in self._used_ids
        findings.require("response.once", new, f"the id {identifier} was used before", response)
        self._used_ids.add(identifier)
        if findings.violations == before:
            for judge in self._judges:
                judge(response)


class SseExchanges:
    """Creates that are answered by a stream of server-sent events."""

    def __init__(
        self,
        client: HttpClient,
        findings: Findings,
        make_judge: Callable[[], StreamJudge],
        timeout_s: float,
    ) -> None:
        self._client = client
        self._findings = findings
        self._make_judge = make_judge
        self._timeout_s = timeout_s

    async def turn(self, create: Mapping[str, Any]) -> Turn:
        """Post a create and read its stream to the end."""
        body = {name: value for name, value in create.items() if name != "type"}
        judge = self._make_judge()
        judge.sent({"type": "response.create"})
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream({**body, "stream": True}) as answer,
            ):
                if answer.status != 200:
                    names = {name.lower(): value for name, value in answer.headers.items()}
                    return refusal_of(
                        self._findings, Answer(answer.status, names, await answer.read())
                    )
                events = await self._read(answer, judge)
        except TimeoutError:
            reason = f"the stream did not end within {self._timeout_s:g} s"
            self._findings.require("order.ends", False, reason)
            raise NoAnswer(f"{reason}, see order.ends") from None
        except aiohttp.ClientError as error:
            reason = f"the stream broke: {type(error).__name__}"
            self._findings.require("order.ends", False, reason)
            raise NoAnswer(f"{reason}, see order.ends") from None
        ends = [event for event in events if event["type"] in TERMINAL]
        if not ends:
            self._findings.require("order.ends", False, "the stream has no terminal event")
            raise NoAnswer("the stream has no terminal event, see order.ends")
        return turn_of(events[: events.index(ends[0]) + 1])

    async def close(self) -> None:
        """Do nothing: each exchange is over."""

    async def _read(self, answer: aiohttp.ClientResponse, judge: StreamJudge) -> list[Json]:
        findings = self._findings
        findings.require(
            "sse.content_type",
            answer.content_type == "text/event-stream",
            f"content type {answer.content_type!r}",
        )
        events: list[Json] = []
        name, ends = "", 0
        async for line in _lines(answer):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not field:  # A blank line, or a comment.
                continue
            known = field in ("event", "data")
            findings.require("sse.no_id", known, f"a line {bounded(line[:80])}", line)
            if field == "event":
                name = value
            elif field == "data" and value == "[DONE]":
                ends += 1
            elif field == "data":
                findings.require("sse.done", not ends, "an event after [DONE]", value)
                event = self._event(value)
                if event is not None:
                    reason = f"`event` is {bounded(name)}, the type {bounded(event['type'])}"
                    findings.require("sse.event_name", name == event["type"], reason, event)
                    judge.feed(event)
                    events.append(event)
                name = ""
        findings.require("sse.done", ends == 1, f"{ends} times [DONE] at the end")
        return events

    def _event(self, text: str) -> Json | None:
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        right = isinstance(event, dict) and isinstance(event.get("type"), str)
        self._findings.require("frame.json", right, "data that is no event", text)
        return event if right else None


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield the lines, however long; aiohttp's own reading of lines has a limit."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
