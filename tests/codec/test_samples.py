"""Hand-written samples of the public JSON: through the codec without loss, and judged by the
official client's own models."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from harness.samples import EVENTS, RESPONSE, SEQUENCES
from turnwire._codec import dumps, loads, parse
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.codec.requests import decode_create

SAMPLES = [
    *(
        pytest.param(event, id=f"{name}-{event['sequence_number']}")
        for name, events in SEQUENCES.items()
        for event in events
    ),
    *(pytest.param(event, id=name) for name, event in EVENTS.items()),
]
OURS = ("keepalive", "turnwire.", "response.done", "response.inject")


@pytest.mark.parametrize("event", SAMPLES)
def test_an_event_is_read_and_written_without_loss(event: dict[str, Any]) -> None:
    assert orjson.loads(dumps(parse(ServerEvent, event))) == event
    assert orjson.loads(dumps(loads(ServerEvent, orjson.dumps(event)))) == event


@pytest.mark.parametrize(
    "event", [sample for sample in SAMPLES if not sample.values[0]["type"].startswith(OURS)]
)
def test_the_official_client_takes_every_event_strictly(event: dict[str, Any]) -> None:
    official = pytest.importorskip("openai.types.responses")
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(official.ResponsesServerEvent)
    text = dumps(parse(ServerEvent, event))

    taken = adapter.validate_json(text, strict=True)

    assert taken.type == event["type"]
    assert not isinstance(taken, official.ResponseErrorEvent)


def test_the_official_response_is_whole() -> None:
    official = pytest.importorskip("openai.types.responses")
    response = parse(response_pb2.Response, RESPONSE)

    taken = official.Response.model_validate_json(dumps(response), strict=True)

    assert taken.id == "resp_1"
    assert taken.output == []
    assert taken.output_text == ""


@pytest.mark.parametrize("sequence", SEQUENCES, ids=str)
def test_what_was_put_out_may_be_sent_in_again(sequence: str) -> None:
    output = SEQUENCES[sequence][-1]["response"]["output"]
    bare = [
        {name: content for name, content in item.items() if name not in {"id", "status"}}
        for item in output
    ]
    for items in (output, bare):
        body = {"model": "m", "input": [*items, {"role": "user", "content": "Go on."}]}

        assert decode_create(orjson.dumps(body)) == parse(ResponseCreate, body)
