"""A call written as a JSON object, or as a name before one."""

from __future__ import annotations

from typing import Final

from turnwire_server.adapters.renderers.call_members import CallMembers, find_tool
from turnwire_server.adapters.renderers.formats.pieces import Outcome
from turnwire_server.adapters.renderers.json_members import MemberEvent, MemberScanner
from turnwire_server.session.output import OutputPiece
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["ObjectCall"]

# Keys of an object that may yet turn out to be a call; a data object shows another one soon.
_CALL_KEYS: Final = frozenset({"name", "arguments", "parameters", "input", "type", "id"})
_ARGUMENTS: Final = '{"arguments":'


class ObjectCall:
    """Reads one object that may be a call (`CallBody`)."""

    def __init__(
        self, tools: ToolSet, *, keys: frozenset[str], marked: bool, name_suffices: bool
    ) -> None:
        """Read an object from its opening brace.

        Args:
            tools: What may be called.
            keys: Members that may hold the arguments.
            marked: Whether a marker said that it is a call, so that any member is allowed.
            name_suffices: Whether an object without arguments is a call too.
        """
        self._tools = tools
        self._keys = keys
        self._marked = marked
        self._name_suffices = name_suffices
        self._scanner = MemberScanner()
        self._call: CallMembers | None = None
        self._is_arguments = False
        self._object = ""
        """The object so far, while its tool is not known."""
        self._key = ""
        self._name = ""

    @classmethod
    def of_arguments(cls, tools: ToolSet, tool: ToolSpec) -> ObjectCall:
        """Return a body for a call of `tool` whose text is the arguments alone."""
        body = cls(tools, keys=frozenset({"arguments"}), marked=True, name_suffices=True)
        body._is_arguments = True
        body._begin(tool, _ARGUMENTS, [])
        return body

    @property
    def started(self) -> bool:
        """Whether the call began."""
        return self._call is not None and self._call.started

    def feed(self, text: str, out: list[OutputPiece]) -> tuple[Outcome, int]:
        """Append what `text` adds; see `CallBody`."""
        position = 0
        while True:
            start = position
            event, part, position = self._scanner.step(text, start)
            if self._call is None:
                self._object += text[start:position]
                outcome = self._decide(event, part, out)
            else:
                outcome = self._advance(self._call, event, part, out)
            if outcome is not Outcome.MORE or event is MemberEvent.MORE:
                return outcome, position

    def finish(self, out: list[OutputPiece], *, complete: bool) -> None:
        """End the call if it only lacks its last brace."""
        if self._call is not None and self._call.finished and complete:
            self._call.end(out)

    def _decide(self, event: MemberEvent, text: str, out: list[OutputPiece]) -> Outcome:
        """Take an event of an object whose tool is not known."""
        is_call = True
        match event:
            case MemberEvent.KEY:
                self._key = text
                is_call = self._marked or text in _CALL_KEYS
            case MemberEvent.BEGIN:
                is_call = self._key != "name" or text == '"'
            case MemberEvent.CHUNK if self._key == "name":
                self._name += text
            case MemberEvent.FINISH if self._key == "name":
                tool = find_tool(self._tools, self._name)
                is_call = tool is not None
                if tool is not None:
                    self._begin(tool, self._object, out)
                    self._object = ""
            case MemberEvent.END | MemberEvent.BROKEN:
                is_call = False
            case _:
                pass
        return Outcome.MORE if is_call else Outcome.NO_CALL

    def _begin(self, tool: ToolSpec, read: str, out: list[OutputPiece]) -> None:
        keys = self._keys | {"input"} if tool.kind == "custom" else self._keys
        self._call = CallMembers(tool, keys=keys)
        # Arguments may have come before the name: read the object again, now knowing the tool.
        self._scanner = MemberScanner()
        position = 0
        event = MemberEvent.KEY
        while event is not MemberEvent.MORE:
            event, part, position = self._scanner.step(read, position)
            self._call.member(event, part, out)

    def _advance(
        self, call: CallMembers, event: MemberEvent, text: str, out: list[OutputPiece]
    ) -> Outcome:
        """Take an event of a call."""
        call.member(event, text, out)
        if event is MemberEvent.END:
            if not call.started:
                if not self._name_suffices:
                    return Outcome.NO_CALL
                call.start(out)
        elif event is MemberEvent.BROKEN:
            if not call.started:
                return Outcome.NO_CALL
            if not call.finished:
                return Outcome.BROKEN
        elif not (self._is_arguments and call.finished):
            return Outcome.MORE
        call.end(out)
        return Outcome.ENDED
