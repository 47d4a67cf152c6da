"""Rules for images in an input, for models that take them."""

from __future__ import annotations

import re
from typing import Final

from turnwire.v1 import content_pb2, error_pb2
from turnwire_server.session.conversation import item_text
from turnwire_server.session.errors import Rejection

__all__ = ["check_image", "has_content", "image_bytes"]

_URL: Final = re.compile(
    r"https?://[^/?#\s]+|data:image/[\w.+-]+(;[\w=.+-]+)*;base64,[A-Za-z0-9+/_-]{2}", re.IGNORECASE
)
"""How the URL of an image begins, up to where it is sure to name one."""


def check_image(image: content_pb2.InputImage, path: str) -> Rejection | None:
    """Return why an image cannot be taken, None when it can. Its bytes are not looked at."""
    if image.file_id:
        return Rejection(
            error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
            "There are no uploaded files here; an image needs an image_url.",
            param=f"{path}.file_id",
        )
    if not image.image_url:
        return Rejection(
            error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER,
            "An image needs an image_url.",
            param=f"{path}.image_url",
        )
    if not _URL.match(image.image_url):
        return Rejection(
            error_pb2.ERROR_REASON_INVALID_VALUE,
            "An image_url must be a data URL of an image in base64, or an http or https URL.",
            param=f"{path}.image_url",
        )
    return None


def has_content(content: content_pb2.Content) -> bool:
    """Return whether there is something to read or to see in a message."""
    return bool(item_text(content)) or any(
        part.WhichOneof("part") == "input_image" for part in content.parts.parts
    )


def image_bytes(content: content_pb2.Content) -> int:
    """Return the length of the URLs of the images in a message or in the output of a tool."""
    return sum(len(part.input_image.image_url) for part in content.parts.parts)
