"""What is read of an image: its format and its size, from its first bytes."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

from turnwire_server.adapters.renderers.image_facts import image_facts


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + bytes(width) for _ in range(height)))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def jpeg(width: int, height: int, *, before: int = 0) -> bytes:
    preview = b"".join(
        b"\xff\xe2" + struct.pack(">H", 2 + size) + bytes(size) for size in [60_000] * before
    )
    size = struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + preview + b"\xff\xdd\x00\x04\x00\x01" + b"\xff\xc2" + size + b"\xff\xd9"


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + 8 + len(body)) + b"WEBP" + kind + bytes(4) + body


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (png(640, 3), "PNG"),
        (b"GIF89a" + struct.pack("<HH", 640, 3) + bytes(20), "GIF"),
        (jpeg(640, 3), "JPEG"),
        (jpeg(640, 3, before=1), "JPEG"),
        (webp(b"VP8X", bytes(4) + b"\x7f\x02\x00" + b"\x02\x00\x00"), "WebP"),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 2 << 14)), "WebP"),
        (webp(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", 640, 3)), "WebP"),
    ],
    ids=["png", "gif", "jpeg", "jpeg with a preview", "webp extended", "webp lossless", "webp"],
)
def test_format_and_size_are_read_from_the_first_bytes(data: bytes, kind: str) -> None:
    facts = image_facts(data_url(data))
    assert facts[:3] == (kind, 640, 3)
    assert str(facts) == f"[image: {kind}, 640 x 3 pixels, {facts.digest}]"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://example.com/cat.png", ""),
        ("https://example.com/a,b.png", ""),
        ("data:image/png;base64,", ""),
        ("data:image/png;base64,A", ""),
        ("data:image/png;base64,!!!!", ""),
        (data_url(b"\x89PNG\r\n\x1a\n"), ""),
        (data_url(webp(b"ALPH", b"")), "WebP"),
        (data_url(b"\xff\xd8\xff"), "JPEG"),
        (data_url(jpeg(640, 3, before=9)), "JPEG"),
        (data_url(b"\xff\xd8\xff\xc4\x00\x02nothing follows"), "JPEG"),
    ],
)
def test_what_cannot_be_read_is_an_image_of_unknown_size(url: str, kind: str) -> None:
    facts = image_facts(url)
    assert facts[:3] == (kind, 0, 0)
    assert "unknown size" in str(facts)


def test_the_urls_alphabet_of_base64_is_read_too() -> None:
    data = png(255, 255) + b"\xfb\xff" * 4
    url = data_url(data).replace("+", "-").replace("/", "_")
    assert url != data_url(data)
    assert image_facts(url)[:3] == ("PNG", 255, 255)


def test_images_are_told_apart_by_their_digest() -> None:
    assert image_facts(data_url(png(1, 1))).digest != image_facts(data_url(png(1, 2))).digest
