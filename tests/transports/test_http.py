"""The HTTP wire: statuses, headers, bodies, server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from harness.fake_services import (
    FakeConnection,
    FakeServices,
    FakeUnaryApi,
    created,
    failed,
    greeting,
)
from harness.wire_servers import http_port
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.error_pb2 import (
    ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND,
    ERROR_REASON_RATE_LIMIT_EXCEEDED,
)
from turnwire.v1.responses_service_pb2 import ListInputItemsRequest
from turnwire_server.runtime.connection import Ending
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.transports.http import HttpSettings

CREATE = {"model": "m", "input": "hi"}
NOT_FOUND = Rejection(
    ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND, "No parent.", "previous_response_id"
)


@asynccontextmanager
async def client_of(
    services: FakeServices | None = None,
    settings: HttpSettings | None = None,
    unary: FakeUnaryApi | None = None,
) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        http_port(services or FakeServices(), settings, unary) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        asyncio.timeout(20),
    ):
        yield client


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the error of an answer after checking that it has the one shape."""
    body = await answer.json()
    assert list(body) == ["error"]
    assert set(body["error"]) - {"headers"} == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")
    return dict(body["error"])


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/codex/responses"])
async def test_a_create_is_answered_with_the_response(path: str) -> None:
    services = FakeServices()
    async with client_of(services) as client:
        answer = await client.post(path, json=CREATE)
        body = await answer.json()
    assert (answer.status, body["object"], body["status"]) == (200, "response", "completed")
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.content_type == "application/json"
    (connection,) = services.connections
    assert connection.arguments == {"wire": "http", "tenant": "default", "persistent": False}
    ((event, size),) = connection.received
    assert (event.response_create.model, size) == ("m", len(json.dumps(CREATE)))
    assert connection.is_half_closed


async def test_a_response_that_failed_is_an_answer_like_any_other() -> None:
    services = FakeServices(lambda connection, event: [created(), failed()])
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json=CREATE)
        assert (answer.status, (await answer.json())["status"]) == (200, "failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_create_is_its_status_with_a_json_body(stream: bool) -> None:
    services = FakeServices(lambda connection, event: [NOT_FOUND.event()])
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": stream})
        assert answer.status == 400
        assert answer.content_type == "application/json"
        assert await error_of(answer) == {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "No parent.",
            "param": "previous_response_id",
        }


@pytest.mark.parametrize("stream", [False, True])
async def test_hints_of_an_error_are_headers_too(stream: bool) -> None:
    full = Rejection(ERROR_REASON_RATE_LIMIT_EXCEEDED, "full", headers={"retry-after": "3"})
    services = FakeServices(lambda connection, event: [full.event()])
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": stream})
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")


async def test_a_turn_without_an_outcome_is_500() -> None:
    services = FakeServices(lambda connection, event: [])
    async with client_of(services) as client:
        for stream in (False, True):
            answer = await client.post("/v1/responses", json={**CREATE, "stream": stream})
            assert answer.status == 500
            assert (await error_of(answer))["code"] == "server_error"


async def test_a_stream_is_server_sent_events_and_done() -> None:
    async with client_of() as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": True})
        text = await answer.text()
    assert answer.status == 200
    assert answer.content_type == "text/event-stream"
    assert answer.headers["cache-control"].startswith("no-cache")
    assert answer.headers["x-request-id"].startswith("req_")
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    types = []
    for event in events:
        name, data = event.split("\n")
        types.append(name.removeprefix("event: "))
        assert json.loads(data.removeprefix("data: "))["type"] == types[-1]
    assert types == [
        "response.created",
        *["response.output_text.delta"] * 3,
        "response.completed",
    ]


async def test_each_batch_of_events_is_one_chunk() -> None:
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": True})
        chunk, at_end = await answer.content.readchunk()
        assert at_end and chunk.startswith(b"event: response.created\ndata: ")
        assert chunk.endswith(b"\n\n")
        services.connections[0].send(*greeting())
        services.connections[0].end(Ending("finished"))
        chunk, at_end = await answer.content.readchunk()
        assert at_end and chunk.count(b"\n\n") == len(greeting()) + 1


async def test_the_sign_of_life_is_a_comment_and_an_error_after_it_is_an_event() -> None:
    services = FakeServices(lambda connection, event: [])
    services.hold_after_half_close = True
    async with client_of(services) as client:
        request = asyncio.create_task(client.post("/v1/responses", json={**CREATE, "stream": True}))
        connection = await services.connection()
        connection.beat()
        answer = await request
        assert (await answer.content.readchunk())[0].startswith(b": ")
        connection.send(NOT_FOUND.event())
        connection.end(Ending("finished"))
        rest = await answer.text()
    assert rest.startswith("event: error\n")
    error = json.loads(rest.split("\n")[1].removeprefix("data: "))
    assert error["error"]["code"] == "previous_response_not_found"
    assert rest.endswith("data: [DONE]\n\n")


async def test_a_stream_that_is_cut_does_not_look_finished() -> None:
    services = FakeServices(lambda connection, event: [created()])
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": True})
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.text()


async def test_a_bug_in_a_stream_that_began_cuts_it() -> None:
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": True})
        await answer.content.readchunk()

        async def broken(batch: object) -> None:
            raise RuntimeError("/secret/path is on fire")

        connection = services.connections[0]
        connection.sink = Broken(connection.sink, broken)
        connection.send(*greeting())
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.text()


class Broken:
    """A sink whose writes fail."""

    def __init__(self, sink: Any, write: Any) -> None:
        self.encode = sink.encode
        self.heartbeat = sink.heartbeat
        self.write = write


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_cancels_the_turn_at_once(stream: bool) -> None:
    services = FakeServices(lambda connection, event: [])
    services.hold_after_half_close = True
    async with http_port(services) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({**CREATE, "stream": stream}).encode()
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        connection = await services.connection()
        writer.close()
        async with asyncio.timeout(20):
            await connection.disconnected.wait()
        assert connection.was_cancelled


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"not json", "invalid_json", None),
        (b"\xff", "invalid_json", None),
        (b"", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b'{"model":7}', "invalid_type", "model"),
        (b'{"model":"m","stream_id":"a"}', "unsupported_parameter", "stream_id"),
    ],
)
async def test_a_body_that_is_no_create_is_400(body: bytes, code: str, param: str | None) -> None:
    services = FakeServices()
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", data=body)
        error = await error_of(answer)
    assert (answer.status, error["code"], error["param"]) == (400, code, param)
    assert services.connections == []


async def test_unknown_query_keys_and_headers_are_ignored() -> None:
    async with client_of() as client:
        answer = await client.post(
            "/v1/responses?api-version=preview", json=CREATE, headers={"OpenAI-Beta": "x"}
        )
    assert answer.status == 200


async def test_a_stored_response_is_got_deleted_and_cancelled() -> None:
    async with client_of() as client:
        got = await (await client.get("/v1/responses/resp_9?include[]=x")).json()
        assert (got["id"], got["status"]) == ("resp_9", "completed")
        deleted = await (await client.delete("/v1/responses/resp_9")).json()
        assert deleted == {"id": "resp_9", "object": "response", "deleted": True}
        cancelled = await (await client.post("/v1/responses/resp_9/cancel")).json()
        assert cancelled["status"] == "cancelled"


async def test_an_unknown_response_is_404() -> None:
    async with client_of() as client:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
            answer = await client.request(method, f"/v1/responses/resp_missing{path}")
            assert answer.status == 404
            assert (await error_of(answer))["code"] == "response_not_found"


async def test_input_items_are_asked_for_with_the_query() -> None:
    unary = FakeUnaryApi()
    async with client_of(unary=unary) as client:
        path = "/v1/responses/resp_9/input_items?after=i&limit=5&order=asc&include=a&include[]=b"
        listing = await (await client.get(path)).json()
        bad = await client.get("/v1/responses/resp_9/input_items?limit=five")
        error = await error_of(bad)
    assert listing == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    assert unary.asked == [
        ListInputItemsRequest(
            response_id="resp_9", after="i", limit=5, order="asc", include=["a", "b"]
        )
    ]
    assert (bad.status, error["code"], error["param"]) == (400, "invalid_type", "limit")


async def test_input_tokens_are_counted() -> None:
    async with client_of() as client:
        answer = await client.post("/v1/responses/input_tokens", json=CREATE)
        assert await answer.json() == {"object": "response.input_tokens", "input_tokens": 7}


async def test_compact_answers_through_its_own_decoder() -> None:
    unary = FakeUnaryApi()
    async with client_of(unary=unary) as client:
        answer = await client.post("/v1/responses/compact", json={"model": "m", "input": "hi"})
        assert (await error_of(answer))["code"] == "unsupported_value"
        answer = await client.post("/v1/responses/compact", data=b"{")
        assert (await error_of(answer))["code"] == "invalid_json"
    assert len(unary.asked) == 1


async def test_models_are_listed_and_got_by_names_with_slashes() -> None:
    async with client_of() as client:
        listing = await (await client.get("/v1/models")).json()
        assert [model["id"] for model in listing["data"]] == ["m"]
        assert (await (await client.get("/v1/models/org/m")).json())["id"] == "org/m"
        answer = await client.get("/v1/models/nope")
        assert (answer.status, (await error_of(answer))["code"]) == (404, "model_not_found")


async def test_the_openapi_document_is_served_without_a_key() -> None:
    async with client_of(FakeServices(key="right")) as client:
        document = await (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.")
    assert "/v1/responses" in document["paths"]


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_a_wrong_key_is_401(headers: dict[str, str]) -> None:
    async with client_of(FakeServices(key="right")) as client:
        for method, path in (
            ("POST", "/v1/responses"),
            ("GET", "/v1/models"),
            ("GET", "/v1/responses/resp_9"),
        ):
            answer = await client.request(method, path, headers=headers)
            error = await error_of(answer)
            assert (answer.status, error["code"]) == (401, "invalid_api_key")
            assert error["type"] == "authentication_error"


@pytest.mark.parametrize("authorization", ["Bearer right", "bearer  right "])
async def test_the_right_key_is_let_in(authorization: str) -> None:
    async with client_of(FakeServices(key="right")) as client:
        headers = {"authorization": authorization}
        assert (await client.post("/v1/responses", json=CREATE, headers=headers)).status == 200


JWT = f"{'eyJhbGciOiJSUzI1NiJ9' * 4}.{'eyJzdWIiOiJ1c2VyX18tIn0' * 80}.{'s1g-_' * 70}"
"""As long as those of clients that sign in somewhere else, with every character they have."""


async def test_a_key_may_look_like_a_signed_token() -> None:
    for key in (JWT, None):  # the key, or an open server that does not care
        async with client_of(FakeServices(key=key)) as client:
            headers = {"authorization": f"Bearer {JWT}"}
            assert (await client.post("/v1/responses", json=CREATE, headers=headers)).status == 200
            assert (await client.get("/v1/models", headers=headers)).status == 200


async def test_unknown_keys_of_the_query_are_ignored() -> None:
    async with client_of() as client:
        path = "/v1/responses?model=another&api-version=preview"
        assert (await client.post(path, json=CREATE)).status == 200
        assert (await client.get("/v1/models?client_version=1.2.3")).status == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/codex/responses"])
async def test_a_plain_get_where_an_upgrade_belongs_is_426(path: str) -> None:
    async with client_of() as client:
        answer = await client.get(path)
        assert (answer.status, (await error_of(answer))["code"]) == (426, "transport_disabled")
        assert answer.headers["upgrade"] == "websocket"


async def test_head_and_options_are_answered() -> None:
    async with client_of(FakeServices(key=None)) as client:
        assert (await client.head("/v1/responses")).status == 200
        assert (await client.head("/v1/models")).status == 200
        answer = await client.options("/v1/responses")
        assert answer.status == 204
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"
        assert (await client.options("/v1/responses/resp_9")).status == 204


async def test_an_unknown_path_is_404_and_a_wrong_method_405() -> None:
    async with client_of() as client:
        answer = await client.get("/v1/nope")
        assert (answer.status, (await error_of(answer))["code"]) == (404, "not_found")
        answer = await client.put("/v1/responses", json=CREATE)
        assert (answer.status, (await error_of(answer))["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"


async def test_a_bug_is_500_with_a_request_id_and_without_its_text() -> None:
    async with client_of() as client:
        answer = await client.get("/v1/models/boom")
        error = await error_of(answer)
    assert (answer.status, error["code"], error["type"]) == (500, "server_error", "server_error")
    assert answer.headers["x-request-id"] in error["message"]
    assert "secret" not in error["message"]


async def test_a_draining_server_takes_no_creates_and_still_answers_the_rest() -> None:
    services = FakeServices()
    services.accepting = False
    async with client_of(services) as client:
        answer = await client.post("/v1/responses", json=CREATE)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await error_of(answer))["code"] == "server_is_overloaded"
        assert (await client.get("/v1/responses/resp_9")).status == 200


async def test_one_connection_serves_request_after_request() -> None:
    async with client_of() as client:
        for _ in range(3):
            answer = await client.post("/v1/responses", json={**CREATE, "stream": True})
            await answer.read()
            answer = await client.post("/v1/responses", data=b"{")
            await answer.read()
        connector = client.connector
        assert connector is not None
        assert len(connector._conns) == 1


async def test_no_answer_tells_what_the_server_is_made_of() -> None:
    async with client_of() as client:
        assert (await client.get("/healthz")).headers["server"] == "turnwire"


def broken(connection: FakeConnection, event: ClientEvent) -> Iterable[Outgoing]:
    raise RuntimeError("/secret/path is on fire")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_in_a_turn_is_500(stream: bool) -> None:
    async with client_of(FakeServices(broken)) as client:
        answer = await client.post("/v1/responses", json={**CREATE, "stream": stream})
        assert answer.status == 500
        assert "secret" not in (await error_of(answer))["message"]
