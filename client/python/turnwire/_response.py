"""Responses, their parts and their figures as the user sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from turnwire._json import JSONValue, plain
from turnwire.v1 import response_pb2
from turnwire.v1.item_pb2 import Item, ItemStatus

__all__ = ["FunctionCall", "Response", "Timing", "TimingTokens", "Usage", "function_calls"]

_STATUS_PREFIX = "RESPONSE_STATUS_"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens used. Counts cover the whole context, not only what was sent."""

    input_tokens: int
    """Tokens of the prompt."""
    cached_tokens: int
    """Of these, found in the engine's prefix cache."""
    output_tokens: int
    """Tokens generated, hidden ones included."""
    reasoning_tokens: int
    """Of these, spent on reasoning."""
    total_tokens: int
    """Prompt and output."""


@dataclass(frozen=True, slots=True)
class TimingTokens:
    """Token counts of a turn, from the server."""

    input: int
    """Tokens of the whole prompt."""
    sent: int
    """Tokens of the items that the create brought."""
    rendered: int
    """Tokens that were tokenized for this turn."""
    cached: int
    """Prompt tokens found in the engine's prefix cache."""
    output: int
    """Tokens generated."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a turn's time went inside the server, in milliseconds."""

    queue_ms: float
    resolve_ms: float
    validate_ms: float
    render_ms: float
    screen_ms: float
    prefill_ms: float
    decode_ms: float
    commit_ms: float
    overhead_ms: float
    """All that is not `prefill_ms` and `decode_ms`."""
    tokens: TimingTokens
    rerender_reason: str
    """Why more than the new items were rendered; empty when nothing was rendered again."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that the model made and the client must answer."""

    name: str
    call_id: str
    """Pairs the call with its output."""
    arguments: str
    """JSON text of the arguments; the free-form input when `is_custom`."""
    namespace: str | None = None
    """Group of the tool, when it was offered in one."""
    is_custom: bool = False
    """Whether it calls a tool of type `custom`."""

    def parse_arguments(self) -> dict[str, JSONValue]:
        """Return the arguments.

        Raises:
            ValueError: The model wrote something that is not a JSON object.
        """
        value = json.loads(self.arguments or "{}")
        if not isinstance(value, dict):
            raise ValueError("the arguments are not a JSON object")
        return value


class Response:
    """What a model made of an input.

    Attributes:
        message: The `turnwire.v1` message, with all fields of the public JSON.
    """

    __slots__ = ("_make", "_message")

    def __init__(self, message: response_pb2.Response) -> None:
        self._message = message
        self._make: Callable[[], response_pb2.Response] | None = None
        """Returns `_message`, while nobody has asked for it."""

    @classmethod
    def late(cls, make: Callable[[], response_pb2.Response]) -> Response:
        """Return a response of which the message is asked for when it is needed."""
        response = cls.__new__(cls)
        response._make = make
        return response

    @property
    def message(self) -> response_pb2.Response:
        """The message, see above."""
        if self._make is not None:
            self._message = self._make()
            self._make = None
        return self._message

    @message.setter
    def message(self, message: response_pb2.Response) -> None:
        self._message, self._make = message, None

    def __reduce__(self) -> tuple[type[Response], tuple[response_pb2.Response]]:
        return Response, (self.message,)  # How it is made is of this process, and of this object.

    @property
    def id(self) -> str:
        """Id, `resp_…`: what the next turn continues by `previous_response_id`."""
        return self.message.id

    @property
    def status(self) -> str:
        """`completed`, `incomplete`, `failed`, `cancelled`, `in_progress` or `queued`."""
        name: str = response_pb2.ResponseStatus.Name(self.message.status)
        return name.removeprefix(_STATUS_PREFIX).lower()

    @property
    def model(self) -> str:
        """Name of the model that ran."""
        return self.message.model

    @property
    def previous_response_id(self) -> str | None:
        """The response that this one continues."""
        has = self.message.HasField("previous_response_id")
        return self.message.previous_response_id if has else None

    @property
    def incomplete_reason(self) -> str | None:
        """Why it is not whole, for example `max_output_tokens`."""
        return self.message.incomplete_details.reason or None

    @property
    def output_text(self) -> str:
        """All text that the model wrote for the reader, joined."""
        return "".join(
            part.output_text.text
            for item in self.message.output
            if item.WhichOneof("item") == "message"
            for part in item.message.content.parts.parts
            if part.WhichOneof("part") == "output_text"
        )

    @property
    def function_calls(self) -> list[FunctionCall]:
        """The calls that need an output, in order; those cut short need none."""
        return function_calls(self.message.output)

    @property
    def usage(self) -> Usage | None:
        """Tokens used; None until the end."""
        if not self.message.HasField("usage"):
            return None
        usage = self.message.usage
        return Usage(
            input_tokens=usage.input_tokens,
            cached_tokens=usage.input_tokens_details.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
            total_tokens=usage.total_tokens,
        )

    @property
    def timing(self) -> Timing | None:
        """Where the time went; with `include=["turnwire.timing"]`, at the end of a turn."""
        if not self.message.turnwire.HasField("timing"):
            return None
        timing = self.message.turnwire.timing
        tokens = timing.tokens
        return Timing(
            queue_ms=timing.queue_ms,
            resolve_ms=timing.resolve_ms,
            validate_ms=timing.validate_ms,
            render_ms=timing.render_ms,
            screen_ms=timing.screen_ms,
            prefill_ms=timing.prefill_ms,
            decode_ms=timing.decode_ms,
            commit_ms=timing.commit_ms,
            overhead_ms=timing.overhead_ms,
            tokens=TimingTokens(
                input=tokens.input,
                sent=tokens.sent,
                rendered=tokens.rendered,
                cached=tokens.cached,
                output=tokens.output,
            ),
            rerender_reason=timing.rerender_reason,
        )

    def to_dict(self) -> dict[str, JSONValue]:
        """Return the response as in the public JSON."""
        return plain(self.message)

    def __repr__(self) -> str:
        return f"<Response {self.id} {self.status}>"


def function_calls(items: Iterable[Item]) -> list[FunctionCall]:
    """Return the calls among `items` that need an output, in order."""
    calls = [_function_call(item) for item in items]
    return [call for call in calls if call is not None]


def _function_call(item: Item) -> FunctionCall | None:
    match item.WhichOneof("item"):
        case "function_call":
            call = item.function_call
            if call.status == ItemStatus.ITEM_STATUS_INCOMPLETE:
                return None
            return FunctionCall(
                call.name, call.call_id, call.arguments, call.namespace or None, is_custom=False
            )
        case "custom_tool_call":
            custom = item.custom_tool_call
            if custom.status == ItemStatus.ITEM_STATUS_INCOMPLETE:
                return None
            return FunctionCall(
                custom.name, custom.call_id, custom.input, custom.namespace or None, is_custom=True
            )
        case _:
            return None
