"""Finding the parent: lane head, connection cache, store, or not found."""

from __future__ import annotations

from dataclasses import dataclass

from turnwire.v1 import error_pb2
from turnwire_server.ports.store import ResponseStore
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.turns import Turn

__all__ = ["Parent", "not_found", "resolve_parent"]


@dataclass(frozen=True, slots=True)
class Parent:
    """What a turn continues."""

    conversation: Conversation = EMPTY
    prompt: Prompt | None = None


def not_found(response_id: str) -> Rejection:
    """Return the refusal of a continuation whose parent is unknown."""
    return Rejection(
        error_pb2.ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND,
        f"Previous response with id {quoted(response_id)} not found.",
        param="previous_response_id",
    )


async def resolve_parent(turn: Turn, store: ResponseStore, tenant: str) -> Parent | Rejection:
    """Return the parent of a turn; an empty one when it starts a conversation."""
    parent_id = turn.previous_response_id
    if parent_id is None:
        return Parent()
    if turn.parent is not None:  # pinned when the create was enqueued
        return Parent(turn.parent.conversation, turn.parent.prompt)
    record = await store.get(parent_id, tenant=tenant)
    if record is None:
        return not_found(parent_id)
    return Parent(record.conversation, record.prompt)
