"""Token ids to text, piece by piece, where a character may span tokens."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Iterable

__all__ = ["Detokenizer"]


class Detokenizer:
    """Decodes a growing sequence of ids. What was returned never changes.

    The concatenation of all returned text equals decoding all bytes at once with
    `errors="replace"`.
    """

    __slots__ = ("_held", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Decode with `token_bytes`: the bytes of one id, b"" for an id without text."""
        self._token_bytes = token_bytes
        self._held = b""

    def whole(self, token: int) -> str:
        """Return the text of an id that neither goes on with a cut character nor cuts one.

        Most do not. For any other, and for an id without text, it is "" and nothing is taken.
        """
        if not self._held:
            try:
                return self._token_bytes(token).decode()
            except UnicodeDecodeError:
                pass  # for `feed`
        return ""

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that `ids` complete. Up to 3 bytes of a cut character are held back."""
        data = self._held + b"".join(map(self._token_bytes, ids))
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        """Return the held-back tail: one U+FFFD for a cut character, else ""."""
        text, _ = utf_8_decode(self._held, "replace", True)
        self._held = b""
        return text
