from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from turnwire_server.adapters.allocator import (
    ArenaLimit,
    EmptyCaches,
    find_arena_switch,
    find_trim,
)


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


def test_python_takes_no_arenas_while_many_are_served() -> None:
    told: list[tuple[int, bool]] = []
    at = 0
    limit = ArenaLimit(lambda is_allowed: told.append((at, is_allowed)))
    for at in (1, 99, 100, 101, 99, 51, 100, 51, 50, 99, 0, 100):
        limit.look(at)
    assert told == [(100, False), (50, True), (100, False)]


_FILLS_ARENAS = """
import os, re, sys, tempfile
from turnwire_server.adapters.allocator import find_arena_switch

def arenas():
    with tempfile.TemporaryFile() as told:
        stderr = os.dup(2)
        os.dup2(told.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(stderr, 2)
        os.close(stderr)
        told.seek(0)
        return int(re.search(rb"# arenas allocated current *= *(\\d+)", told.read())[1])

def taken():  # by objects that live at the same time
    before = arenas()
    made = [(number,) for number in range(100_000, 300_000)]
    return arenas() - before

switch = find_arena_switch()
counts = []
for is_allowed in (False, True, False):
    switch(is_allowed)
    counts.append(taken())
print(*counts)
"""


@pytest.mark.skipif(find_arena_switch() is None, reason="CPython on Linux has such a switch")
def test_objects_live_elsewhere_while_python_may_take_no_arena() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FILLS_ARENAS],
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONMALLOC": "pymalloc"},
    )
    refused, allowed, refused_again = map(int, done.stdout.split())
    assert refused == refused_again == 0
    assert allowed >= 10


def test_arenas_are_left_alone_where_there_is_no_such_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_arena_switch() is None
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "pythonapi", SimpleNamespace())
    assert find_arena_switch() is None


def test_arenas_of_somebody_elses_allocator_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get(found: Any) -> None:
        found._obj.ctx = 1

    def put(wanted: Any) -> None:
        raise AssertionError(wanted)

    api = SimpleNamespace(
        PyObject_GetArenaAllocator=get,
        PyObject_SetArenaAllocator=put,
        PyMem_RawMalloc=ctypes.pythonapi.PyMem_RawMalloc,
    )
    monkeypatch.setattr(ctypes, "pythonapi", api)
    assert find_arena_switch() is None


def test_arenas_are_left_alone_where_memory_without_measure_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Generous:
        def __call__(self, size: int) -> int:
            return 4096

    api = SimpleNamespace(
        PyObject_GetArenaAllocator=ctypes.pythonapi.PyObject_GetArenaAllocator,
        PyObject_SetArenaAllocator=ctypes.pythonapi.PyObject_SetArenaAllocator,
        PyMem_RawMalloc=Generous(),
    )
    monkeypatch.setattr(ctypes, "pythonapi", api)
    assert find_arena_switch() is None
