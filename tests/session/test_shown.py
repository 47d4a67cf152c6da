from __future__ import annotations

import json

import pytest

from harness.session_driver import (
    assistant,
    call,
    call_output,
    custom_call,
    custom_output,
    user,
)
from turnwire.v1.content_pb2 import ContentPart, ReasoningText, SummaryText
from turnwire.v1.item_pb2 import (
    AdditionalToolsItem,
    ApplyPatchCallItem,
    ApplyPatchCallOutputItem,
    CodeInterpreterCallItem,
    CompactionItem,
    CompactionTriggerItem,
    ConfigurationUpdateItem,
    FileSearchCallItem,
    ImageGenerationCallItem,
    Item,
    LocalShellCallItem,
    LocalShellCallOutputItem,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpListToolsItem,
    ProgramItem,
    ProgramOutputItem,
    ReasoningItem,
    ShellCallItem,
    ShellCallOutputItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
    WebSearchCallItem,
)
from turnwire_server.session.conversation import item_text
from turnwire_server.session.sealed import Compacted, unseals_nothing
from turnwire_server.session.shown import shown_items

THOUGHT = ContentPart(reasoning_text=ReasoningText(text="raw"))


def unseal(kind, text):
    """Open texts that say what they are: `kind:payload`."""
    known, _, payload = text.partition(":")
    return payload.encode() if known == kind else None


def told(*items):
    return list(shown_items(items, unseal))


def summary(*texts):
    return [ContentPart(summary_text=SummaryText(text=text)) for text in texts]


def reasoning(**fields):
    (item,) = told(Item(reasoning=ReasoningItem(id="rs_1", **fields)))
    assert item.reasoning.id == "rs_1"
    return [part.reasoning_text.text for part in item.reasoning.content]


def test_what_every_prompt_format_knows_is_shown_as_it_is_without_a_copy():
    items = [
        user("a"),
        assistant("b"),
        call("c"),
        call_output("c"),
        custom_call("d"),
        custom_output("d"),
    ]
    assert shown_items(items, unseal) is items
    assert told(*items, Item(web_search_call=WebSearchCallItem())) == items


@pytest.mark.parametrize(
    "item",
    [
        Item(additional_tools=AdditionalToolsItem(role="developer")),
        Item(compaction_trigger=CompactionTriggerItem()),
        Item(configuration_update=ConfigurationUpdateItem()),
        Item(file_search_call=FileSearchCallItem(results='[{"text":"x"}]')),
        Item(web_search_call=WebSearchCallItem(action='{"query":"x"}')),
        Item(image_generation_call=ImageGenerationCallItem(result="AAAA")),
        Item(mcp_list_tools=McpListToolsItem(server_label="s")),
        Item(mcp_approval_request=McpApprovalRequestItem(name="x")),
        Item(mcp_approval_response=McpApprovalResponseItem(approve=True)),
        Item(tool_search_call=ToolSearchCallItem(arguments="{}")),
        Item(tool_search_output=ToolSearchOutputItem()),
        Item(program=ProgramItem(code="x")),
        Item(program_output=ProgramOutputItem(result="x")),
        Item(),
    ],
    ids=lambda item: item.WhichOneof("item") or "nothing",
)
def test_what_says_nothing_to_a_text_model_is_not_shown(item):
    assert told(user("a"), item) == [user("a")]


def test_reasoning_is_shown_by_its_text_its_seal_or_its_summary():
    assert reasoning(content=[THOUGHT], encrypted_content="reasoning:sealed") == ["raw"]
    assert reasoning(summary=summary("s"), encrypted_content="reasoning:sealed") == ["sealed"]
    assert reasoning(summary=summary("a", "b")) == ["a\n\nb"]
    assert reasoning(summary=summary("a"), encrypted_content="of another server") == ["a"]
    assert reasoning() == []


def test_reasoning_that_cannot_be_read_says_nothing():
    item = Item(reasoning=ReasoningItem(id="rs_1", encrypted_content="reasoning:x"))
    (shown,) = shown_items([item], unseals_nothing)
    assert not shown.reasoning.content


def test_a_compaction_is_a_message_of_the_user_with_the_summary_word_for_word():
    compacted = Compacted("It {said} so.", request="Do {request} it.")
    sealed = "compaction:" + compacted.payload().decode()
    (item,) = told(Item(compaction=CompactionItem(encrypted_content=sealed)))
    assert item.message.role == "user"
    text = item_text(item.message.content)
    assert "<summary>\nIt {said} so.\n</summary>" in text
    assert "<request>\nDo {request} it.\n</request>" in text


def test_a_compaction_whose_key_is_gone_is_not_shown():
    assert told(Item(compaction=CompactionItem(encrypted_content="other:x"))) == []


def test_calls_of_shells_and_patches_are_calls_of_functions():
    items = told(
        Item(local_shell_call=LocalShellCallItem(call_id="1", action='{"command":["ls"]}')),
        Item(local_shell_call_output=LocalShellCallOutputItem(id="1", output="file")),
        Item(shell_call=ShellCallItem(call_id="2", action='{"commands":["ls"]}')),
        Item(apply_patch_call=ApplyPatchCallItem(call_id="3", operation='{"type":"delete_file"}')),
        Item(
            apply_patch_call_output=ApplyPatchCallOutputItem(
                call_id="3", status="failed", output="no such file"
            )
        ),
    )
    calls = [item.function_call for item in items if item.HasField("function_call")]
    assert [(one.call_id, one.name, one.arguments) for one in calls] == [
        ("1", "local_shell", '{"command":["ls"]}'),
        ("2", "shell", '{"commands":["ls"]}'),
        ("3", "apply_patch", '{"type":"delete_file"}'),
    ]
    outputs = [item.function_call_output for item in items if item.HasField("function_call_output")]
    assert [(one.call_id, one.name, one.output.text) for one in outputs] == [
        ("1", "local_shell", "file"),
        ("3", "apply_patch", "failed\nno such file"),
    ]


def test_an_output_of_a_local_shell_may_name_its_call_by_call_id():
    output = LocalShellCallOutputItem(id="lsho_1", call_id="1", output="file")
    (item,) = told(Item(local_shell_call_output=output))
    assert item.function_call_output.call_id == "1"


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([], ""),
        ([{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
         "a\nexit code: 0"),
        ([{"stdout": "a", "stderr": "b", "outcome": {"type": "timeout"}}], "a\nb\ntimed out"),
        ([{"stdout": 7}, "x", {"stdout": "c"}], "c"),
        ({"stdout": "not a list"}, ""),
    ],
)  # fmt: skip
def test_outputs_of_a_shell_are_shown_as_a_terminal_would(outputs, text):
    output = ShellCallOutputItem(call_id="1", output=json.dumps(outputs))
    (item,) = told(Item(shell_call_output=output))
    assert item.function_call_output.output.text == text


def test_calls_that_a_provider_ran_are_shown_with_what_they_gave():
    mcp = McpCallItem(
        id="mcp_1", name="read", server_label="fs", arguments='{"a":1}', output="text"
    )
    failed = McpCallItem(id="mcp_2", name="read", server_label="fs", error='{"code":1}')
    code = CodeInterpreterCallItem(
        id="ci_1",
        code="print(1)",
        outputs='[{"type":"logs","logs":"1"},{"type":"image","url":"x"}]',
    )
    items = told(Item(mcp_call=mcp), Item(mcp_call=failed), Item(code_interpreter_call=code))
    shown = [
        (item.function_call.namespace, item.function_call.name, item.function_call.arguments)
        if item.HasField("function_call")
        else (item.function_call_output.call_id, item.function_call_output.output.text)
        for item in items
    ]
    assert shown == [
        ("fs", "read", '{"a":1}'),
        ("mcp_1", "text"),
        ("fs", "read", ""),
        ("mcp_2", '{"code":1}'),
        ("", "code_interpreter", '{"code": "print(1)"}'),
        ("ci_1", "1"),
    ]
