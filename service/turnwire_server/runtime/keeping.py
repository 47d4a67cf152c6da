"""What the store keeps of a response: at its end, and of some from their beginning.

A background response is found by its id while it runs, and a request with an idempotency key must
not run again, wherever and whenever it comes. So their responses are stored before they begin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwire.v1 import error_pb2, response_pb2
from turnwire_server.ports.store import IdempotencyKeyTaken, StoredResponse
from turnwire_server.runtime.paging import item_id
from turnwire_server.runtime.reports import log_bug
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.errors import Rejection
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.replay import is_over

if TYPE_CHECKING:
    from turnwire_server.runtime.run import TurnRun
    from turnwire_server.runtime.validate import CheckedCreate

__all__ = [
    "Keeping",
    "Outcome",
    "keep_begun",
    "keep_failed",
    "no_outcome",
    "status_of",
    "stored_response",
]

_log = logging.getLogger("turnwire.runtime")

_STATUSES = {
    status: name.removeprefix("RESPONSE_STATUS_").lower()
    for name, status in response_pb2.ResponseStatus.items()
}


Outcome = Callable[[], CachedResponse | None]
"""Returns what continues a turn, called once when its end was sent; it must not raise."""


def no_outcome() -> None:
    """Return nothing: the turn failed, nobody may continue it."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a response is kept that is kept from its beginning."""

    idempotency_key: str | None = None
    request_digest: bytes | None = None


def status_of(response: response_pb2.Response) -> str:
    """Return the public status."""
    return _STATUSES[response.status]


def stored_response(
    run: TurnRun,
    response: response_pb2.Response,
    conversation: Conversation,
    prompt: Prompt | None,
) -> StoredResponse:
    """Return the record of a response as it is now."""
    services, keeping = run.services, run.keeping or Keeping()
    return StoredResponse(
        response_id=response.id,
        tenant=run.tenant,
        response=response.SerializeToString(),
        input_items=tuple(item.SerializeToString() for item in run.given),
        conversation=conversation,
        prompt=prompt,
        created_at=response.created_at.seconds,
        expires_at=services.clock.wall() + services.settings.response_ttl_s,
        item_ids=tuple(map(item_id, (*run.given, *response.output))),
        status=status_of(response),
        owner="" if is_over(response) else services.instance_id,
        background=response.background,
        idempotency_key=keeping.idempotency_key,
        request_digest=keeping.request_digest,
    )


async def keep_begun(
    run: TurnRun, response: response_pb2.Response, checked: CheckedCreate
) -> Rejection | None:
    """Store a response that is about to begin, if it is kept from its beginning.

    Returns:
        Why it must not begin: another server process has begun it.
    """
    if run.keeping is None or not checked.is_stored:
        return None
    run.given = checked.items
    try:
        await run.services.store.put(stored_response(run, response, EMPTY, None))
    except IdempotencyKeyTaken:
        return Rejection(
            error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED,
            "The request with this Idempotency-Key runs on another server process already. Send it "
            "again.",
            headers={"retry-after": "1"},
        )
    run.is_kept = True
    return None


async def keep_failed(run: TurnRun) -> None:
    """Store that a response failed, if it is stored already; its terminal event comes after it."""
    if not run.is_kept:
        return
    try:
        await run.services.store.put(stored_response(run, run.assembler.response, EMPTY, None))
    except Exception as bug:  # its client must get its terminal event all the same
        log_bug(_log, f"failure not kept {run.log_ids}", bug)
