from __future__ import annotations

from turnwire_server.codec.memo import ToolsMemo


def test_the_least_recently_used_tools_are_forgotten() -> None:
    memo = ToolsMemo(max_entries=2)
    memo.put(b"a", b"1")
    memo.put(b"b", b"2")
    assert memo.get(b"a") == b"1"

    memo.put(b"c", b"3")

    assert (memo.get(b"a"), memo.get(b"b"), memo.get(b"c")) == (b"1", None, b"3")


def test_bytes_are_bounded() -> None:
    memo = ToolsMemo(max_bytes=10)
    memo.put(b"a", b"x" * 6)
    memo.put(b"b", b"x" * 6)
    memo.put(b"c", b"x" * 11)

    assert (memo.get(b"a"), memo.get(b"b"), memo.get(b"c")) == (None, b"x" * 6, None)
    memo.put(b"d", b"x" * 4)
    assert len(memo) == 2


def test_equal_tools_have_equal_keys() -> None:
    assert ToolsMemo.key(b"[]") == ToolsMemo.key(b"[]") != ToolsMemo.key(b"[ ]")
