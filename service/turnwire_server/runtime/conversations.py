"""Conversations by name: their own calls, and the claim that a turn has on one while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from turnwire.v1 import client_event_pb2, conversation_pb2, error_pb2, item_pb2
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.conversations import (
    ConversationConflict,
    ConversationStore,
    StoredConversation,
)
from turnwire_server.runtime.paging import PageRequest, item_id, page_of
from turnwire_server.session.checked_input import CheckedInput
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.create_rules import check_metadata
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.listed import listed_item
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.sealed import Unseal, opened_compaction
from turnwire_server.session.tool_rules import ToolCatalogue

__all__ = ["Conversations", "conversation_id_of"]

_MAX_ITEMS: Final = 20
"""Items that one call may add."""


_LOCKED: Final = Rejection(
    error_pb2.ERROR_REASON_CONVERSATION_LOCKED,
    "A response of this conversation runs. Try again when it is over.",
    param="conversation",
)


def conversation_id_of(create: client_event_pb2.ResponseCreate) -> str:
    """Return the id of the conversation that a create names, "" when it names none."""
    reference = create.conversation
    return reference.id or reference.object.id


class Conversations:
    """Answers with the message, or with the `Rejection` that says why not."""

    def __init__(
        self,
        store: ConversationStore,
        clock: Clock,
        new_id: Callable[[str], str],
        *,
        unseal: Unseal,
        strict_content: bool,
    ) -> None:
        """Keep conversations in `store`.

        Args:
            store: Where they are.
            clock: Time.
            new_id: Returns a new id with the given prefix.
            unseal: Opens what this server sealed.
            strict_content: Whether assistant messages may hold `output_text` and `refusal` only.
        """
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._unseal = unseal
        self._strict = strict_content
        self._tools = ToolCatalogue()
        self._claimed: set[tuple[str, str]] = set()
        """Tenants and ids."""

    # For turns.

    async def find(self, conversation_id: str, *, tenant: str) -> StoredConversation | Rejection:
        """Return a conversation."""
        record = await self._store.get(conversation_id, tenant=tenant)
        return record or _unknown(conversation_id)

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return an item of any conversation."""
        return await self._store.find_item(item_id, tenant=tenant)

    async def claim(self, conversation_id: str, *, tenant: str) -> StoredConversation | Rejection:
        """Return a conversation that nobody else of this process may change until `release`."""
        key = (tenant, conversation_id)
        if key in self._claimed:
            record = await self.find(conversation_id, tenant=tenant)
            return record if isinstance(record, Rejection) else _LOCKED
        # Claimed before it is read: else it could change between the two.
        self._claimed.add(key)
        try:
            record = await self.find(conversation_id, tenant=tenant)
        except BaseException:
            self._claimed.discard(key)
            raise
        if isinstance(record, Rejection):
            self._claimed.discard(key)
        return record

    def release(self, record: StoredConversation) -> None:
        """Let others change a conversation that was claimed."""
        self._claimed.discard((record.tenant, record.id))

    async def add(
        self,
        record: StoredConversation,
        items: Sequence[item_pb2.Item],
        context: Conversation,
        prompt: Prompt | None,
    ) -> None:
        """Keep what a turn added to a conversation that it claimed.

        Args:
            record: The conversation as it was.
            items: What was added.
            context: What a model is told from now on.
            prompt: Token ids of that.

        Raises:
            ConversationConflict: Another process has changed it meanwhile; nothing is kept.
        """
        added = tuple(item.SerializeToString() for item in items)
        changed = replace(record, items=record.items + added, context=context, prompt=prompt)
        try:
            await self._store.put(changed)
        except ConversationConflict:
            if await self._store.get(record.id, tenant=record.tenant) is not None:  # else deleted
                raise

    # The calls.

    async def create(
        self, request: conversation_pb2.CreateConversationRequest, *, tenant: str
    ) -> conversation_pb2.ConversationResource | Rejection:
        """Make a conversation."""
        record = StoredConversation(self._new_id("conv_"), tenant, self._clock.wall())
        rejection = check_metadata(request.metadata)
        if rejection is not None:
            return rejection
        checked = self._checked(request.items, record)
        if isinstance(checked, Rejection):
            return checked
        record = replace(self._with(record, checked), metadata=dict(request.metadata))
        await self._store.put(record)
        return _resource(record)

    async def get(
        self, conversation_id: str, *, tenant: str
    ) -> conversation_pb2.ConversationResource | Rejection:
        """Return a conversation."""
        record = await self.find(conversation_id, tenant=tenant)
        return record if isinstance(record, Rejection) else _resource(record)

    async def update(
        self,
        conversation_id: str,
        request: conversation_pb2.UpdateConversationRequest,
        *,
        tenant: str,
    ) -> conversation_pb2.ConversationResource | Rejection:
        """Give a conversation other metadata."""
        rejection = check_metadata(request.metadata)
        if rejection is not None:
            return rejection
        claimed = await self.claim(conversation_id, tenant=tenant)
        if isinstance(claimed, Rejection):
            return claimed
        with self._releasing(claimed):
            record = replace(claimed, metadata=dict(request.metadata))
            return await self._put(record) or _resource(record)

    async def delete(
        self, conversation_id: str, *, tenant: str
    ) -> conversation_pb2.ConversationDeletedResource | Rejection:
        """Forget a conversation."""
        if not await self._store.delete(conversation_id, tenant=tenant):
            return _unknown(conversation_id)
        return conversation_pb2.ConversationDeletedResource(
            id=conversation_id, object="conversation.deleted", deleted=True
        )

    async def list_items(
        self, conversation_id: str, asked: PageRequest, *, tenant: str
    ) -> conversation_pb2.ConversationItemList | Rejection:
        """List the items of a conversation."""
        record = await self.find(conversation_id, tenant=tenant)
        return record if isinstance(record, Rejection) else _listed(record.items, asked)

    async def add_items(
        self,
        conversation_id: str,
        request: conversation_pb2.CreateConversationItemsRequest,
        *,
        tenant: str,
    ) -> conversation_pb2.ConversationItemList | Rejection:
        """Add items to a conversation, and list them."""
        if not request.items:
            return Rejection(
                error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER,
                "At least one item is needed.",
                param="items",
            )
        claimed = await self.claim(conversation_id, tenant=tenant)
        if isinstance(claimed, Rejection):
            return claimed
        with self._releasing(claimed):
            checked = self._checked(request.items, claimed)
            if isinstance(checked, Rejection):
                return checked
            record = self._with(claimed, checked)
            added = record.items[len(claimed.items) :]
            return await self._put(record) or _listed(added, PageRequest(order="asc"))

    async def get_item(
        self, conversation_id: str, wanted_id: str, *, tenant: str
    ) -> item_pb2.Item | Rejection:
        """Return one item of a conversation."""
        record = await self.find(conversation_id, tenant=tenant)
        if isinstance(record, Rejection):
            return record
        for encoded in record.items:
            item = listed_item(item_pb2.Item.FromString(encoded))
            if item_id(item) == wanted_id:
                return item
        return _unknown_item(wanted_id)

    async def delete_item(
        self, conversation_id: str, unwanted_id: str, *, tenant: str
    ) -> conversation_pb2.ConversationResource | Rejection:
        """Forget one item of a conversation."""
        claimed = await self.claim(conversation_id, tenant=tenant)
        if isinstance(claimed, Rejection):
            return claimed
        with self._releasing(claimed):
            items = [item_pb2.Item.FromString(encoded) for encoded in claimed.items]
            kept = [item for item in items if item_id(item) != unwanted_id]
            if len(kept) == len(items):
                return _unknown_item(unwanted_id)
            record = replace(
                claimed,
                items=tuple(item.SerializeToString() for item in kept),
                context=self._context(kept),
                prompt=None,
            )
            return await self._put(record) or _resource(record)

    async def close(self) -> None:
        """Give the store back."""
        await self._store.close()

    # Private.

    async def _put(self, record: StoredConversation) -> Rejection | None:
        """Keep a conversation that was changed; return why that cannot be."""
        try:
            await self._store.put(record)
        except ConversationConflict:
            return Rejection(
                error_pb2.ERROR_REASON_CONVERSATION_LOCKED,
                "The conversation was changed or deleted at the same time. Try again.",
                param="conversation",
            )
        return None

    @contextmanager
    def _releasing(self, record: StoredConversation) -> Iterator[None]:
        try:
            yield
        finally:
            self.release(record)

    def _checked(
        self, items: Sequence[item_pb2.Item], record: StoredConversation
    ) -> CheckedInput | Rejection:
        if len(items) > _MAX_ITEMS:
            return _invalid("items", f"At most {_MAX_ITEMS} items may be added at a time.")
        rules = ItemRules(
            self._new_id,
            record.context.find_item,
            self._tools,
            is_strict=self._strict,
            unseal=self._unseal,
        )
        given = client_event_pb2.Input(items=item_pb2.ItemList(items=items))
        checked = rules.check(given, record.context, outputs_required=False)
        if isinstance(checked, Rejection):
            return replace(checked, param=(checked.param or "").replace("input", "items", 1))
        if checked.wants_compaction:
            return _invalid(f"items[{len(items) - 1}].type", "Only a create can compact.")
        return checked

    def _with(self, record: StoredConversation, checked: CheckedInput) -> StoredConversation:
        context = record.context.extended(checked.items).to_be_screened(checked.items)
        if checked.is_covering:
            context = context.replaced_by(checked.items[checked.covered :])
        added = tuple(item.SerializeToString() for item in checked.items)
        prompt = record.prompt if not added else None
        return replace(record, items=record.items + added, context=context, prompt=prompt)

    def _context(self, items: Sequence[item_pb2.Item]) -> Conversation:
        """Return what a model is told of the items, of which the screen has not seen one."""
        context = EMPTY.extended(items).to_be_screened(items)
        for index in range(len(items) - 1, -1, -1):
            sealed = items[index].compaction.encrypted_content
            opened = opened_compaction(sealed, self._unseal) if sealed else None
            if opened is not None and opened.covers:
                return context.replaced_by(items[index:])
        return context


def _resource(record: StoredConversation) -> conversation_pb2.ConversationResource:
    resource = conversation_pb2.ConversationResource(
        id=record.id, object="conversation", metadata=_plain(record.metadata)
    )
    resource.created_at.seconds = record.created_at
    return resource


def _plain(metadata: Mapping[str, str]) -> dict[str, str]:
    return dict(metadata)


def _listed(
    encoded: Sequence[bytes], asked: PageRequest
) -> conversation_pb2.ConversationItemList | Rejection:
    page = page_of(encoded, asked)
    if isinstance(page, Rejection):
        return page
    return conversation_pb2.ConversationItemList(
        object="list",
        data=page.items,
        first_id=page.first_id,
        last_id=page.last_id,
        has_more=page.has_more,
    )


def _unknown(conversation_id: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_CONVERSATION_NOT_FOUND,
        f"Conversation with id {quoted(conversation_id)} not found.",
        param="conversation",
    )


def _unknown_item(wanted_id: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_ITEM_NOT_FOUND,
        f"Item with id {quoted(wanted_id)} not found.",
        param="item_id",
    )


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)
