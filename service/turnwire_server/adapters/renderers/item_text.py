"""The text of items' contents, for models that read only text."""

from __future__ import annotations

from turnwire.v1 import content_pb2
from turnwire_server.ports.renderer import RenderFailure

__all__ = ["content_text", "part_text"]


def content_text(content: content_pb2.Content) -> str:
    """Return the text of `content`, its parts joined without a separator.

    Raises:
        RenderFailure: a part is of a kind that has no text.
    """
    if content.WhichOneof("value") == "parts":
        return "".join(map(part_text, content.parts.parts))
    return content.text


def part_text(part: content_pb2.ContentPart) -> str:
    """Return the text of one part.

    Raises:
        RenderFailure: it is of a kind that has no text.
    """
    match part.WhichOneof("part"):
        case "output_text":
            return part.output_text.text
        case "input_text":
            return part.input_text.text
        case "refusal":
            return part.refusal.refusal
        case "reasoning_text":
            return part.reasoning_text.text
        case "summary_text":
            return part.summary_text.text
        case "text":
            return part.text.text
        case kind:
            raise RenderFailure(f"parts of type {kind or 'unknown'} cannot be rendered")
