"""The workers of one server: each tells the others its metrics, and anyone tells the sum.

A directory that is private to the server holds, for each worker by its number, a socket with its
admin routes (`0.sock`) and the metrics that were last seen of it (`0.seen`). The worker that takes
the place of a dead one goes on counting from there, so that sums do not fall.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from turnwire_server.ports.metrics import Exposition
from turnwire_server.runtime.services import Services
from turnwire_server.transports.admin import METRICS_PATH, admin_routes

__all__ = ["Adding", "Siblings"]

_log = logging.getLogger("turnwire.transports")

_ANSWER_S: Final = 2.0
"""How long another worker may take; one that is busy for longer counts as it was seen last."""

Adding = Callable[[Sequence[bytes], Sequence[bytes]], Exposition]
"""Adds up the metrics of the living and the counts of the dead."""


class Siblings:
    """The workers of one server, seen from one of them."""

    def __init__(self, services: Services, directory: Path, number: int, *, add: Adding) -> None:
        """Take part; nothing is served before `start`.

        Args:
            services: This worker's services.
            directory: See the module.
            number: This worker's.
            add: Adds up metrics; called in a thread.
        """
        self._services = services
        self._directory = directory
        self._path = directory / f"{number}.sock"
        self._add = add
        self._past: list[bytes] = []
        """What the one before this worker had counted."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Serve this worker's own admin routes to the others.

        Raises:
            OSError: The socket cannot be made.
        """
        self._past = _read(self._path.with_suffix(".seen"))
        app = web.Application()
        app.router.add_routes(admin_routes(self._services, self._own))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_ANSWER_S)
        await self._runner.setup()
        self._path.unlink(missing_ok=True)  # of the one before
        await web.UnixSite(self._runner, self._path).start()

    async def close(self, *, is_orphan: bool = False) -> None:
        """Tell nothing more. Idempotent.

        Args:
            is_orphan: Whether who made the directory was killed: then the last one removes it.
        """
        if self._runner is None:
            return
        self._path.unlink(missing_ok=True)
        await self._runner.cleanup()
        if is_orphan and not any(self._directory.glob("*.sock")):
            shutil.rmtree(self._directory, ignore_errors=True)

    async def exposition(self) -> Exposition:
        """Return the metrics of the server: the sum over its workers."""
        paths = {path.stem: path for path in self._directory.glob("*.sock") if path != self._path}
        own = await self._own()
        others = await asyncio.gather(*map(_ask, paths.values()))
        seen = {name: body for name, body in zip(paths, others, strict=True) if body is not None}
        seen[self._path.stem] = own.body
        return await asyncio.to_thread(self._sum, seen)

    async def _own(self) -> Exposition:
        """Return the metrics of this worker and of those that had its number."""
        metrics = self._services.metrics
        if metrics is None:
            raise web.HTTPNotFound
        shown = metrics.exposition(self._services.levels())
        if not self._past:
            return shown
        return await asyncio.to_thread(self._add, [shown.body], self._past)

    def _sum(self, seen: dict[str, bytes]) -> Exposition:
        past: list[bytes] = []
        for path in self._directory.glob("*.seen"):
            if path.stem not in seen:
                past += _read(path)
        for name, body in seen.items():
            _write(self._directory / f"{name}.seen", body)
        return self._add(list(seen.values()), past)


async def _ask(path: Path) -> bytes | None:
    """Return what the worker behind a socket shows; None when it does not answer."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(path)), timeout=timeout
            ) as client,
            client.get(f"http://worker{METRICS_PATH}") as answer,
        ):
            return await answer.read() if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        _log.info("worker does not answer number=%s error=%s", path.stem, type(error).__name__)
        return None


def _read(path: Path) -> list[bytes]:
    """Return the content of a file, nothing if there is none."""
    try:
        return [path.read_bytes()]
    except FileNotFoundError:
        return []


def _write(path: Path, body: bytes) -> None:
    """Put `body` into a file at once, so that nobody reads half of it."""
    draft = path.with_name(f"{path.name}-{id(body):x}")
    with suppress(OSError):  # what is not noted is missing only if that worker dies
        draft.write_bytes(body)
        draft.replace(path)
