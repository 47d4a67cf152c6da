"""`/v1/conversations` over HTTP: conversations by name, and their items."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TypeVar

from aiohttp import web
from google.protobuf.message import Message

from turnwire_server.codec.faults import Fault
from turnwire_server.codec.requests import (
    decode_conversation,
    decode_conversation_items,
    decode_conversation_update,
)
from turnwire_server.runtime.paging import PageRequest
from turnwire_server.runtime.services import Services
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.http_body import BODIES
from turnwire_server.transports.http_responses import TENANT, accepted, answer, page_limit

__all__ = ["ConversationsApi"]

AnyMessage = TypeVar("AnyMessage", bound=Message)


class ConversationsApi:
    """Handlers; each expects the tenant in the request."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        one = "/v1/conversations/{conversation_id}"
        item = f"{one}/items/{{item_id}}"
        return [
            web.post("/v1/conversations", self.create),
            web.get(one, self.get),
            web.post(one, self.update),
            web.delete(one, self.delete),
            web.get(f"{one}/items", self.list_items),
            web.post(f"{one}/items", self.add_items),
            web.get(item, self.get_item),
            web.delete(item, self.delete_item),
        ]

    async def create(self, request: web.Request) -> web.Response:
        """Make a conversation."""
        asked = await self._body(request, decode_conversation)
        return answer(await self._services.conversations.create(asked, tenant=TENANT.get()))

    async def get(self, request: web.Request) -> web.Response:
        """Return a conversation."""
        return await self._by_id(request, self._services.conversations.get)

    async def update(self, request: web.Request) -> web.Response:
        """Give a conversation other metadata."""
        asked = await self._body(request, decode_conversation_update)
        call = self._services.conversations.update(_id(request), asked, tenant=TENANT.get())
        return answer(await call)

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a conversation."""
        return await self._by_id(request, self._services.conversations.delete)

    async def list_items(self, request: web.Request) -> web.Response:
        """List items."""
        query = request.query
        asked = PageRequest(query.get("after", ""), page_limit(query), query.get("order", ""))
        call = self._services.conversations.list_items(_id(request), asked, tenant=TENANT.get())
        return answer(await call)

    async def add_items(self, request: web.Request) -> web.Response:
        """Add items."""
        asked = await self._body(request, decode_conversation_items)
        call = self._services.conversations.add_items(_id(request), asked, tenant=TENANT.get())
        return answer(await call)

    async def get_item(self, request: web.Request) -> web.Response:
        """Return an item."""
        item_id = request.match_info["item_id"]
        call = self._services.conversations.get_item(_id(request), item_id, tenant=TENANT.get())
        return answer(await call)

    async def delete_item(self, request: web.Request) -> web.Response:
        """Forget an item."""
        item_id = request.match_info["item_id"]
        call = self._services.conversations.delete_item(_id(request), item_id, tenant=TENANT.get())
        return answer(await call)

    async def _by_id(
        self,
        request: web.Request,
        call: Callable[..., Coroutine[None, None, Message | Rejection]],
    ) -> web.Response:
        return answer(await call(_id(request), tenant=TENANT.get()))

    async def _body(
        self, request: web.Request, decode: Callable[[bytes], AnyMessage | Fault]
    ) -> AnyMessage:
        return accepted(decode(await request.app[BODIES].read(request)))


def _id(request: web.Request) -> str:
    return request.match_info["conversation_id"]
