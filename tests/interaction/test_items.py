"""Items of every type in, sealed reasoning out, and settings that a server may not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from harness.reading import (
    arms,
    code_of,
    failure_of,
    items_json,
    public,
    response_of,
    status_of,
    text_of,
)
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, WEATHER, said, script, user
from turnwire.v1.response_pb2 import Response
from turnwire_server.adapters.renderers.sim_tokens import sim_tokens
from turnwire_server.runtime.prompts import PromptMessage, StoredPrompt
from turnwire_server.runtime.settings import CompatSettings

SEALED = {"include": ["reasoning.encrypted_content"]}
_SHELL_CALL = {"type": "shell_call", "call_id": "c2", "action": {"commands": ["ls -l"]}}
_SHELL_OUTPUT = {
    "type": "shell_call_output",
    "call_id": "c2",
    "output": [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}
_LOCAL_CALL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "c1",
    "status": "completed",
    "action": {"type": "exec", "command": ["pwd"], "env": {}},
}
_LOCAL_OUTPUT = {"type": "local_shell_call_output", "id": "c1", "output": "a listing"}
_PATCH_CALL = {
    "type": "apply_patch_call",
    "call_id": "c3",
    "status": "completed",
    "operation": {"type": "delete_file", "path": "old.txt"},
}
_PATCH_OUTPUT = {"type": "apply_patch_call_output", "call_id": "c3", "status": "completed"}
_PAIRS = {
    "local_shell_call": (_LOCAL_CALL, _LOCAL_OUTPUT, "a listing"),
    "shell_call": (_SHELL_CALL, _SHELL_OUTPUT, "a.txt\nexit code: 0"),
    "apply_patch_call": (_PATCH_CALL, _PATCH_OUTPUT, "completed"),
}


def prompt_of(connect: Connect, response: Response) -> str:
    """Return the prompt that the engine got, as text."""
    ids = connect.stack.engine.request(response.id).ids
    return b"".join(map(sim_tokens().token_bytes, ids)).decode()


def warned(response: Response) -> list[tuple[str, str]]:
    """Return code and param of the warnings."""
    return [(one.code, one.param) for one in response.warnings]


@requirement("items.pairs")
@pytest.mark.parametrize("name", sorted(_PAIRS))
async def test_calls_of_a_client_s_own_tools_are_told_and_paired_with_their_outputs(
    connect: Connect, name: str
) -> None:
    peer = await connect()
    call, output, text = _PAIRS[name]
    whole = response_of(await peer.turn(input=[user("Do it"), call, output]))
    prompt = prompt_of(connect, whole)
    tool = name.removesuffix("_call")
    assert f'<tool_call>\n{{"name": "{tool}", "arguments": {{' in prompt
    assert f"<tool_response>\n{text}\n</tool_response>" in prompt
    assert connect.stack.engine.request(whole.id).outline.tool_outputs == 1
    (error,) = await peer.turn(input=[user("Do it"), call])
    assert failure_of(error) == ("invalid_value", 400, "input")
    (error,) = await peer.turn(input=[user("Do it"), output])
    assert failure_of(error) == ("invalid_value", 400, "input")
    warm = {**call, "status": "incomplete"}
    cut = response_of(await peer.turn(input=[user("Do it"), warm]))
    chained = await peer.turn(input=[output, user("Go on")], previous_response_id=cut.id)
    assert arms(chained)[-1] == "response_completed"


@requirement("items.carried")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed",
         "results": [{"text": "SECRET"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed",
         "action": {"type": "search", "query": "SECRET"}},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "SECRET"},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s",
         "tools": [{"name": "SECRET", "input_schema": {}}]},
        {"type": "mcp_approval_request", "id": "mcpr_1", "arguments": "SECRET", "name": "n",
         "server_label": "s"},
        {"type": "tool_search_call", "arguments": {"query": "SECRET"}, "execution": "server"},
        {"type": "tool_search_output", "execution": "server", "tools": []},
        {"type": "program", "id": "prog_1", "call_id": "p1", "code": "SECRET", "fingerprint": "f"},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ],
    ids=lambda item: item["type"],
)  # fmt: skip
async def test_what_says_nothing_to_a_text_model_is_kept_and_not_told(
    connect: Connect, item: dict[str, Any]
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input=[user("Begin"), item], metadata=said("Yes.")))
    plain = response_of(await peer.turn(input=[user("Begin")], metadata=said("Yes.")))
    engine = connect.stack.engine
    assert list(engine.request(first.id).ids) == list(engine.request(plain.id).ids)
    replay = [user("Begin"), item, *items_json(first.output), user("Go on")]
    events = await peer.turn(input=replay)
    assert arms(events)[-1] == "response_completed"


@requirement("items.provider_calls")
async def test_calls_that_a_provider_ran_are_told_with_what_they_gave(connect: Connect) -> None:
    peer = await connect()
    code = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "c",
        "status": "completed",
        "code": "print(6 * 7)",
        "outputs": [{"type": "logs", "logs": "42"}],
    }
    mcp = {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "docs",
        "name": "read",
        "arguments": '{"page": 3}',
        "output": "It is written.",
    }
    prompt = prompt_of(connect, response_of(await peer.turn(input=[user("Look"), code, mcp])))
    assert '{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}' in prompt
    assert "<tool_response>\n42\n</tool_response>" in prompt
    assert '{"name": "docs.read", "arguments": {"page": 3}}' in prompt
    assert "<tool_response>\nIt is written.\n</tool_response>" in prompt


@requirement("items.found_tools")
async def test_tools_that_a_search_found_may_be_called_from_then_on(connect: Connect) -> None:
    peer = await connect()
    search = {"type": "tool_search_call", "call_id": "s1", "arguments": {}, "execution": "client"}
    found = {
        "type": "tool_search_output",
        "call_id": "s1",
        "execution": "client",
        "tools": [WEATHER],
    }
    response = response_of(await peer.turn(input=[user("Weather?"), search, found]))
    assert [item.function_call.name for item in response.output] == ["get_weather"]
    (error,) = await peer.turn(input=[user("Weather?"), search])
    assert failure_of(error) == ("invalid_value", 400, "input")


@requirement("items.approvals")
async def test_an_approval_answers_a_request_that_is_there(connect: Connect) -> None:
    peer = await connect()
    request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "name": "n",
        "arguments": "{}",
        "server_label": "s",
    }
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": True,
    }
    first = response_of(await peer.turn(input=[user("Do it"), request]))
    second = response_of(await peer.turn(input=[answer], previous_response_id=first.id))
    assert status_of(second) == "completed"
    (error,) = await peer.turn(input=[user("Do it"), answer])
    assert failure_of(error) == ("invalid_value", 400, "input[1].approval_request_id")


@requirement("items.configuration")
async def test_a_configuration_update_holds_until_the_next_one(connect: Connect) -> None:
    peer = await connect()
    update = {
        "type": "configuration_update",
        "reasoning": {"effort": "high"},
        "text": {"format": {"type": "json_object"}},
    }
    first = response_of(await peer.turn(input=[user("Begin"), update], reasoning={"effort": "low"}))
    assert first.reasoning.effort == "high"
    assert orjson.loads(text_of(first)) == {"answer": "simulated"}
    second = response_of(await peer.turn(input="Go on", previous_response_id=first.id))
    assert second.reasoning.effort == "high"
    assert orjson.loads(text_of(second)) == {"answer": "simulated"}
    back = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    third = response_of(
        await peer.turn(input=[back, user("Go on")], previous_response_id=second.id)
    )
    assert third.reasoning.effort == "high"
    assert text_of(third).startswith("Simulated answer")
    bad = {"type": "configuration_update", "reasoning": {"effort": "huge"}}
    (error,) = await peer.turn(input=[user("x"), bad])
    assert failure_of(error) == ("invalid_value", 400, "input[1].reasoning.effort")


# Reasoning.


@requirement("reasoning.sealed")
@pytest.mark.parametrize("events", ["openai", "summary"])
async def test_sealed_reasoning_means_the_same_when_it_comes_back(
    connect: Connect, events: Any
) -> None:
    connect.parts.settings = replace(
        connect.parts.settings, compat=CompatSettings(reasoning_events=events)
    )
    peer = await connect()
    thought = script(reasoning="First this: 世界. Then that.", text="So.")
    first = response_of(await peer.turn(SEALED, input="Begin.", metadata=thought))
    reasoning, message = items_json(first.output)
    assert reasoning["encrypted_content"]
    chained = response_of(await peer.turn(input="Go on.", previous_response_id=first.id))
    ids = connect.stack.engine.request
    for stripped in ("content", "summary", "status", "id"):
        again = {**reasoning, stripped: [] if stripped == "summary" else None}
        replayed = response_of(
            await peer.turn(input=[user("Begin."), again, message, user("Go on.")])
        )
        assert list(ids(replayed.id).ids) == list(ids(chained.id).ids)


@requirement("reasoning.sealed")
async def test_reasoning_is_sealed_only_when_that_was_asked_for(connect: Connect) -> None:
    peer = await connect()
    thought = script(reasoning="Hm.", text="So.")
    first = response_of(await peer.turn(input="Begin.", metadata=thought))
    assert "encrypted_content" not in public(first.output[0])


@requirement("reasoning.tampered")
async def test_reasoning_that_was_changed_is_refused_at_its_seal(connect: Connect) -> None:
    peer = await connect()
    thought = script(reasoning="Hm.", text="So.")
    first = response_of(await peer.turn(SEALED, input="Begin.", metadata=thought))
    reasoning, message = items_json(first.output)
    sealed = reasoning["encrypted_content"]
    for changed in (
        sealed[:-1] + ("A" if sealed[-1] != "A" else "B"),
        "A" + sealed,
        sealed[4:],
        sealed + "=",
        "opaque",
    ):
        again = {**reasoning, "encrypted_content": changed}
        (error,) = await peer.turn(input=[user("Begin."), again, message, user("Go on.")])
        assert failure_of(error) == ("invalid_value", 400, "input[1].encrypted_content")
        assert sealed not in error.error.error.message


@requirement("reasoning.summary")
async def test_reasoning_may_be_shown_as_summaries(connect: Connect) -> None:
    connect.parts.settings = replace(
        connect.parts.settings, compat=CompatSettings(reasoning_events="summary")
    )
    peer = await connect()
    events = await peer.turn(input="Begin.", metadata=script(reasoning="Hm. So.", text="Yes."))
    assert arms(events)[2:7] == [
        "response_output_item_added",
        "response_reasoning_summary_part_added",
        "response_reasoning_summary_text_delta",
        "response_reasoning_summary_text_done",
        "response_reasoning_summary_part_done",
    ]
    response = response_of(events)
    assert public(response.output[0])["summary"] == [{"type": "summary_text", "text": "Hm. So."}]
    assert "content" not in public(response.output[0])
    chained = response_of(await peer.turn(input="Go on.", previous_response_id=response.id))
    again = [user("Begin."), *items_json(response.output), user("Go on.")]
    replayed = response_of(await peer.turn(input=again))
    engine = connect.stack.engine
    assert list(engine.request(replayed.id).ids) == list(engine.request(chained.id).ids)


@requirement("reasoning.tokens")
@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
async def test_reasoning_tokens_are_the_ids_that_were_reasoning(
    connect: Connect, step: int
) -> None:
    connect.parts.sim = replace(connect.parts.sim, step_tokens=step)
    peer = await connect()
    reasoning = "First this,\n then 世界 and that; <b>not</b> more."
    thought = script(reasoning=reasoning, text="A much longer answer than the thought was.")
    response = response_of(await peer.turn(input="Begin.", metadata=thought))
    tokens = sim_tokens()
    assert response.usage.output_tokens_details.reasoning_tokens == len(tokens.encode(reasoning))
    assert response.usage.output_tokens > len(tokens.encode(reasoning)) + 8


# Settings.


def _grammar(name: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": "regex", "definition": "[ab]+"}
    return {**CUSTOM, "name": name, "format": form}


@requirement("settings.grammar")
async def test_a_grammar_that_cannot_be_enforced_is_a_warning_and_no_error(
    connect: Connect,
) -> None:
    peer = await connect()
    tools = [SHELL, _grammar("g"), {"type": "namespace", "name": "ns", "description": "",
             "tools": [_grammar("h")]}]  # fmt: skip
    for choice in ("auto", "required"):
        response = response_of(await peer.turn(input="Do it", tools=tools, tool_choice=choice))
        assert warned(response) == [
            ("grammar_not_enforced", "tools[1].format"),
            ("grammar_not_enforced", "tools[2].tools[0].format"),
        ]
    quiet = response_of(await peer.turn(input="Do it", tools=tools, tool_choice="none"))
    assert warned(quiet) == []


@requirement("settings.grammar")
@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([SHELL, _grammar("g")], {"type": "custom", "name": "g"}, "tools[1].format"),
        ([_grammar("g")], "required", "tools[0].format"),
        (
            [SHELL, _grammar("g"), _grammar("h")],
            {"type": "allowed_tools", "mode": "required",
             "tools": [{"type": "custom", "name": "h"}]},
            "tools[2].format",
        ),
    ],
    ids=["named", "required", "allowed"],
)  # fmt: skip
async def test_a_call_that_is_forced_on_a_grammar_is_refused(
    connect: Connect, tools: list[Any], choice: Any, param: str
) -> None:
    peer = await connect()
    (error,) = await peer.turn(input="Do it", tools=tools, tool_choice=choice)
    assert failure_of(error) == ("unsupported_value", 400, param)


@requirement("settings.sampling")
async def test_sampling_that_the_engine_does_not_have_is_a_warning(connect: Connect) -> None:
    peer = await connect()
    asked = {"temperature": 0.2, "top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1}
    response = response_of(await peer.turn(asked, input="Hi", top_logprobs=2, max_tool_calls=3))
    assert warned(response) == [
        ("logprobs_not_available", "top_logprobs"),
        *[("sampling_not_available", name) for name in asked],
    ]
    assert response.max_tool_calls == 3
    usual = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
    assert warned(response_of(await peer.turn(usual, input="Hi"))) == []
    sampling = connect.stack.engine.request(response.id).sampling
    assert (sampling.temperature, sampling.top_p) == (0.2, 0.5)


# Prompt templates.

_PROMPTS = (
    StoredPrompt("pmpt_plain", instructions="Be brief."),
    StoredPrompt(
        "pmpt_review",
        "1",
        model="sim",
        instructions="Review {{language}} code.",
        messages=(
            PromptMessage("developer", "Mind {{ what }}."),
            PromptMessage("assistant", "I will."),
        ),
    ),
    StoredPrompt("pmpt_review", "2", instructions="Second version."),
)


@requirement("prompts.filled")
async def test_a_prompt_template_gives_instructions_and_first_messages(connect: Connect) -> None:
    connect.parts.settings = replace(connect.parts.settings, prompts=_PROMPTS)
    peer = await connect()
    variables = {"language": "Go {{what}}", "what": {"type": "input_text", "text": "names"}}
    asked = {"id": "pmpt_review", "version": "1", "variables": variables}
    create = {"model": None, "prompt": asked}
    response = response_of(await peer.turn(create, input="Here it is."))
    assert response.instructions == "Review Go {{what}} code."
    assert public(response)["prompt"] == asked
    assert response.model == "sim"
    plain = response_of(
        await peer.turn(
            instructions="Review Go {{what}} code.",
            input=[
                {"role": "developer", "content": "Mind names."},
                {"role": "assistant", "content": "I will."},
                user("Here it is."),
            ],
        )
    )
    engine = connect.stack.engine
    assert list(engine.request(response.id).ids) == list(engine.request(plain.id).ids)
    later = response_of(await peer.turn(create, input="More.", previous_response_id=response.id))
    assert prompt_of(connect, later).count("Mind names.") == 1
    newest = response_of(
        await peer.turn(prompt={"id": "pmpt_review"}, input="x", instructions=None)
    )
    assert newest.instructions == "Second version."
    own = response_of(await peer.turn(prompt={"id": "pmpt_plain"}, input="x", instructions="Mine."))
    assert own.instructions == "Mine."
    alone = response_of(await peer.turn(create))
    assert status_of(alone) == "completed"


@requirement("prompts.refused")
@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        ({"id": "pmpt_other"}, "invalid_value", "prompt.id"),
        ({"id": "pmpt_plain", "version": "7"}, "invalid_value", "prompt.version"),
        (
            {"id": "pmpt_review", "version": "1", "variables": {"language": "Go"}},
            "missing_required_parameter",
            "prompt.variables.what",
        ),
        (
            {"id": "pmpt_plain", "variables": {"x": "y"}},
            "invalid_value",
            "prompt.variables.x",
        ),
        (
            {"id": "pmpt_review", "version": "1", "variables": {"language": 7}},
            "invalid_value",
            "prompt.variables.language",
        ),
        (
            {"id": "pmpt_review", "version": "1",
             "variables": {"language": {"type": "input_image", "image_url": "x"}}},
            "unsupported_value",
            "prompt.variables.language",
        ),
    ],
)  # fmt: skip
async def test_a_prompt_that_cannot_be_filled_is_refused_with_its_path(
    connect: Connect, prompt: dict[str, Any], code: str, param: str
) -> None:
    connect.parts.settings = replace(connect.parts.settings, prompts=_PROMPTS)
    peer = await connect()
    (error,) = await peer.turn(prompt=prompt, input="x")
    assert failure_of(error) == (code, 400, param)
    assert code_of(error) == code
