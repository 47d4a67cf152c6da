"""Every arm stands for one public `type`, and its name can be worked out from it."""

from __future__ import annotations

import re

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from harness import vocabulary
from harness.messages import FILES, descriptors
from turnwire._codec import options
from turnwire.v1 import (
    annotations_pb2,
    client_event_pb2,
    content_pb2,
    error_pb2,
    item_pb2,
    response_pb2,
    responses_service_pb2,
    server_event_pb2,
    tool_pb2,
)

# Words that languages own: their arm keeps its name, their message gets another one.
RENAMED_MESSAGES = {"error": "SessionError"}
CONTENT_PARTS = """
computer_screenshot input_file input_image input_text output_text reasoning_text refusal
summary_text text
""".split()
TEXT_FORMATS = ["json_object", "json_schema", "text"]
CUSTOM_FORMATS = ["grammar", "text"]
TOOL_CHOICES = """
allowed_tools apply_patch code_interpreter computer computer_use computer_use_preview custom
file_search function image_generation local_shell mcp programmatic_tool_calling shell web_search
web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11
""".split()
REQUIRED_INPUTS = """
apply_patch_call_output computer_call_output custom_tool_call_output function_call_output
mcp_approval_response shell_call_output tool_search_output
""".split()

VOCABULARIES: list[tuple[type[Message], list[str]]] = [
    (
        client_event_pb2.ClientEvent,
        vocabulary.CLIENT_EVENTS + vocabulary.EXTENSION_CLIENT_EVENTS,
    ),
    (
        server_event_pb2.ServerEvent,
        vocabulary.SERVER_EVENTS + vocabulary.EXTENSION_SERVER_EVENTS,
    ),
    (item_pb2.Item, [*{*vocabulary.INPUT_ITEMS, *vocabulary.OUTPUT_ITEMS}]),
    (tool_pb2.Tool, vocabulary.TOOLS),
    (tool_pb2.ToolChoice, TOOL_CHOICES),
    (tool_pb2.CustomToolFormat, CUSTOM_FORMATS),
    (content_pb2.ContentPart, CONTENT_PARTS),
    (response_pb2.TextFormat, TEXT_FORMATS),
    (server_event_pb2.RequiredInput, REQUIRED_INPUTS),
]


def shaped(*wanted: int) -> list[Descriptor]:
    return [descriptor for descriptor in descriptors() if options.shape(descriptor) in wanted]


UNIONS = shaped(annotations_pb2.SHAPE_UNION)
ENVELOPES = shaped(annotations_pb2.SHAPE_ENVELOPE)


def typed_arms(descriptor: Descriptor) -> list[FieldDescriptor]:
    return [field for field in options.arms_of(descriptor) if options.public_type(field)]


def pascal(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize(
    ("message_type", "types"), VOCABULARIES, ids=lambda value: getattr(value, "__name__", "")
)
def test_arms_and_public_types_are_one_to_one(
    message_type: type[Message], types: list[str]
) -> None:
    arms = typed_arms(options.descriptor_of(message_type))

    assert sorted(options.public_type(field) for field in arms) == sorted(types)
    assert len({field.name for field in arms}) == len(types) == len(set(types))


def test_the_inventories_are_whole() -> None:
    assert len(vocabulary.SERVER_EVENTS) == 62
    assert len(vocabulary.INPUT_ITEMS) == 31  # 33 classes, of which three are `message`.
    assert len(vocabulary.OUTPUT_ITEMS) == 28
    assert len(vocabulary.TOOLS) == 18  # 16, of which two also have a dated name.


def test_every_union_with_types_is_in_the_vocabulary() -> None:
    typed = {descriptor.full_name for descriptor in UNIONS + ENVELOPES if typed_arms(descriptor)}

    assert typed == {options.descriptor_of(message).full_name for message, _ in VOCABULARIES}


@pytest.mark.parametrize("descriptor", UNIONS + ENVELOPES, ids=lambda d: d.name)
def test_an_arm_is_its_type_with_underscores(descriptor: Descriptor) -> None:
    for field in typed_arms(descriptor):
        assert field.name == options.public_type(field).replace(".", "_")


@pytest.mark.parametrize("descriptor", ENVELOPES, ids=lambda d: d.name)
def test_the_message_of_an_event_is_its_arm_in_pascal_case(descriptor: Descriptor) -> None:
    for field in options.arms_of(descriptor):
        expected = RENAMED_MESSAGES.get(field.name, pascal(field.name))
        assert options.message_type_of(field).name == expected


@pytest.mark.parametrize(
    ("message_type", "suffix"),
    [(item_pb2.Item, "Item"), (tool_pb2.Tool, "Tool")],
)
def test_the_message_of_an_item_or_tool_is_its_arm_and_a_noun(
    message_type: type[Message], suffix: str
) -> None:
    for field in options.arms_of(options.descriptor_of(message_type)):
        undated = re.sub(r"_\d{4}_\d{2}_\d{2}$", "", field.name)
        assert options.message_type_of(field).name == pascal(undated) + suffix


@pytest.mark.parametrize("descriptor", ENVELOPES, ids=lambda d: d.name)
def test_small_numbers_go_to_the_envelope_and_to_what_is_common(descriptor: Descriptor) -> None:
    arms = {field.number: field for field in options.arms_of(descriptor)}
    head = [field.number for field in descriptor.fields if field.number not in arms]

    assert min(head) == 1
    if descriptor.name == "ServerEvent":
        deltas = """
        response_output_text_delta response_function_call_arguments_delta
        response_custom_tool_call_input_delta response_reasoning_text_delta
        response_reasoning_summary_text_delta response_refusal_delta
        """.split()
        names = [descriptor.fields_by_name[name].number for name in deltas]
        assert max(names) <= 15
        assert descriptor.fields_by_name["response_audio_delta"].number > 15


@pytest.mark.parametrize("descriptor", ENVELOPES, ids=lambda d: d.name)
def test_no_member_of_an_event_hides_one_of_the_envelope(descriptor: Descriptor) -> None:
    arms = options.arms_of(descriptor)
    head = {field.name for field in descriptor.fields if field not in arms} | {"type"}

    for field in arms:
        assert options.message_type_of(field).name
        members = options.message_type_of(field).fields
        assert not head & {options.public_name(member) for member in members}
        assert not any(options.is_extra(member) for member in members)


def test_only_unions_have_arms_that_are_not_messages() -> None:
    for descriptor in descriptors():
        for oneof in descriptor.oneofs:
            if len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}":
                continue  # What protobuf makes of `optional`.
            assert options.shape(descriptor) in {
                annotations_pb2.SHAPE_UNION,
                annotations_pb2.SHAPE_ENVELOPE,
            }
            for field in oneof.fields:
                is_text_arm = options.is_string(field) and not options.public_type(field)
                in_union = options.shape(descriptor) == annotations_pb2.SHAPE_UNION
                assert field.message_type is not None or (is_text_arm and in_union)


def test_unions_and_lists_have_nothing_beside_their_value() -> None:
    for descriptor in UNIONS:
        assert len(descriptor.fields) == len(options.arms_of(descriptor))
    for descriptor in shaped(annotations_pb2.SHAPE_LIST):
        assert options.only_field(descriptor).is_repeated


def test_an_arm_of_a_union_has_no_member_that_its_type_would_hide() -> None:
    for descriptor in UNIONS:
        for field in typed_arms(descriptor):
            members = options.message_type_of(field).fields
            assert "type" not in {options.public_name(member) for member in members}


def test_public_names_are_unique_in_their_message() -> None:
    for descriptor in descriptors():
        names = [options.public_name(field) for field in descriptor.fields]
        assert len(names) == len(set(names)), descriptor.full_name


def test_unknown_members_of_items_tools_and_parts_are_kept() -> None:
    for message_type in (item_pb2.Item, tool_pb2.Tool, content_pb2.ContentPart):
        for field in options.arms_of(options.descriptor_of(message_type)):
            extra = [f for f in options.message_type_of(field).fields if options.is_extra(f)]
            assert [f.name for f in extra] == ["extra_json"], field.name


def test_annotations_stand_on_fields_that_can_bear_them() -> None:
    for descriptor in descriptors():
        for field in descriptor.fields:
            if options.is_json_text(field) or options.is_extra(field):
                assert options.is_string(field)
            if options.is_extra(field):
                assert not field.is_repeated
                assert not field.has_presence
            if options.untyped_key(field):
                assert options.public_type(field)


def test_enum_values_begin_with_their_enums_name_and_zero_is_unspecified() -> None:
    for file in FILES:
        for enum in file.DESCRIPTOR.enum_types_by_name.values():
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
            assert enum.values_by_number[0].name == f"{prefix}UNSPECIFIED"
            assert all(value.name.startswith(prefix) for value in enum.values)


def test_every_error_reason_has_its_status_and_type() -> None:
    for value in error_pb2.ErrorReason.DESCRIPTOR.values:
        extensions = value.GetOptions().Extensions
        if value.number:
            assert 400 <= extensions[annotations_pb2.http_status] < 600, value.name
            assert extensions[annotations_pb2.error_type], value.name


def test_a_create_has_every_field_of_the_api() -> None:
    fields = {
        options.public_name(field) for field in client_event_pb2.ResponseCreate.DESCRIPTOR.fields
    }

    assert set(vocabulary.CREATE_FIELDS) <= fields
    assert fields - set(vocabulary.CREATE_FIELDS) == {
        "frequency_penalty",
        "multi_agent",
        "presence_penalty",
        "rollout",
    }


def test_a_response_has_every_field_of_the_api() -> None:
    fields = {options.public_name(field) for field in response_pb2.Response.DESCRIPTOR.fields}

    assert set(vocabulary.RESPONSE_FIELDS) <= fields
    assert fields - set(vocabulary.RESPONSE_FIELDS) == {
        "frequency_penalty",
        "presence_penalty",
        "store",
        "turnwire",
        "warnings",
    }


def test_services_have_the_calls_of_the_api() -> None:
    service = responses_service_pb2.DESCRIPTOR.services_by_name["ResponsesService"]

    assert [method.name for method in service.methods] == [
        "Create",
        "StreamCreate",
        "Get",
        "Delete",
        "Cancel",
        "ListInputItems",
        "CountInputTokens",
        "Compact",
    ]
