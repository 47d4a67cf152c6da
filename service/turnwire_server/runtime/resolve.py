"""Finding the parent: lane head, connection cache, store, or not found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2
from turnwire_server.ports.conversations import StoredConversation
from turnwire_server.ports.store import ResponseStore
from turnwire_server.runtime.conversations import Conversations, conversation_id_of
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.create_rules import check_lineage
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.turns import Turn

__all__ = [
    "FindItem",
    "Parent",
    "not_found",
    "resolve_parent",
    "resolve_references",
    "stored_parent",
]

FindItem = Callable[[str], item_pb2.Item | None]
"""Returns an item by its id, None when there is none."""


@dataclass(slots=True)  # not frozen: made per turn
class Parent:
    """What a turn continues."""

    conversation: Conversation = EMPTY
    prompt: Prompt | None = None
    record: StoredConversation | None = None
    """The conversation that the turn names and adds to."""

    @classmethod
    def of(cls, record: StoredConversation) -> Parent:
        """Return the parent of a turn that names a conversation."""
        return cls(record.context, record.prompt, record)


def not_found(response_id: str) -> Rejection:
    """Return the refusal of a continuation whose parent is unknown."""
    return Rejection(
        error_pb2.ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND,
        f"Previous response with id {quoted(response_id)} not found.",
        param="previous_response_id",
    )


async def resolve_parent(
    turn: Turn, store: ResponseStore, conversations: Conversations, tenant: str
) -> Parent | Rejection:
    """Return the parent of a turn; an empty one when it starts a conversation.

    A conversation that the turn names is claimed for it.
    """
    lineage = check_lineage(turn.create)
    if lineage is not None:
        return lineage
    if turn.parent is not None:  # pinned when the create was enqueued
        return Parent(turn.parent.conversation, turn.parent.prompt)
    parent_id = turn.previous_response_id
    if parent_id is None:
        conversation_id = conversation_id_of(turn.create)
        if not conversation_id:
            return Parent()
        record = await conversations.claim(conversation_id, tenant=tenant)
        return record if isinstance(record, Rejection) else Parent.of(record)
    return await stored_parent(parent_id, store, tenant)


async def stored_parent(response_id: str, store: ResponseStore, tenant: str) -> Parent | Rejection:
    """Return a stored response as a parent; one that runs or has failed is none."""
    stored = await store.get(response_id, tenant=tenant)
    if stored is None:
        return not_found(response_id)
    if not stored.is_over or stored.status == "failed":
        return Rejection(
            error_pb2.ERROR_REASON_PREVIOUS_RESPONSE_NOT_FOUND,
            f"Previous response with id {quoted(response_id)} is {stored.status}: what continues "
            "it needs its whole output.",
            param="previous_response_id",
        )
    return Parent(stored.conversation, stored.prompt)


async def resolve_references(
    given: client_event_pb2.Input,
    find_near: FindItem,
    store: ResponseStore,
    conversations: Conversations,
    tenant: str,
) -> FindItem:
    """Return what knows the items that an input refers to, for rules that cannot wait.

    Args:
        given: The input.
        find_near: Finds items of the parent and of the connection; these win.
        store: Asked once for each of the others.
        conversations: Asked for what the store does not have.
        tenant: Whose items may be found.
    """
    found: dict[str, item_pb2.Item | None] = {}
    if given.text:
        return found.get
    for item in given.items.items:
        item_id = item.item_reference.id
        if item_id and item_id not in found:
            found[item_id] = (
                find_near(item_id)
                or await store.find_item(item_id, tenant=tenant)
                or await conversations.find_item(item_id, tenant=tenant)
            )
    return found.get
