"""Server-sent events out of bytes."""

from __future__ import annotations

__all__ = ["SseParser"]


class SseParser:
    """Splits a byte stream into the data of its events; pure and incremental.

    Only what the API uses: `data` lines; other fields and comments are skipped. Lines end with
    LF or CR LF.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[tuple[bytes, int]]:
        """Take bytes as they come.

        Returns:
            For each event that is now whole: its data, and how many bytes it and what came
            before it took.
        """
        events = []
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._size += len(line) + 1
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append((b"\n".join(self._data), self._size))
                self._data = []
                self._size = 0
        return events

    @property
    def unread(self) -> int:
        """Bytes taken that belong to no event yet."""
        return self._size + len(self._rest)
