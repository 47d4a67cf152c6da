"""Memory of tools by their JSON text: what was parsed before is cut out before it is parsed.

Clients send the same tools with every turn, and those are often most of it. To parse them, write
them out again and take their digest takes ten times as long as to see that the text is the same.
"""

from __future__ import annotations

import json
from collections import OrderedDict

__all__ = ["STAND_IN", "ToolsText"]

_NAME = '"tools":'
_HEAD_CHARS = 96
"""Texts are looked up by their first characters and then compared as a whole."""
_LEAST_CHARS = 1_024
"""Shorter tools are parsed as fast as they are cut out."""

_MOST_ALIKE = 4
"""Texts kept with the same first characters."""

STAND_IN = "\x00 tools that are known \x00"
"""The value of the member `tools` where they were cut out. A client that sends it fools itself."""
_STAND_IN_JSON = json.dumps(STAND_IN)

_scan = json.JSONDecoder().raw_decode


class ToolsText:
    """Texts of tools, and what they became; the least recently used is forgotten."""

    def __init__(self, *, max_bytes: int = 16_777_216) -> None:
        """Make an empty memory.

        Args:
            max_bytes: Bound on the characters and bytes that it keeps.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[str, list[tuple[str, bytes]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def cut(self, data: str) -> tuple[str, bytes] | None:
        """Return the JSON of a request with `STAND_IN` for its tools, and what they became.

        Returns:
            None when there are none that are known. What was cut out may have been the member of
            another object or of another name: it was the request's own tools if, and only if, the
            JSON that is left is JSON and `STAND_IN` is its member `tools`.
        """
        at = data.find(_NAME)
        if at < 0:
            return None
        start = _value_start(data, at)
        head = data[start : start + _HEAD_CHARS]
        for text, decoded in self._known.get(head, ()):
            if data.startswith(text, start):
                self._known.move_to_end(head)
                return f"{data[:start]}{_STAND_IN_JSON}{data[start + len(text) :]}", decoded
        return None

    def learn(self, data: str, tools: object, decoded: bytes) -> None:
        """Remember the text of tools.

        Args:
            data: The JSON of a request.
            tools: Its tools.
            decoded: What they became.
        """
        at = data.find(_NAME)
        if at < 0:
            return
        start = _value_start(data, at)
        try:
            found, end = _scan(data, start)
        except (ValueError, RecursionError):  # it was no member's name
            return
        size = end - start + len(decoded)
        if end - start < _LEAST_CHARS or size > self._max_bytes or found != tools:
            return
        alike = self._known.setdefault(data[start : start + _HEAD_CHARS], [])
        alike.append((data[start:end], decoded))
        self._bytes += size
        if len(alike) > _MOST_ALIKE:
            self._count_out(alike.pop(0))
        while self._bytes > self._max_bytes:
            _, forgotten = self._known.popitem(last=False)
            for entry in forgotten:
                self._count_out(entry)

    def _count_out(self, entry: tuple[str, bytes]) -> None:
        text, decoded = entry
        self._bytes -= len(text) + len(decoded)


def _value_start(data: str, at: int) -> int:
    """Return where the value of the member begins whose name is at `at`."""
    start = at + len(_NAME)
    return start + 1 if data.startswith(" ", start) else start
