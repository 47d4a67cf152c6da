"""The settings of a create as bytes: the same for the same settings, whatever else it says."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate, ResponseProcessed
from turnwire.v1.content_pb2 import Logprob
from turnwire.v1.response_pb2 import ReasoningConfig
from turnwire.v1.tool_pb2 import FunctionTool, Tool
from turnwire_server.runtime.settings_bytes import _as_bytes, sent_settings, settings_of

OWN = ResponseCreate(input=Input(text="Hi"), instructions="Be brief.", user="somebody")
MODEL = ResponseCreate(model="sim", temperature=0.5, store=False)
TOOLS = ResponseCreate(tools=[Tool(function=FunctionTool(name=name)) for name in ("a", "b")])
LOW = ResponseCreate(reasoning=ReasoningConfig(effort="low"))
SUMMARY = ResponseCreate(reasoning=ReasoningConfig(summary="auto"))


def sent(*parts: ResponseCreate) -> bytes | None:
    """Return the settings of one create that is sent as these parts, one after the other."""
    create = b"".join(part.SerializeToString() for part in parts)
    assert len(create) < 128  # its length is one byte
    event = bytes((ClientEvent.RESPONSE_CREATE_FIELD_NUMBER << 3 | 2, len(create))) + create
    settings = sent_settings(event)
    return None if settings is None else settings.SerializeToString()


def known(*parts: ResponseCreate) -> bytes:
    """Return the settings of a create that has all that these parts have."""
    create = ResponseCreate()
    for part in parts:
        create.MergeFrom(part)
    return settings_of(create).SerializeToString()


def test_settings_are_the_same_as_sent_and_as_read() -> None:
    assert sent(MODEL, TOOLS, LOW) == known(MODEL, TOOLS, LOW) != known(MODEL, TOOLS)


def test_what_is_of_one_turn_and_the_order_of_members_change_nothing() -> None:
    assert sent(LOW, OWN, TOOLS, MODEL) == known(MODEL, TOOLS, LOW)


def test_a_setting_that_is_sent_twice_is_its_last_one() -> None:
    assert sent(ResponseCreate(temperature=1.0), MODEL) == known(MODEL)
    assert sent(MODEL, ResponseCreate(temperature=1.0)) != known(MODEL)


def test_a_setting_in_parts_is_not_taken_for_one_of_them() -> None:
    """Its reader puts the parts together: none of them is what it says."""
    for one, other in ((LOW, SUMMARY), (SUMMARY, LOW)):
        assert sent(MODEL, one, other) not in (known(MODEL, one), known(MODEL, other))
    # A text of several parts is its last one; here it only is not taken for another.
    assert sent(MODEL, ResponseCreate(model="other")) not in (known(MODEL), known(MODEL, MODEL))


def test_a_create_in_several_parts_has_no_settings_of_its_own() -> None:
    one = ClientEvent(response_create=MODEL).SerializeToString()
    other = ClientEvent(response_create=TOOLS).SerializeToString()
    processed = ClientEvent(response_processed=ResponseProcessed()).SerializeToString()
    assert sent_settings(one) is not None
    for event in (one + other, one + processed + one, processed, b""):
        assert sent_settings(event) is None


def test_a_setting_of_several_numbers_would_keep_them_all() -> None:
    """There is none yet; of one that is not marked as such only the last number would count."""
    own = _as_bytes(Logprob.DESCRIPTOR.fields_by_name["bytes"])
    assert (own.type, own.label) == (FieldDescriptor.TYPE_UINT32, FieldDescriptor.LABEL_REPEATED)
