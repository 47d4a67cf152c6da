"""Items that a client resends are known again, in whatever form; others are not."""

from __future__ import annotations

from typing import Any

import pytest

from turnwire.openai._items import ROOT, chain, items_of, root_of

ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "clock",
    "arguments": '{"zone":"UTC"}',
    "status": "completed",
}


def digest(*items: object) -> bytes:
    return chain(ROOT, items)[-1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"role": "user", "content": "Hi"}, {"type": "message", "role": "user", "content": "Hi"}),
        (
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ),
        (ANSWER, {"role": "assistant", "content": "Hi."}),
        (ANSWER, {**ANSWER, "id": None, "status": None, "phase": None}),
        (ANSWER, {**ANSWER, "content": [{"type": "output_text", "text": "Hi.", "parsed": None}]}),
        (CALL, {name: CALL[name] for name in ("arguments", "name", "call_id", "type")}),
        (
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {"type": "reasoning", "summary": [], "content": None},
        ),
    ],
)
def test_two_forms_of_one_item_have_one_digest(first: Any, second: Any) -> None:
    assert digest(first) == digest(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi!"}),
        ({"role": "user", "content": "Hi"}, {"role": "developer", "content": "Hi"}),
        ({"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hi."}),
        (CALL, {**CALL, "call_id": "call_2"}),
        (CALL, {**CALL, "arguments": '{"zone": "UTC"}'}),
        (CALL, {**CALL, "namespace": "time"}),
        (
            ANSWER,
            {**ANSWER, "content": [{"type": "output_text", "text": "Hi.", "annotations": [{}]}]},
        ),
        (
            {"type": "item_reference", "id": "msg_1"},
            {"type": "item_reference", "id": "msg_2"},
        ),
        ("text", {"role": "user", "content": "text"}),
    ],
)
def test_what_differs_has_another_digest(first: Any, second: Any) -> None:
    assert digest(first) != digest(second)


def test_a_digest_stands_for_the_whole_prefix() -> None:
    first, second = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    digests = chain(ROOT, [first, second])
    assert len(set(digests)) == len(digests) == 3
    assert digests == [ROOT, digest(first), digest(first, second)]
    assert digest(second, first) != digests[-1]
    assert chain(root_of("resp_1"), [first])[-1] not in digests


def test_text_is_a_user_message() -> None:
    assert digest(*(items_of("Hi") or [])) == digest({"role": "user", "content": "Hi"})
    assert items_of(None) is None


def test_an_item_nested_too_deep_is_refused() -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValueError, match="not JSON"):
        chain(ROOT, [{"type": "custom", "deep": deep}])
