"""Golden renderings: what each family's upstream makes of one agentic conversation.

Upstream is Jinja itself with the tokenizers library, as Hugging Face does it, or the
openai-harmony library: none of our rendering code. Written to `tests/data/golden` with
`python tests/harness/golden.py`, from the templates and packages as they are then.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import openai_harmony as harmony
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.families import FAMILIES, template_source, write_folder
from harness.models import cache_directory, qwen3_folder
from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.adapters.models import CATALOGUE, pull
from turnwire_server.adapters.renderers.chat_model import model_of_gguf
from turnwire_server.adapters.renderers.gguf import read_gguf
from turnwire_server.adapters.renderers.harmony_encoding import harmony_tokens
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = [
    "CONVERSATION",
    "PLAIN",
    "TOOLS",
    "family_prompts",
    "harmony_prompts",
    "items_of",
    "jinja_prompts",
    "read_golden",
    "sampling_points",
    "tool_set",
    "write_golden",
]

_GOLDEN: Final = Path(__file__).parent.parent / "data" / "golden"

_PARAMETERS: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Which city"}},
    "required": ["city"],
}
TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": _PARAMETERS},
    }
    for name, description in (("weather", "Tells the weather"), ("news", "Tells the news"))
]
"""As templates get them."""


def _call(number: int, city: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": {"city": city}}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def _output(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": "weather", "content": text}


def _said(text: str, thought: str = "", *calls: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = list(calls)
    return message


CONVERSATION: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "How is the weather in Zürich?"},
    _said("", "The user wants the weather.", _call(1, "Zürich")),
    _output(1, '{"t": 12, "sky": "☀️"}'),
    _said("12 °C and sunny ☀️.", "Got it."),
    {"role": "user", "content": "And in 東京?\n\nThanks!"},
    _said("", "Again.", _call(2, "東京")),
    _output(2, "31 °C"),
    _said("31 °C."),
    {"role": "user", "content": "Ok, bye  then."},
]
"""As templates get it: the first message is the instructions."""
PLAIN: Final = [
    message
    for message in CONVERSATION
    if message["role"] != "tool" and not message.get("tool_calls")
]
"""The same for templates without tools."""


def sampling_points(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Return how many messages there are each time the model goes on."""
    return [end for end in range(2, len(messages) + 1) if messages[end - 1]["role"] != "assistant"]


def items_of(messages: Sequence[dict[str, Any]]) -> list[item_pb2.Item]:
    """Return `messages` as items of the API."""
    items: list[item_pb2.Item] = []
    for message in messages:
        content = content_pb2.Content(text=message["content"])
        if message["role"] == "tool":
            output = item_pb2.FunctionCallOutputItem(
                call_id=message["tool_call_id"], output=content
            )
            items.append(item_pb2.Item(function_call_output=output))
            continue
        if thought := message.get("reasoning_content"):
            part = content_pb2.ContentPart(reasoning_text=content_pb2.ReasoningText(text=thought))
            items.append(item_pb2.Item(reasoning=item_pb2.ReasoningItem(content=[part])))
        if message["content"]:
            said = item_pb2.MessageItem(role=message["role"], content=content)
            items.append(item_pb2.Item(message=said))
        for call in message.get("tool_calls", ()):
            found = item_pb2.FunctionCallItem(
                call_id=call["id"],
                name=call["function"]["name"],
                arguments=json.dumps(call["function"]["arguments"], ensure_ascii=False),
            )
            items.append(item_pb2.Item(function_call=found))
    return items


def tool_set(tools: Sequence[dict[str, Any]]) -> ToolSet:
    """Return `tools` as our renderers get them."""
    functions = [tool["function"] for tool in tools]
    specs = (
        ToolSpec(
            function["name"],
            description=function["description"],
            parameters=json.dumps(function["parameters"]),
        )
        for function in functions
    )
    return ToolSet.of(tuple(specs), json.dumps(functions).encode())


def jinja_prompts(
    source: str,
    tokenizer: Tokenizer | None,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    **tokens: str,
) -> list[dict[str, Any]]:
    """Return the prompts that plain Jinja makes, as Hugging Face sets it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    template = environment.from_string(source)
    prompts = []
    for end in sampling_points(messages):
        text = template.render(
            messages=messages[:end], tools=tools or None, add_generation_prompt=True, **tokens
        )
        prompt: dict[str, Any] = {"messages": end, "text": text}
        if tokenizer is not None:
            prompt["ids"] = tokenizer.encode(text, add_special_tokens=False).ids
        prompts.append(prompt)
    return prompts


def harmony_prompts(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the prompts that openai-harmony makes; it drops no reasoning."""
    encoding = harmony_tokens().encoding
    role, message = harmony.Role, harmony.Message
    developer = harmony.DeveloperContent.new().with_instructions(messages[0]["content"])
    functions = [
        harmony.ToolDescription.new(f["name"], f["description"], f["parameters"])
        for f in (tool["function"] for tool in tools)
    ]
    if functions:
        developer = developer.with_function_tools(functions)
    groups = [
        [
            message.from_role_and_content(role.SYSTEM, harmony.SystemContent.new()),
            message.from_role_and_content(role.DEVELOPER, developer),
        ]
    ]
    for entry in messages[1:]:
        text = entry["content"]
        group = []
        if entry["role"] == "tool":
            author = harmony.Author.new(role.TOOL, f"functions.{entry['name']}")
            answer = message.from_author_and_content(author, text)
            group.append(answer.with_channel("commentary").with_recipient("assistant"))
        elif entry["role"] == "user":
            group.append(message.from_role_and_content(role.USER, text))
        else:
            said = []
            if thought := entry.get("reasoning_content"):
                said.append((thought, "analysis", None))
            if text:
                said.append((text, "final", None))
            for call in entry.get("tool_calls", ()):
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                said.append((arguments, "commentary", f"functions.{call['function']['name']}"))
            for words, channel, recipient in said:
                spoken = message.from_role_and_content(role.ASSISTANT, words).with_channel(channel)
                if recipient:
                    spoken = spoken.with_recipient(recipient)
                    spoken = spoken.with_content_type("<|constrain|>json")
                group.append(spoken)
        groups.append(group)
    config = harmony.RenderConversationConfig(auto_drop_analysis=False)
    prompts = []
    for end in sampling_points(messages):
        flat = [part for group in groups[:end] for part in group]
        ids = encoding.render_conversation_for_completion(
            harmony.Conversation.from_messages(flat), role.ASSISTANT, config=config
        )
        prompts.append({"messages": end, "text": encoding.decode(ids), "ids": ids})
    return prompts


def read_golden(family: str) -> dict[str, Any]:
    """Return the golden file of `family`."""
    golden: dict[str, Any] = json.loads((_GOLDEN / f"{family}.json").read_text("utf-8"))
    return golden


def write_golden(
    family: str,
    upstream: str,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    prompts: Sequence[dict[str, Any]],
) -> None:
    """Write the golden file of `family`; each prompt is one line."""
    head = {"family": family, "upstream": upstream, "messages": messages, "tools": tools}
    text = json.dumps(head, ensure_ascii=False, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    (_GOLDEN / f"{family}.json").write_text(f'{text},\n "prompts": [\n  {lines}\n ]\n}}\n', "utf-8")


def family_prompts(family: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Any]:
    """Return a family's conversation and tools, and the prompts that upstream makes of them."""
    _, _, bos, eos = FAMILIES[family]
    source = template_source(family)
    with tempfile.TemporaryDirectory() as directory:
        folder = write_folder(Path(directory), family)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    has_tools = "tools" in source.split("-#}", 1)[1]
    messages, tools = (CONVERSATION, TOOLS) if has_tools else (PLAIN, [])
    return (
        messages,
        tools,
        jinja_prompts(source, tokenizer, messages, tools, bos_token=bos, eos_token=eos),
    )


def _main() -> None:
    for family in FAMILIES:
        messages, tools, prompts = family_prompts(family)
        write_golden(family, "jinja2 and tokenizers", messages, tools, prompts)
    prompts = harmony_prompts(CONVERSATION, TOOLS)
    write_golden("harmony", "openai-harmony", CONVERSATION, TOOLS, prompts)
    cache = cache_directory()
    folder = qwen3_folder(cache)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    prompts = jinja_prompts(
        settings["chat_template"],
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        CONVERSATION,
        TOOLS,
    )
    write_golden("qwen3-original", "jinja2 and tokenizers", CONVERSATION, TOOLS, prompts)
    gguf = read_gguf(pull(CATALOGUE["smollm2"], cache / "models"))
    model = model_of_gguf(gguf)
    prompts = jinja_prompts(model.template, None, PLAIN, [], bos_token=model.bos)
    for prompt in prompts:
        # No other tokenizer of this file is at hand: the ids say what ours made of the text.
        prompt["ids"] = model.tokenizer.encode_markup(prompt["text"])
    write_golden("smollm2-original", "jinja2", PLAIN, [], prompts)


if __name__ == "__main__":
    _main()
