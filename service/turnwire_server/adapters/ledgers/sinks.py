"""Where usage records are exported to: a file, and a webhook."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from turnwire_server.ports.clock import Clock
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.prices import PriceList

if sys.platform != "win32":
    import fcntl

__all__ = ["FileSink", "WebhookSink", "export_form", "webhook_key"]

_log = logging.getLogger("turnwire.ledger")

_SECRET_PREFIX: Final = "whsec_"
_LEAST_SECRET: Final = 24
"""Characters of a secret as text, bytes of one in base64."""
_AT_ONCE: Final = 8
"""Posts under way at the same time."""


def export_form(record: UsageRecord, prices: PriceList) -> dict[str, str | int | None]:
    """Return a record as it leaves the server; `cost` is exact, null for a model without price."""
    price = prices.price(record.model)
    cost = None
    if price is not None:
        cost = price.cost(
            input_tokens=record.input_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            reasoning_tokens=record.reasoning_tokens,
        )
    return {
        "type": "turnwire.usage",
        "response_id": record.response_id,
        "tenant": record.tenant,
        "model": record.model,
        "status": record.status,
        "input_tokens": record.input_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "created_at": record.created_at,
        "closed_at": record.closed_at,
        "cost": None if cost is None else f"{cost:f}",
        "currency": None if cost is None else prices.currency,
    }


class FileSink:
    """Appends JSON lines to a file, which may be moved away or shared by several processes."""

    name = "file"
    batch = 500
    patience_s = 30.0

    def __init__(self, path: Path, prices: PriceList) -> None:
        """Append to the file at `path`; it is made when there is none."""
        self._path = path
        self._prices = prices

    async def deliver(self, records: Sequence[UsageRecord]) -> Sequence[str]:
        """Append all records, or none."""
        lines = [orjson.dumps(export_form(record, self._prices)) + b"\n" for record in records]
        try:
            await asyncio.to_thread(_append, self._path, b"".join(lines))
        except OSError as error:
            _log.error("export failed sink=file records=%d error=%s", len(lines), error.strerror)
            return ()
        return [record.response_id for record in records]

    async def close(self) -> None:
        """There is nothing to give back."""


def _append(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            content = b"\n" + content  # a process died while it wrote what is there
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def webhook_key(secret: str) -> bytes:
    """Return the key that a webhook's secret stands for.

    Raises:
        ValueError: It is too short, or not base64 behind `whsec_`. The message does not hold it.
    """
    if not secret.startswith(_SECRET_PREFIX):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError("base64 is needed behind whsec_") from None
    if len(key) < _LEAST_SECRET:
        raise ValueError(f"at least {_LEAST_SECRET} characters are needed, or whsec_ and base64")
    return key


class WebhookSink:
    """Posts each record, signed as Standard Webhooks 1.0 says: HMAC-SHA256 over id, time, body.

    The id is the response id, so a receiver that has seen it drops the second delivery.
    """

    name = "webhook"
    batch = 16

    def __init__(
        self, url: str, key: bytes, prices: PriceList, *, clock: Clock, timeout_s: float
    ) -> None:
        """Post to `url`; the first delivery opens the connections.

        Args:
            url: An http or https URL.
            key: Signs, see `webhook_key`.
            prices: What tokens cost.
            clock: Time.
            timeout_s: Longest that one post may take.
        """
        self._url = url
        self._key = key
        self._prices = prices
        self._clock = clock
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self.patience_s = timeout_s * self.batch / _AT_ONCE

    async def deliver(self, records: Sequence[UsageRecord]) -> Sequence[str]:
        """Post each record, a few at once."""
        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=_AT_ONCE),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        turns = asyncio.Semaphore(_AT_ONCE)
        http = self._http

        async def post(record: UsageRecord) -> bool:
            async with turns:
                return await self._post(http, record)

        arrived = await asyncio.gather(*map(post, records))
        return [record.response_id for record, ok in zip(records, arrived, strict=True) if ok]

    async def _post(self, http: aiohttp.ClientSession, record: UsageRecord) -> bool:
        body = orjson.dumps(export_form(record, self._prices))
        try:
            async with http.post(
                self._url,
                data=body,
                headers=self.headers(record.response_id, body),
                allow_redirects=False,
            ) as answer:
                if 200 <= answer.status < 300:
                    return True
                why = f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = type(error).__name__  # its text may hold the URL, and that a password
        _log.warning("export failed sink=webhook response_id=%s error=%s", record.response_id, why)
        return False

    def headers(self, response_id: str, body: bytes) -> dict[str, str]:
        """Return the headers of a post, its signature among them."""
        timestamp = str(self._clock.wall())
        signed = b".".join((response_id.encode(), timestamp.encode(), body))
        signature = base64.b64encode(hmac.digest(self._key, signed, hashlib.sha256)).decode()
        return {
            "content-type": "application/json",
            "idempotency-key": response_id,
            "webhook-id": response_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{signature}",
        }

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
