"""Chat templates in the style of each family of models, on a vocabulary of bytes and words.

The templates are in `tests/data/templates`: our own writing, in the published formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from harness.gguf_files import tokens_of_bytes

__all__ = ["FAMILIES", "template_source", "write_folder"]

_TEMPLATES: Final = Path(__file__).parent.parent / "data" / "templates"
_CHATML: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA: Final = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
)
_MISTRAL: Final = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
_TAGS: Final = ("<tool_call>", "</tool_call>")
_THOUGHTS: Final = ("<think>", "</think>")

FAMILIES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str, str]]] = {
    "qwen": (_CHATML, _TAGS, "", "<|im_end|>"),
    "smollm": (_CHATML, (), "<|im_start|>", "<|im_end|>"),
    "llama3": (_LLAMA, (), "<|begin_of_text|>", "<|eot_id|>"),
    "qwen3": (_CHATML, (*_TAGS, *_THOUGHTS), "", "<|im_end|>"),
    "thinking": (("<s>", "<|user|>", "<|assistant|>", "<|end|>"), _THOUGHTS, "<s>", "<|end|>"),
    "mistral": (_MISTRAL, (), "<s>", "</s>"),
    "qwen_coder": (_CHATML, _TAGS, "", "<|im_end|>"),
}
"""Control tokens, other special tokens, beginning and end, by name of the template."""


def template_source(family: str) -> str:
    """Return the Jinja source of a family's template."""
    return (_TEMPLATES / f"{family}.jinja").read_text("utf-8")


def write_folder(path: Path, family: str, *, in_settings: bool = False) -> Path:
    """Write a model folder of `family` into `path`, as Hugging Face lays it out.

    Args:
        path: The folder; made if missing.
        family: A name of `FAMILIES`.
        in_settings: Whether the template is in `tokenizer_config.json`, not in its own file.
    """
    control, visible, bos, eos = FAMILIES[family]
    words = ["he", "ll", "Ġw"]
    plain = [*tokens_of_bytes(), *words]
    added = [
        {"id": len(plain) + index, "content": text, "special": text in control}
        for index, text in enumerate((*control, *visible))
    ]
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [{**entry, **common} for entry in added],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(plain)},
            "merges": ["h e", "l l", "Ġ w"],
        },
    }
    settings: dict[str, Any] = {"eos_token": eos, "bos_token": {"content": bos} if bos else None}
    path.mkdir(parents=True, exist_ok=True)
    if in_settings:
        settings["chat_template"] = template_source(family)
    else:
        (path / "chat_template.jinja").write_text(template_source(family), "utf-8")
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return path
