"""Web pages: which may use a server, and by which names it may be called."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from harness.fake_services import FakeServices
from harness.wire_servers import http_port
from turnwire_server.transports.http import HttpSettings
from turnwire_server.transports.http_origin import is_origin

CREATE = {"model": "m", "input": "hi"}
APP = "https://app.example"
EVIL = ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost.evil"]
EVIL += ["chrome-extension://localhost", "http://[", "https://app.example.evil", "", "localhost"]
LOOPBACK = ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443", "HTTP://LOCALHOST"]
SETTINGS = HttpSettings(allowed_origins=(APP,))
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


async def ask(
    headers: dict[str, str],
    *,
    method: str = "POST",
    key: str | None = None,
    services: FakeServices | None = None,
) -> tuple[int, Any, Any]:
    """Return status, headers and code of the error of a request for a create."""
    services = services or FakeServices(key=key)
    body = json.dumps(CREATE) if method == "POST" else None
    async with (
        http_port(services, SETTINGS) as port,
        aiohttp.ClientSession() as client,
        asyncio.timeout(20),
        client.request(
            method, f"http://127.0.0.1:{port}/v1/responses", data=body, headers=headers
        ) as answer,
    ):
        if answer.status < 400:
            return answer.status, answer.headers, None
        return answer.status, answer.headers, (await answer.json())["error"]["code"]


@pytest.mark.parametrize("origin", EVIL)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
async def test_without_keys_a_page_of_another_origin_is_refused(origin: str, method: str) -> None:
    services = FakeServices()
    headers = {"origin": origin, **(UPGRADE if method == "GET" else {})}
    status, answered, code = await ask(headers, method=method, services=services)
    assert (status, code) == (403, "permission_denied")
    assert "access-control-allow-origin" not in answered
    assert services.connections == []


@pytest.mark.parametrize("origin", [*LOOPBACK, APP, APP.upper()])
async def test_without_keys_pages_of_this_machine_and_allowed_ones_are_served(origin: str) -> None:
    status, answered, _ = await ask({"origin": origin})
    assert status == 200
    assert answered["access-control-allow-origin"] == origin
    assert answered["vary"] == "Origin"
    status, answered, code = await ask({"origin": origin}, method="GET")
    assert (status, code) == (426, "transport_disabled")
    assert answered["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", [LOOPBACK[0], APP])
async def test_a_page_that_may_use_the_server_opens_a_websocket(origin: str) -> None:
    async with (
        http_port(FakeServices(), SETTINGS) as port,
        aiohttp.ClientSession() as client,
        asyncio.timeout(20),
        client.ws_connect(f"http://127.0.0.1:{port}/v1/responses", origin=origin) as socket,
    ):
        await socket.send_json({"type": "response.create", **CREATE})
        assert (await socket.receive_json())["type"] == "response.created"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "192.0.2.1", "[::2]", "[", "@"],
)
async def test_without_keys_a_name_that_is_not_the_server_s_is_refused(host: str) -> None:
    services = FakeServices()
    status, _, code = await ask({"host": host}, services=services)
    assert (status, code) == (403, "permission_denied")
    assert services.connections == []


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "localhost.", "a.localhost", "127.0.0.1:1", "[::1]", "127.9.9.9"],
)
async def test_loopback_names_and_those_of_allowed_origins_are_served(host: str) -> None:
    assert (await ask({"host": host}))[0] == 200
    assert (await ask({"host": "app.example"}))[0] == 200


async def test_the_address_that_was_reached_is_the_server_s_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "turnwire_server.transports.http_origin._bound_host", lambda request: "192.0.2.1"
    )
    assert (await ask({"host": "192.0.2.1:8080"}))[0] == 200
    assert (await ask({"host": "192.0.2.2:8080"}))[0] == 403


@pytest.mark.parametrize("origin", ["https://evil.example", LOOPBACK[0]])
async def test_with_keys_nothing_is_refused_and_only_allowed_pages_may_read(origin: str) -> None:
    headers = {"origin": origin, "host": "server.example", "authorization": "Bearer k"}
    status, answered, _ = await ask(headers, key="k")
    assert status == 200
    assert "access-control-allow-origin" not in answered
    status, answered, _ = await ask({**headers, "origin": APP}, key="k")
    assert (status, answered["access-control-allow-origin"]) == (200, APP)
    status, answered, code = await ask({"origin": APP}, key="k")
    assert (status, code, answered["access-control-allow-origin"]) == (401, "invalid_api_key", APP)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_page_that_asks_before_is_told_what_it_may_send(key: str | None) -> None:
    headers = {
        "origin": APP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
    }
    status, answered, _ = await ask(headers, method="OPTIONS", key=key)
    assert status == 204
    assert "POST" in answered["access-control-allow-methods"].split(", ")
    assert answered["access-control-allow-headers"] == "authorization, *"
    status, answered, _ = await ask({**headers, "origin": EVIL[0]}, method="OPTIONS", key="k")
    assert status == 204
    assert not [name for name in answered if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("text", [APP, "http://localhost:3000", "https://[::1]:8", "HTTPS://A.B"])
def test_an_origin_is_a_scheme_and_a_host(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize(
    "text", ["", "*", "null", "app.example", "https://", f"{APP}/", f"{APP}?", "https://u@a", "a:b"]
)
def test_anything_else_is_none(text: str) -> None:
    assert not is_origin(text)
