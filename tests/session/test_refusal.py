from __future__ import annotations

from harness.checker import StreamChecker
from harness.session_driver import as_message, new_ids, user
from turnwire.v1 import response_pb2
from turnwire.v1.response_pb2 import Response
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.responses import usage_of

USAGE = usage_of(input_tokens=10, cached_tokens=4, output_tokens=0)


def test_a_refusal_is_one_message_with_one_refusal_part():
    response = Response(
        id="resp_1", object="response", model="m", status=response_pb2.RESPONSE_STATUS_IN_PROGRESS
    )
    response.created_at.seconds = 1
    assembler = ResponseAssembler(response, stream_id="lane", new_id=new_ids())
    checker = StreamChecker()
    events = [*assembler.begin(), *assembler.refuse("No, thank you.", USAGE, completed_at=2)]
    messages = [as_message(event) for event in events]
    for message in messages:
        checker.feed(message)
    checker.finish()
    assert [message.WhichOneof("event") for message in messages[2:]] == [
        "response_output_item_added",
        "response_content_part_added",
        "response_refusal_delta",
        "response_refusal_done",
        "response_content_part_done",
        "response_output_item_done",
        "response_completed",
    ]
    assert messages[3].response_content_part_added.part.refusal.refusal == ""
    assert messages[4].response_refusal_delta.delta == "No, thank you."
    assert messages[5].response_refusal_done.refusal == "No, thank you."
    (item,) = messages[-1].response_completed.response.output
    assert item.message.content.parts.parts[0].refusal.refusal == "No, thank you."
    assert messages[-1].response_completed.response.completed_at.seconds == 2


def test_what_no_verdict_covers_is_inherited():
    conversation = Conversation(unscreened=(b"item",))
    assert conversation.extended([user("a")]).unscreened == (b"item",)
