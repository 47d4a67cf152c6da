"""Loads the renderer of a model, where its libraries may be missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from turnwire_server.adapters.renderers.harmony_settings import (
    HarmonyFailure,
    HarmonySettings,
    load_harmony,
)
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings

if TYPE_CHECKING:
    from turnwire_server.adapters.renderers.chat_template import ChatTemplateRenderer
    from turnwire_server.adapters.renderers.harmony import HarmonyRenderer

__all__ = ["RendererFailure", "RendererSettings", "load_renderer"]

RendererSettings = ChatTemplateSettings | HarmonySettings


class RendererFailure(Exception):
    """The renderer cannot be loaded. `str()` is a sentence or two for the operator."""


def load_renderer(settings: RendererSettings, path: Path) -> ChatTemplateRenderer | HarmonyRenderer:
    """Return the renderer that `settings` are for; blocks while vocabularies are read.

    Args:
        settings: Of a chat template, or of harmony.
        path: The model's GGUF file or folder; harmony, whose format is fixed, does not read it.

    Raises:
        RendererFailure: A library is missing, or the model's files cannot be used.
    """
    if isinstance(settings, HarmonySettings):
        try:
            return load_harmony(settings)
        except HarmonyFailure as failure:
            raise RendererFailure(str(failure)) from None
    for module in ("tokenizers", "jinja2"):
        if importlib.util.find_spec(module) is None:
            raise RendererFailure(
                f"The renderer chat_template needs {module}, which is not installed. Install it "
                "with: pip install 'turnwire[server,openvino]'"
            )
    # Imported here, because an install without that extra must be able to do everything else.
    from turnwire_server.adapters.renderers.chat_model import ChatModelFailure
    from turnwire_server.adapters.renderers.chat_template import ChatTemplateRenderer
    from turnwire_server.adapters.renderers.gguf import GgufFailure
    from turnwire_server.adapters.renderers.model_files import read_chat_model

    try:
        return ChatTemplateRenderer(read_chat_model(path), settings)
    except (ChatModelFailure, GgufFailure) as failure:
        raise RendererFailure(str(failure)) from None
