"""What clients keep for us under seal: reasoning, and conversations made shorter.

The session opens sealed texts by a function (`Unseal`); what seals them is a port.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = [
    "COMPACTION",
    "REASONING",
    "Compacted",
    "Unseal",
    "opened_compaction",
    "opened_reasoning",
    "unseals_nothing",
]

REASONING: Final = "reasoning"
"""Kind of a sealed text that is the raw reasoning of one item, in UTF-8."""
COMPACTION: Final = "compaction"
"""Kind of a sealed text that is a `Compacted`."""

Unseal = Callable[[str, str], bytes | None]
"""Takes a kind and a sealed text; returns what was sealed, None when it is not one of ours."""

_VERSION: Final = 1
_SUMMARY: Final = (
    "The conversation before this message was replaced by a summary to save space. Go on from it "
    "as if you had the whole conversation; do not mention the summary.\n\n"
    "<summary>\n{summary}\n</summary>"
)
_REQUEST: Final = "\n\nThe latest request of the user was:\n\n<request>\n{request}\n</request>"


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a `compaction` item stands for."""

    summary: str
    """What the model wrote of the conversation."""
    request: str = ""
    """The user's latest request, word for word; "" when its message is kept beside the item."""
    covers: bool = False
    """Whether it stands in the place of all items before it, so that they are not shown."""

    def payload(self) -> bytes:
        """Return the bytes to seal."""
        members = {
            "v": _VERSION,
            "summary": self.summary,
            "request": self.request,
            "covers": self.covers,
        }
        return json.dumps(members, ensure_ascii=False).encode()

    @property
    def text(self) -> str:
        """What the model is told, as a message of the user."""
        # Not `format`, which would read the braces of what is put in first.
        text = _SUMMARY.replace("{summary}", self.summary)
        return text + (_REQUEST.replace("{request}", self.request) if self.request else "")


def unseals_nothing(kind: str, text: str) -> bytes | None:
    """Open nothing (`Unseal`): a server without keys."""
    del kind, text
    return None


def opened_compaction(text: str, unseal: Unseal) -> Compacted | None:
    """Return what a sealed text stands for, None when it is not one of ours."""
    payload = unseal(COMPACTION, text)
    if payload is None:
        return None
    try:
        members = json.loads(payload)
        if members["v"] != _VERSION:
            return None
        return Compacted(members["summary"], members["request"], members["covers"])
    except (ValueError, KeyError, TypeError):  # sealed by another version of this server
        return None


def opened_reasoning(text: str, unseal: Unseal) -> str | None:
    """Return the reasoning of a sealed text, None when it is not one of ours."""
    payload = unseal(REASONING, text)
    return None if payload is None else payload.decode("utf-8", "replace")
