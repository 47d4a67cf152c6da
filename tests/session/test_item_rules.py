from __future__ import annotations

import pytest

from harness.session_driver import (
    assistant,
    call,
    call_output,
    content,
    custom_call,
    custom_output,
    given,
    new_ids,
    user,
)
from turnwire.v1.client_event_pb2 import Input
from turnwire.v1.content_pb2 import (
    Content,
    ContentPart,
    ContentPartList,
    InputFile,
    InputImage,
    InputText,
    OutputText,
    PlainText,
    ReasoningText,
    Refusal,
    SummaryText,
)
from turnwire.v1.item_pb2 import (
    ITEM_STATUS_INCOMPLETE,
    AdditionalToolsItem,
    Item,
    ItemReferenceItem,
    MessageItem,
    ReasoningItem,
)
from turnwire.v1.tool_pb2 import FunctionTool, Tool, WebSearchTool
from turnwire_server.session.checked_input import CheckedInput, check_message_alone
from turnwire_server.session.conversation import EMPTY, item_text
from turnwire_server.session.errors import Rejection
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.sealed import Compacted
from turnwire_server.session.tool_rules import ToolCatalogue

TEXT = ContentPart(input_text=InputText(text="a"))
SAID = ContentPart(output_text=OutputText(text="a"))
PLAIN = ContentPart(text=PlainText(text="a"))
REFUSED = ContentPart(refusal=Refusal(refusal="no"))
IMAGE = ContentPart(input_image=InputImage(image_url="data:image/png;base64,AA=="))
FILE = ContentPart(input_file=InputFile(file_id="file_1"))
THOUGHT = ContentPart(reasoning_text=ReasoningText(text="hm"))
SUMMARY = ContentPart(summary_text=SummaryText(text="hm"))


def unseal(kind, text):
    """Open texts that say what they are: `kind:payload`."""
    known, _, payload = text.partition(":")
    return payload.encode() if known == kind else None


def check(
    *items,
    conversation=EMPTY,
    find_item=lambda item_id: None,
    is_strict=False,
    outputs_required=True,
    before=(),
    takes_images=False,
):
    rules = ItemRules(
        new_ids(),
        find_item,
        ToolCatalogue(),
        is_strict=is_strict,
        unseal=unseal,
        takes_images=takes_images,
    )
    return rules.check(
        given(*items), conversation, outputs_required=outputs_required, before=before
    )


def accepted(*items, **options):
    checked = check(*items, **options)
    assert isinstance(checked, CheckedInput), checked
    return checked


def refused(*items, **options):
    rejection = check(*items, **options)
    assert isinstance(rejection, Rejection)
    assert len(rejection.message) < 512
    return rejection.code, rejection.param


def check_text(text, conversation=EMPTY, outputs_required=True):
    rules = ItemRules(new_ids(), lambda item_id: None, ToolCatalogue())
    return rules.check(Input(text=text), conversation, outputs_required=outputs_required)


def message(role, *parts):
    return Item(message=MessageItem(role=role, content=Content(parts=ContentPartList(parts=parts))))


# What an input is.


def test_a_text_is_held_to_the_same_rules_as_its_message():
    asked = EMPTY.extended([user(), call("call_1")])
    for parent in (EMPTY, EMPTY.extended([user(), assistant("a")]), asked):
        for outputs_required in (True, False):
            as_text = check_text("x", parent, outputs_required)
            as_item = check(user("x"), conversation=parent, outputs_required=outputs_required)
            if isinstance(as_item, CheckedInput):
                (item,) = as_item.items
                assert as_text == CheckedInput(as_text.items)
                assert item_text(as_text.items[0].message.content) == item_text(
                    item.message.content
                )
                assert as_text.items[0].message.id == item.message.id
            else:
                assert as_text == as_item and as_item.message.endswith("call_1.")


def test_a_text_is_one_user_message():
    (item,) = check_text("hello").items
    assert (item.message.role, item_text(item.message.content)) == ("user", "hello")
    assert item.message.content.parts.parts[0].WhichOneof("part") == "input_text"
    assert item.message.id == "msg_1"


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer", "boss", ""])
@pytest.mark.parametrize("text", ["x", ""])
def test_a_message_alone_is_held_to_the_same_rules_as_beside_another(role, text):
    asked = EMPTY.extended([user(), call("call_1")])
    message_ = MessageItem(role=role, content=Content(text=text))
    for parent in (EMPTY, asked):
        for outputs_required in (True, False):
            how = {"conversation": parent, "outputs_required": outputs_required}
            alone = check(Item(message=message_), **how)
            beside = check(Item(message=message_), user("y"), **how)
            if isinstance(beside, CheckedInput):
                assert alone == CheckedInput(beside.items[:1])
            else:
                assert alone == beside


def test_a_message_alone_keeps_its_id_and_comes_behind_what_is_put_before_it():
    message_ = MessageItem(id="msg_own", role="user", content=Content(text="x"))
    (first, second) = accepted(Item(message=message_), before=(user("y"),)).items
    assert (first, second.message.id) == (user("y"), "msg_own")


def test_what_is_no_message_alone_is_left_to_the_other_rules():
    for items in ([], [user("x"), user("y")], [message("user", TEXT)], [call("call_1")]):
        assert check_message_alone(given(*items), EMPTY, new_ids(), outputs_required=True) is None


def test_an_empty_text_adds_nothing_to_a_conversation():
    assert check_text("", EMPTY.extended([user("hi")])).items == ()


@pytest.mark.parametrize("absent", [None, Input(), Input(text=""), given()])
def test_without_an_input_there_must_be_something_to_answer(absent):
    rules = ItemRules(new_ids(), lambda item_id: None, ToolCatalogue())
    rejection = rules.check(absent, EMPTY, outputs_required=True)
    assert (rejection.code, rejection.param) == ("missing_required_parameter", "input")
    assert rules.check(absent, EMPTY, outputs_required=False) == CheckedInput(())
    after = EMPTY.extended([user("hi")])
    assert rules.check(absent, after, outputs_required=True) == CheckedInput(())


def test_ids_of_a_client_are_kept_and_missing_ones_are_made():
    checked = accepted(
        user("a", id="msg_mine"),
        assistant("b", id=""),
        Item(reasoning=ReasoningItem()),
        call("c1"),
        call_output("c1"),
        custom_call("c2"),
        custom_output("c2"),
        user("c"),
    )
    ids = [getattr(item, item.WhichOneof("item")).id for item in checked.items]
    assert [each.rstrip("0123456789") for each in ids] == [
        "msg_mine",
        "msg_",
        "rs_",
        "fc_",
        "fco_",
        "ctc_",
        "ctco_",
        "msg_",
    ]


@pytest.mark.parametrize("arm", ["computer_call", "computer_call_output"])
def test_an_item_of_a_type_that_is_not_supported_is_named(arm):
    item = Item()
    getattr(item, arm).SetInParent()
    rejection = check(user(), item)
    assert (rejection.code, rejection.param) == ("unsupported_value", "input[1].type")
    assert f"'{arm}'" in rejection.message


def test_an_item_needs_a_type():
    assert refused(user(), Item()) == ("missing_required_parameter", "input[1].type")


def test_the_first_of_many_faults_is_the_one_that_is_told():
    bad = Item(message=MessageItem(role="user"))
    assert refused(*[bad] * 5_000) == ("missing_required_parameter", "input[0].content")


# Messages.


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_a_message_has_a_role(role):
    accepted(Item(message=MessageItem(role=role, content=Content(text="a"))))
    accepted(message(role, TEXT))


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        (MessageItem(content=content("a")), "missing_required_parameter", "input[1].role"),
        (MessageItem(role="tool", content=content("a")), "invalid_value", "input[1].role"),
        (MessageItem(role="x" * 9_999, content=content("a")), "invalid_value", "input[1].role"),
        (MessageItem(role="user"), "missing_required_parameter", "input[1].content"),
        (MessageItem(role="user", content=Content(text="")), "invalid_value", "input[1].content"),
        (
            MessageItem(role="user", content=content("")),
            "missing_required_parameter",
            "input[1].content[0].text",
        ),
        (
            MessageItem(role="system", content=Content(parts=ContentPartList())),
            "invalid_value",
            "input[1].content",
        ),
    ],
)
def test_a_bad_message_is_refused_with_its_path(item, code, param):
    assert refused(user(), Item(message=item)) == (code, param)


@pytest.mark.parametrize(
    "empty", [None, Content(text=""), Content(parts=ContentPartList()), content("", "output_text")]
)
def test_an_assistant_may_have_said_nothing(empty):
    accepted(user(), Item(message=MessageItem(role="assistant", content=empty)), user())


def test_a_part_without_text_is_fine_beside_one_with_text():
    accepted(message("user", ContentPart(input_text=InputText()), TEXT))


@pytest.mark.parametrize(
    ("role", "part", "code"),
    [
        ("user", SAID, "invalid_value"),
        ("user", REFUSED, "invalid_value"),
        ("developer", THOUGHT, "invalid_value"),
        ("assistant", SUMMARY, "invalid_value"),
        ("user", ContentPart(), "missing_required_parameter"),
        ("user", IMAGE, "unsupported_value"),
        ("user", FILE, "unsupported_value"),
        ("assistant", IMAGE, "unsupported_value"),
    ],
)
def test_a_bad_part_is_refused_with_its_path(role, part, code):
    path = "input[1].content[1]"
    expected = f"{path}.type" if code == "missing_required_parameter" else path
    good = TEXT if role != "assistant" else SAID
    assert refused(user(), message(role, good, part)) == (code, expected)


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_model_that_takes_images_is_given_them(role):
    accepted(message(role, TEXT, IMAGE), user(), takes_images=True)
    accepted(message(role, IMAGE), user(), takes_images=True)


def test_a_model_that_takes_images_takes_no_files_and_gives_no_images():
    rejection = check(message("user", FILE), takes_images=True)
    assert (rejection.code, rejection.param) == ("unsupported_value", "input[0].content[0]")
    assert "text and images only" in rejection.message
    assert refused(user(), message("assistant", IMAGE), takes_images=True) == (
        "unsupported_value",
        "input[1].content[0]",
    )


@pytest.mark.parametrize(
    ("image", "code", "member"),
    [
        (InputImage(), "missing_required_parameter", "image_url"),
        (InputImage(image_url=""), "missing_required_parameter", "image_url"),
        (InputImage(file_id="file_1"), "unsupported_value", "file_id"),
        (InputImage(image_url="file:///secret.png"), "invalid_value", "image_url"),
        (InputImage(image_url="https://"), "invalid_value", "image_url"),
        (InputImage(image_url="data:image/png;base64,"), "invalid_value", "image_url"),
        (InputImage(image_url="data:image/png,AA"), "invalid_value", "image_url"),
        (InputImage(image_url="data:text/html;base64,AAAA"), "invalid_value", "image_url"),
    ],
)
def test_an_image_that_nobody_could_see_is_refused_with_its_path(image, code, member):
    bad = message("user", TEXT, ContentPart(input_image=image))
    assert refused(bad, takes_images=True) == (code, f"input[0].content[1].{member}")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png?x=y",
        "HTTP://example.com",
        "data:image/svg+xml;charset=utf-8;base64,PHN2Zz4=",
        "data:IMAGE/PNG;BASE64,AA==",
    ],
)
def test_an_image_may_be_a_data_url_or_somewhere_else(url):
    image = ContentPart(input_image=InputImage(image_url=url, detail="low"))
    accepted(message("user", image), takes_images=True)


def test_a_refusal_of_the_assistant_is_accepted():
    accepted(user(), message("assistant", REFUSED), user())


def test_input_text_of_the_assistant_is_accepted_unless_the_rules_are_strict():
    said = message("assistant", TEXT)
    accepted(user(), said)
    assert refused(user(), said, is_strict=True) == ("invalid_value", "input[1].content[0]")
    accepted(user(), assistant(), is_strict=True)


# Reasoning.


def reasoning(*content, summary=()):
    return Item(reasoning=ReasoningItem(id="rs_1", content=content, summary=summary))


@pytest.mark.parametrize(
    "item",
    [
        reasoning(),
        reasoning(summary=[SUMMARY]),
        reasoning(THOUGHT, THOUGHT, summary=[SUMMARY]),
        Item(reasoning=ReasoningItem(encrypted_content="reasoning:x", extra_json='{"a":1}')),
    ],
)
def test_reasoning_is_kept_whole(item):
    before = ReasoningItem.FromString(item.reasoning.SerializeToString())
    kept = accepted(user(), item, assistant()).items[1].reasoning
    before.id = before.id or kept.id
    assert kept.id
    assert kept == before


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        (reasoning(summary=[TEXT]), "invalid_value", "input[1].summary[0]"),
        (reasoning(THOUGHT, SUMMARY), "invalid_value", "input[1].content[1]"),
        (reasoning(ContentPart()), "missing_required_parameter", "input[1].content[0].type"),
    ],
)
def test_bad_reasoning_is_refused_with_its_path(item, code, param):
    assert refused(user(), item, assistant()) == (code, param)


def test_reasoning_that_leads_to_nothing_is_dropped_with_a_warning():
    checked = accepted(user(), reasoning(), reasoning())
    assert len(checked.items) == 1
    assert [(warning.code, warning.param) for warning in checked.warnings] == [
        ("reasoning_dropped", "input[2]"),
        ("reasoning_dropped", "input[1]"),
    ]


def test_reasoning_at_the_end_of_a_warm_up_stays():
    checked = accepted(user(), reasoning(), outputs_required=False)
    assert len(checked.items) == 2
    assert not checked.warnings


def test_reasoning_alone_leaves_nothing_to_answer():
    assert refused(reasoning()) == ("missing_required_parameter", "input")
    assert accepted(reasoning(), conversation=EMPTY.extended([user()])).items == ()


# Calls and their outputs.


@pytest.mark.parametrize("path", ["by parent", "by full replay"])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ([call("c1")], [call_output("c1")]),
        ([custom_call("c1")], [custom_output("c1")]),
        ([call("c1"), custom_call("c2")], [custom_output("c2"), call_output("c1")]),
        ([call("c1"), call("c2")], [call_output("c2"), call_output("c1"), user("and?")]),
    ],
)
def test_calls_are_answered_in_any_order(path, asked, answered):
    if path == "by parent":
        accepted(*answered, conversation=EMPTY.extended([user(), *asked]))
    else:
        accepted(user(), *asked, *answered)


def test_an_output_without_its_call_is_refused_with_the_call_id():
    rejection = check(user(), call_output("call_x"))
    assert (rejection.code, rejection.param) == ("invalid_value", "input")
    assert rejection.message == "No tool call found for function call output with call_id call_x."
    rejection = check(custom_output("call_x"))
    assert "for custom tool call output with call_id call_x." in rejection.message


@pytest.mark.parametrize(
    "items",
    [
        [call_output("c1"), call("c1")],
        [call("c1"), custom_output("c1")],
        [call("c1"), call_output("c1"), call_output("c1")],
    ],
)
def test_an_output_too_early_of_another_kind_or_a_second_one_is_refused(items):
    assert refused(*items) == ("invalid_value", "input")


def test_a_call_without_its_output_is_refused_with_the_call_id():
    asked = EMPTY.extended([user(), call("call_1"), custom_call("call_2")])
    rejection = check(call_output("call_1"), conversation=asked)
    assert (rejection.code, rejection.param) == ("invalid_value", "input")
    assert rejection.message == "No tool output found for custom tool call call_2."
    rejection = check(custom_output("call_2"), conversation=asked)
    assert rejection.message == "No tool output found for function call call_1."


def test_a_call_that_waits_cannot_come_a_second_time():
    asked = EMPTY.extended([user(), call("c1")])
    assert refused(call("c1"), call_output("c1"), conversation=asked) == (
        "invalid_value",
        "input[0].call_id",
    )


def test_a_call_that_was_cut_may_be_answered_and_need_not_be():
    cut = EMPTY.extended([user(), call("c1", status=ITEM_STATUS_INCOMPLETE)])
    accepted(user("never mind"), conversation=cut)
    accepted(call_output("c1"), conversation=cut)
    accepted(user(), custom_call("c2", status=ITEM_STATUS_INCOMPLETE))
    assert refused(call_output("c1"), call_output("c1"), conversation=cut) == (
        "invalid_value",
        "input",
    )


def test_a_warm_up_may_leave_calls_open_and_its_child_may_not():
    asked = EMPTY.extended([user(), call("c1")])
    warm = asked.extended(accepted(user("x"), conversation=asked, outputs_required=False).items)
    assert refused(user("y"), conversation=warm) == ("invalid_value", "input")
    accepted(call_output("c1"), conversation=warm)


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        (call(""), "missing_required_parameter", "input[0].call_id"),
        (custom_call(""), "missing_required_parameter", "input[0].call_id"),
        (call_output(""), "missing_required_parameter", "input[0].call_id"),
        (custom_output(""), "missing_required_parameter", "input[0].call_id"),
    ],
)
def test_calls_and_outputs_need_a_call_id(item, code, param):
    assert refused(item) == (code, param)


@pytest.mark.parametrize("asked", [call("c1"), custom_call("c1")])
def test_a_call_needs_a_name(asked):
    getattr(asked, asked.WhichOneof("item")).name = ""
    assert refused(asked) == ("missing_required_parameter", "input[0].name")


@pytest.mark.parametrize(("ask", "answer"), [(call, call_output), (custom_call, custom_output)])
def test_an_output_is_text_or_text_parts(ask, answer):
    def with_output(said):
        item = answer("c1")
        getattr(item, item.WhichOneof("item")).output.CopyFrom(said)
        return ask("c1"), item

    accepted(*with_output(Content(text="")))
    accepted(*with_output(Content(parts=ContentPartList(parts=[TEXT, PLAIN, SAID]))))
    pair = with_output(Content())
    assert refused(*pair) == ("missing_required_parameter", "input[1].output")
    pair = with_output(Content(parts=ContentPartList(parts=[TEXT, IMAGE])))
    assert refused(*pair) == ("unsupported_value", "input[1].output[1]")
    accepted(*pair, takes_images=True)
    pair = with_output(Content(parts=ContentPartList(parts=[REFUSED])))
    assert refused(*pair) == ("invalid_value", "input[1].output[0]")


def test_long_call_ids_are_cut_in_messages():
    assert len(check(call_output("x" * 100_000)).message) < 256
    assert len(check(call("x" * 100_000)).message) < 256


# References.


def test_a_reference_stands_for_the_item_that_it_names():
    known = {"msg_7": assistant("earlier", id="msg_7")}
    reference = Item(item_reference=ItemReferenceItem(id="msg_7"))
    checked = accepted(user(), reference, find_item=known.get)
    assert item_text(checked.items[1].message.content) == "earlier"


def test_a_reference_to_nothing_is_not_found():
    reference = Item(item_reference=ItemReferenceItem(id="msg_9"))
    rejection = check(user(), reference)
    assert (rejection.code, rejection.param, rejection.status) == (
        "item_not_found",
        "input[1].id",
        404,
    )


def test_a_reference_needs_an_id():
    reference = Item(item_reference=ItemReferenceItem())
    assert refused(reference) == ("missing_required_parameter", "input[0].id")


def test_what_a_reference_names_is_paired_like_any_item():
    known = {"fc_1": call("c1", id="fc_1")}
    reference = Item(item_reference=ItemReferenceItem(id="fc_1"))
    accepted(user(), reference, call_output("c1"), find_item=known.get)
    assert refused(user(), reference, find_item=known.get) == ("invalid_value", "input")


# Additional tools.


def offering(*tools, role="developer"):
    return Item(additional_tools=AdditionalToolsItem(role=role, tools=tools))


def test_an_item_may_offer_tools():
    web = Tool(web_search=WebSearchTool())
    checked = accepted(user(), offering(Tool(function=FunctionTool(name="a")), web))
    assert [(warning.code, warning.param) for warning in checked.warnings] == [
        ("tool_not_supported", "input[1].tools[1]")
    ]
    assert checked.items[1].additional_tools.id == "at_2"
    accepted(user(), offering(role=""))


def test_bad_tools_of_an_item_are_refused_with_their_path():
    assert refused(user(), offering(Tool(function=FunctionTool()))) == (
        "missing_required_parameter",
        "input[1].tools[0].name",
    )
    assert refused(user(), offering(role="user")) == ("invalid_value", "input[1].role")


# What the server says must be accepted when it comes back.


def test_our_own_output_is_accepted_as_input():
    output = [
        reasoning(THOUGHT, summary=[SUMMARY]),
        assistant("", id="msg_1"),
        message("assistant", REFUSED),
        call("c1", id="fc_1", status=ITEM_STATUS_INCOMPLETE),
    ]
    accepted(user(), *output, user("next"))


# Items of other kinds.


def of(arm, **fields):
    item = Item()
    getattr(item, arm).MergeFrom(type(getattr(item, arm))(**fields))
    getattr(item, arm).SetInParent()
    return item


def compaction(*, covers=False, text="It was said."):
    payload = Compacted(text, covers=covers).payload().decode()
    return of("compaction", encrypted_content=f"compaction:{payload}")


WHOLE = {
    "file_search_call": of("file_search_call"),
    "web_search_call": of("web_search_call"),
    "image_generation_call": of("image_generation_call"),
    "code_interpreter_call": of("code_interpreter_call"),
    "mcp_list_tools": of("mcp_list_tools", server_label="s"),
    "mcp_call": of("mcp_call", name="n", server_label="s"),
    "mcp_approval_request": of("mcp_approval_request", id="a", name="n", server_label="s"),
    "tool_search_call": of("tool_search_call"),
    "tool_search_output": of("tool_search_output"),
    "program": of("program", call_id="p"),
    "configuration_update": of("configuration_update", reasoning='{"effort":"low"}'),
    "compaction": compaction(),
}


@pytest.mark.parametrize("arm", sorted(WHOLE))
def test_an_item_that_nobody_must_answer_is_accepted_and_gets_an_id(arm):
    (_, item) = accepted(user(), WHOLE[arm]).items
    assert item.WhichOneof("item") == arm
    assert getattr(item, arm).id


PAIRS = {
    "local_shell_call": (
        of("local_shell_call", call_id="1", action="{}"),
        of("local_shell_call_output", id="1", output="x"),
    ),
    "local_shell_call by call_id": (
        of("local_shell_call", call_id="1", action="{}"),
        of("local_shell_call_output", call_id="1", output="x"),
    ),
    "shell_call": (
        of("shell_call", call_id="1", action="{}"),
        of("shell_call_output", call_id="1", output="[]"),
    ),
    "apply_patch_call": (
        of("apply_patch_call", call_id="1", operation="{}"),
        of("apply_patch_call_output", call_id="1", status="completed"),
    ),
    "tool_search_call": (
        of("tool_search_call", call_id="1", execution="client"),
        of("tool_search_output", call_id="1", execution="client"),
    ),
}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_every_call_of_a_client_is_paired_with_its_output(name):
    call_item, output = PAIRS[name]
    accepted(user(), call_item, output)
    after = EMPTY.extended([user(), call_item])
    accepted(output, conversation=after)
    assert refused(user(), call_item) == ("invalid_value", "input")
    assert refused(user("go on"), conversation=after) == ("invalid_value", "input")
    assert refused(user(), output) == ("invalid_value", "input")


@pytest.mark.parametrize(
    ("call_item", "answer", "path"),
    [
        (
            of("mcp_approval_request", id="a", name="n", server_label="s"),
            of("mcp_approval_response", approval_request_id="a", approve=True),
            "input[{}].approval_request_id",
        ),
        (of("program", call_id="p"), of("program_output", call_id="p", result="x"), "input"),
    ],
    ids=["approval", "program"],
)
def test_what_may_stay_open_is_answered_once_and_only_if_it_was_asked(call_item, answer, path):
    accepted(user(), call_item)
    accepted(user(), call_item, answer)
    assert refused(user(), answer) == ("invalid_value", path.format(1))
    assert refused(user(), call_item, answer, answer) == ("invalid_value", path.format(3))


def test_an_approval_without_its_request_is_refused_with_the_id():
    rejection = check(user(), of("mcp_approval_response", approval_request_id="a", approve=True))
    assert rejection.message == "No approval request found with id a, or it is answered already."


def test_a_search_that_the_server_ran_is_not_paired():
    accepted(user(), of("tool_search_output", call_id="1", execution="server"))


@pytest.mark.parametrize(
    ("item", "member"),
    [
        (of("compaction"), "encrypted_content"),
        (of("local_shell_call", action="{}"), "call_id"),
        (of("local_shell_call", call_id="1"), "action"),
        (of("local_shell_call_output", output="x"), "call_id"),
        (of("shell_call", call_id="1"), "action"),
        (of("shell_call_output", call_id="1"), "output"),
        (of("apply_patch_call", call_id="1"), "operation"),
        (of("apply_patch_call_output", call_id="1"), "status"),
        (of("mcp_list_tools"), "server_label"),
        (of("mcp_approval_request", name="n", server_label="s"), "id"),
        (of("mcp_approval_response"), "approval_request_id"),
        (of("mcp_call", server_label="s"), "name"),
        (of("mcp_call", name="s"), "server_label"),
        (of("program"), "call_id"),
        (of("program_output"), "call_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.WhichOneof("item"),
)
def test_what_an_item_must_have_is_named(item, member):
    assert refused(user(), item) == ("missing_required_parameter", f"input[1].{member}")


def test_a_patch_ended_well_or_badly():
    bad = of("apply_patch_call_output", call_id="1", status="maybe")
    assert refused(user(), bad) == ("invalid_value", "input[1].status")


def test_tools_that_were_found_are_checked():
    bad = of("tool_search_output", tools=[Tool(function=FunctionTool(name="a b"))])
    assert refused(user(), bad) == ("invalid_value", "input[1].tools[0].name")
    hosted = of("tool_search_output", tools=[Tool(web_search=WebSearchTool())])
    (warning,) = accepted(user(), hosted).warnings
    assert warning.param == "input[1].tools[0]"


def test_an_update_that_cannot_be_applied_is_refused():
    bad = of("configuration_update", reasoning='{"effort":"huge"}')
    assert refused(user(), bad) == ("invalid_value", "input[1].reasoning.effort")


@pytest.mark.parametrize(
    "item",
    [
        of("compaction", encrypted_content="compaction:nonsense"),
        of("compaction", encrypted_content="reasoning:x"),
        of("reasoning", encrypted_content="compaction:x"),
    ],
)
def test_what_was_not_sealed_here_is_refused_at_its_seal(item):
    assert refused(user(), item, user()) == ("invalid_value", "input[1].encrypted_content")


def test_a_compaction_covers_what_stands_before_it_if_it_says_so():
    plain = accepted(user(), compaction(), user())
    assert (plain.is_covering, plain.covered) == (False, 0)
    covering = accepted(user(), compaction(covers=True), user(), before=[user("first")])
    assert (covering.is_covering, covering.covered) == (True, 2)
    assert len(covering.items) == 4
    twice = accepted(compaction(covers=True), user(), compaction(covers=True), compaction())
    assert (twice.is_covering, twice.covered) == (True, 2)


def test_a_trigger_comes_last_and_is_no_item():
    checked = accepted(user(), of("compaction_trigger"))
    assert checked.wants_compaction
    assert len(checked.items) == 1
    assert refused(of("compaction_trigger"), user()) == ("invalid_value", "input[0].type")
    assert refused(of("compaction_trigger"))[1] == "input"


def test_messages_may_be_all_there_is_to_answer():
    assert accepted(before=[user("first")]).items == (user("first"),)


def test_an_input_with_more_items_than_any_is_allowed_is_refused_before_they_are_read():
    assert refused(*[user()] * 10_001) == ("invalid_value", "input")
    assert len(accepted(*[user()] * 10_000).items) == 10_000
