"""Frames of clients are masked, or they are refused."""

from __future__ import annotations

import os

import pytest

from turnwire_server.transports.websocket_mask import MaskGuard

REFUSED = b"\xf0\x80"


class Recorder:
    """Keeps what it is fed with."""

    def __init__(self) -> None:
        self.data = b""
        self.is_over = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        self.is_over = True


def frame(size: int, *, is_masked: bool = True) -> bytes:
    mask = 0x80 * is_masked
    if size < 126:
        head = bytes((0x81, mask | size))
    elif size < 65_536:
        head = bytes((0x81, mask | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x81, mask | 127)) + size.to_bytes(8, "big")
    return head + (os.urandom(4) if is_masked else b"") + os.urandom(size)


FRAMES = b"".join(frame(size) for size in (0, 1, 125, 126, 300, 65_535, 65_536, 7))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000, len(FRAMES)])
def test_masked_frames_pass_however_they_are_cut(step: int) -> None:
    inner = Recorder()
    guard = MaskGuard(inner)
    for start in range(0, len(FRAMES), step):
        assert guard.feed_data(FRAMES[start : start + step]) == (False, b"")
    guard.feed_eof()
    assert inner.data == FRAMES
    assert inner.is_over


@pytest.mark.parametrize("step", [1, 2, 3, 1000, 10**6])
@pytest.mark.parametrize("size", [0, 5, 126, 65_536])
def test_the_first_frame_without_a_mask_is_refused_behind_those_before_it(
    step: int, size: int
) -> None:
    inner = Recorder()
    guard = MaskGuard(inner)
    data = FRAMES + frame(size, is_masked=False) + FRAMES
    for start in range(0, len(data), step):
        guard.feed_data(data[start : start + step])
    assert inner.data == FRAMES + REFUSED
    assert guard.feed_data(b"more") == (True, b"")
