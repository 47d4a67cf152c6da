"""What the server said can be sent back, and means the same."""

from __future__ import annotations

from typing import Any

import pytest

from harness.reading import arms, items_json, public, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, call_output, said, script, user

_CALL = {"name": "exec_command", "arguments": {"cmd": "ls -l"}}
_TURNS: dict[str, dict[str, Any]] = {
    "text": {"metadata": script(text="A plain answer, with 世界 and 😀.")},
    "empty": {"metadata": script(text="")},
    "reasoning": {"metadata": script(reasoning="First this.", text="Then that.")},
    "call": {"tools": [SHELL]},
    "custom call": {"tools": [CUSTOM]},
    "text and calls": {"tools": [SHELL], "metadata": script(text="Look:", calls=[_CALL, _CALL])},
    "everything": {
        "tools": [SHELL],
        "metadata": script(reasoning="Hm.", text="Look:", calls=[_CALL]),
    },
}
_STRIPPED = ("id", "status", "phase")


def _outputs(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in items
        if item["type"].endswith("_call")
    ]


def _as_it_is(item: dict[str, Any]) -> dict[str, Any]:
    return item


def _with_nulls(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "id": None, "status": None, "namespace": None}


def _without(item: dict[str, Any]) -> dict[str, Any]:
    bare = {key: value for key, value in item.items() if key not in _STRIPPED}
    if bare["type"] == "message":
        bare["content"] = [{"type": part["type"], "text": part["text"]} for part in bare["content"]]
    return bare


def _with_null_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": None} for part in item["content"]]}


@requirement("round_trip.same_tokens")
@pytest.mark.parametrize("said_before", _TURNS.values(), ids=_TURNS.keys())
@pytest.mark.parametrize(
    "change", [_as_it_is, _with_nulls, _without, _with_null_logprobs], ids=lambda f: f.__name__[1:]
)
async def test_output_sent_back_renders_the_same_tokens_as_its_continuation(
    connect: Connect, said_before: dict[str, Any], change: Any
) -> None:
    peer = await connect()
    head = {"tools": said_before.get("tools", [])}
    first = response_of(await peer.turn(said_before, input="Begin."))
    output = items_json(first.output)
    new = [*_outputs(output), user("Go on.")]
    chained = response_of(
        await peer.turn(head, input=new, previous_response_id=first.id, metadata=said("x"))
    )
    again = [user("Begin."), *map(change, output), *new]
    replayed = response_of(await peer.turn(head, input=again, metadata=said("x")))
    engine = connect.stack.engine
    assert list(engine.request(replayed.id).ids) == list(engine.request(chained.id).ids)


@requirement("round_trip.kept")
async def test_a_chain_of_full_histories_goes_on_for_many_turns(connect: Connect) -> None:
    peer = await connect()
    history: list[dict[str, Any]] = []
    for number in range(6):
        history.append(user(f"Step {number}"))
        response = response_of(await peer.turn(input=history, tools=[SHELL]))
        output = items_json(response.output)
        history += [*output, *_outputs(output)]
    assert status_of(response) == "completed"


@requirement("round_trip.accepted")
@pytest.mark.parametrize(
    "items",
    [
        pytest.param([{"role": "assistant", "content": "text"}], id="text"),
        pytest.param(
            [{"type": "message", "role": "assistant", "id": None, "status": "completed",
              "content": [{"type": "output_text", "text": "x", "annotations": []}]}],
            id="null id",
        ),
        pytest.param([{"type": "reasoning", "id": None, "summary": []}], id="empty reasoning"),
        pytest.param([{"type": "reasoning", "summary": [], "content": None}], id="null reasoning"),
        pytest.param([{"role": "assistant", "content": None}], id="null content"),
        pytest.param(
            [{"type": "message", "role": "assistant", "status": "completed"}], id="no content"
        ),
        pytest.param(
            [{"type": "reasoning", "id": "rs_1",
              "summary": [{"type": "summary_text", "text": "a"},
                          {"type": "summary_text", "text": "b"}]}],
            id="summaries",
        ),
        pytest.param(
            [{"type": "reasoning", "summary": [], "encrypted_content": None,
              "content": [{"type": "reasoning_text", "text": "a"},
                          {"type": "reasoning_text", "text": "b"}]}],
            id="reasoning parts",
        ),
        pytest.param(
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            id="refusal",
        ),
        pytest.param(
            [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
            id="input_text of an assistant",
        ),
        pytest.param(
            [{"role": "assistant", "phase": "commentary", "content": "x"},
             {"role": "assistant", "phase": "final_answer", "content": "y"}],
            id="phases",
        ),
        pytest.param(
            [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}],
            id="developer and system",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "input_text", "text": "a"},
                                          {"type": "input_text", "text": "b"}]}],
            id="parts",
        ),
    ],
)  # fmt: skip
async def test_history_in_every_form_that_clients_keep_is_accepted(
    connect: Connect, items: list[dict[str, Any]]
) -> None:
    peer = await connect()
    events = await peer.turn(
        input=[user("Begin."), *items, user("Go on.")], instructions="Be brief."
    )
    assert arms(events)[-1] == "response_completed"


@requirement("round_trip.trailing_reasoning")
async def test_reasoning_at_the_end_of_a_history_is_dropped_and_reported(
    connect: Connect,
) -> None:
    peer = await connect()
    thought = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    cut = response_of(await peer.turn(input=[user("Begin."), thought], metadata=said("x")))
    assert [(one.code, one.param) for one in cut.warnings] == [("reasoning_dropped", "input[1]")]
    plain = response_of(await peer.turn(input=[user("Begin.")], metadata=said("x")))
    engine = connect.stack.engine
    assert list(engine.request(cut.id).ids) == list(engine.request(plain.id).ids)


@requirement("round_trip.call_kept")
async def test_items_of_a_stored_input_keep_their_ids(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Run", tools=[SHELL]))
    call = first.output[0].function_call
    second = response_of(
        await peer.turn(
            input=[{**call_output(call), "id": "fco_mine"}],
            tools=[SHELL],
            previous_response_id=first.id,
        )
    )
    from turnwire.v1.responses_service_pb2 import ListInputItemsRequest
    from turnwire_server.runtime.unary import UnaryApi

    asked = ListInputItemsRequest(response_id=second.id)
    listed = await UnaryApi(connect.stack.services).list_input_items(asked, tenant="default")
    assert [item["id"] for item in public(listed)["data"]] == ["fco_mine"]
