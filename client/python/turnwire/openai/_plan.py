"""A create as a client of the HTTP API wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from turnwire import _codec
from turnwire._codec.errors import kind_of_json
from turnwire.openai import _answers
from turnwire.openai._items import ROOT, chain, items_of, root_of
from turnwire.openai._values import Answer
from turnwire.v1.client_event_pb2 import ResponseCreate

__all__ = ["Plan", "object_of", "plan_of"]

# The history is somewhere else, or the turn is not the session's.
_NOT_FOLLOWED = ("background", "conversation", "prompt")


class Plan:
    """What a create asks for."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = {name: value for name, value in body.items() if name != "stream"}
        self.is_streamed = body.get("stream") is True
        self.items: list[object] = items_of(body.get("input")) or []
        parent = body.get("previous_response_id")
        self.parent = parent if isinstance(parent, str) else None
        """The response that the client itself continues."""
        self.is_background = body.get("background") is True
        """Whether the turn goes on by itself, on no session."""
        self.is_stored = body.get("store") is not False
        """Whether the server keeps the response."""
        self.is_followed = not any(body.get(name) for name in _NOT_FOLLOWED)
        """Whether the conversation is the parent, the items and the output, and nothing else."""
        self.digests: Sequence[bytes] = ()
        """Of each prefix of the items, the empty one first; none when it is not followed."""
        if self.is_followed:
            self.follow(ROOT if self.parent is None else root_of(self.parent))

    def follow(self, root: bytes) -> None:
        """Take the digests anew, for another digest of what comes before the items."""
        try:
            self.digests = chain(root, self.items)
        except ValueError:
            self.is_followed = False

    def create(self, skipped: int = 0, parent: str | None = None) -> ResponseCreate:
        """Return the create to send.

        Args:
            skipped: How many items `parent` covers.
            parent: The response to continue instead of the client's own parent.

        Raises:
            _codec.DecodeError: The body is no create.
        """
        body = self._body
        if skipped:
            body = {**body, "input": self.items[skipped:], "previous_response_id": parent}
        try:
            return _codec.parse(ResponseCreate, body)
        except _codec.DecodeError:
            if not skipped:
                raise
            # The same with the paths that the client can make sense of.
            return self.create()


def plan_of(data: bytes) -> Plan | Answer:
    """Return what a body asks for, or the refusal of one that is no JSON object."""
    body = object_of(data)
    return body if isinstance(body, Answer) else Plan(body)


def object_of(data: bytes) -> dict[str, Any] | Answer:
    """Return a body, or the refusal of one that is no JSON object."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        return _answers.refusal("invalid_json", f"The message is not valid JSON at {place}.")
    if not isinstance(body, dict):
        got = kind_of_json(body)
        return _answers.refusal("invalid_json", f"The message is {got}; expected one JSON object.")
    return body
