"""Reads the output of a model that a chat template describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwire_server.adapters.renderers.detokenizer import Detokenizer
from turnwire_server.adapters.renderers.formats.pieces import FormatParser
from turnwire_server.adapters.renderers.model_tokenizer import ModelTokenizer
from turnwire_server.adapters.renderers.reasoning_count import ReasoningCount
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.renderer import Ending
from turnwire_server.session.output import OutputPiece

__all__ = ["ChatTemplateParser"]


class ChatTemplateParser:
    """Reads the output of one turn."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        calls: FormatParser,
        visible: Mapping[int, bytes],
        *,
        opening: str = "",
    ) -> None:
        """Build it from its parts.

        Args:
            tokenizer: Decodes the ids.
            calls: Finds calls and reasoning in the text.
            visible: Control tokens whose text is markup that `calls` reads.
            opening: Text in the prompt that `calls` has read already.
        """

        def token_bytes(token: int) -> bytes:
            return visible.get(token) or tokenizer.token_bytes(token)

        decode = token_bytes if visible else tokenizer.token_bytes
        self._detokenizer = Detokenizer(decode)
        self._calls = calls
        self._count = ReasoningCount(decode, opening=opening)
        self.ending: Ending | None = None
        """Where the output ends, None before that is known."""

    @property
    def done(self) -> bool:
        """Whether nothing that could follow matters."""
        return self._calls.done

    @property
    def reasoning_tokens(self) -> int:
        """How many ids gave text of reasoning."""
        return self._count.tokens_of(self._calls.reasoning_spans)

    def feed(self, ids: Sequence[int]) -> Sequence[OutputPiece]:
        """Return what `ids` add."""
        self._count.add(ids)
        pieces = self._calls.feed(self._detokenizer.feed(ids))
        if self.ending is None and self._calls.ending is not None:
            position, is_closed = self._calls.ending
            self.ending = self._count.ending(position, is_closed=is_closed)
        return pieces

    def finish(self, reason: FinishReason) -> Sequence[OutputPiece]:
        """Return what was held back."""
        pieces = [*self._calls.feed(self._detokenizer.finish())]
        return [*pieces, *self._calls.finish(complete=reason == "stop")]
