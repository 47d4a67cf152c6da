"""What is no request, or only half of one: answered like everything else, and never quoted."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from harness.fake_services import FakeServices
from harness.wire_servers import http_port
from turnwire_server.runtime.reports import log_bug

SECRET = b"hunter2"
HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN_CHUNK = b"5\r\nhello_hunter2_x\r\n"
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 99\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
FRAME = bytes((0x81, 0x8B)) + b"abcdhunter2frm"

Answer = tuple[int, dict[str, str], dict[str, Any]]


async def exchange(port: int, *parts: bytes) -> list[Answer]:
    """Send the parts, each on its own; return the answers until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        for part in parts:
            writer.write(part)
            await writer.drain()
            for _ in range(5):  # Several loops between two parts, so that they arrive apart.
                await asyncio.sleep(0)
        answers = [await read_answer(reader)]
        while not reader.at_eof():
            try:
                answers.append(await read_answer(reader))
            except asyncio.IncompleteReadError as end:
                assert end.partial == b""
    writer.close()
    return answers


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower().splitlines()
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    assert SECRET not in body
    assert SECRET.decode() not in str(headers)
    assert headers["content-type"].startswith("application/json")
    assert headers["server"] == "turnwire"
    assert headers["x-request-id"].startswith("req_")
    error = json.loads(body)["error"]
    assert set(error) == {"type", "code", "message", "param"}
    return int(lines[0].split()[1]), headers, error


def quiet(log: pytest.LogCaptureFixture) -> None:
    """Check that nothing of the client is in the log, and that its fault is no error."""
    lines = [record for record in log.records if record.name != "asyncio"]
    assert [record for record in lines if record.levelno > logging.DEBUG] == []
    assert SECRET.decode() not in log.text
    assert "Traceback" not in log.text


@pytest.mark.parametrize(
    ("data", "status", "code", "word"),
    [
        (b"hunter2 bad\r\n\r\n", 400, "invalid_value", "request line"),
        (b"\x16\x03\x01\x02hunter2\r\n\r\n", 400, "invalid_value", "request line"),
        (b"GET http://[hunter2/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_value", "line"),
        (HEAD + b"hunter2 x: y\r\n\r\n", 400, "invalid_value", "HTTP"),
        (HEAD + b"X: hunter2\x00\r\n\r\n", 400, "invalid_value", "HTTP"),
        (HEAD + b"Content-Length: hunter2\r\n\r\n", 400, "invalid_value", "HTTP"),
        (HEAD + b"X: " + SECRET * 10_000 + b"\r\n\r\n", 431, "message_too_large", "65536 bytes"),
        (b"GET /" + SECRET * 10_000 + b" HTTP/1.1\r\n\r\n", 431, "message_too_large", "65536"),
        (CHUNKED + BROKEN_CHUNK, 400, "invalid_value", "HTTP"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_is_not_http_is_a_json_error_without_a_byte_of_it(
    data: bytes, status: int, code: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    services = FakeServices()
    async with http_port(services) as port:
        ((got, _, error),) = await exchange(port, data)
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert word in error["message"]
    assert services.connections == []
    quiet(caplog)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_body_that_breaks_its_framing_ends_its_request(
    key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with http_port(FakeServices(key=key)) as port:
        ((status, _, error),) = await exchange(port, CHUNKED, BROKEN_CHUNK, b"more")
    assert status == (401 if key else 400)
    assert key or "framed" in error["message"]
    quiet(caplog)


async def test_a_frame_behind_a_refused_upgrade_is_a_bad_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with http_port(FakeServices()) as port:
        first, second = await exchange(port, UPGRADE + FRAME)
    assert (first[0], second[0]) == (400, 400)
    assert "request line" in second[2]["message"]
    quiet(caplog)


@pytest.mark.parametrize("path", [b"/v1/responses", b"/nowhere"])
async def test_an_expectation_nobody_knows_is_417_without_its_text(
    path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    async with http_port(FakeServices()) as port:
        ((status, _, error),) = await exchange(port, head + b"Expect: hunter2\r\n\r\n")
    assert (status, error["code"]) == (417, "invalid_value")
    quiet(caplog)


async def test_a_bug_before_the_handlers_is_500_with_its_place_and_not_its_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(self: object, request: object) -> None:
        raise KeyError("hunter2")

    monkeypatch.setattr("aiohttp.web.UrlDispatcher.resolve", resolve)
    async with http_port(FakeServices()) as port:
        ((status, headers, error),) = await exchange(port, HEAD + b"\r\n")
    assert (status, error["code"]) == (500, "server_error")
    assert headers["x-request-id"] in error["message"]
    assert headers["x-request-id"] in caplog.text
    assert "error=KeyError" in caplog.text
    assert "in resolve" in caplog.text
    assert "hunter2" not in caplog.text.replace('raise KeyError("hunter2")', "")


def test_a_report_of_a_bug_has_its_place_and_type_and_not_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    content = "hunter" + str(2)
    nothing: dict[str, str] = {}
    try:
        nothing[content]
    except KeyError as error:
        log_bug(logging.getLogger("turnwire.test"), "it failed id=1", error)
    assert "it failed id=1 error=KeyError" in caplog.text
    assert "nothing[content]" in caplog.text
    assert content not in caplog.text


async def test_a_key_that_is_no_text_is_a_wrong_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    head = HEAD + b"Connection: close\r\nAuthorization: Bearer hunter2\xff\r\n\r\n"
    services = FakeServices(key="k")
    services.authorize = lambda token: FakeServices.authorize(services, encoded(token))
    async with http_port(services) as port:
        ((status, _, error),) = await exchange(port, head)
    assert (status, error["code"]) == (401, "invalid_api_key")
    quiet(caplog)


def encoded(token: str | None) -> str | None:
    """Encode a key like the services do; a surrogate is a bug there."""
    (token or "").encode()
    return token
