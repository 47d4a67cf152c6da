"""Settings of the chat template renderer; apart from it, as its libraries may be missing."""

from __future__ import annotations

from dataclasses import dataclass

from turnwire_server.adapters.renderers.template_class import HistoryRule

__all__ = ["ChatTemplateSettings"]


@dataclass(frozen=True, slots=True)
class ChatTemplateSettings:
    """What to do otherwise than the template suggests. None: as found by probing."""

    format: str = "auto"
    """How the model writes calls: `hermes`, `qwen_coder`, `llama3_json` or `mistral`; `auto` is
    what the template shows."""
    history: HistoryRule = "kept"
    """What happens to turns that the template would rewrite."""
    keeps_prefixes: bool | None = None
    """Whether each prompt begins with the one before it."""
    strips_reasoning: bool | None = None
    """Whether earlier reasoning is left out once the user speaks again."""
    inserts_in_generation_prompt: bool | None = None
    """Whether the generation prompt has something that history has not."""
    moves_tools: bool | None = None
    """Whether the tools stand before the last turn."""
