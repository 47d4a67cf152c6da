from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.clock import ManualClock
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimGeneration, SimSettings
from turnwire_server.adapters.engines.sim_agent import AgentSettings
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.adapters.renderers.sim_tokens import IM_END, sim_tokens
from turnwire_server.ports.engine import (
    Constraint,
    Engine,
    EngineFailure,
    EngineRequest,
    EngineStep,
    Sampling,
    TurnOutline,
)
from turnwire_server.ports.renderer import RenderRequest, ToolForce
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import NO_TOOLS, ToolSet, ToolSpec

SHELL = ToolSpec(
    "exec_command",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {"cmd": {"type": "string"}, "limit": {"type": "integer", "minimum": 5}},
            "required": ["cmd", "limit"],
        }
    ),
)
ADD = ToolSpec(
    "add",
    parameters='{"properties": {"a": {"type": "number"}}, "required": ["a"]}',
)
CODE = ToolSpec("exec", kind="custom", namespace="functions")
RENDERER = SimRenderer()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def tools(*specs: ToolSpec) -> ToolSet:
    return ToolSet.of(specs, repr(specs).encode())


def request(
    ids: Sequence[int] | TokenIds = range(100), *, max_tokens: int = 10_000, **fields: Any
) -> EngineRequest:
    outline = {
        key: fields.pop(key)
        for key in ("tools", "tool_choice", "tool_outputs", "script")
        if key in fields
    }
    if isinstance(outline.get("script"), dict):
        outline["script"] = json.dumps(outline["script"])
    return EngineRequest(
        request_id="resp_1",
        ids=ids if isinstance(ids, TokenIds) else TokenIds(ids),
        sampling=Sampling(max_tokens=max_tokens),
        stop_ids=RENDERER.stop_ids,
        outline=TurnOutline(**outline),
        **fields,
    )


async def engine(
    clock: ManualClock,
    *,
    script: Callable[[EngineRequest], str | Sequence[int] | None] | None = None,
    **settings: Any,
) -> SimEngine:
    made = SimEngine(SimSettings(**settings), clock, script=script)
    await made.start()
    return made


async def run(generation: AsyncIterator[EngineStep] | SimGeneration) -> list[EngineStep]:
    async with asyncio.timeout(20):
        return [step async for step in generation]


def all_ids(steps: Sequence[EngineStep]) -> list[int]:
    return [token for step in steps for token in step.ids]


def parsed(
    steps: Sequence[EngineStep],
    offered: ToolSet = NO_TOOLS,
    *,
    force: ToolForce | None = None,
) -> list[OutputPiece]:
    turn = RenderRequest(new_items=[], history=list, tools=offered, force=force)
    parser = RENDERER.parser(turn, RENDERER.render(turn))
    finish = steps[-1].finish
    assert finish is not None
    pieces = [*parser.feed(all_ids(steps)), *parser.finish(finish)]
    assert len(pieces) < 100
    return pieces


async def say(clock: ManualClock, wanted: EngineRequest, **settings: Any) -> list[OutputPiece]:
    made = await engine(clock, **settings)
    return parsed(await run(made.generate(wanted)), wanted.outline.tools)


# What it is -----------------------------------------------------------------------------------


async def test_it_says_that_it_is_a_simulation(clock: ManualClock) -> None:
    made: Engine = await engine(clock)
    assert made.info.simulated
    assert made.info.name == "sim"
    [text] = await say(clock, request())
    assert isinstance(text, TextDelta)
    assert text.text.startswith("Simulated answer: ")


async def test_the_same_prompt_gives_the_same_output_and_another_one_another(
    clock: ManualClock,
) -> None:
    first = all_ids(await run((await engine(clock)).generate(request(range(100)))))
    again = all_ids(await run((await engine(clock)).generate(request(range(100)))))
    others = [
        all_ids(await run((await engine(clock)).generate(request(range(seed, 100)))))
        for seed in range(1, 6)
    ]
    assert first == again
    assert len({tuple(ids) for ids in [first, *others]}) > 3


# Acting as an agent ---------------------------------------------------------------------------


async def test_it_calls_a_shell_like_tool_and_then_answers(clock: ManualClock) -> None:
    offered = tools(ADD, SHELL)
    assert await say(clock, request(tools=offered)) == [
        CallStarted("exec_command"),
        CallDelta('{"cmd": "echo hello", "limit": 5}'),
        CallEnded(),
    ]
    [text] = await say(clock, request(tools=offered, tool_outputs=1))
    assert isinstance(text, TextDelta)
    assert text.text.startswith("Simulated answer after 1 tool output: ")


async def test_it_makes_as_many_rounds_as_it_was_told(clock: ManualClock) -> None:
    settings = {"agent": AgentSettings(tool_rounds=2)}
    called = [
        isinstance(
            (await say(clock, request(tools=tools(ADD), tool_outputs=outputs), **settings))[0],
            CallStarted,
        )
        for outputs in range(4)
    ]
    assert called == [True, True, False, False]
    [text] = await say(clock, request(tools=tools(ADD)), agent=AgentSettings(tool_rounds=0))
    assert isinstance(text, TextDelta)


@pytest.mark.parametrize(
    ("specs", "name", "arguments"),
    [
        ((ADD,), "add", '{"a": 1}'),
        (
            (
                ADD,
                ToolSpec("bash", parameters='{"properties":{"command":{"type":"string"}}}'),
            ),
            "bash",
            '{"command": "echo hello"}',
        ),
        (
            (
                ToolSpec(
                    "shell",
                    parameters='{"properties":{"command":{"type":"array","items":{}}}}',
                ),
            ),
            "shell",
            '{"command": ["bash", "-lc", "echo hello"]}',
        ),
        (
            (ADD, ToolSpec("my_runner", parameters='{"properties":{"cmd":{"type":"string"}}}')),
            "my_runner",
            '{"cmd": "echo hello"}',
        ),
        ((ToolSpec("bare"),), "bare", "{}"),
        ((ToolSpec("broken", parameters="{"),), "broken", "{}"),
        ((ToolSpec("odd", parameters='{"type":"string"}'),), "odd", "{}"),
        ((ToolSpec("patch", kind="custom"), ADD), "add", '{"a": 1}'),
        ((ToolSpec("patch", kind="custom"),), "patch", "echo hello"),
        (
            (ToolSpec("wait", namespace="functions"), CODE),
            "exec",
            'text(await tools.exec_command({cmd:"echo hello"}))',
        ),
    ],
)
async def test_it_prefers_a_shell_and_satisfies_the_schema(
    clock: ManualClock, specs: tuple[ToolSpec, ...], name: str, arguments: str
) -> None:
    pieces = await say(clock, request(tools=tools(*specs)))
    [spec] = [spec for spec in specs if spec.name == name]
    assert pieces == [
        CallStarted(name, spec.namespace, spec.kind == "custom"),
        CallDelta(arguments),
        CallEnded(),
    ]


async def test_the_choice_of_the_tool_is_honoured(clock: ManualClock) -> None:
    offered = tools(SHELL, ADD)
    named = await say(clock, request(tools=offered, tool_choice="add", tool_outputs=5))
    assert named[0] == CallStarted("add")
    required = await say(clock, request(tools=offered, tool_choice="required", tool_outputs=5))
    assert required[0] == CallStarted("exec_command")
    [text] = await say(clock, request(tools=offered, tool_choice="none"))
    assert isinstance(text, TextDelta)
    calls = {"calls": [{"name": "add"}]}
    [text] = await say(clock, request(tools=offered, tool_choice="none", script=calls))
    assert isinstance(text, TextDelta)


async def test_a_forced_call_goes_on_from_the_opening_in_the_prompt(clock: ManualClock) -> None:
    offered, force = tools(SHELL, ADD), ToolForce(("add",))
    turn = RenderRequest(new_items=[], history=list, tools=offered, force=force)
    rendered = RENDERER.render(turn)
    script = {"text": "not this", "reasoning": "nor this"}
    wanted = request(
        rendered.prompt.ids, tools=offered, tool_choice="add", tool_outputs=3, script=script
    )
    steps = await run((await engine(clock)).generate(wanted))
    assert parsed(steps, offered, force=force) == [
        CallStarted("add"),
        CallDelta('{"a": 1}'),
        CallEnded(),
    ]


async def test_an_answer_has_the_format_asked_for(clock: ManualClock) -> None:
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    for constraint, text in (
        (Constraint("json_schema", schema), '{"n": 1}'),
        (Constraint("json_object", ""), '{"answer": "simulated"}'),
    ):
        assert await say(clock, request(constraint=constraint)) == [TextDelta(text)]


async def test_lengths_can_be_set(clock: ManualClock) -> None:
    made = await engine(clock, agent=AgentSettings(answer_tokens=7, call_tokens=60))
    assert len(all_ids(await run(made.generate(request())))) == 8
    calling = await run(made.generate(request(tools=tools(SHELL))))
    assert 60 <= len(all_ids(calling)) <= 64
    [_, arguments, _] = parsed(calling, tools(SHELL))
    assert isinstance(arguments, CallDelta)
    assert json.loads(arguments.text)["cmd"].startswith("echo hello # x")
    coding = await run(made.generate(request(tools=tools(CODE))))
    assert 60 <= len(all_ids(coding)) <= 64


# Scripts --------------------------------------------------------------------------------------


async def test_a_script_gives_reasoning_text_and_calls(clock: ManualClock) -> None:
    script = {
        "reasoning": "hm",
        "text": "Calling.",
        "calls": [
            {"name": "add", "arguments": {"a": 2}},
            {"name": "functions.exec", "input": 'say "</tool_call>"\n'},
            {"name": "unknown"},
        ],
    }
    offered = tools(ADD, CODE)
    pieces = await say(clock, request(tools=offered, script=script))
    assert pieces[:8] == [
        ReasoningDelta("hm"),
        TextDelta("Calling."),
        CallStarted("add"),
        CallDelta('{"a": 2}'),
        CallEnded(),
        CallStarted("exec", "functions", custom=True),
        CallDelta('say "</tool_call>"\n'),
        CallEnded(),
    ]
    assert isinstance(pieces[8], TextDelta)
    assert '"unknown"' in pieces[8].text
    assert await say(clock, request(tools=offered, script=script, tool_outputs=1)) == [
        ReasoningDelta("hm"),
        TextDelta("Calling."),
    ]


async def test_text_may_follow_scripted_calls(clock: ManualClock) -> None:
    script = {"calls": [{"name": "add"}], "after": "Done."}
    pieces = await say(clock, request(tools=tools(ADD), script=script))
    assert pieces[-1] == TextDelta("Done.")
    assert pieces[0] == CallStarted("add")


async def test_a_scripted_message_has_the_length_asked_for(clock: ManualClock) -> None:
    made = await engine(clock)
    for script, length in (
        ({"tokens": 500}, 501),
        ({"text": "one two three", "tokens": 2}, 3),
        ({"text": "hi", "tokens": 9}, 10),
    ):
        steps = await run(made.generate(request(tools=tools(ADD), script=script)))
        assert len(all_ids(steps)) == length
        assert steps[-1].finish == "stop"


@pytest.mark.parametrize("name", ["emoji", "cjk"])
async def test_characters_can_be_split_across_tokens(clock: ManualClock, name: str) -> None:
    made = await engine(clock, step_tokens=1)
    steps = await run(made.generate(request(script=name)))
    [text] = parsed(steps)
    assert isinstance(text, TextDelta)
    assert "\ufffd" not in text.text
    assert len(all_ids(steps)) == len(text.text.encode()) + 1


async def test_a_script_that_cannot_be_read_is_answered_with_the_reason(
    clock: ManualClock,
) -> None:
    assert await say(clock, request(script='{"tokens": "x"}')) == [
        TextDelta(
            "Simulated answer; the script was not used: `tokens` must be a number from 0 to 1e+06."
        )
    ]


async def test_a_script_can_break_the_engine(clock: ManualClock) -> None:
    made = await engine(clock)
    generation = made.generate(request(script={"tokens": 100, "fail_after": 40}))
    got: list[int] = []
    with pytest.raises(EngineFailure):
        async for step in generation:
            got += step.ids
    assert len(got) == 40
    assert await run(generation) == []


async def test_a_hook_decides_what_is_said(clock: ManualClock) -> None:
    made = await engine(clock, script=lambda wanted: "<think>a</think>b" if wanted.ids[0] else None)
    assert parsed(await run(made.generate(request([1])))) == [ReasoningDelta("a"), TextDelta("b")]
    [text] = parsed(await run(made.generate(request([0]))))
    assert isinstance(text, TextDelta)
    assert text.text.startswith("Simulated")
    raw = await engine(clock, script=lambda wanted: [5, 6, IM_END])
    assert all_ids(await run(raw.generate(request()))) == [5, 6, IM_END]


async def test_a_trace_is_replayed_line_by_line_with_its_times(
    clock: ManualClock, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"calls": [{"name": "add"}, {"name": "add"}]}\n'
        '{"steps": [[0.5, "<tool_call>{\\"name\\": \\"add\\"}</tool_call>"]]}\n'
        '{"steps": [[0.5, "Hello"], [1.5, " world"]]}\n'
    )
    made = await engine(clock, trace_path=path)
    offered = tools(ADD)
    first = parsed(await run(made.generate(request(tools=offered))), offered)
    assert first.count(CallEnded()) == 2
    second = made.generate(request(tools=offered, tool_outputs=2))
    clock.advance(0.5)
    assert parsed(await run(second), offered)[0] == CallStarted("add")
    for outputs in (3, 9):
        last = made.generate(request(tools=offered, tool_outputs=outputs))
        assert (await anext(last)).ids == []
        reading = asyncio.ensure_future(anext(last))
        await clock.until_sleeping()
        clock.advance(0.5)
        assert (await reading).ids == sim_tokens().encode("Hello")
        clock.advance(1.5)
        step = await anext(last)
        assert step.ids == [*sim_tokens().encode(" world"), IM_END]
        assert step.finish == "stop"


@pytest.mark.parametrize("content", [None, '{"text": 1}', b"\xff"])
async def test_a_trace_that_cannot_be_read_stops_the_start(
    clock: ManualClock, tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EngineFailure, match="trace"):
        await engine(clock, trace_path=path)


# The end --------------------------------------------------------------------------------------


async def test_a_turn_ends_with_the_end_of_turn_id(clock: ManualClock) -> None:
    steps = await run((await engine(clock)).generate(request()))
    assert steps[-1].finish == "stop"
    assert all_ids(steps)[-1] == IM_END
    assert [step.finish for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert all(len(step.ids) <= 32 for step in steps)


async def test_max_tokens_and_the_context_cut_the_output(clock: ManualClock) -> None:
    made = await engine(clock, context_length=110)
    for wanted, length in (
        (request(max_tokens=5, script={"tokens": 5}), 5),
        (request(script={"tokens": 50}), 10),
        (request(range(200), script={"tokens": 50}), 0),
    ):
        steps = await run(made.generate(wanted))
        assert steps[-1].finish == "length"
        assert len(all_ids(steps)) == length


async def test_a_warm_up_fills_the_cache_and_generates_nothing(clock: ManualClock) -> None:
    made = await engine(clock)
    ids = TokenIds(range(100))
    warm = await run(made.generate(request(ids, max_tokens=0, prefill_only=True)))
    assert warm == [EngineStep((), "stop", 0)]
    steps = await run(made.generate(request(ids.extended([1, 2]))))
    assert steps[0].cached_tokens == 100
    assert [step.cached_tokens for step in steps[1:]] == [None] * (len(steps) - 1)


async def test_the_next_turn_finds_prompt_and_output_cached(clock: ManualClock) -> None:
    made = await engine(clock)
    ids = TokenIds(range(100))
    said = all_ids(await run(made.generate(request(ids))))
    longer = ids.extended([*said, 1, 2, 3])
    [first, *_] = await run(made.generate(request(longer)))
    assert first.cached_tokens == len(longer) - 3


# The pace -------------------------------------------------------------------------------------


async def test_tokens_come_at_the_rate_and_a_late_reader_gets_a_batch(clock: ManualClock) -> None:
    made = await engine(clock, tokens_per_second=10)
    generation = made.generate(request(script={"tokens": 20}))
    async with asyncio.timeout(20):
        assert len((await anext(generation)).ids) == 1
        reading = asyncio.ensure_future(anext(generation))
        await clock.until_sleeping()
        clock.advance(0.1)
        assert len((await reading).ids) == 1
        clock.advance(0.75)
        assert len((await anext(generation)).ids) == 7
        clock.advance(60)
        last = await anext(generation)
        assert (len(last.ids), last.finish) == (12, "stop")


async def test_a_token_whose_time_has_come_is_there_however_coarse_the_clock_is() -> None:
    clock = ManualClock(monotonic=1e6)  # its last digit is more than a millionth of a token
    made = await engine(clock, tokens_per_second=100_000)
    generation = made.generate(request(script={"tokens": 100}))
    async with asyncio.timeout(20):
        await anext(generation)
        for index in range(1, 100):
            clock.advance(1e6 + index / 100_000 - clock.monotonic())
            assert len((await anext(generation)).ids) == 1


async def test_prefill_takes_time_for_what_is_not_cached(clock: ManualClock) -> None:
    made = await engine(clock, prefill_tokens_per_second=100)
    ids = TokenIds(range(200))
    reading = asyncio.ensure_future(anext(made.generate(request(ids))))
    await clock.until_sleeping()
    clock.advance(1.9)
    await asyncio.sleep(0)
    assert not reading.done()
    clock.advance(0.1)
    assert (await reading).cached_tokens == 0
    again = asyncio.ensure_future(anext(made.generate(request(ids.extended([1] * 10)))))
    await clock.until_sleeping()
    clock.advance(0.1)
    assert (await again).cached_tokens == 200


async def test_silence_can_be_scripted(clock: ManualClock) -> None:
    made = await engine(clock)
    script = {"tokens": 10, "silent_s": 30, "silent_after": 4}
    generation = made.generate(request(script=script))
    assert len((await anext(generation)).ids) == 4
    reading = asyncio.ensure_future(anext(generation))
    await clock.until_sleeping()
    clock.advance(29)
    await asyncio.sleep(0)
    assert not reading.done()
    clock.advance(1)
    assert len((await reading).ids) == 7


async def test_the_first_step_comes_after_prefill_even_without_ids(clock: ManualClock) -> None:
    made = await engine(clock)
    generation = made.generate(request(script={"silent_s": 30}))
    assert await anext(generation) == EngineStep([], None, 0)


async def test_a_script_can_set_the_rate(clock: ManualClock) -> None:
    made = await engine(clock)
    generation = made.generate(request(script={"tokens": 9, "tokens_per_second": 2}))
    assert len((await anext(generation)).ids) == 1
    clock.advance(1)
    assert len((await anext(generation)).ids) == 2


async def test_a_reader_that_is_too_late_gets_an_overrun(clock: ManualClock) -> None:
    made = await engine(clock, tokens_per_second=100)
    generation = made.generate(request(script={"tokens": 5_000}, max_pending_tokens=50))
    assert len((await anext(generation)).ids) == 1
    clock.advance(0.5)
    assert len((await anext(generation)).ids) == 50
    clock.advance(0.6)
    [last] = await run(generation)
    assert (len(last.ids), last.finish) == (50, "overrun")


async def test_a_reader_that_pulls_never_overruns(clock: ManualClock) -> None:
    made = await engine(clock)
    generation = made.generate(request(script={"tokens": 500}, max_pending_tokens=20))
    clock.advance(1_000)
    steps = await run(generation)
    assert steps[-1].finish == "stop"
    assert max(len(step.ids) for step in steps) == 20


async def test_reading_does_not_starve_the_loop(clock: ManualClock) -> None:
    made = await engine(clock)
    other = asyncio.ensure_future(asyncio.sleep(0))
    async for _ in made.generate(request(script={"tokens": 500})):
        if other.done():
            break
    assert other.done()


# Cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"prefill_tokens_per_second": 10.0}, {"tokens_per_second": 0.1}]
)
async def test_cancelling_ends_a_wait_at_once(
    clock: ManualClock, settings: dict[str, float]
) -> None:
    made = await engine(clock, **settings)
    generation = made.generate(request(script={"tokens": 20}))
    reading = asyncio.ensure_future(run(generation))
    await clock.until_sleeping()
    generation.cancel()
    generation.cancel()
    async with asyncio.timeout(20):
        steps = await reading
    assert steps[-1].finish == "cancelled"
    assert steps[0].cached_tokens == 0
    assert reading.cancelling() == 0
    assert clock.sleepers == 0


async def test_a_prompt_cancelled_in_prefill_is_not_cached(clock: ManualClock) -> None:
    made = await engine(clock, prefill_tokens_per_second=10)
    ids = TokenIds(range(200))
    generation = made.generate(request(ids))
    reading = asyncio.ensure_future(run(generation))
    await clock.until_sleeping()
    generation.cancel()
    await reading
    again = made.generate(request(ids, prefill_only=True))
    clock.advance(60)
    assert await run(again) == [EngineStep((), "stop", 0)]


async def test_what_was_ready_comes_with_the_cancellation(clock: ManualClock) -> None:
    made = await engine(clock, tokens_per_second=10)
    generation = made.generate(request(script={"tokens": 20}))
    await anext(generation)
    clock.advance(0.5)
    generation.cancel()
    [last] = await run(generation)
    assert (len(last.ids), last.finish) == (5, "cancelled")


async def test_cancelling_before_the_first_read_generates_nothing(clock: ManualClock) -> None:
    generation = (await engine(clock)).generate(request())
    generation.cancel()
    assert await run(generation) == [EngineStep((), "cancelled", 0)]


async def test_cancelling_when_it_is_over_does_nothing(clock: ManualClock) -> None:
    generation = (await engine(clock)).generate(request())
    steps = await run(generation)
    generation.cancel()
    assert steps[-1].finish == "stop"
    assert await run(generation) == []


async def test_a_cancelled_reader_is_really_cancelled(clock: ManualClock) -> None:
    made = await engine(clock, tokens_per_second=0.1)
    generation = made.generate(request(script={"tokens": 20}))
    reading = asyncio.ensure_future(run(generation))
    await clock.until_sleeping()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    both = asyncio.ensure_future(run(made.generate(request(script={"tokens": 20}))))
    await clock.until_sleeping()
    both.cancel()
    await made.close()
    with pytest.raises(asyncio.CancelledError):
        await both


async def test_closing_cancels_what_runs_and_refuses_more(clock: ManualClock) -> None:
    made = await engine(clock, tokens_per_second=0.1)
    reading = asyncio.ensure_future(run(made.generate(request(script={"tokens": 20}))))
    await clock.until_sleeping()
    await made.close()
    await made.close()
    assert (await reading)[-1].finish == "cancelled"
    with pytest.raises(EngineFailure):
        await run(made.generate(request()))


async def test_an_engine_that_was_not_started_fails(clock: ManualClock) -> None:
    with pytest.raises(EngineFailure):
        await run(SimEngine(SimSettings(), clock).generate(request()))


async def test_an_answer_is_the_same_again_however_long_it_was_made_before(
    clock: ManualClock,
) -> None:
    made = await engine(clock)
    text = [all_ids(await run(made.generate(request()))) for _ in range(2)]
    long = all_ids(await run(made.generate(request(script={"tokens": 300}))))
    again = all_ids(await run(made.generate(request())))
    assert text == [again, again]
    assert len(long) == 301 and long[: len(again) - 1] == again[:-1]
    words = sim_tokens().vocabulary.decode(long[:-1])
    assert " and then a tool answers when it is asked" in words
    assert words.count("what was sent before is not sent again and then a tool") >= 2


async def test_a_generation_that_is_over_is_no_cycle() -> None:
    made = SimEngine(SimSettings(tokens_per_second=1_000.0), SystemClock())
    await made.start()
    generation = made.generate(request(script={"tokens": 3}))
    await run(generation)
    gone = weakref.ref(generation)
    gc.disable()
    try:
        del generation
        assert gone() is None
    finally:
        gc.enable()
