"""Reads a Hugging Face model folder: `tokenizer.json` and its chat template.

Nothing in it is run but the template, in the sandbox. The library's own handling of special
tokens is left out, because it would find them in a client's text too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from turnwire_server.adapters.renderers.chat_model import ChatModel, ChatModelFailure
from turnwire_server.adapters.renderers.model_tokenizer import ModelTokenizer

__all__ = ["read_folder"]

_MOST_BYTES: Final = 1 << 28
_LARGEST_ID: Final = 1 << 24
_TEMPLATE_FILE: Final = "chat_template.jinja"


def read_folder(path: Path) -> ChatModel:
    """Return what the folder at `path` says.

    `tokenizer.json` is needed, and a template: in `chat_template.jinja`, or the member
    `chat_template` of `tokenizer_config.json`. `generation_config.json` may name more ends.

    Raises:
        ChatModelFailure: a file is missing, is none, or is of a kind that is not supported.
    """
    data = _read(path, "tokenizer.json")
    settings = _object(path, "tokenizer_config.json", _read(path, "tokenizer_config.json", b"{}"))
    tokenizer = _tokenizer(path, data)
    template, key = _template(path, settings)
    eos = _token_text(settings.get("eos_token"))
    generation = _object(
        path, "generation_config.json", _read(path, "generation_config.json", b"{}")
    )
    ends = _integers(generation.get("eos_token_id"))
    if (token := tokenizer.special_id(eos)) is not None:
        ends.add(token)
    return ChatModel(
        file_name=path.name,
        name=path.name,
        tokenizer=tokenizer,
        template=template,
        template_key=key,
        bos=_token_text(settings.get("bos_token")),
        eos=eos,
        stop_ids=frozenset(ends),
    )


def _tokenizer(path: Path, data: bytes) -> ModelTokenizer:
    description = _object(path, "tokenizer.json", data)
    model = description.get("model")
    if not isinstance(model, Mapping) or model.get("type", "BPE") != "BPE":
        raise _failure(path, "tokenizer.json has no model of type BPE")
    if not _is_byte_level(description.get("decoder")):
        raise _failure(path, "tokenizer.json is not of a byte-level vocabulary")
    vocabulary = model.get("vocab")
    added = description.get("added_tokens") or []
    if not isinstance(vocabulary, Mapping) or not isinstance(added, Sequence):
        raise _failure(path, "tokenizer.json has no vocabulary")
    special: dict[str, int] = {}
    control: set[int] = set()
    for text, token, is_control in _added(path, added):
        special[text] = token
        if is_control:
            control.add(token)
    by_id = {token: text for text, token in {**vocabulary, **special}.items()}
    if not by_id or not all(type(i) is int and 0 <= i < _LARGEST_ID for i in by_id):
        raise _failure(path, "tokenizer.json has ids that are none")
    # Without them the library takes every text as ordinary and adds nothing of its own.
    plain = {**description, "added_tokens": [], "post_processor": None}
    try:
        tokenizer = Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises bare Exception
        raise _failure(path, "tokenizer.json cannot be used by the tokenizers library") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return ModelTokenizer(
        tokenizer,
        [by_id.get(token, "") for token in range(max(by_id) + 1)],
        special=special,
        control=frozenset(control),
        digest=hashlib.sha256(data).hexdigest()[:16],
    )


def _added(path: Path, added: Sequence[object]) -> Iterator[tuple[str, int, bool]]:
    for entry in added:
        match entry:
            case {"content": str(text), "id": int(token), "special": bool(is_control)} if text:
                yield text, token, is_control
            case _:
                raise _failure(path, "tokenizer.json has added tokens that are none")


def _is_byte_level(decoder: object) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    parts = decoder.get("decoders")
    if isinstance(parts, Sequence):
        return any(map(_is_byte_level, parts))
    return decoder.get("type") == "ByteLevel"


def _template(path: Path, settings: Mapping[str, object]) -> tuple[str, str]:
    if (path / _TEMPLATE_FILE).is_file():
        return _read(path, _TEMPLATE_FILE).decode("utf-8", "replace"), _TEMPLATE_FILE
    key = "chat_template of tokenizer_config.json"
    match settings.get("chat_template"):
        case str(template):
            return template, key
        case list(named):
            for entry in named:
                match entry:
                    case {"name": "default", "template": str(template)}:
                        return template, key
                    case _:
                        pass
        case _:
            pass
    raise _failure(path, f"there is neither {_TEMPLATE_FILE} nor a {key}")


def _token_text(value: object) -> str:
    match value:
        case str(text) | {"content": str(text)}:
            return text
        case _:
            return ""


def _integers(value: object) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {entry for entry in values if type(entry) is int}


def _read(path: Path, name: str, default: bytes | None = None) -> bytes:
    file = path / name
    try:
        if default is not None and not file.exists():
            return default
        if file.stat().st_size > _MOST_BYTES:
            raise _failure(path, f"{name} is larger than {_MOST_BYTES} bytes")
        return file.read_bytes()
    except OSError as error:
        raise _failure(path, f"{name} cannot be read: {error.strerror}") from error


def _object(path: Path, name: str, data: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _failure(path, f"{name} is not JSON") from error
    if not isinstance(value, dict):
        raise _failure(path, f"{name} is not an object")
    return value


def _failure(path: Path, reason: str) -> ChatModelFailure:
    return ChatModelFailure(f"{path.name} is not a model folder that can be used: {reason}.")
