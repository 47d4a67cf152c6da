"""Writes small GGUF files, and one with a byte-level vocabulary and any chat template."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["CHATML", "CONTROL", "SPECIALS", "tiny_metadata", "tokens_of_bytes", "write_gguf"]

_NUMBERS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q5_0": 6,
    "Q8_0": 8,
    "BF16": 30,
    "type 99": 99,
}
CONTROL, USER_DEFINED = 3, 4
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template without tools that takes system messages anywhere."""


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Sequence[tuple[str, str, tuple[int, ...]]] = (),
) -> Path:
    """Write `metadata` and descriptions of `tensors` (name, type, shape); no tensor data."""
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, body = _value(value)
        data += _text(key) + struct.pack("<I", kind) + body
    for name, kind_name, shape in tensors:
        data += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        data += struct.pack("<IQ", _NUMBERS[kind_name], 0)
    path.write_bytes(data)
    return path


def tokens_of_bytes() -> list[str]:
    """One token per byte, written as byte-level vocabularies write it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in names)
    names |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


def tiny_metadata(
    template: str = CHATML,
    *,
    pre: str = "smollm",
    specials: Sequence[str] = SPECIALS,
    user_defined: Sequence[str] = (),
) -> dict[str, object]:
    """Metadata of a model whose tokens are single bytes, a few words and `specials`."""
    words = ["he", "ll", "Ġw"]
    tokens = [*tokens_of_bytes(), *words, *specials, *user_defined]
    types = (
        [1] * (256 + len(words)) + [CONTROL] * len(specials) + [USER_DEFINED] * len(user_defined)
    )
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e", "l l", "Ġ w"],
        "tokenizer.ggml.eos_token_id": tokens.index(specials[-1]),
        "tokenizer.chat_template": template,
    }


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _text(value)
        case list():
            kind, _ = _value(value[0])
            bodies = b"".join(_value(part)[1] for part in value)
            return 9, struct.pack("<IQ", kind, len(value)) + bodies
        case _:
            raise TypeError(type(value).__name__)
