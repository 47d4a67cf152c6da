"""A model's own chat template, run in a sandbox, and what it can do.

Templates come from model files, so they are code of strangers: the sandbox gives them the
messages and nothing else. They also differ in what they accept, which is found out once, by
rendering small dummy conversations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "Message", "TemplateAbilities", "TemplateRefusal", "probe"]

Message = dict[str, object]
"""One message as templates want it: `role`, `content` and more for calls and their outputs."""

_LONGEST_SOURCE: Final = 1_000_000
_TOOL: Final[Message] = {
    "type": "function",
    "function": {
        "name": "zq_tool",
        "description": "zq_description",
        "parameters": {"type": "object", "properties": {"zq_key": {"type": "string"}}},
    },
}
_USER: Final[Message] = {"role": "user", "content": "zq_user"}
_ASSISTANT: Final[Message] = {"role": "assistant", "content": "zq_assistant"}


class TemplateRefusal(Exception):
    """The template raised. Its own message may quote the conversation: for debugging only."""


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which training code uses: renders its body."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Compile `source`.

        Args:
            source: Jinja source, as model files carry it.
            bos: Text of the token that begins a conversation, "" for none.
            eos: Text of the token that ends a turn, "" for none.

        Raises:
            TemplateRefusal: it is no template; `str()` names the line.
        """
        if len(source) > _LONGEST_SOURCE:
            raise TemplateRefusal(f"it is longer than {_LONGEST_SOURCE} characters")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _time_text
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateRefusal(f"line {error.lineno} is not Jinja") from error
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        generate: bool = False,
    ) -> str:
        """Return the text of `messages`.

        Args:
            messages: The conversation, oldest first.
            tools: Tools for templates that list them themselves, None for none.
            generate: Whether the text ends where the model goes on as the assistant.

        Raises:
            TemplateRefusal: the template does not accept this conversation.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=generate,
                **self._tokens,
            )
        except Exception as error:  # a stranger's code: whatever it raises means "no"
            raise TemplateRefusal(type(error).__name__) from error


class TemplateAbilities:
    """What a template accepts; found out by `probe`."""

    __slots__ = ("dictionary_arguments", "later_system", "repeated_roles", "system", "tools")

    def __init__(
        self,
        *,
        system: bool,
        later_system: bool,
        repeated_roles: bool,
        tools: bool,
        dictionary_arguments: bool,
    ) -> None:
        """Build it whole.

        Args:
            system: A system message may come first.
            later_system: System messages may come anywhere, also several.
            repeated_roles: Two messages of one role may follow each other.
            tools: It lists tools and writes calls and outputs itself.
            dictionary_arguments: It wants a call's arguments parsed, not as JSON text.
        """
        self.system = system
        self.later_system = later_system
        self.repeated_roles = repeated_roles
        self.tools = tools
        self.dictionary_arguments = dictionary_arguments


def probe(template: ChatTemplate) -> TemplateAbilities:
    """Find out what `template` accepts.

    Raises:
        TemplateRefusal: it refuses even one user message.
    """
    if "zq_user" not in template.render([_USER], generate=True):
        raise TemplateRefusal("it leaves out what the user says")
    system = _system("zq_system")
    tools, dictionary = _probe_tools(template)
    return TemplateAbilities(
        system=_shows(template, [system, _USER], "zq_system", "zq_user"),
        later_system=_shows(
            template,
            [system, _system("zq_second"), _USER, _ASSISTANT, _system("zq_third"), _USER],
            *("zq_system", "zq_second", "zq_user", "zq_assistant", "zq_third", "zq_user"),
        ),
        repeated_roles=_shows(template, [_USER, _USER], "zq_user", "zq_user"),
        tools=tools,
        dictionary_arguments=dictionary,
    )


def _probe_tools(template: ChatTemplate) -> tuple[bool, bool]:
    """Return whether it knows tools, and whether with parsed arguments."""
    for arguments in ({"zq_key": "zq_value"}, '{"zq_key": "zq_value"}'):
        call = {"id": "call_zq", "type": "function"}
        call_message: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{**call, "function": {"name": "zq_tool", "arguments": arguments}}],
        }
        output: Message = {
            "role": "tool",
            "name": "zq_tool",
            "tool_call_id": "call_zq",
            "content": "zq_output",
        }
        shown = ("zq_description", "zq_user", "zq_tool", "zq_value", "zq_output")
        for text in _rendered(template, [_USER, call_message, output], [_TOOL]):
            # Parsed arguments must come out as an object, not as a quoted text.
            if _in_order(text, shown[1:]) and shown[0] in text and '\\"zq_value' not in text:
                return True, isinstance(arguments, dict)
    return False, True


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _shows(template: ChatTemplate, messages: Sequence[Message], *texts: str) -> bool:
    return any(_in_order(text, texts) for text in _rendered(template, messages, None))


def _rendered(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Message] | None
) -> list[str]:
    try:
        return [template.render(messages, tools=tools, generate=True)]
    except TemplateRefusal:
        return []


def _in_order(text: str, parts: Sequence[str]) -> bool:
    position = 0
    for part in parts:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: object) -> object:
    """Let a template dump what it was given, but nothing of its own making."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)


def _refuse(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _time_text(pattern: str) -> str:
    return datetime.now().strftime(pattern)
