"""Where records are exported to: a file of JSON lines, and a webhook that can check who posts."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from harness.clock import ManualClock
from harness.usage import usage_record
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.ledgers.sinks import (
    FileSink,
    WebhookSink,
    export_form,
    webhook_key,
)
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.prices import EVERY_MODEL, Price, PriceList

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
PRICES = PriceList(
    "EUR",
    {"sim": Price(Decimal("0.15"), Decimal("0.6"), Decimal("0.075"), Decimal("1.2"))},
)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_what_leaves_the_server_is_numbers_names_and_the_exact_cost():
    # 60 * 0.15 + 40 * 0.075 + 15 * 0.6 + 5 * 1.2 = 27, per million
    assert export_form(usage_record("one"), PRICES) == {
        "type": "turnwire.usage",
        "response_id": "one",
        "tenant": "default",
        "model": "sim",
        "status": "completed",
        "input_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 20,
        "reasoning_tokens": 5,
        "created_at": 1_800_000_000,
        "closed_at": 1_800_000_002,
        "cost": "0.000027",
        "currency": "EUR",
    }


def test_a_model_without_a_price_has_no_cost_and_the_star_is_for_all_others():
    free = export_form(usage_record("one", model="other"), PRICES)
    assert (free["cost"], free["currency"]) == (None, None)
    price = Price(*map(Decimal, ("1", "1", "1", "1")))
    every = PriceList("EUR", {EVERY_MODEL: price})
    assert export_form(usage_record("one", model="other"), every)["cost"] == "0.00012"


# The file.


async def test_each_record_is_a_line(tmp_path):
    sink = FileSink(tmp_path / "usage.jsonl", PRICES)
    records = [usage_record("one"), usage_record("two")]
    assert await sink.deliver(records) == ["one", "two"]
    assert await sink.deliver([usage_record("three")]) == ["three"]
    found = lines(tmp_path / "usage.jsonl")
    assert [line["response_id"] for line in found] == ["one", "two", "three"]
    assert (tmp_path / "usage.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_line_that_another_process_left_half_written_stays_alone(tmp_path):
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b'{"response_id": "zer')
    await FileSink(path, PRICES).deliver([usage_record("one")])
    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"response_id": "zer'
    assert json.loads(whole)["response_id"] == "one"


async def test_a_file_that_cannot_be_written_keeps_nothing_and_says_so(
    tmp_path, monkeypatch, caplog
):
    path = tmp_path / "usage.jsonl"
    sink = FileSink(path, PRICES)
    await sink.deliver([usage_record("one")])
    before = path.read_bytes()
    write, calls = os.write, []

    def full(descriptor: int, content: bytes) -> int:
        calls.append(content)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:10])

    monkeypatch.setattr(os, "write", full)
    assert list(await sink.deliver([usage_record("two")])) == []
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert "sink=file" in caplog.text


async def test_a_directory_that_is_missing_is_a_failure_of_the_attempt(tmp_path):
    sink = FileSink(tmp_path / "missing" / "usage.jsonl", PRICES)
    assert list(await sink.deliver([usage_record("one")])) == []


_APPEND = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from harness.usage import usage_record
from turnwire_server.adapters.ledgers.sinks import FileSink
from turnwire_server.ports.prices import PriceList
async def main():
    sink = FileSink(Path(sys.argv[1]), PriceList())
    for number in range(40):
        await sink.deliver([usage_record(f"{sys.argv[2]}-{number}-{n}") for n in range(5)])
asyncio.run(main())
"""


def test_processes_share_a_file(tmp_path):
    path, tests = tmp_path / "usage.jsonl", Path(__file__).parents[2]
    processes = [
        subprocess.Popen([sys.executable, "-c", _APPEND, str(path), name, str(tests)])
        for name in ("a", "b")
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    ids = [line["response_id"] for line in lines(path)]
    assert len(ids) == len(set(ids)) == 400


# The webhook.


class Receiver:
    """A server that takes posts, and answers with what it is told to."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """What the next posts are answered with; 200 when there is none."""
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.posts.append((headers, await request.read()))
        status = self.statuses.pop(0) if self.statuses else 200
        location = {"location": "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(status=status, headers=location)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/{tail:.*}", self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/usage"
        try:
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def webhook(
    url: str, *, clock: Clock | None = None, timeout_s: float = 10.0
) -> AsyncIterator[WebhookSink]:
    key = webhook_key(SECRET)
    sink = WebhookSink(url, key, PRICES, clock=clock or SystemClock(), timeout_s=timeout_s)
    try:
        yield sink
    finally:
        await sink.close()


async def test_each_record_is_a_post_with_its_response_id_as_the_key():
    async with Receiver().running() as receiver, webhook(receiver.url) as sink:
        records = [usage_record(f"r{number}") for number in range(20)]
        assert await sink.deliver(records) == [record.response_id for record in records]
        assert len(receiver.posts) == 20
        for headers, body in receiver.posts:
            response_id = json.loads(body)["response_id"]
            assert headers["idempotency-key"] == headers["webhook-id"] == response_id
            assert headers["content-type"] == "application/json"


async def test_a_receiver_can_check_who_posted_what_and_when():
    """The official SDK is the judge: its own vendor's webhooks are of the same standard."""
    async with Receiver().running() as receiver, webhook(receiver.url) as sink:
        await sink.deliver([usage_record("one")])
        [(headers, body)] = receiver.posts
        judge = openai.OpenAI(api_key="none", webhook_secret=SECRET).webhooks
        judge.verify_signature(body, headers)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            judge.verify_signature(body.replace(b"one", b"two"), headers)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            judge.verify_signature(body, {**headers, "webhook-id": "two"})
        other = "whsec_" + base64.b64encode(bytes(32)).decode()
        with pytest.raises(openai.InvalidWebhookSignatureError):
            judge.verify_signature(body, headers, secret=other)


async def test_a_post_that_is_replayed_later_is_too_old():
    clock = ManualClock(wall=1_700_000_000)
    async with Receiver().running() as receiver, webhook(receiver.url, clock=clock) as sink:
        await sink.deliver([usage_record("one")])
        [(headers, body)] = receiver.posts
        assert headers["webhook-timestamp"] == "1700000000"
        judge = openai.OpenAI(api_key="none", webhook_secret=SECRET).webhooks
        with pytest.raises(openai.InvalidWebhookSignatureError, match="too old"):
            judge.verify_signature(body, headers)


async def test_only_what_was_taken_has_arrived_and_no_redirect_is_followed(caplog):
    async with Receiver().running() as receiver, webhook(receiver.url) as sink:
        sink.batch = 1
        statuses = [500, 404, 302, 204, 200]
        receiver.statuses = list(statuses)
        arrived = [
            bool(await sink.deliver([usage_record(f"r{number}")]))
            for number in range(len(statuses))
        ]
        assert arrived == [False, False, False, True, True]
        assert len(receiver.posts) == len(statuses)
        assert "response_id=r0 error=status 500" in caplog.text


async def test_nobody_there_is_a_failure_whose_log_holds_no_address(caplog):
    async with Receiver().running() as receiver:
        url = receiver.url.replace("http://", "http://user:hunter2@")
    async with webhook(url) as sink:
        assert list(await sink.deliver([usage_record("one")])) == []
    assert "response_id=one" in caplog.text
    assert "127.0.0.1" not in caplog.text and "hunter2" not in caplog.text


@pytest.mark.parametrize("secret", ["short", "whsec_!!!", "whsec_c2hvcnQ="])
def test_a_weak_secret_is_refused_without_quoting_it(secret):
    with pytest.raises(ValueError) as failure:
        webhook_key(secret)
    assert secret not in str(failure.value)


def test_a_secret_is_text_or_base64():
    assert webhook_key(SECRET) == bytes(range(32))
    assert webhook_key("x" * 24) == b"x" * 24
