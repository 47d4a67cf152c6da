"""What a model's files say about how it is talked to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turnwire_server.adapters.renderers.gguf import GgufFile
from turnwire_server.adapters.renderers.gguf_tokenizer import GgufTokenizer
from turnwire_server.adapters.renderers.model_tokenizer import ModelTokenizer

__all__ = ["ChatModel", "ChatModelFailure", "model_of_gguf"]

_END_TOKENS: Final = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")


class ChatModelFailure(Exception):
    """The model's files lack what rendering needs. `str()` is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A tokenizer, a chat template and the tokens that begin and end."""

    file_name: str
    """Of the file or folder, for messages."""
    name: str
    tokenizer: ModelTokenizer
    template: str
    """Jinja source."""
    template_key: str
    """Where the template came from, for messages."""
    bos: str = ""
    """Text of the token that begins a conversation, "" for none."""
    eos: str = ""
    """Text of the token that ends a turn, "" for none."""
    adds_bos: bool = False
    """Whether `bos` goes first even if the template does not write it."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that the files name as ends of a turn."""

    def known_stop_ids(self) -> frozenset[int]:
        """Return `stop_ids` and the vocabulary's tokens that end turns by their usual names."""
        ids = map(self.tokenizer.special_id, _END_TOKENS)
        found = {*self.stop_ids, *(token for token in ids if token is not None)}
        return frozenset(token for token in found if 0 <= token < self.tokenizer.size)


def model_of_gguf(gguf: GgufFile) -> ChatModel:
    """Return what a GGUF file says.

    Raises:
        GgufFailure: it lacks a template or a vocabulary, or has one that is not supported.
    """
    ends = (gguf.integer(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot", "eom"))
    bos = _token_text(gguf, "bos")
    return ChatModel(
        file_name=gguf.path.name,
        name=gguf.text("general.name", ""),
        tokenizer=GgufTokenizer(gguf),
        template=gguf.text("tokenizer.chat_template"),
        template_key="tokenizer.chat_template",
        bos=bos,
        eos=_token_text(gguf, "eos"),
        adds_bos=bool(bos) and gguf.metadata.get("tokenizer.ggml.add_bos_token") is True,
        stop_ids=frozenset(ends),
    )


def _token_text(gguf: GgufFile, name: str) -> str:
    token = gguf.integer(f"tokenizer.ggml.{name}_token_id", -1)
    tokens = gguf.texts("tokenizer.ggml.tokens")
    return tokens[token] if 0 <= token < len(tokens) else ""
