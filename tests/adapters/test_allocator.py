from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Sequence
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


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    emptied: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: emptied.append("free lists"))
    monkeypatch.setattr(sys, "_clear_type_cache", lambda: emptied.append("methods"), raising=False)
    return emptied


def emptied_at(counts: Sequence[int], emptied: list[str]) -> list[int]:
    """Return at which of the counts of sessions caches were emptied."""
    left = list(counts)
    empty_caches = EmptyCaches(lambda: left[0])
    found = []
    while left:
        before = len(emptied)
        empty_caches()
        if len(emptied) > before:
            found.append(left[0])
        del left[0]
    return found


def test_caches_are_emptied_when_fewer_than_a_quarter_of_the_sessions_are_left(
    emptied: list[str],
) -> None:
    assert emptied_at((0, 99, 0, 400, 800, 200, 199, 100, 300, 200, 99, 74), emptied) == [199, 74]
    assert emptied == ["free lists", "methods"] * 2


def test_of_those_that_are_left_then_a_quarter_again(emptied: list[str]) -> None:
    assert emptied_at((1000, 249, 240, 61, 20, 0, 0), emptied) == [249, 61, 0]
    assert emptied_at((1000, 90, 99, 0), emptied) == [90, 0]


def test_few_sessions_are_not_worth_it(emptied: list[str]) -> None:
    assert emptied_at((99, 0, 99, 0), emptied) == []
    assert emptied_at((1000, 90, 0, 99, 0), emptied) == [90, 0]


def test_looking_sees_sessions_that_were_gone_when_memory_was_given_back(
    emptied: list[str],
) -> None:
    counts = [0]
    empty_caches = EmptyCaches(lambda: counts[0])
    counts[0] = 500
    assert not empty_caches.look()
    counts[0] = 0
    assert empty_caches.look()
    empty_caches()
    assert not empty_caches.look()
    assert emptied == ["free lists", "methods"]


def test_free_lists_alone_are_emptied_where_python_does_not_forget_methods(
    emptied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys, "_clear_type_cache", raising=False)
    assert emptied_at((100, 0), emptied) == [0]
    assert emptied == ["free lists"]
