"""Which part of a prompt a prefix cache would hold: lengths only, no ids are kept."""

from __future__ import annotations

import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from turnwire_server.session.tokens import IdBuffer, TokenIds

__all__ = ["PrefixIndex", "PrefixMatch"]

_BLOCK = 64
_BLOCK_BYTES = _BLOCK * 4


@dataclass(slots=True)
class _Buffer:
    """What is known of one conversation's buffer."""

    reference: weakref.ref[IdBuffer]
    """Held so that its `id` stays its own; it does not keep the buffer."""
    length: int = 0
    """Ids at the front that were prefilled."""
    generated: array[int] = field(default_factory=lambda: array("I"))
    """Ids generated behind them; the next prompt may or may not go on with them."""
    blocks: int = 0
    """Full blocks of the front that are hashed, and the hash of them all."""
    chain: int = 0
    end: weakref.ref[IdBuffer] | None = None
    """Forgets this when the conversation is gone."""


@dataclass(slots=True)  # not frozen: made per turn
class PrefixMatch:
    """Result of a look-up, to hand back when the prompt is prefilled."""

    cached: int
    """Tokens found; less than the whole prompt, whose last token is always computed."""
    buffer: _Buffer
    hashes: tuple[int, ...]
    """Hashes of the prompt's full blocks from `buffer.blocks` on."""


class PrefixIndex:
    """Finds the longest prefix seen before.

    A prompt that grew from one seen before (same buffer) costs what is new. Any other is
    looked up by the hashes of its 64-token blocks.
    """

    def __init__(self, *, max_tokens: int = 4_000_000, max_buffers: int = 4_096) -> None:
        """Remember at most `max_tokens` in blocks and `max_buffers` conversations."""
        self._max_blocks = max_tokens // _BLOCK
        self._max_buffers = max_buffers
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._buffers: OrderedDict[int, _Buffer] = OrderedDict()
        self._behind: list[tuple[PrefixMatch, TokenIds, Sequence[int]]] = []
        """What was generated and is not looked at yet."""

    def look_up(self, ids: TokenIds) -> PrefixMatch:
        """Return how much of `ids` is cached. Remembers nothing yet."""
        if self._behind:
            self.catch_up()
        reference = ids.buffer_reference()
        buffer = self._buffers.get(id(reference))
        if buffer is not None:
            self._buffers.move_to_end(id(reference))
            hashed = buffer.blocks * _BLOCK
            rest = ids.as_array(hashed)
            cached = min(buffer.length, len(ids))
            if len(ids) > buffer.length:
                cached += _common(buffer.generated, rest[buffer.length - hashed :])
            hashes = tuple(_hashes(buffer.chain, rest))
        else:
            buffer = _Buffer(reference)
            hashes = tuple(_hashes(0, ids.as_array()))
            cached = 0
            for block in hashes:
                if block not in self._blocks:
                    break
                self._blocks.move_to_end(block)
                cached += _BLOCK
        return PrefixMatch(max(0, min(cached, len(ids) - 1)), buffer, hashes)

    def prefilled(self, match: PrefixMatch, ids: TokenIds) -> None:
        """Remember the prompt `ids` that `match` was found for."""
        if self._behind:
            self.catch_up()
        buffer = match.buffer
        if len(ids) >= buffer.length:
            buffer.length = len(ids)
            buffer.generated = array("I")
            buffer.blocks += len(match.hashes)
            buffer.chain = match.hashes[-1] if match.hashes else buffer.chain
        self._watch(buffer)
        self._buffers.move_to_end(id(buffer.reference))
        if len(self._buffers) > self._max_buffers:
            self._buffers.popitem(last=False)
        self._remember(match.hashes)

    def generated(self, match: PrefixMatch, ids: TokenIds, sampled: Sequence[int]) -> None:
        """Note what was generated behind the prompt `ids`, for `catch_up`."""
        self._behind.append((match, ids, sampled))

    def catch_up(self) -> None:
        """Remember what was noted; a look-up does that first."""
        behind, self._behind = self._behind, []
        for match, ids, sampled in behind:
            buffer = match.buffer
            if len(ids) != buffer.length:
                continue  # another turn prefilled a longer prompt of this buffer meanwhile
            buffer.generated = array("I", sampled)
            rest = ids.as_array(buffer.blocks * _BLOCK) + buffer.generated
            self._remember(_hashes(buffer.chain, rest))

    def _watch(self, buffer: _Buffer) -> None:
        """Know a conversation until it is gone: nobody can look it up after that."""
        key = id(buffer.reference)
        if key not in self._buffers:
            self._buffers[key] = buffer
            ids = buffer.reference()
            assert ids is not None  # `prefilled` was given them
            buffers = self._buffers
            buffer.end = weakref.ref(ids, lambda _: buffers.pop(key, None))

    def _remember(self, hashes: Iterable[int]) -> None:
        for block in hashes:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)


def _hashes(chain: int, ids: array[int]) -> Iterable[int]:
    data = ids.tobytes()
    for start in range(0, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        chain = hash((chain, data[start : start + _BLOCK_BYTES]))
        yield chain


def _common(left: array[int], right: array[int]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])
