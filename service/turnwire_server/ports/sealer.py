"""The sealer port: what a client keeps for us and must neither read nor change."""

from __future__ import annotations

from typing import Protocol

__all__ = ["SealBroken", "Sealer"]


class SealBroken(Exception):
    """A sealed text is not one of ours: changed, cut, of another kind, or of a key long gone.

    It never says which, neither to a log nor to a peer.
    """


class Sealer(Protocol):
    """Turns bytes into opaque text and back. Synchronous: microseconds per kilobyte."""

    def seal(self, kind: str, payload: bytes) -> str:
        """Return `payload` encrypted and authenticated, as text for a JSON string.

        Args:
            kind: What it is, for example `reasoning` or `compaction`; the text opens as this
                kind only.
            payload: Any bytes. Their length can be told from the text's.
        """
        ...

    def open(self, kind: str, text: str) -> bytes:
        """Return what was sealed.

        Raises:
            SealBroken: `text` is not, byte for byte, what `seal` returned for this kind under a
                key that is still known.
        """
        ...
