"""Turns of every kind. That their events are right is for the rules; here is what they are for."""

from __future__ import annotations

from typing import Final

from turnwire_server.conformance.checks import STREAMING, Collector, Failure, Json, Skip, bounded
from turnwire_server.conformance.clients.turn import Turn
from turnwire_server.conformance.context import CUSTOM_TOOL, TOOL, WHOLE_CALL, Context, hint

__all__ = ["SCENARIO"]

SCENARIO: Final = Collector("4.1")

_TURNWIRE: Final = ("turnwire",)


@SCENARIO("sequence.text", "A question is answered by a message with text.")
async def _text(context: Context) -> None:
    turn = (await context.turn("Say hello in one sentence.")).finished()
    if not turn.of_type("message") or not turn.text:
        raise Failure("the response has no message with text", turn.response)


@SCENARIO("sequence.function_call", "A required function is called, by name and with a call id.")
async def _function_call(context: Context) -> None:
    turn = await context.turn(
        "What is the weather in Paris?",
        tools=[TOOL],
        tool_choice="required",
        metadata={},
        max_output_tokens=WHOLE_CALL,
    )
    calls = turn.finished().of_type("function_call")
    context.skip_unless(calls or turn.status == "completed", "the model did not come to it")
    if not calls:
        raise Failure("`tool_choice` is `required` and nothing is called", turn.response)
    if calls[0].get("name") != TOOL["name"]:
        raise Failure(f"{bounded(calls[0].get('name'))} is called, which is no tool", calls[0])


@SCENARIO(
    "sequence.named_call",
    "`tool_choice` names the function that is called.",
    source="13",
)
async def _named_call(context: Context) -> None:
    other = {**TOOL, "name": "get_time", "description": "Tells the time in a city."}
    turn = await context.turn(
        "What is it like in Paris?",
        tools=[TOOL, other],
        tool_choice={"type": "function", "name": "get_time"},
        metadata={},
        max_output_tokens=WHOLE_CALL,
    )
    names = [call.get("name") for call in turn.finished().of_type("function_call")]
    if not names or set(names) != {"get_time"}:
        raise Failure(f"{bounded(names)} is called instead of get_time", turn.response)


@SCENARIO("sequence.no_call", "With `tool_choice: none` nothing is called.", source="13")
async def _no_call(context: Context) -> None:
    turn = await context.turn(
        "What is the weather in Paris?",
        tools=[TOOL],
        tool_choice="none",
        metadata={},
        max_output_tokens=WHOLE_CALL,
    )
    if turn.finished().of_type("function_call"):
        raise Failure("a function is called although none may be", turn.response)


@SCENARIO(
    "sequence.custom_call",
    "A custom tool is called with free-form input.",
    profiles=_TURNWIRE,
)
async def _custom_call(context: Context) -> None:
    turn = await context.turn(
        "Patch the file.",
        tools=[CUSTOM_TOOL],
        tool_choice={"type": "custom", "name": CUSTOM_TOOL["name"]},
        metadata={},
        max_output_tokens=WHOLE_CALL,
    )
    context.skip_unless(turn.refusal is None, f"no custom tools here: {turn.code}")
    if not turn.finished().of_type("custom_tool_call"):
        raise Failure("the custom tool is not called", turn.response)


@SCENARIO("sequence.reasoning", "Reasoning is an item of its own, before what it led to.")
async def _reasoning(context: Context) -> None:
    turn = await context.turn(
        "Think, then answer: what is 17 times 3?",
        metadata=hint(reasoning="17 times 3 is 51.", text="51"),
        max_output_tokens=WHOLE_CALL,
    )
    kinds = [item.get("type") for item in turn.finished().items]
    context.skip_unless("reasoning" in kinds, "the model does not show reasoning")
    if "message" in kinds and kinds.index("reasoning") > kinds.index("message"):
        raise Failure("the reasoning comes after the message", turn.response)


@SCENARIO("sequence.mixed", "Text and several calls are items of one response, in order.")
async def _mixed(context: Context) -> None:
    call = {"name": TOOL["name"], "arguments": {"city": "Paris"}}
    turn = await context.turn(
        "Say that you will look, then ask for the weather in Paris and in Rome at once.",
        tools=[TOOL],
        metadata=hint(text="I will look.", calls=[call, call]),
        max_output_tokens=2 * WHOLE_CALL,
    )
    calls = turn.finished().of_type("function_call")
    context.skip_unless(len(calls) > 1, "the model does not make two calls at once")
    if len({call.get("call_id") for call in calls}) != len(calls):
        raise Failure("two calls have one call id", turn.response)


@SCENARIO(
    "sequence.incomplete",
    "Out of tokens is `response.incomplete`, reason `max_output_tokens`.",
)
async def _incomplete(context: Context) -> None:
    turn = await context.turn(
        "Count from 1 to 500.", max_output_tokens=16, metadata=hint(tokens=200)
    )
    if turn.finished().status == "completed":
        context.skip_unless(turn.output_tokens > 16, "the model ended by itself before")
        raise Failure(f"{turn.output_tokens} tokens with max_output_tokens 16", turn.response)
    details = (turn.response or {}).get("incomplete_details") or {}
    if details.get("reason") != "max_output_tokens":
        raise Failure(f"the reason is {bounded(details.get('reason'))}", turn.response)


@SCENARIO(
    "sequence.failed",
    "A model that breaks gives one `response.failed`, and the next turn is answered.",
    transports=STREAMING,
)
async def _failed(context: Context) -> None:
    exchange = await context.connect()
    create = context.create(metadata=hint(text="one two three four five six", fail_after=3))
    turn = await exchange.turn(create)
    context.skip_unless(turn.status == "failed", "the model cannot be made to break")
    (await exchange.turn(context.create())).finished()


@SCENARIO("sequence.characters", "No character is torn: text has no U+FFFD.", source="4")
async def _characters(context: Context) -> None:
    turn = await context.turn(
        "Repeat exactly: 😀 👍🏽 世界", metadata=hint(text="😀 👍🏽 世界", split_characters=True)
    )
    _whole(turn.finished())


def _whole(turn: Turn) -> None:
    shown = [str(turn.items), *(str(event.get("delta")) for event in turn.events)]
    for text in shown:
        if "\ufffd" in text or any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            raise Failure("a character is torn", turn.response)


@SCENARIO(
    "response.echo",
    "A response shows the settings of its create.",
    source="4.4",
)
async def _echo(context: Context) -> None:
    given: Json = {
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "parallel_tool_calls": False,
        "metadata": {**hint(text="Hello."), "key": "value"},
        "temperature": 0.5,
        "top_p": 0.9,
        "store": True,
        "truncation": "auto",
    }
    turn = (await context.turn(tools=[TOOL], tool_choice="none", **given)).finished()
    shown = turn.response or {}
    for name, value in given.items():
        if shown.get(name) != value:
            raise Failure(f"`{name}` is {bounded(shown.get(name))}, not {bounded(value)}", shown)
    tools = shown.get("tools") or [{}]
    if tools[0].get("parameters") != TOOL["parameters"]:
        raise Failure("the tool's `parameters` are shown otherwise", shown)


_FORMS: Final[dict[str, object]] = {
    "a message without a type": [{"role": "user", "content": "Say hello."}],
    "a message of parts": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Say hello."}],
        }
    ],
    "a system message": [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Say hello."},
    ],
    "a developer message": [
        {"role": "developer", "content": "You are a pirate."},
        {"role": "user", "content": "Say hello."},
    ],
    "a history": [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "What is my name?"},
    ],
    "phases": [
        {"role": "assistant", "content": "Thinking.", "phase": "commentary"},
        {"role": "assistant", "content": "Hello.", "phase": "final_answer"},
        {"role": "user", "content": "Say it again."},
    ],
    "items with the client's ids": [
        {"type": "message", "id": "msg_of_client", "role": "user", "content": "Say hello."}
    ],
}


@SCENARIO("input.forms", "Input is accepted in every form that clients use.", source="3.1")
async def _forms(context: Context) -> None:
    exchange = await context.connect()
    for name, items in _FORMS.items():
        turn = await exchange.turn(context.create(items))
        if turn.refusal is not None or turn.status not in ("completed", "incomplete"):
            raise Failure(f"{name} is not accepted", turn.refusal or turn.response)


_IMAGE: Final[Json] = {
    "type": "input_image",
    "detail": "auto",
    "image_url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4"
    "2mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==",
}


@SCENARIO(
    "input.image",
    "Images are taken, in messages and from tools, or refused with the path of the first.",
    source="13",
)
async def _image(context: Context) -> None:
    exchange = await context.connect()
    text = {"type": "input_text", "text": "What is this?"}
    plain = (await exchange.turn(context.create([{"role": "user", "content": [text]}]))).finished()
    seen = await exchange.turn(context.create([{"role": "user", "content": [text, _IMAGE]}]))
    if seen.refusal is not None:
        seen.refused(status=400)
        if not str(seen.param or "").startswith("input[0].content[1]"):
            raise Failure("the refusal of an image does not say where it is", seen.refusal)
        raise Skip("the model takes no images, and says so")
    if seen.finished().input_tokens <= plain.input_tokens:
        raise Failure("an image counts no tokens", seen.response)
    call = {"type": "function_call", "call_id": "call_1", "name": TOOL["name"], "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [text, _IMAGE]}
    items = [{"role": "user", "content": "Look."}, call, output]
    (await exchange.turn(context.create(items, tools=[TOOL]))).finished()


@SCENARIO(
    "input.own_output",
    "A response's own output is accepted as input.",
    source="16.1",
)
async def _own_output(context: Context) -> None:
    exchange = await context.connect()
    first = (await exchange.turn(context.create("Say hello.", store=False))).finished()
    history = [{"role": "user", "content": "Say hello."}, *first.items]
    history.append({"role": "user", "content": "Again."})
    second = await exchange.turn(context.create(history, store=False))
    if second.finished().input_tokens <= first.input_tokens:
        raise Failure("a longer input counts no more tokens", second.response)
