"""How many prompt tokens the pipeline takes from its prefix cache.

The pipeline does not say, so its block manager is modelled. Keys and values live in blocks of
a fixed number of tokens, found again by a hash of all tokens up to the block's end, and
overwritten least recently used first. The model counts whole blocks only, while the pipeline
may also reuse up to a block less one token of a partly filled one: a count is a lower bound.

It is checked against what happens: the scheduler's rule (running generations first, one token
each, then prompts in order of arrival, `chunk` tokens a step) tells in which step the first
token must come. When it comes later, blocks were overwritten, and the count becomes what the
number of steps proves.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable

__all__ = ["PrefixModel", "Sequence"]


class Sequence:
    """One request: its tokens and how far it is."""

    __slots__ = ("blocks", "cached", "computed", "decoding", "hash", "offered", "prompt", "tokens")

    def __init__(self, tokens: array[int]) -> None:
        """Begin with the prompt `tokens`."""
        self.tokens = tokens
        self.prompt = len(tokens)
        self.cached = 0
        """Prompt tokens taken from the cache, by what is known now."""
        self.computed = 0
        self.offered = 0
        self.decoding = False
        self.blocks = 0
        self.hash = 0


class PrefixModel:
    """The pipeline's blocks and running requests."""

    def __init__(self, *, block_tokens: int, block_count: int, chunk: int) -> None:
        """Model an empty cache.

        Args:
            block_tokens: Tokens per block.
            block_count: Blocks that fit; 0 when prefix caching is off.
            chunk: Most tokens per step.
        """
        self._block_tokens = block_tokens
        self._block_count = block_count
        self._chunk = chunk
        self._known: OrderedDict[int, None] = OrderedDict()

    def add(self, sequence: Sequence) -> None:
        """Match the prompt with the cache, as the pipeline does when a request arrives."""
        while (sequence.blocks + 1) * self._block_tokens <= sequence.prompt:
            following = self._next_hash(sequence)
            if following not in self._known:
                break
            self._known.move_to_end(following)
            sequence.hash = following
            sequence.blocks += 1
        # The last token is always computed: its logits are what is sampled from.
        sequence.cached = min(sequence.blocks * self._block_tokens, sequence.prompt - 1)

    def step(self, running: Iterable[Sequence]) -> None:
        """Follow one step of the scheduler. `running` is in order of arrival."""
        budget = self._chunk
        waiting = []
        for sequence in running:
            if sequence.decoding:
                budget -= 1
                self._keep(sequence, len(sequence.tokens))
            else:
                waiting.append(sequence)
        for sequence in waiting:
            if budget <= 0:
                break
            sequence.offered += budget
            left = sequence.prompt - sequence.cached - sequence.computed
            if left <= 0:
                # It should have given a token already: fewer blocks were there than believed.
                sequence.cached = max(0, sequence.prompt - sequence.offered)
                sequence.computed = sequence.prompt - sequence.cached
                budget = 0
                break
            taken = min(budget, left)
            sequence.computed += taken
            budget -= taken
            self._keep(sequence, sequence.cached + sequence.computed)

    def _keep(self, sequence: Sequence, tokens: int) -> None:
        """Note that the first `tokens` tokens are in the cache."""
        while (sequence.blocks + 1) * self._block_tokens <= tokens:
            sequence.hash = self._next_hash(sequence)
            sequence.blocks += 1
            self._known[sequence.hash] = None
            self._known.move_to_end(sequence.hash)
            while len(self._known) > self._block_count:
                self._known.popitem(last=False)

    def _next_hash(self, sequence: Sequence) -> int:
        start = sequence.blocks * self._block_tokens
        block = sequence.tokens[start : start + self._block_tokens]
        return hash((sequence.hash, block.tobytes()))
