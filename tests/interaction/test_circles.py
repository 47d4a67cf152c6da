"""Answers that their engine ended because the model said the same over and over."""

from __future__ import annotations

from harness.reading import calls_of, response_of, status_of, text_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import SHELL, script


@requirement("circles")
async def test_an_answer_that_went_in_circles_is_complete_and_says_so(connect: Connect) -> None:
    peer = await connect()
    events = await peer.turn(input="Hi", metadata=script(text="round and round", repeat_after=2))
    response = response_of(events)
    assert status_of(response) == "completed"
    assert text_of(response) == "round and"
    assert [(one.code, one.param) for one in response.warnings] == [("repetition_stopped", "")]
    following = response_of(await peer.turn(input="Go on", previous_response_id=response.id))
    assert status_of(following) == "completed"
    assert not following.warnings


@requirement("circles")
async def test_a_call_that_went_in_circles_is_cut_and_not_whole(connect: Connect) -> None:
    peer = await connect()
    call = {"name": SHELL["name"], "arguments": {"cmd": "echo " + "round " * 40}}
    events = await peer.turn(
        input="Hi", tools=[SHELL], metadata=script(calls=[call], repeat_after=30)
    )
    response = response_of(events)
    assert status_of(response) == "incomplete"
    (cut,) = calls_of(response)
    assert "round round" in cut.arguments
    assert [one.code for one in response.warnings] == ["repetition_stopped"]
