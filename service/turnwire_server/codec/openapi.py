"""The OpenAPI document of the HTTP and WebSocket edge.

Requests are described by the shapes that check them, answers by the messages that they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from pydantic.json_schema import models_json_schema

from turnwire._codec.options import descriptor_of
from turnwire.v1 import (
    conversation_pb2,
    error_pb2,
    item_pb2,
    models_service_pb2,
    response_pb2,
    responses_service_pb2,
    server_event_pb2,
)
from turnwire_server.codec import shapes
from turnwire_server.codec.schemas import Schemas

__all__ = ["openapi"]

_COMPONENTS = "#/components/schemas/"
_REQUEST = "Request."
"""Before the name of a shape: what may be sent is wider than what comes back."""

_RESPONSE_ID = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
_PAGE = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in (
        ("after", {"type": "string"}),
        ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("order", {"enum": ["asc", "desc"]}),
    )
]
"""Which part of a list is wanted."""
_FROM_WHERE = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in (
        ("stream", {"type": "boolean"}),
        ("starting_after", {"type": "integer", "minimum": 0}),
    )
]
"""Whether events are wanted, and behind which."""
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


def openapi() -> dict[str, Any]:
    """Return the document, OpenAPI 3.1: a new value of dicts and lists."""
    schemas = Schemas(_COMPONENTS)

    def answer(message_type: type[Message], *, streams: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {"application/json": {"schema": reference(message_type)}}
        if streams:
            event = reference(server_event_pb2.ServerEvent)
            content["text/event-stream"] = {"schema": event}
        return {
            "200": {"description": "Done.", "content": content},
            "default": {"$ref": "#/components/responses/Error"},
        }

    def reference(message_type: type[Message]) -> dict[str, Any]:
        return schemas.reference(descriptor_of(message_type))

    one_response = answer(response_pb2.Response)
    create = _body(shapes.ResponseCreate)
    websocket = {
        "client": [_shape(shape) for shape in shapes.CLIENT_EVENTS.values()],
        "server": reference(server_event_pb2.ServerEvent),
    }
    paths: dict[str, Any] = {
        "/v1/responses": {
            "post": _operation(
                "Run a turn.",
                answer(response_pb2.Response, streams=True),
                requestBody=create,
                parameters=[_KEY],
            ),
            "get": _operation(
                "Upgrade to a WebSocket: one JSON object per text frame, both ways.",
                {
                    "101": {"description": "The socket is open."},
                    "426": {"description": "Not an upgrade, or switched off."},
                },
                **{"x-turnwire-websocket": websocket},
            ),
        },
        "/v1/responses/{response_id}": {
            "parameters": [_RESPONSE_ID],
            "get": _operation(
                "Return a stored response, or its events.",
                answer(response_pb2.Response, streams=True),
                parameters=_FROM_WHERE,
            ),
            "delete": _operation(
                "Forget a stored response.", answer(responses_service_pb2.DeleteResult)
            ),
        },
        "/v1/responses/{response_id}/cancel": {
            "parameters": [_RESPONSE_ID],
            "post": _operation("End a running response.", one_response),
        },
        "/v1/responses/{response_id}/input_items": {
            "parameters": [
                _RESPONSE_ID,
                *_PAGE,
            ],
            "get": _operation(
                "List what a stored response was given.",
                answer(responses_service_pb2.ListInputItemsResult),
            ),
        },
        "/v1/responses/input_tokens": {
            "post": _operation(
                "Count the tokens of an input.",
                answer(responses_service_pb2.CountInputTokensResult),
                requestBody=create,
            ),
        },
        "/v1/responses/compact": {
            "post": _operation(
                "Make a conversation shorter.",
                answer(responses_service_pb2.CompactResult),
                requestBody=_body(shapes.CompactRequest),
            ),
        },
        **_conversations(answer),
        "/v1/models": {
            "get": _operation("List the models.", answer(models_service_pb2.ListModelsResult)),
        },
        "/v1/models/{model}": {
            "parameters": [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            "get": _operation("Return a model.", answer(models_service_pb2.Model)),
        },
    }
    error = {
        "type": "object",
        "properties": {"error": reference(error_pb2.ErrorBody)},
        "required": ["error"],
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Turnwire", "version": "v1"},
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**_shapes(), **schemas.components},
            "responses": {
                "Error": {
                    "description": "Refused, or broken.",
                    "content": {"application/json": {"schema": error}},
                }
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _conversations(answer: Callable[[type[Message]], dict[str, Any]]) -> dict[str, Any]:
    """Return the paths of conversations."""
    resource = answer(conversation_pb2.ConversationResource)
    items = answer(conversation_pb2.ConversationItemList)
    one, item = _path_parameter("conversation_id"), _path_parameter("item_id")
    return {
        "/v1/conversations": {
            "post": _operation(
                "Make a conversation.",
                resource,
                requestBody={**_body(shapes.CreateConversationRequest), "required": False},
            ),
        },
        "/v1/conversations/{conversation_id}": {
            "parameters": [one],
            "get": _operation("Return a conversation.", resource),
            "post": _operation(
                "Give a conversation other metadata.",
                resource,
                requestBody=_body(shapes.UpdateConversationRequest),
            ),
            "delete": _operation(
                "Forget a conversation.", answer(conversation_pb2.ConversationDeletedResource)
            ),
        },
        "/v1/conversations/{conversation_id}/items": {
            "parameters": [one],
            "get": _operation("List items.", items, parameters=_PAGE),
            "post": _operation(
                "Add items.", items, requestBody=_body(shapes.CreateConversationItemsRequest)
            ),
        },
        "/v1/conversations/{conversation_id}/items/{item_id}": {
            "parameters": [one, item],
            "get": _operation("Return an item.", answer(item_pb2.Item)),
            "delete": _operation("Forget an item.", resource),
        },
    }


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(summary: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"summary": summary, **more, "responses": responses}


def _shape(shape: type[shapes.Shape]) -> dict[str, Any]:
    return {"$ref": f"{_COMPONENTS}{_REQUEST}{shape.__name__}"}


def _body(shape: type[shapes.Shape]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _shape(shape)}}}


def _shapes() -> dict[str, Any]:
    """Return the schemas of all shapes, by their names in the document."""
    roots: list[type[shapes.Shape]] = [
        shapes.ResponseCreate,
        shapes.CompactRequest,
        shapes.CreateConversationRequest,
        shapes.UpdateConversationRequest,
        shapes.CreateConversationItemsRequest,
    ]
    roots += shapes.CLIENT_EVENTS.values()
    _, found = models_json_schema(
        [(shape, "validation") for shape in roots],
        ref_template=f"{_COMPONENTS}{_REQUEST}{{model}}",
    )
    return {f"{_REQUEST}{name}": schema for name, schema in found["$defs"].items()}
