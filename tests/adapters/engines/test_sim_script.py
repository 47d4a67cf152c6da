from __future__ import annotations

import pytest

from turnwire_server.adapters.engines import sim_script
from turnwire_server.adapters.engines.sim_script import (
    NAMED_SCRIPTS,
    ScriptFailure,
    SimCall,
    SimScript,
    read_script,
    read_trace,
)


def test_a_script_is_a_name_an_object_or_the_message() -> None:
    assert read_script("emoji") is NAMED_SCRIPTS["emoji"]
    assert read_script("Say this") == SimScript(text="Say this")
    assert read_script(' {"text": "hi", "tokens": 3}') == SimScript(text="hi", tokens=3)


def test_every_member_is_read() -> None:
    assert read_script(
        '{"text":"t","after":"a","reasoning":"r","tool_rounds":2,"call_tokens":60,'
        '"tokens_per_second":1.5,"split_characters":true,"silent_s":2,"silent_after":3,'
        '"fail_after":4,"steps":[[0.5,"x"]],'
        '"calls":[{"name":"f","arguments":{"a":1}},{"name":"g","arguments":"{}"},'
        '{"name":"h","input":"i"}]}'
    ) == SimScript(
        text="t",
        after="a",
        reasoning="r",
        tool_rounds=2,
        call_tokens=60,
        tokens_per_second=1.5,
        split_characters=True,
        silent_s=2.0,
        silent_after=3,
        fail_after=4,
        steps=((0.5, "x"),),
        calls=(SimCall("f", '{"a": 1}'), SimCall("g", "{}"), SimCall("h", input="i")),
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("{", "not valid JSON"),
        ('{"secret": 1}', "unknown member; known are after, call_tokens"),
        ('{"text": 1}', "`text` must be a string"),
        ('{"tokens": -1}', "`tokens` must be a number from 0 to 1e"),
        ('{"tokens": true}', "`tokens` must be a number"),
        ('{"silent_s": 1e99}', "`silent_s` must be a number from 0 to 3600"),
        ('{"split_characters": 1}', "`split_characters` must be true or false"),
        ('{"calls": {}}', "`calls` must be a list"),
        ('{"calls": [{}]}', "an object with a `name`"),
        ('{"calls": [{"name": "f", "input": 1}]}', "`input` of a call must be a string"),
        ('{"steps": 1}', "`steps` must be a list"),
        ('{"steps": [[1]]}', r"must be \[seconds, text\]"),
    ],
)
def test_a_bad_script_is_told_without_its_content(script: str, why: str) -> None:
    with pytest.raises(ScriptFailure, match=why) as failure:
        read_script(script)
    assert "secret" not in str(failure.value)


def test_a_lone_surrogate_in_a_script_is_replaced() -> None:
    script = read_script('{"text": "a\\udcafb"}')
    assert script.text == "a?b"


def test_a_trace_is_one_script_per_line() -> None:
    trace = read_trace('# run 1\n{"text": "a"}\n\n{"steps": [[0.1, "b"]]}\n')
    assert trace == (SimScript(text="a"), SimScript(steps=((0.1, "b"),)))


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        ("", "has no lines"),
        ('{"text": "a"}\n{', "line 2 of the trace is not valid JSON"),
        ('{"text": 1}', "line 1 of the trace: `text` must be a string"),
        ("[]", "line 1 of the trace: a script must be a JSON object"),
    ],
)
def test_a_bad_trace_is_told_by_its_line(trace: str, why: str) -> None:
    with pytest.raises(ScriptFailure, match=why):
        read_trace(trace)


def test_scripts_of_numbers_are_known_again_and_no_others_nor_many() -> None:
    numbers = '{"tokens": 8, "silent_s": 0.5, "split_characters": true}'
    known = read_script(numbers)
    assert read_script(numbers) is known and known.tokens == 8 and known.silent_s == 0.5
    for other in ('{"text": "a"}', '{"tokens": 8, "calls": []}', '{"tokens":' + " " * 256 + "8}"):
        assert read_script(other) == read_script(other) is not read_script(other)
    for count in range(200):
        assert read_script(f'{{"tokens": {count}}}').tokens == count
    assert len(sim_script._known) <= 64
    with pytest.raises(ScriptFailure):
        read_script('{"tokens": -1}')
