"""Audits: a sample of prompts is rendered again from its items, and compared.

The ids of a conversation are never rendered twice, so a mistake in how they are continued would
stay unseen. An audit renders all items at once, with a renderer that remembers nothing, in
another thread. What the model sampled is kept as it came and may look otherwise there; what was
rendered must be in the prompt, in order, and at its beginning and its end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from turnwire.v1 import item_pb2
from turnwire_server.ports.metrics import AuditOutcome, Metrics
from turnwire_server.ports.renderer import (
    Auditable,
    Prompt,
    Renderer,
    RenderFailure,
    RenderRequest,
)
from turnwire_server.runtime.afterwork import AfterWork
from turnwire_server.session.tokens import TokenIds

__all__ = ["Auditor", "find_mismatch"]

_log = logging.getLogger("turnwire.runtime")

_MOST_WAITING: Final = 8
_MOST_GAPS: Final = 16
"""Gaps that are looked at, the newest; each costs two renders of what is before it."""
_MODEL_ARMS: Final = frozenset({"compaction", "custom_tool_call", "function_call", "reasoning"})
_ID_BYTES: Final = array("I").itemsize


class Auditor:
    """Audits a sample of turns, one at a time, beside everything else."""

    def __init__(
        self,
        rate: float,
        afterwork: AfterWork,
        metrics: Metrics | None,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Make an auditor.

        Args:
            rate: Part of the turns that is audited, 0 to 1.
            afterwork: Owns the audits.
            metrics: Counts them.
            chance: Returns a number from 0 up to 1, which is audited when it is below `rate`.
        """
        self._rate = rate
        self._afterwork = afterwork
        self._metrics = metrics
        self._chance = chance
        self._waiting = 0
        self._turn = asyncio.Lock()

    def consider(
        self,
        renderer: Renderer,
        request: RenderRequest,
        prompt: Prompt,
        *,
        model: str,
        response_id: str,
        log_ids: str,
    ) -> None:
        """Audit `prompt`, which `renderer` made of `request`, if chance wants it. Never waits."""
        if not self._rate or self._chance() >= self._rate:
            return
        if not isinstance(renderer, Auditable) or not renderer.keeps_prefixes:
            return self._count(model, "exempt")
        if not request.new_items:
            # Behind a turn that was cut before it said anything, its opening is all there is.
            return self._count(model, "exempt")
        if self._waiting >= _MOST_WAITING:
            return self._count(model, "skipped")
        self._waiting += 1
        cold = renderer.cold()

        async def audit() -> None:
            try:
                async with self._turn:
                    where = await asyncio.to_thread(find_mismatch, cold, request, prompt)
            except RenderFailure:
                # Its items are not what was rendered: also a way of not being the same.
                where = "items"
            except Exception:
                self._count(model, "failed")
                raise
            finally:
                self._waiting -= 1
            if where:
                _log.error("audit mismatch where=%s model=%s %s", where, model, log_ids)
            self._count(model, "mismatch" if where else "same")

        self._afterwork.add(audit, response_id=response_id)

    def _count(self, model: str, outcome: AuditOutcome) -> None:
        if self._metrics is not None:
            self._metrics.audited(model, outcome)


def find_mismatch(renderer: Renderer, request: RenderRequest, prompt: Prompt) -> str:
    """Return where `prompt` is not what rendering all its items gives, "" if it is.

    Args:
        renderer: Renders them; used by nobody else meanwhile.
        request: What the prompt was made of.
        prompt: The prompt.

    Raises:
        RenderFailure: The items cannot be rendered.
    """
    items = [*request.history(), *request.new_items]
    request = replace(request, new_items=items, history=list, previous=None)
    whole = renderer.render(request).prompt.ids
    if whole == prompt.ids:
        return ""
    if not _gaps(items):
        return "whole"
    first, *between, last = _rendered_parts(renderer, request, items, whole)
    ids = prompt.ids.as_array().tobytes()
    if not ids.startswith(first):
        return "beginning"
    if not ids.endswith(last) or len(first) + len(last) > len(ids):
        return "end"
    position, end = len(first), len(ids) - len(last)
    for part in between:
        position = _find(ids, part, position, end)
        if position < 0:
            return "middle"
        position += len(part)
    return ""


def _rendered_parts(
    renderer: Renderer, request: RenderRequest, items: Sequence[item_pb2.Item], whole: TokenIds
) -> list[bytes]:
    """Return the ids that were not sampled, part by part: the first, those between, the last."""
    plain = replace(request, force=None, text_format=None)

    def ids_of(end: int, *, generate: bool) -> TokenIds:
        part = replace(plain, new_items=items[:end], generate=generate)
        try:
            return renderer.render(part).prompt.ids
        except RenderFailure:  # a template may refuse what is no whole conversation
            return TokenIds()

    gaps = _gaps(items)
    newest = max(1, len(gaps) - _MOST_GAPS + 1)
    parts = [_bytes(ids_of(gaps[0][0], generate=_is_said(gaps[0])))]
    for number in range(newest, len(gaps)):
        before = ids_of(gaps[number][0], generate=_is_said(gaps[number]))
        parts.append(_behind(ids_of(gaps[number - 1][1], generate=False), before))
    parts.append(_behind(ids_of(gaps[-1][1], generate=False), whole))
    return parts


def _gaps(items: Sequence[item_pb2.Item]) -> list[tuple[int, int]]:
    """Return the runs of items that a model may have sampled, as start and end.

    Before a message that follows other input stands an empty one: a turn that ended before it
    said anything has left there what opened it.
    """
    gaps: list[tuple[int, int]] = []
    for position, item in enumerate(items):
        if _is_sampled(item):
            start, end = gaps[-1] if gaps else (-1, -1)
            if end == position and start < end:
                gaps[-1] = start, position + 1
            else:
                gaps.append((position, position + 1))
        elif position and item.WhichOneof("item") == "message":
            if not _is_sampled(items[position - 1]):
                gaps.append((position, position))
    return gaps


def _is_sampled(item: item_pb2.Item) -> bool:
    arm = item.WhichOneof("item")
    return arm in _MODEL_ARMS or (arm == "message" and item.message.role == "assistant")


def _is_said(gap: tuple[int, int]) -> bool:
    return gap[0] < gap[1]


def _behind(before: TokenIds, after: TokenIds) -> bytes:
    """Return what `after` has behind what it has in common with `before`."""
    start, ours, theirs = 0, before.as_array(), after.as_array()
    most = min(len(ours), len(theirs))
    while start < most and ours[start] == theirs[start]:
        start += 1
    return theirs[start:].tobytes()


def _bytes(ids: TokenIds) -> bytes:
    return ids.as_array().tobytes()


def _find(ids: bytes, part: bytes, start: int, end: int) -> int:
    """Return where `part` is in `ids[start:end]`, at an id's first byte; -1 if it is not."""
    position = ids.find(part, start, end)
    while position >= 0 and position % _ID_BYTES:
        position = ids.find(part, position + 1, end)
    return position
