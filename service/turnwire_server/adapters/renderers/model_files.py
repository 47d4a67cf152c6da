"""Reads what a model's files say about how it is talked to, whatever kind of files they are."""

from __future__ import annotations

from pathlib import Path

from turnwire_server.adapters.renderers.chat_model import ChatModel, model_of_gguf
from turnwire_server.adapters.renderers.gguf import read_gguf
from turnwire_server.adapters.renderers.hf_folder import read_folder

__all__ = ["read_chat_model"]


def read_chat_model(path: Path) -> ChatModel:
    """Return what the GGUF file or the Hugging Face folder at `path` says.

    Raises:
        ChatModelFailure: the folder cannot be used.
        GgufFailure: the file cannot be used.
    """
    return read_folder(path) if path.is_dir() else model_of_gguf(read_gguf(path))
