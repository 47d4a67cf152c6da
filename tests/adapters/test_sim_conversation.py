from __future__ import annotations

import asyncio

from harness.clock import ManualClock
from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.ports.engine import EngineRequest, Sampling, TurnOutline
from turnwire_server.ports.renderer import RenderRequest
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tools import ToolSet, ToolSpec

TOOLS = ToolSet.of(
    (ToolSpec("bash", parameters='{"properties":{"command":{"type":"string"}}}'),), b"tools"
)


def user(text: str) -> item_pb2.Item:
    content = content_pb2.Content(text=text)
    return item_pb2.Item(message=item_pb2.MessageItem(role="user", content=content))


async def test_a_long_chain_renders_and_prefills_only_what_is_new() -> None:
    renderer, engine = SimRenderer(), SimEngine(SimSettings(), ManualClock())
    await engine.start()
    prompt: Prompt | None = None
    rendered_counts: list[int] = []
    missing: list[int] = []
    async with asyncio.timeout(20):
        for number in range(50):
            request = RenderRequest(
                new_items=[user(f"Turn {number:02d}")],
                history=list,
                previous=prompt,
                instructions="Help. " * 200,
                tools=TOOLS,
            )
            rendered = renderer.render(request)
            assert rendered.rerender_reason == ("" if number else "first")
            sampled: list[int] = []
            finish = None
            cached = None
            async for step in engine.generate(
                EngineRequest(
                    request_id=f"resp_{number}",
                    ids=rendered.prompt.ids,
                    sampling=Sampling(max_tokens=500),
                    stop_ids=renderer.stop_ids,
                    outline=TurnOutline(tools=TOOLS, tool_outputs=number % 2),
                )
            ):
                sampled += step.ids
                finish = step.finish
                cached = step.cached_tokens if cached is None else cached
            assert finish == "stop"
            assert cached is not None
            prompt = renderer.sampled(rendered, sampled, finish)
            rendered_counts.append(rendered.rendered_tokens)
            missing.append(len(rendered.prompt.ids) - cached)
    assert len(set(rendered_counts[1:])) == 1
    assert max(missing[1:]) <= max(rendered_counts[1:])
    await engine.close()


async def test_a_sampled_turn_is_what_its_items_render_to() -> None:
    renderer, engine = SimRenderer(), SimEngine(SimSettings(), ManualClock())
    await engine.start()
    first = RenderRequest(new_items=[user("Hi")], history=list, tools=TOOLS)
    rendered = renderer.render(first)
    script = '{"reasoning": "hm", "text": "Wait.", "calls": [{"name": "bash", "arguments": "{}"}]}'
    outline = TurnOutline(tools=TOOLS, script=script)
    sampled: list[int] = []
    async with asyncio.timeout(20):
        async for step in engine.generate(
            EngineRequest("resp_1", rendered.prompt.ids, Sampling(500), outline=outline)
        ):
            sampled += step.ids
    prompt = renderer.sampled(rendered, sampled, "stop")

    thought = content_pb2.ContentPart(reasoning_text=content_pb2.ReasoningText(text="hm"))
    said = item_pb2.MessageItem(role="assistant", content=content_pb2.Content(text="Wait."))
    call = item_pb2.FunctionCallItem(call_id="c", name="bash", arguments="{}")
    items = [
        user("Hi"),
        item_pb2.Item(reasoning=item_pb2.ReasoningItem(content=[thought])),
        item_pb2.Item(message=said),
        item_pb2.Item(function_call=call),
    ]
    cold = renderer.render(
        RenderRequest(new_items=items, history=list, tools=TOOLS, generate=False)
    )
    assert prompt == cold.prompt
