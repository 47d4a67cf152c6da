"""Rules for tools: what the model may call, what is dropped, what is refused.

Checked tools are kept by the fingerprint of their serialized form, since clients send the same
tools with every turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from turnwire.v1 import client_event_pb2, error_pb2, response_pb2, tool_pb2
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["CheckedTools", "ToolCatalogue", "hold_credentials", "is_json_object"]

_NAME = re.compile(r"[A-Za-z0-9_\-]{1,128}", re.ASCII)
_SYNTAXES = frozenset({"lark", "regex"})
_ENTRY_BYTES = 1024
_MANY = 8
"""From so many tools on, comparing them is faster than taking their digest."""

_Shape = tuple[int, bytes, bytes, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class CheckedTools:
    """The tools of a create after the rules."""

    tools: ToolSet
    warnings: tuple[response_pb2.Warning, ...]
    """One per tool that this server does not run: the model is not told of it."""
    echo: bytes
    """The tools as a response shows them, without credentials: a serialized `Response`."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Qualified name -> path of the tool."""
    grammars: Mapping[str, str] = field(default_factory=dict)
    """Qualified name -> path of its `format`, for the tools that have a grammar."""


def is_json_object(text: str) -> bool:
    """Return whether `text` is the JSON of an object."""
    try:
        return isinstance(json.loads(text, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):  # RecursionError: nested without end
        return False


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(name)


class ToolCatalogue:
    """Checks tools, and remembers what it checked."""

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        """Make an empty catalogue.

        Args:
            max_bytes: Bound on the serialized tools of the lists that it remembers, and 1 KiB
                for each list; those used last stay.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[bytes, tuple[CheckedTools | Rejection, int]] = OrderedDict()
        self._newest: dict[_Shape, tuple[client_event_pb2.ResponseCreate, bytes]] = {}
        """A copy of the tools of each shape that were checked last, and their fingerprint."""

    def check(
        self, tools: Sequence[tool_pb2.Tool], added: Sequence[bytes] = ()
    ) -> CheckedTools | Rejection:
        """Check the tools of a create.

        Args:
            tools: The create's own.
            added: Serialized tools that `additional_tools` items offered; already checked.
        """
        shape = _shape(tools, added) if len(tools) >= _MANY else None
        newest = None if shape is None else self._newest.get(shape)
        if newest is not None and newest[0].tools == tools:
            fingerprint, size = newest[1], 0
        else:
            fingerprint, size = _fingerprint(tools, added)
        known = self._known.get(fingerprint)
        if known is not None:
            self._known.move_to_end(fingerprint)
            checked = known[0]
        else:
            checked = _check(tools, added, fingerprint)
            if size > self._max_bytes:
                return checked
            self._known[fingerprint] = checked, size
            self._bytes += size
        if shape is not None and size and not hold_credentials(tools, added):
            self._newest[shape] = client_event_pb2.ResponseCreate(tools=tools), fingerprint
        while self._bytes > self._max_bytes:
            forgotten, (_, freed) = self._known.popitem(last=False)
            self._bytes -= freed
            for of_shape in [key for key, (_, of) in self._newest.items() if of == forgotten]:
                del self._newest[of_shape]
        return checked

    def check_list(
        self, tools: Sequence[tool_pb2.Tool], path: str
    ) -> tuple[response_pb2.Warning, ...] | Rejection:
        """Check the tools of an `additional_tools` item, which are at `path`.

        Returns:
            What will be dropped of them.
        """
        checker = _Checker()
        rejection = checker.read(tools, path)
        return tuple(checker.warnings) if rejection is None else rejection


def hold_credentials(tools: Iterable[tool_pb2.Tool], added: Iterable[bytes]) -> bool:
    """Return whether tools bring credentials, which are kept no longer than their turn.

    Args:
        tools: Tools of a create.
        added: Serialized tools that items offered.
    """
    return any(tool.HasField("mcp") for tool in (*tools, *map(tool_pb2.Tool.FromString, added)))


def _shape(tools: Sequence[tool_pb2.Tool], added: Sequence[bytes]) -> _Shape:
    """Return what tells most lists apart without reading all of them."""
    first, last = tools[0].SerializeToString(), tools[-1].SerializeToString()
    return len(tools), first, last, tuple(added)


def _fingerprint(tools: Sequence[tool_pb2.Tool], added: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the digest of tools, and what it takes to remember them."""
    digest = hashlib.blake2b(digest_size=16)
    size = _ENTRY_BYTES
    for mark, encoded in (
        *((b"\x00", tool.SerializeToString()) for tool in tools),
        *((b"\xff", encoded) for encoded in added),
    ):
        digest.update(mark + len(encoded).to_bytes(4, "big") + encoded)
        size += len(encoded)
    return digest.digest(), size


def _check(
    tools: Sequence[tool_pb2.Tool], added: Sequence[bytes], fingerprint: bytes
) -> CheckedTools | Rejection:
    checker = _Checker()
    rejection = checker.read(tools, "tools")
    if rejection is not None:
        return rejection
    warnings = tuple(checker.warnings)  # what is dropped of `added` was said when it came
    checker.is_replacing = True  # a tool offered again by a later item takes the place of the first
    checker.read([tool_pb2.Tool.FromString(encoded) for encoded in added], "input")
    if not checker.specs:
        fingerprint = b""
    specs = tuple(checker.specs.values())
    shown = response_pb2.Response(tools=map(_without_credentials, tools))
    echo = shown.SerializeToString()
    return CheckedTools(
        ToolSet.of(specs, fingerprint), warnings, echo, checker.paths, checker.grammars
    )


def _without_credentials(tool: tool_pb2.Tool) -> tool_pb2.Tool:
    if tool.WhichOneof("tool") != "mcp":
        return tool
    safe = tool_pb2.Tool()
    safe.CopyFrom(tool)
    safe.mcp.ClearField("authorization")
    safe.mcp.ClearField("headers")
    return safe


class _Checker:
    """Reads one list of tools; the specs come out in order."""

    def __init__(self) -> None:
        self.specs: dict[str, ToolSpec] = {}
        self.warnings: list[response_pb2.Warning] = []
        self.paths: dict[str, str] = {}
        self.grammars: dict[str, str] = {}
        self.is_replacing = False

    def read(self, tools: Sequence[tool_pb2.Tool], path: str) -> Rejection | None:
        for index, tool in enumerate(tools):
            rejection = self._tool(tool, f"{path}[{index}]", None)
            if rejection is not None:
                return rejection
        return None

    def _tool(self, tool: tool_pb2.Tool, path: str, namespace: str | None) -> Rejection | None:
        arm = tool.WhichOneof("tool")
        if arm == "function":
            return self._function(tool.function, path, namespace)
        if arm == "custom":
            return self._custom(tool.custom, path, namespace)
        if arm is None:
            return _missing(f"{path}.type", "A tool needs a type.")
        if namespace is not None:
            return _invalid(f"{path}.type", "A namespace holds function and custom tools only.")
        if arm == "namespace":
            return self._namespace(tool.namespace, path)
        self.warnings.append(
            response_pb2.Warning(
                code="tool_not_supported",
                message=f"This server does not run tools of type '{arm}'; the model was not told.",
                param=path,
            )
        )
        return None

    def _namespace(self, group: tool_pb2.NamespaceTool, path: str) -> Rejection | None:
        if not _NAME.fullmatch(group.name):
            return _bad_name(f"{path}.name", group.name)
        for index, inner in enumerate(group.tools):
            rejection = self._tool(inner, f"{path}.tools[{index}]", group.name)
            if rejection is not None:
                return rejection
        return None

    def _function(
        self, tool: tool_pb2.FunctionTool, path: str, namespace: str | None
    ) -> Rejection | None:
        if tool.parameters and not is_json_object(tool.parameters):
            return _invalid(f"{path}.parameters", "parameters must be a JSON Schema object.")
        spec = ToolSpec(
            tool.name,
            "function",
            namespace,
            description=tool.description,
            parameters=tool.parameters,
        )
        return self._add(spec, path)

    def _custom(
        self, tool: tool_pb2.CustomTool, path: str, namespace: str | None
    ) -> Rejection | None:
        grammar = tool.format.grammar
        match tool.format.WhichOneof("format"):
            case "grammar" if grammar.syntax not in _SYNTAXES:
                return _invalid(f"{path}.format.syntax", "syntax must be 'lark' or 'regex'.")
            case "grammar" if not grammar.definition:
                return _missing(f"{path}.format.definition", "A grammar needs a definition.")
            case None if tool.HasField("format"):
                return _missing(f"{path}.format.type", "A format needs a type.")
            case _:
                pass
        spec = ToolSpec(
            tool.name,
            "custom",
            namespace,
            description=tool.description,
            grammar=grammar.definition,
            grammar_syntax=grammar.syntax,
        )
        if spec.grammar:
            self.grammars[spec.qualified_name] = f"{path}.format"
        return self._add(spec, path)

    def _add(self, spec: ToolSpec, path: str) -> Rejection | None:
        if not _NAME.fullmatch(spec.name):
            return _bad_name(f"{path}.name", spec.name)
        name = spec.qualified_name
        if name in self.specs and not self.is_replacing:
            return _invalid(f"{path}.name", f"The tool {quoted(name)} is there twice.")
        self.specs[name] = spec
        self.paths[name] = path
        return None


def _bad_name(path: str, name: str) -> Rejection:
    if not name:
        return _missing(path, "A tool needs a name.")
    return _invalid(
        path, f"{quoted(name)} is no tool name: 1 to 128 letters, digits, '_' and '-' only."
    )


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)


def _missing(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER, message, param=path)
