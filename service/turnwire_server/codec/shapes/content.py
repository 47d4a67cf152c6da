"""Content of items: text, or parts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from turnwire.v1 import content_pb2
from turnwire_server.codec.shapes.base import (
    LIST_TAG,
    TEXT_TAG,
    Json,
    ListOf,
    Shape,
    Uint32,
    alternatives,
    by_type,
)

__all__ = ["Content", "ContentPart"]


class Logprob(Shape, message_type=content_pb2.Logprob):
    """Log probability of one token."""

    token: str
    bytes: ListOf[Uint32] | None = None
    logprob: float
    top_logprobs: ListOf[Logprob] | None = None


class OutputText(Shape, message_type=content_pb2.OutputText):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: ListOf[Json] | None = None
    logprobs: ListOf[Logprob] | None = None


class InputText(Shape, message_type=content_pb2.InputText):
    """Text for the model."""

    type: Literal["input_text"]
    text: str


class Refusal(Shape, message_type=content_pb2.Refusal):
    """A refusal that the model wrote."""

    type: Literal["refusal"]
    refusal: str


class ReasoningText(Shape, message_type=content_pb2.ReasoningText):
    """Raw reasoning of the model."""

    type: Literal["reasoning_text"]
    text: str


class SummaryText(Shape, message_type=content_pb2.SummaryText):
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class InputImage(Shape, message_type=content_pb2.InputImage):
    """An image for the model."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Shape, message_type=content_pb2.InputFile):
    """A file for the model."""

    type: Literal["input_file"]
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


class ComputerScreenshot(Shape, message_type=content_pb2.ComputerScreenshot):
    """A picture of a computer's screen."""

    type: Literal["computer_screenshot"]
    image_url: str | None = None
    file_id: str | None = None


class PlainText(Shape, message_type=content_pb2.PlainText):
    """Plain text, as older clients write it."""

    type: Literal["text"]
    text: str


ContentPart = Annotated[
    Annotated[OutputText, Tag(":output_text")]
    | Annotated[InputText, Tag(":input_text")]
    | Annotated[Refusal, Tag(":refusal")]
    | Annotated[ReasoningText, Tag(":reasoning_text")]
    | Annotated[SummaryText, Tag(":summary_text")]
    | Annotated[InputImage, Tag(":input_image")]
    | Annotated[InputFile, Tag(":input_file")]
    | Annotated[ComputerScreenshot, Tag(":computer_screenshot")]
    | Annotated[PlainText, Tag(":text")],
    Discriminator(by_type),
]
"""A piece of an item, by its `type`."""

Content = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[ListOf[ContentPart], Tag(LIST_TAG)],
    alternatives("a string or an array", TEXT_TAG, LIST_TAG),
]
"""Text, or a list of parts."""
