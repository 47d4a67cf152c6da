from __future__ import annotations

import ctypes
import gc
import sys
from types import SimpleNamespace

import pytest

from turnwire_server.adapters.allocator import EmptyCaches, find_trim


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


def test_caches_are_emptied_once_when_fewer_than_a_quarter_of_the_sessions_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: emptied.append("free lists"))
    monkeypatch.setattr(sys, "_clear_type_cache", lambda: emptied.append("methods"), raising=False)
    counts = iter((0, 99, 0, 400, 800, 200, 199, 100, 300, 200, 99, 74, 0))
    empty_caches = EmptyCaches(lambda: next(counts))
    done = []
    for _ in range(13):
        empty_caches()
        done.append(len(emptied))
    assert done == [0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 4, 4]
    assert emptied == ["free lists", "methods"] * 2


def test_free_lists_alone_are_emptied_where_python_does_not_forget_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: emptied.append("free lists"))
    monkeypatch.delattr(sys, "_clear_type_cache", raising=False)
    counts = iter((100, 0))
    empty_caches = EmptyCaches(lambda: next(counts))
    empty_caches()
    empty_caches()
    assert emptied == ["free lists"]
