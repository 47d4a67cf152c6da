from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from turnwire_server.adapters.allocator import find_trim


def test_freed_memory_can_be_given_back_where_the_c_library_has_a_call_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def malloc_trim(pad: int) -> int:
        asked.append(pad)
        return 1

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=malloc_trim))
    trim = find_trim()
    assert trim is not None
    trim()
    assert asked == [0]


def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    assert find_trim() is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_trim() is None
