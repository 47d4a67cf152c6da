"""Prompt templates: instructions and messages that a create names instead of sending them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turnwire.v1 import client_event_pb2, content_pb2, error_pb2, item_pb2
from turnwire_server.session.errors import Rejection, quoted

__all__ = ["PromptMessage", "PromptTemplates", "StoredPrompt", "read_prompts"]

_TEXTS: Final = frozenset({"id", "version", "model", "instructions"})
_VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

Create = client_event_pb2.ResponseCreate


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message of a template."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """One version of a template. `{{name}}` in its texts stands for a variable."""

    id: str
    """What creates name, for example `pmpt_review`."""
    version: str = "1"
    model: str = ""
    """The model of creates that name none; "" for none."""
    instructions: str = ""
    messages: tuple[PromptMessage, ...] = ()
    """What comes before the input of a create that begins a conversation."""

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables."""
        texts = [self.instructions, *(message.content for message in self.messages)]
        return frozenset(name for text in texts for name in _VARIABLE.findall(text))


class PromptTemplates:
    """The templates of a server, by id and version."""

    def __init__(self, prompts: Sequence[StoredPrompt], new_id: Callable[[str], str]) -> None:
        """Take the templates; of several versions of one, the last is the newest."""
        self._new_id = new_id
        self._versions: dict[str, dict[str, StoredPrompt]] = {}
        for prompt in prompts:
            self._versions.setdefault(prompt.id, {})[prompt.version] = prompt

    def apply(self, create: Create, *, is_first: bool) -> Sequence[item_pb2.Item] | Rejection:
        """Fill a create from the template that it names.

        Args:
            create: The create; what it says itself wins over the template.
            is_first: Whether it begins a conversation.

        Returns:
            The messages that come before its input, each with an id.
        """
        prompt = self._find(create.prompt.id, create.prompt.version)
        if isinstance(prompt, Rejection):
            return prompt
        values = _values(create.prompt.variables, prompt)
        if isinstance(values, Rejection):
            return values
        if prompt.instructions and not create.HasField("instructions"):
            create.instructions = _filled(prompt.instructions, values)
        if prompt.model and not create.model:
            create.model = prompt.model
        messages = prompt.messages if is_first else ()
        return [self._item(message, values) for message in messages]

    def _find(self, prompt_id: str, version: str) -> StoredPrompt | Rejection:
        versions = self._versions.get(prompt_id)
        if versions is None:
            return _invalid("prompt.id", f"Prompt with id {quoted(prompt_id)} not found.")
        if not version:
            return list(versions.values())[-1]
        prompt = versions.get(version)
        return prompt or _invalid("prompt.version", f"The prompt has no version {quoted(version)}.")

    def _item(self, message: PromptMessage, values: Mapping[str, str]) -> item_pb2.Item:
        content = content_pb2.Content()
        part = content.parts.parts.add()
        text = _filled(message.content, values)
        if message.role == "assistant":
            part.output_text.text = text
        else:
            part.input_text.text = text
        return item_pb2.Item(
            message=item_pb2.MessageItem(
                id=self._new_id("msg_"), role=message.role, content=content
            )
        )


def read_prompts(tables: object) -> tuple[StoredPrompt, ...]:
    """Read templates as a configuration has them; of several versions the last is the newest.

    Raises:
        ValueError: They cannot be used; `str()` names the path and says what is needed.
    """
    if not isinstance(tables, list):
        raise ValueError("prompts: an array of tables ([[prompts]]) is needed")
    prompts: list[StoredPrompt] = []
    for position, table in enumerate(tables):
        prompt = _read_prompt(table, f"prompts[{position}]")
        if any((one.id, one.version) == (prompt.id, prompt.version) for one in prompts):
            raise ValueError(f"prompts[{position}].version: this version is there twice")
        prompts.append(prompt)
    return tuple(prompts)


def _read_prompt(table: object, path: str) -> StoredPrompt:
    if not isinstance(table, dict) or not table.get("id"):
        raise ValueError(f"{path}: a table with an id is needed")
    texts: dict[str, str] = {}
    for key, value in table.items():
        if key == "messages":
            continue
        if key not in _TEXTS:
            known = ", ".join(sorted({*_TEXTS, "messages"}))
            raise ValueError(f"{path}.{key}: unknown key; known are {known}")
        if not isinstance(value, str):
            raise ValueError(f"{path}.{key}: text is needed")
        texts[key] = value
    messages = table.get("messages", [])
    if not isinstance(messages, list):
        messages = [None]
    return StoredPrompt(
        texts["id"],
        texts.get("version", "1"),
        texts.get("model", ""),
        texts.get("instructions", ""),
        tuple(_read_message(entry, f"{path}.messages") for entry in messages),
    )


def _read_message(entry: object, path: str) -> PromptMessage:
    match entry:
        case {
            "role": "user" | "assistant" | "system" | "developer" as role,
            "content": str(content),
            **others,
        } if content and not others:
            return PromptMessage(role, content)
        case _:
            raise ValueError(
                f"{path}: an array of tables with a role (user, assistant, system or developer) "
                "and a content is needed"
            )


def _values(given: str, prompt: StoredPrompt) -> dict[str, str] | Rejection:
    """Return the text of each variable, from the JSON of a create's `variables`."""
    variables = json.loads(given or "{}")
    if not isinstance(variables, dict):
        return _invalid("prompt.variables", "variables must be an object.")
    values: dict[str, str] = {}
    for name, value in variables.items():
        path = f"prompt.variables.{name}"
        if name not in prompt.variables:
            return _invalid(path, f"The prompt has no variable {quoted(name)}.")
        match value:
            case str() | {"type": "input_text", "text": str()}:
                values[name] = value if isinstance(value, str) else value["text"]
            case {"type": "input_image" | "input_file" as kind}:
                return Rejection(
                    error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
                    f"The model takes text only, not '{kind}'.",
                    param=path,
                )
            case _:
                return _invalid(path, "A variable must be a string or an input_text object.")
    for name in sorted(prompt.variables - set(values)):
        return Rejection(
            error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER,
            f"The prompt needs the variable {quoted(name)}.",
            param=f"prompt.variables.{name}",
        )
    return values


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values[found[1]], text)


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)
