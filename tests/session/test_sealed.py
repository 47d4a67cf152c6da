from __future__ import annotations

import json

import pytest

from turnwire_server.session.sealed import (
    COMPACTION,
    REASONING,
    Compacted,
    opened_compaction,
    opened_reasoning,
    unseals_nothing,
)


def holding(kind, payload):
    return lambda asked, text: payload if (asked, text) == (kind, "sealed") else None


@pytest.mark.parametrize(
    "compacted",
    [Compacted("a 世"), Compacted("", "request", covers=True), Compacted('{"v": 2}', "\u2028")],
)
def test_a_compaction_comes_back_as_it_was(compacted):
    unseal = holding(COMPACTION, compacted.payload())
    assert opened_compaction("sealed", unseal) == compacted
    assert opened_compaction("other", unseal) is None


def test_the_request_is_only_told_where_there_is_one():
    assert "request" not in Compacted("s").text
    assert "s" in Compacted("s").text


@pytest.mark.parametrize(
    "payload",
    [
        b"not json",
        b"[]",
        b"\xff",
        json.dumps({"v": 99, "summary": "s", "request": "", "covers": False}).encode(),
        json.dumps({"v": 1, "summary": "s"}).encode(),
    ],
)
def test_a_compaction_of_another_version_is_not_opened(payload):
    assert opened_compaction("sealed", holding(COMPACTION, payload)) is None


def test_reasoning_comes_back_as_text():
    assert opened_reasoning("sealed", holding(REASONING, "世".encode())) == "世"
    assert opened_reasoning("sealed", holding(COMPACTION, b"x")) is None
    assert opened_reasoning("sealed", unseals_nothing) is None
