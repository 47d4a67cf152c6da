"""Settings of the harmony renderer, and how to load it where its library may be missing."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from turnwire_server.adapters.renderers.harmony import HarmonyRenderer

__all__ = ["HarmonyFailure", "HarmonySettings", "load_harmony"]


class HarmonyFailure(Exception):
    """The renderer cannot be loaded. `str()` is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class HarmonySettings:
    """What the system message says."""

    model_name: str = "gpt-oss"
    """Part of the fingerprint."""
    reasoning_effort: Literal["low", "medium", "high"] = "medium"
    """How much the model is told to think."""
    identity: str = ""
    """Who the model is; "" for the library's own words."""
    current_date: str = ""
    """`YYYY-MM-DD`, "" to leave it out: a date of each day would change every prompt's head."""


def load_harmony(settings: HarmonySettings) -> HarmonyRenderer:
    """Return the renderer; blocks for about a second, the first time.

    Raises:
        HarmonyFailure: its library or its vocabulary is not there.
    """
    if importlib.util.find_spec("openai_harmony") is None:
        raise HarmonyFailure(
            "The renderer harmony needs openai-harmony, which is not installed. Install it with: "
            "pip install 'turnwire[server,harmony]'"
        )
    # Imported here, because an install without that extra must be able to do everything else.
    from turnwire_server.adapters.renderers.harmony import HarmonyRenderer
    from turnwire_server.adapters.renderers.vocabulary import VocabularyFailure

    try:
        return HarmonyRenderer(settings)
    except VocabularyFailure as failure:
        raise HarmonyFailure(f"The renderer harmony cannot be loaded: {failure}") from None
