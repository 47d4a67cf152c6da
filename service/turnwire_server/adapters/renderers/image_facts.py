"""What can be said of an image without decoding it: its format and its size in pixels."""

from __future__ import annotations

import base64
import hashlib
from typing import Final, NamedTuple

__all__ = ["ImageFacts", "image_facts"]

_HEADER_CHARS: Final = 1 << 17
"""Characters of base64 that are read: a JPEG may carry a preview before its size."""
_DIGEST_BYTES: Final = 4
_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE: Final = frozenset({0x01, *range(0xD0, 0xDA)})
"""Markers of a JPEG that have no segment."""


class ImageFacts(NamedTuple):
    """An image, as far as it was read."""

    kind: str
    """`PNG`, `JPEG`, `GIF`, `WebP`; "" when it is none of them or is somewhere else."""
    width: int
    """Pixels, 0 when not known."""
    height: int
    digest: str
    """Eight hexadecimal digits that tell it from other images."""

    def __str__(self) -> str:
        """Return it in words, of about the same length whatever the image is."""
        size = (
            f"{self.width} x {self.height} pixels" if self.width and self.height else "unknown size"
        )
        return f"[image: {self.kind or 'unknown format'}, {size}, {self.digest}]"


def image_facts(url: str) -> ImageFacts:
    """Read the beginning of an image; never fails, never fetches.

    Args:
        url: A data URL in base64, or the URL of an image that is somewhere else.
    """
    digest = hashlib.blake2b(url.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    head, comma, encoded = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return ImageFacts("", 0, 0, digest)
    data = _decoded(encoded[:_HEADER_CHARS])
    for kind, read in (("PNG", _png), ("GIF", _gif), ("WebP", _webp), ("JPEG", _jpeg)):
        size = read(data)
        if size is not None:
            return ImageFacts(kind, *size, digest)
    return ImageFacts("", 0, 0, digest)


def _decoded(encoded: str) -> bytes:
    text = encoded.replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text[: len(text) & ~3] or text + "==")
    except ValueError:
        return b""


def _png(data: bytes) -> tuple[int, int] | None:
    if not data.startswith(b"\x89PNG\r\n\x1a\n") or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _gif(data: bytes) -> tuple[int, int] | None:
    if not data.startswith((b"GIF87a", b"GIF89a")):
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _webp(data: bytes) -> tuple[int, int] | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    match data[12:16]:
        case b"VP8X":
            return 1 + _little(data[24:27]), 1 + _little(data[27:30])
        case b"VP8L":
            bits = _little(data[21:25])
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
        case _:
            return 0, 0


def _jpeg(data: bytes) -> tuple[int, int] | None:
    if not data.startswith(b"\xff\xd8"):
        return None
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker in _JPEG_SIZES:
            height, width = data[position + 5 : position + 7], data[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        position += 2 if marker in _JPEG_BARE else 2 + length
    return 0, 0


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
