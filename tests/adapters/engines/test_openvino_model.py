"""The engine and its renderer on a real model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from operator import eq
from pathlib import Path

import pytest
import pytest_asyncio

from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.adapters.engines.engine_host import EngineHost
from turnwire_server.adapters.engines.openvino import OpenVinoEngine, OpenVinoSettings
from turnwire_server.adapters.renderers.chat_model import model_of_gguf
from turnwire_server.adapters.renderers.chat_template import ChatTemplateRenderer
from turnwire_server.adapters.renderers.gguf import read_gguf
from turnwire_server.ports.engine import (
    Constraint,
    EngineFailure,
    EngineRequest,
    EngineStep,
    Sampling,
)
from turnwire_server.ports.renderer import RenderRequest, ToolForce
from turnwire_server.session.output import CallDelta, CallEnded, CallStarted
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import ToolSet, ToolSpec

# One engine for all tests, so they share its loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = ToolSet.of(
    (
        ToolSpec(
            "get_weather",
            description="Tells the weather of a city",
            parameters=json.dumps(
                {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "days": {"type": "integer", "minimum": 1, "maximum": 7},
                    },
                    "required": ["city", "days"],
                }
            ),
        ),
    ),
    b"weather",
)

TRIP = {
    "type": "object",
    "properties": {
        "to": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 4},
                "by": {"enum": ["train", "boat"]},
            },
            "required": ["city", "by"],
            "additionalProperties": False,
        },
        "days": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {"at": {"type": "integer", "minimum": 0, "maximum": 23}},
                "required": ["at"],
                "additionalProperties": False,
            },
        },
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 4}]},
    },
    "required": ["to", "days", "note"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHost]:
    made = EngineHost()
    made.start(tmp_path_factory.mktemp("host") / "engines")
    yield made
    async with asyncio.timeout(20):
        await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2_path: Path, host: EngineHost) -> AsyncIterator[OpenVinoEngine]:
    made = OpenVinoEngine(OpenVinoSettings(smollm2_path), host=host.place)
    async with asyncio.timeout(120):
        await made.start()
    yield made
    async with asyncio.timeout(20):
        await made.close()


@pytest.fixture(scope="module")
def renderer(smollm2_path: Path) -> ChatTemplateRenderer:
    return ChatTemplateRenderer(model_of_gguf(read_gguf(smollm2_path)))


@pytest.fixture(scope="module")
def fresh() -> Iterator[int]:
    """Numbers for prompts that no other test has put into the cache."""
    return iter(range(1, 1000))


def user(text: str) -> item_pb2.Item:
    return item_pb2.Item(
        message=item_pb2.MessageItem(role="user", content=content_pb2.Content(text=text))
    )


def tokens(number: int, count: int) -> TokenIds:
    """A prompt of `count` ids that differs from the first id on."""
    return TokenIds([100 + number, *((index * 37) % 20_000 + 1000 for index in range(count - 1))])


def request(renderer: ChatTemplateRenderer, ids: TokenIds, **changes) -> EngineRequest:
    sampling = changes.pop("sampling", Sampling(max_tokens=changes.pop("most", 12)))
    return EngineRequest("resp_1", ids, sampling, stop_ids=renderer.stop_ids, **changes)


async def steps_of(generation) -> list[EngineStep]:
    async with asyncio.timeout(60):
        return [step async for step in generation]


def joined(steps: list[EngineStep]) -> list[int]:
    return [token for step in steps for token in step.ids]


async def test_the_context_is_the_models_own(engine):
    assert engine.info.context_length == 8192


async def test_the_prefix_cache_changes_nothing_but_what_is_computed(engine, renderer, fresh):
    ids = tokens(next(fresh), 150)
    cold = await steps_of(engine.generate(request(renderer, ids)))
    warm = await steps_of(engine.generate(request(renderer, ids)))
    assert joined(cold) == joined(warm)
    assert len(joined(cold)) == 12
    assert (cold[0].cached_tokens, warm[0].cached_tokens) == (0, 128)
    assert [step.finish for step in cold][-1] == "length"
    assert all(step.cached_tokens is None for step in warm[1:])


async def test_a_next_turn_finds_prompt_and_answer_in_the_cache(engine, renderer, fresh):
    ids = tokens(next(fresh), 60)
    first = joined(await steps_of(engine.generate(request(renderer, ids, most=40))))
    longer = ids.extended([*first, *tokens(0, 30)])
    steps = await steps_of(engine.generate(request(renderer, longer)))
    # 99 tokens are computed after the first turn: three whole blocks of 32.
    assert steps[0].cached_tokens == 96


async def test_generations_side_by_side_give_what_they_give_alone(engine, renderer, fresh):
    prompts = [tokens(next(fresh), 20 + 17 * index) for index in range(4)]
    together = await asyncio.gather(
        *(steps_of(engine.generate(request(renderer, ids))) for ids in prompts)
    )
    for ids, steps in zip(prompts, together, strict=True):
        alone = await steps_of(engine.generate(request(renderer, ids)))
        assert joined(alone)[:4] == joined(steps)[:4]


async def test_a_seed_repeats_a_sample(engine, renderer, fresh):
    ids = tokens(next(fresh), 20)

    async def sample(seed: int | None) -> list[int]:
        sampling = Sampling(max_tokens=16, temperature=1.5, top_p=0.95, seed=seed)
        return joined(await steps_of(engine.generate(request(renderer, ids, sampling=sampling))))

    first, again, other, unset = [await sample(seed) for seed in (1, 1, 2, None)]
    assert first == again
    assert first != other
    assert unset not in (first, other)


async def test_a_warm_up_fills_the_cache_and_says_nothing(engine, renderer, fresh):
    ids = tokens(next(fresh), 100)
    warm = request(renderer, ids, sampling=Sampling(max_tokens=0), prefill_only=True)
    steps = await steps_of(engine.generate(warm))
    assert [(list(step.ids), step.finish) for step in steps] == [([], "stop")]
    assert (await steps_of(engine.generate(request(renderer, ids))))[0].cached_tokens == 96


async def test_a_cancel_in_prefill_frees_the_engine(engine, renderer, fresh):
    ids = tokens(next(fresh), 1500)
    running = engine.generate(request(renderer, tokens(next(fresh), 8), most=2000))
    async with asyncio.timeout(60):
        await anext(running)
        long = engine.generate(request(renderer, ids, most=5))
        # Every step gives this one a token and the long prompt a chunk.
        for _ in range(5):
            await anext(running)
    long.cancel()
    running.cancel()
    assert await steps_of(long) == [EngineStep(ids=[], finish="cancelled")]
    # Had the prefill gone on, this prompt would be in the cache by now.
    again = await steps_of(engine.generate(request(renderer, ids, most=1)))
    assert again[0].cached_tokens is not None
    assert 0 < again[0].cached_tokens < 1000


async def test_a_cancel_in_decode_stops_and_keeps_what_was_ready(engine, renderer, fresh):
    generation = engine.generate(request(renderer, tokens(next(fresh), 30), most=4000))
    got: list[int] = []
    async with asyncio.timeout(60):
        async for step in generation:
            got += step.ids
            if len(got) >= 5 and step.finish is None:
                generation.cancel()
    assert step.finish == "cancelled"
    assert 5 <= len(got) < 4000
    after = await steps_of(engine.generate(request(renderer, tokens(next(fresh), 8), most=1)))
    assert after[-1].finish == "length"


async def test_a_model_that_goes_in_circles_is_stopped(engine, renderer):
    prompt = TokenIds(renderer._tokenizer.encode("Hello, hello, hello, hello, hello,"))
    # Without an end of its own a model of this size always comes to that.
    endless = EngineRequest("resp_1", prompt, Sampling(max_tokens=2000))
    steps = await steps_of(engine.generate(endless))
    assert steps[-1].finish == "repeated"
    said = joined(steps)
    assert 256 <= len(said) < 2000
    period = range(1, 257)
    assert any(sum(map(eq, said[-96 - n : -n], said[-96:])) > 90 for n in period)
    # Nothing is left of it that would hold up the next one.
    following = await steps_of(engine.generate(request(renderer, prompt, most=4)))
    assert following[-1].finish == "length"


async def test_a_forced_call_is_valid_for_its_tool(engine, renderer):
    wanted = RenderRequest(
        [user("What is the weather in Zürich for the next 3 days?")],
        list,
        instructions="Call the tool.",
        tools=WEATHER,
        force=ToolForce(("get_weather",)),
    )
    rendered = renderer.render(wanted)
    steps = await steps_of(
        engine.generate(
            request(renderer, rendered.prompt.ids, most=200, constraint=rendered.constraint)
        )
    )
    assert steps[-1].finish == "stop"
    parser = renderer.parser(wanted, rendered)
    pieces = [piece for step in steps for piece in parser.feed(step.ids)]
    pieces += parser.finish("stop")
    assert pieces[0] == CallStarted("get_weather")
    assert pieces[-1] == CallEnded()
    written = "".join(piece.text for piece in pieces if isinstance(piece, CallDelta))
    arguments = json.loads(written)
    assert isinstance(arguments["city"], str)
    assert 1 <= arguments["days"] <= 7
    assert json.dumps(arguments, separators=(",", ":"), ensure_ascii=False) == written


async def forced_arguments(engine, renderer, tool: ToolSpec, sampling: Sampling) -> list[str]:
    """Force a call; return its arguments as they were streamed."""
    wanted = RenderRequest(
        [user("Plan a trip to Kyoto.")],
        list,
        tools=ToolSet.of((tool,), tool.name.encode()),
        force=ToolForce((tool.name,)),
    )
    rendered = renderer.render(wanted)
    asked = request(
        renderer, rendered.prompt.ids, sampling=sampling, constraint=rendered.constraint
    )
    steps = [step async for step in engine.generate(asked)]
    assert steps[-1].finish == "stop"
    parser = renderer.parser(wanted, rendered)
    pieces = [piece for step in steps for piece in parser.feed(step.ids)]
    pieces += parser.finish("stop")
    started = CallStarted(tool.name, custom=tool.kind == "custom")
    assert (pieces[0], pieces[-1]) == (started, CallEnded())
    return [piece.text for piece in pieces if isinstance(piece, CallDelta)]


async def test_a_forced_call_with_a_nested_schema_is_valid_every_time(engine, renderer):
    tool = ToolSpec("plan", parameters=json.dumps(TRIP))
    side_by_side = asyncio.Semaphore(16)

    async def call(number: int) -> None:
        temperature = (0.0, 0.7, 1.5)[number % 3]
        sampling = Sampling(max_tokens=150, temperature=temperature, seed=number)
        async with side_by_side:
            said = "".join(await forced_arguments(engine, renderer, tool, sampling))
        trip = json.loads(said)
        assert list(trip) == ["to", "days", "note"]
        assert list(trip["to"]) == ["city", "by"]
        assert isinstance(trip["to"]["city"], str) and len(trip["to"]["city"]) <= 4
        assert trip["to"]["by"] in ("train", "boat")
        assert 1 <= len(trip["days"]) <= 2
        for day in trip["days"]:
            assert list(day) == ["at"]
            assert type(day["at"]) is int and 0 <= day["at"] <= 23
        assert trip["note"] is None or len(trip["note"]) <= 4

    async with asyncio.timeout(240):
        await call(0)  # its prompt is in the prefix cache then
        await asyncio.gather(*(call(number) for number in range(1, 50)))


async def test_a_forced_custom_call_is_held_to_its_regex(engine, renderer):
    # With what JSON escapes.
    pattern = r"(mv|cp) \"[a-c]{1,3}\"\n"
    tool = ToolSpec("run", kind="custom", grammar=pattern, grammar_syntax="regex")
    async with asyncio.timeout(60):
        said = await forced_arguments(engine, renderer, tool, Sampling(max_tokens=60))
    assert re.fullmatch(pattern, "".join(said))


async def test_text_of_many_tokens_per_character_streams_whole(engine, renderer):
    texts = [
        "👩\u200d👩\u200d👧\u200d👦 and 🏳\ufe0f\u200d🌈",
        "東京で寿司を食べる",
        "a\u200db 🤷🏽\u200d♀\ufe0f 𠮷",
    ]
    fixed = {
        "type": "object",
        "properties": {f"t{index}": {"const": text} for index, text in enumerate(texts)},
        "required": [f"t{index}" for index in range(len(texts))],
        "additionalProperties": False,
    }
    tool = ToolSpec("say", parameters=json.dumps(fixed))
    async with asyncio.timeout(60):
        said = await forced_arguments(engine, renderer, tool, Sampling(max_tokens=250))
    assert len(said) > 5
    assert not any("\ufffd" in text for text in said)
    assert list(json.loads("".join(said)).values()) == texts


@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        (
            Constraint("json_schema", '{"enum":["yes","no"]}'),
            lambda text: text in ('"yes"', '"no"'),
        ),
        (Constraint("json_object", ""), lambda text: isinstance(json.loads(text), dict)),
        (
            Constraint("regex", r"(red|green)-\d{3}"),
            lambda text: text.startswith(("red-", "green-")),
        ),
    ],
)
async def test_constraints_hold(engine, renderer, constraint, check):
    rendered = renderer.render(RenderRequest([user("Pick one, briefly.")], list))
    steps = await steps_of(
        engine.generate(request(renderer, rendered.prompt.ids, most=300, constraint=constraint))
    )
    assert steps[-1].finish == "stop"
    said = b"".join(map(renderer._tokenizer.token_bytes, joined(steps))).decode()
    assert check(said)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", "{"),
        Constraint("json_schema", '{"$ref":"#/none"}'),
        Constraint("regex", "("),
        Constraint("lark", "start: x"),
    ],
)
async def test_a_constraint_that_cannot_be_enforced_fails_its_own_turn_only(
    engine, renderer, fresh, constraint
):
    other = engine.generate(request(renderer, tokens(next(fresh), 20)))
    with pytest.raises(EngineFailure):
        await steps_of(engine.generate(request(renderer, tokens(1, 20), constraint=constraint)))
    assert len(joined(await steps_of(other))) > 0


def text_of(renderer, ids, *, with_markup: bool = False) -> str:
    tokenizer = renderer._tokenizer
    return b"".join(
        tokenizer.token_text(token).encode()
        if with_markup and tokenizer.is_special(token)
        else tokenizer.token_bytes(token)
        for token in ids
    ).decode()


async def test_turns_keep_their_ids_and_render_only_what_is_new(engine, renderer):
    history: list[item_pb2.Item] = []
    previous: Prompt | None = None
    for text in ("My name is Ada.", "What is my name?", "Say it again."):
        wanted = RenderRequest(
            [user(text)], history.copy, previous=previous, instructions="Be brief."
        )
        rendered = renderer.render(wanted)
        cold = renderer.render(
            RenderRequest([*history, user(text)], list, instructions="Be brief.")
        )
        # A model may say a text in other ids than its tokenizer makes of it. They stay as they are.
        warm = text_of(renderer, rendered.prompt.ids, with_markup=True)
        assert warm == text_of(renderer, cold.prompt.ids, with_markup=True)
        if previous is not None:
            assert list(rendered.prompt.ids[: len(previous.ids)]) == list(previous.ids)
            assert rendered.rendered_tokens == len(rendered.prompt.ids) - len(previous.ids) - len(
                previous.tail
            )
        steps = await steps_of(engine.generate(request(renderer, rendered.prompt.ids, most=40)))
        ids = joined(steps)
        previous = renderer.sampled(rendered, ids, steps[-1].finish)
        said = text_of(renderer, ids)
        history += [
            user(text),
            item_pb2.Item(
                message=item_pb2.MessageItem(
                    role="assistant", content=content_pb2.Content(text=said)
                )
            ),
        ]


async def test_two_servers_share_one_model_and_its_prefixes(
    engine, host, smollm2_path, renderer, fresh
):
    other = OpenVinoEngine(OpenVinoSettings(smollm2_path), host=host.place)
    async with asyncio.timeout(60):
        await other.start()
    try:
        assert len(host.engines) == 1
        ids = tokens(next(fresh), 150)
        mixed = [each.generate(request(renderer, ids, most=6)) for each in (engine, other)]
        both = await asyncio.gather(*map(steps_of, mixed))
        again = await steps_of(other.generate(request(renderer, ids, most=6)))
        assert joined(both[0]) == joined(both[1]) == joined(again)
        assert again[0].cached_tokens >= 128
    finally:
        await other.close()
    assert len(joined(await steps_of(engine.generate(request(renderer, ids))))) > 0


async def test_a_killed_child_fails_its_turn_and_the_next_one_works(engine, host, renderer, fresh):
    ids = tokens(next(fresh), 40)
    before = joined(await steps_of(engine.generate(request(renderer, ids))))
    generation = engine.generate(request(renderer, tokens(next(fresh), 4000), most=100))
    (child,) = host.engines
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(EngineFailure, match="process ended"):
        await steps_of(generation)
    assert joined(await steps_of(engine.generate(request(renderer, ids)))) == before
