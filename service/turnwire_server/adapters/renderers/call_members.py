"""One tool call: its tool, and the pieces that an object's members give."""

from __future__ import annotations

import json

from turnwire_server.adapters.renderers.json_members import (
    MemberEvent,
    MemberScanner,
    StringDecoder,
)
from turnwire_server.ports.renderer import ToolForce
from turnwire_server.session.output import CallDelta, CallEnded, CallStarted, OutputPiece
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["CallMembers", "arguments_schema", "find_tool", "forced_call_schema", "input_schema"]


class CallMembers:
    """Turns the members of one object into the pieces of one call."""

    def __init__(self, tool: ToolSpec, *, keys: frozenset[str]) -> None:
        """Read the first member of `keys` as the arguments or the free-form input."""
        self._tool = tool
        self._custom = tool.kind == "custom"
        self._keys = keys
        self._key = ""
        self._reading = False
        self._empty = True
        self._decoder: StringDecoder | None = None
        self._scalar: str | None = None
        self._wrapped: tuple[MemberScanner, CallMembers] | None = None
        self.started = False
        self.finished = False
        """Whether the arguments or the input are complete."""

    def member(self, event: MemberEvent, text: str, out: list[OutputPiece]) -> None:
        """Take one event of the object's scanner."""
        if event is MemberEvent.KEY:
            self._key = text
        elif event is MemberEvent.BEGIN:
            self._reading = self._key in self._keys and not self.started
            if self._reading:
                self._begin(text, out)
        elif not self._reading:
            return
        elif event is MemberEvent.CHUNK:
            self._chunk(text, out)
        elif event is MemberEvent.FINISH:
            if self._decoder is not None:
                self._delta(self._decoder.finish(), out)
            elif self._scalar is not None and self._scalar != "null":
                self._delta(self._scalar, out)
            self._reading = False
            self.finished = True

    def start(self, out: list[OutputPiece]) -> None:
        """Say that the call began."""
        self.started = True
        out.append(CallStarted(self._tool.name, self._tool.namespace, self._custom))

    def end(self, out: list[OutputPiece]) -> None:
        """Say that the call is complete. A function without arguments gets an empty object."""
        if self._empty and not self._custom:
            self._delta("{}", out)
        out.append(CallEnded())

    def _begin(self, character: str, out: list[OutputPiece]) -> None:
        self.start(out)
        if character == '"':
            self._decoder = StringDecoder()
        elif character == "{" and self._custom and self._key != "input":
            # Some models wrap free-form input as they would wrap arguments.
            inner = CallMembers(self._tool, keys=frozenset({"input"}))
            self._wrapped = MemberScanner(), inner
        elif character not in "{[":
            self._scalar = ""

    def _chunk(self, text: str, out: list[OutputPiece]) -> None:
        if self._decoder is not None:
            self._delta(self._decoder.feed(text), out)
        elif self._scalar is not None:
            self._scalar += text
        elif self._wrapped is not None:
            scanner, inner = self._wrapped
            pieces: list[OutputPiece] = []
            position = 0
            event = MemberEvent.KEY
            while event not in (MemberEvent.MORE, MemberEvent.END, MemberEvent.BROKEN):
                event, part, position = scanner.step(text, position)
                inner.member(event, part, pieces)
            out.extend(piece for piece in pieces if isinstance(piece, CallDelta))
        else:
            self._delta(text, out)

    def _delta(self, text: str, out: list[OutputPiece]) -> None:
        if text:
            self._empty = False
            out.append(CallDelta(text))


def find_tool(tools: ToolSet, name: str) -> ToolSpec | None:
    """Return the tool of that qualified name, or the only one of that plain name."""
    exact = tools.by_qualified_name.get(name)
    if exact is not None:
        return exact
    candidates = [tool for tool in tools.tools if tool.name == name]
    return candidates[0] if len(candidates) == 1 else None


def forced_call_schema(
    tools: ToolSet, force: ToolForce, *, key: str = "arguments", as_list: bool = False
) -> str:
    """Return the JSON Schema, as JSON text, of one call of a tool that `force` allows.

    The object has `name` first, then its arguments under `key` (`input`, a string, for a custom
    tool), which is the order that a parser can stream. With `as_list` it is in a list, of more
    than one when `force` allows that.
    """
    calls: list[object] = []
    several = len(force.tool_names) > 1
    arguments_key = key
    root = "#/items" if as_list else "#"
    for index, name in enumerate(force.tool_names):
        tool = tools.by_qualified_name[name]
        base = f"{root}/anyOf/{index}" if several else root
        if tool.kind == "custom":
            key = "input"
            value: object = input_schema(tool)
        else:
            key = arguments_key
            value = arguments_schema(tool, f"{base}/properties/{key}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, key: value},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    schema: object = {"anyOf": calls} if several else calls[0]
    if as_list:
        limits = {"minItems": 1} if force.parallel else {"minItems": 1, "maxItems": 1}
        schema = {"type": "array", "items": schema, **limits}
    return json.dumps(schema, ensure_ascii=False)


def input_schema(tool: ToolSpec) -> object:
    """Return the schema of a custom tool's input, as a member of JSON."""
    pattern = tool.input_pattern
    return {"type": "string", "pattern": pattern} if pattern else {"type": "string"}


def arguments_schema(tool: ToolSpec, place: str = "#") -> object:
    """Return the schema of the arguments of `tool`, its references made for standing at `place`."""
    try:
        schema: object = json.loads(tool.parameters or "{}")
    except ValueError:
        schema = {}
    if isinstance(schema, dict) and "type" not in schema:
        schema = {"type": "object", **schema}
    return _moved(schema, place)


def _moved(schema: object, place: str) -> object:
    """Return `schema` with its local references pointing below `place`."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }
