from __future__ import annotations

import pytest

from harness.session_driver import (
    assistant,
    call,
    call_output,
    content,
    custom_call,
    custom_output,
    user,
)
from turnwire.v1.content_pb2 import (
    Content,
    ContentPart,
    ContentPartList,
    InputText,
    OutputText,
    PlainText,
    ReasoningText,
    Refusal,
)
from turnwire.v1.item_pb2 import (
    ITEM_STATUS_INCOMPLETE,
    AdditionalToolsItem,
    ConfigurationUpdateItem,
    Item,
    LocalShellCallOutputItem,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    ReasoningItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
)
from turnwire.v1.tool_pb2 import FunctionTool, Tool
from turnwire_server.session.conversation import EMPTY, OpenCalls, call_key, item_text


def texts(conversation):
    return [item_text(item.message.content) for item in conversation.items()]


def test_a_conversation_holds_its_items_in_order():
    conversation = EMPTY.extended([user("a"), assistant("b")]).extended([user("c")])
    assert texts(conversation) == ["a", "b", "c"]
    assert conversation.item_count == 3
    assert conversation.byte_count == sum(map(len, conversation.encoded_items()))


def test_forks_share_their_parent_and_do_not_see_each_other():
    parent = EMPTY.extended([user("a")])
    left, right = parent.extended([user("left")]), parent.extended([user("right")])
    assert left.parent is right.parent is parent
    assert (texts(left), texts(right), texts(parent)) == (["a", "left"], ["a", "right"], ["a"])


def test_calls_stay_open_behind_messages_and_are_answered_in_one_branch_only():
    asked = EMPTY.extended([user("a"), call("c1"), call("c2", status=ITEM_STATUS_INCOMPLETE)])
    later = asked.extended([user("b"), assistant("c")])
    assert (later.open_calls, later.cut_calls) == (asked.open_calls, asked.cut_calls)
    assert (later.tool_outputs, later.last_user_text) == (0, "b")
    answered = later.extended([user("d"), call_output("c1"), assistant("e"), call_output("c2")])
    assert not answered.open_calls and not answered.cut_calls
    assert set(later.open_calls) == set(asked.open_calls) == {"c1"}
    assert set(later.cut_calls) == set(asked.cut_calls) == {"c2"}
    assert (answered.tool_outputs, answered.last_user_text) == (2, "d")


def test_nothing_new_is_the_same_conversation():
    parent = EMPTY.extended([user("a")])
    assert parent.extended([]) is parent


def test_a_caller_s_later_change_of_an_item_changes_nothing():
    item = user("before")
    conversation = EMPTY.extended([item])
    item.message.role = "system"
    conversation.items()[0].message.role = "developer"
    assert conversation.items()[0].message.role == "user"


def test_a_very_long_conversation_can_be_dropped():
    conversation = EMPTY
    for _ in range(50_000):
        conversation = conversation.extended([user("x")])
    assert conversation.item_count == 50_000
    del conversation  # a chain of objects, which must not be freed by recursion


def test_a_call_is_open_until_its_output():
    asked = EMPTY.extended([call("c1"), custom_call("c2")])
    assert dict(asked.open_calls) == {"c1": "function_call_output", "c2": "custom_tool_call_output"}
    answered = asked.extended([call_output("c1")])
    assert dict(answered.open_calls) == {"c2": "custom_tool_call_output"}
    assert not answered.extended([custom_output("c2")]).open_calls
    assert len(asked.open_calls) == 2


def test_a_call_that_was_cut_may_be_answered_and_need_not_be():
    cut = EMPTY.extended([call("c1", status=ITEM_STATUS_INCOMPLETE)])
    assert not cut.open_calls
    assert dict(cut.cut_calls) == {"c1": "function_call_output"}
    assert not cut.extended([call_output("c1")]).cut_calls


@pytest.mark.parametrize(
    ("items", "is_right"),
    [
        ([call_output("c1")], False),
        ([call("c1"), custom_output("c1")], False),
        ([call("c1"), call_output("c1"), call_output("c1")], False),
        ([call("c1"), call("c1")], False),
        ([call("c1"), call_output("c1"), call("c1")], True),
        ([custom_call("c1"), custom_output("c1")], True),
        ([call("c1", status=ITEM_STATUS_INCOMPLETE), call_output("c1")], True),
        ([call("c1", status=ITEM_STATUS_INCOMPLETE), call("c1")], True),
        ([user("a")], True),
        ([Item()], True),
    ],
)
def test_calls_and_outputs_pair_in_order(items, is_right):
    calls = OpenCalls(EMPTY)
    assert all(calls.read(item) for item in items) is is_right


def test_tool_outputs_are_counted_from_the_last_user_message():
    conversation = EMPTY.extended([user("go"), call("c1"), call_output("c1")])
    assert conversation.tool_outputs == 1
    conversation = conversation.extended([custom_call("c2"), custom_output("c2")])
    assert conversation.tool_outputs == 2
    assert conversation.extended([assistant("done")]).tool_outputs == 2
    assert conversation.extended([user("more")]).tool_outputs == 0


def test_the_last_user_message_is_remembered_up_to_4096_characters():
    conversation = EMPTY.extended([user("first"), user("é" * 5_000), assistant("x")])
    assert conversation.last_user_text == "é" * 4_096


def test_additional_tools_add_up():
    def offered(name):
        tool = Tool(function=FunctionTool(name=name))
        return Item(additional_tools=AdditionalToolsItem(role="developer", tools=[tool]))

    conversation = EMPTY.extended([offered("a")]).extended([user("x"), offered("b")])
    tools = [Tool.FromString(encoded).function.name for encoded in conversation.added_tools]
    assert tools == ["a", "b"]


def test_the_newest_item_with_an_id_is_found():
    conversation = EMPTY.extended([user("old", id="m1"), user("mentions m1", id="m2")])
    conversation = conversation.extended([Item(), user("new", id="m1"), user("m1", id="m3")])
    assert item_text(conversation.find_item("m1").message.content) == "new"
    assert item_text(conversation.find_item("m2").message.content) == "mentions m1"
    assert conversation.find_item("m") is None
    assert conversation.find_item("") is None


def test_items_that_the_screen_has_not_seen_wait_for_it_with_what_follows():
    first, second = user("a", id="m1"), user("b", id="m2")
    conversation = EMPTY.extended([first]).to_be_screened([first])
    assert conversation.to_be_screened([]) is conversation
    conversation = conversation.extended([second]).to_be_screened([second])
    waiting = [Item.FromString(encoded) for encoded in conversation.unscreened]
    assert waiting == [first, second] == conversation.items()
    assert EMPTY.unscreened == ()


def test_a_found_item_is_nobody_else_s():
    conversation = EMPTY.extended([user("a", id="m1")])
    conversation.find_item("m1").message.role = "system"
    assert conversation.find_item("m1").message.role == "user"


def test_the_text_of_a_content_is_that_of_its_text_parts():
    parts = [
        ContentPart(input_text=InputText(text="a")),
        ContentPart(output_text=OutputText(text="b")),
        ContentPart(refusal=Refusal(refusal="c")),
        ContentPart(text=PlainText(text="d")),
        ContentPart(reasoning_text=ReasoningText(text="hidden")),
    ]
    assert item_text(Content(parts=ContentPartList(parts=parts))) == "abcd"
    assert item_text(Content(text="plain")) == "plain"
    assert item_text(Content()) == ""
    assert item_text(content("part")) == "part"


def test_reasoning_changes_no_facts():
    parent = EMPTY.extended([user("a")])
    child = parent.extended([Item(reasoning=ReasoningItem(id="rs_1"))])
    assert (child.last_user_text, child.tool_outputs) == ("a", 0)


def test_the_screen_s_state_is_inherited():
    conversation = type(EMPTY)(screen_state=b"seen")
    assert conversation.extended([user("a")]).screen_state == b"seen"


def test_what_takes_the_place_of_all_items_knows_what_they_said():
    tool = Tool(function=FunctionTool(name="f"))
    whole = EMPTY.extended(
        [
            user("a"),
            Item(additional_tools=AdditionalToolsItem(role="developer", tools=[tool])),
            Item(configuration_update=ConfigurationUpdateItem(reasoning="{}")),
            call("1"),
            call_output("1"),
        ]
    )
    fresh = whole.replaced_by([user("summary")])
    assert fresh.items() == [user("summary")]
    assert (fresh.item_count, fresh.parent) == (1, None)
    assert fresh.byte_count == len(user("summary").SerializeToString())
    assert (fresh.added_tools, fresh.configuration) == (whole.added_tools, whole.configuration)
    assert (fresh.tool_outputs, fresh.last_user_text) == (1, "a")
    assert fresh.extended([user("b")]).items() == [user("summary"), user("b")]


def test_tools_that_a_search_found_are_offered_too():
    tool = Tool(function=FunctionTool(name="f"))
    found = Item(tool_search_output=ToolSearchOutputItem(tools=[tool]))
    assert EMPTY.extended([found]).added_tools == (tool.SerializeToString(),)


@pytest.mark.parametrize(
    ("item", "key"),
    [
        (Item(), ""),
        (user("a"), ""),
        (call("1"), "1"),
        (call_output("1"), "1"),
        (Item(mcp_approval_request=McpApprovalRequestItem(id="a")), "a"),
        (Item(mcp_approval_response=McpApprovalResponseItem(approval_request_id="a")), "a"),
        (Item(local_shell_call_output=LocalShellCallOutputItem(id="i")), "i"),
        (Item(local_shell_call_output=LocalShellCallOutputItem(id="i", call_id="c")), "c"),
        (Item(tool_search_call=ToolSearchCallItem(call_id="c")), "c"),
        (Item(tool_search_call=ToolSearchCallItem(call_id="c", execution="server")), ""),
    ],
)
def test_what_pairs_a_call_with_its_answer(item, key):
    assert call_key(item) == key
