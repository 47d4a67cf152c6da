"""A checked create as a prompt that fits its model: rendered, truncated where that is wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from turnwire.v1 import error_pb2, item_pb2, response_pb2
from turnwire_server.ports.renderer import Rendered, RenderFailure, RenderRequest
from turnwire_server.runtime.resolve import Parent
from turnwire_server.runtime.validate import CheckedCreate
from turnwire_server.session.errors import Rejection
from turnwire_server.session.image_rules import image_bytes
from turnwire_server.session.truncation import kept_items, turn_starts

__all__ = ["Ready", "prepare", "render"]

_MAX_BYTES_PER_TOKEN = 32
"""A request with more bytes than this per token of context cannot fit: text of any language takes
far fewer, and only endless repetition would take more."""
_FREED_PART = 4
"""One part in so many of the context is free after a truncation, or more if the answer may be
longer: every truncation costs a whole new prompt, so it must not come with every turn."""
_MOST_FREED_PART = 2


@dataclass(slots=True)  # not frozen: made per turn
class Ready:
    """A turn that can begin."""

    checked: CheckedCreate
    request: RenderRequest
    rendered: Rendered


def prepare(
    checked: CheckedCreate, parent: Parent, *, wire_bytes: int | None = None
) -> Ready | Rejection:
    """Render what is new behind `parent`.

    With `truncation: auto`, whole turns of a conversation that is too long are left out, oldest
    first, and what continues the turn does not have them either. Refused is what does not fit.

    Args:
        checked: The create.
        parent: What it continues.
        wire_bytes: How long the create was on the wire, None when that is not known.
    """
    # One byte of the wire per token is so far below the bound that the ids which were added since
    # cannot reach it; to measure the whole create again takes longer.
    context = checked.context_length
    if wire_bytes is None or wire_bytes > context or checked.is_filled:
        rejection = _check_size(checked)
        if rejection is not None:
            return rejection
    request = checked.render_request(parent)
    rendered = render(checked, request)
    if isinstance(rendered, Rejection):
        return rendered
    if len(rendered.prompt.ids) < context:
        return Ready(checked, request, rendered)
    if checked.create.truncation == "auto":
        return _truncated(checked, parent, request) or _too_long(checked, rendered)
    return _too_long(checked, rendered)


def _check_size(checked: CheckedCreate) -> Rejection | None:
    """Refuse what cannot fit before it costs seconds to render."""
    size, most = checked.create.ByteSize(), _MAX_BYTES_PER_TOKEN * checked.context_length
    if size > most:
        size -= sum(map(_image_bytes, checked.items))
    if size <= most:
        return None
    return Rejection(
        error_pb2.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
        f"The request is {size} bytes; the model's context is {checked.context_length} tokens.",
        param="input",
    )


def _image_bytes(item: item_pb2.Item) -> int:
    """Return how many bytes of an item are images, which are not read as text."""
    match item.WhichOneof("item"):
        case "message":
            return image_bytes(item.message.content)
        case "function_call_output":
            return image_bytes(item.function_call_output.output)
        case "custom_tool_call_output":
            return image_bytes(item.custom_tool_call_output.output)
        case _:
            return 0


def render(checked: CheckedCreate, request: RenderRequest) -> Rendered | Rejection:
    """Render; refuse what the model's template refuses."""
    try:
        return checked.model.renderer.render(request)
    except RenderFailure as failure:
        return Rejection(error_pb2.ERROR_REASON_INVALID_PROMPT, str(failure), param="input")


def _too_long(checked: CheckedCreate, rendered: Rendered) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
        f"The input is {len(rendered.prompt.ids)} tokens; the model's context is "
        f"{checked.context_length}.",
        param="input",
    )


def _truncated(
    checked: CheckedCreate, parent: Parent, request: RenderRequest
) -> Ready | Rejection | None:
    """Leave out as few of the oldest turns as makes room for an answer; None when none does."""
    items: list[item_pb2.Item] = []
    if checked.covered is None:
        items += parent.conversation.items()
    items += checked.items[checked.covered or 0 :]
    starts = turn_starts(items)
    context = checked.context_length
    answer = min(checked.create.max_output_tokens, context // _MOST_FREED_PART)
    limit = context - max(answer, context // _FREED_PART)
    best: tuple[int, RenderRequest, Rendered] | None = None
    fewest, most = 1, len(starts) - 1
    while fewest <= most:  # a prompt is the shorter, the more turns are left out
        dropped = (fewest + most) // 2
        kept = kept_items(items, starts, dropped)
        shorter = replace(request, new_items=checked.shown(kept), history=list, previous=None)
        rendered = render(checked, shorter)
        if isinstance(rendered, Rejection):
            return rendered
        if len(rendered.prompt.ids) < context:
            best = dropped, shorter, rendered
        if len(rendered.prompt.ids) <= limit:
            most = dropped - 1
        else:
            fewest = dropped + 1
    if best is None:
        return None
    dropped, shorter, rendered = best
    kept = kept_items(items, starts, dropped)
    warning = response_pb2.Warning(
        code="input_truncated",
        message=f"The oldest {dropped} turns ({len(items) - len(kept)} items) were left out: the "
        "conversation was longer than the model's context.",
        param="truncation",
    )
    return Ready(
        replace(
            checked,
            conversation=checked.conversation.replaced_by(kept),
            warnings=(*checked.warnings, warning),
        ),
        shorter,
        replace(rendered, rerender_reason="truncation"),
    )
