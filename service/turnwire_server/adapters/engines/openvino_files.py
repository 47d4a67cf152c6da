"""What OpenVINO can load, said before it tries: its own words name neither file nor tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from turnwire_server.adapters.renderers.gguf import GgufFailure, GgufFile, read_gguf
from turnwire_server.ports.engine import EngineFailure

__all__ = ["model_problem", "trained_context"]

_ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
_WEIGHT_TYPES: Final = ("F16", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0")
_VECTOR_TYPES: Final = (*_WEIGHT_TYPES, "F32")
_USUAL_CONTEXT: Final = 2048
_FOLDER_FILES: Final = ("openvino_model.xml", "openvino_tokenizer.xml")


def trained_context(path: Path) -> int:
    """Return how many tokens the model at `path` was trained for; reads no weights.

    Raises:
        EngineFailure: OpenVINO cannot load it; `str()` names file or tensor, and why.
    """
    if path.is_dir():
        return _trained_context_of_folder(path)
    try:
        gguf = read_gguf(path)
        problem = model_problem(gguf)
        if problem:
            raise EngineFailure(problem)
        return gguf.integer(f"{gguf.architecture}.context_length", _USUAL_CONTEXT)
    except GgufFailure as failure:
        raise EngineFailure(str(failure)) from failure


def _trained_context_of_folder(path: Path) -> int:
    for name in _FOLDER_FILES:
        if not (path / name).is_file():
            raise EngineFailure(
                f"{path.name} cannot be loaded by OpenVINO: a folder needs {name}, which "
                "`optimum-cli export openvino` makes; a GGUF file works as it is."
            )
    try:
        facts: object = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return _USUAL_CONTEXT
    match facts:
        case {"max_position_embeddings": int(tokens)} if tokens > 0:
            return tokens
        case _:
            return _USUAL_CONTEXT


def model_problem(gguf: GgufFile) -> str:
    """Return one sentence on why OpenVINO cannot load `gguf`, "" when nothing is known."""
    name = gguf.path.name
    if gguf.architecture not in _ARCHITECTURES:
        return (
            f"{name} cannot be loaded by OpenVINO: its architecture is '{gguf.architecture}' "
            f"(general.architecture), supported are {', '.join(_ARCHITECTURES)}."
        )
    for tensor in gguf.tensors:
        allowed = _WEIGHT_TYPES if len(tensor.shape) > 1 else _VECTOR_TYPES
        if tensor.type_name not in allowed:
            return (
                f"{name} cannot be loaded by OpenVINO: tensor {tensor.name} has type "
                f"{tensor.type_name}, supported are {', '.join(allowed)}."
            )
    if not gguf.tensors:
        return f"{name} cannot be loaded by OpenVINO: it has no tensors."
    return ""
