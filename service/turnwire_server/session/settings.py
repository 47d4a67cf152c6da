"""Limits of a session."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SessionSettings"]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Bounds of one session; the defaults are those of the public API."""

    max_in_flight: int = 16
    """Turns that run at once over all lanes; more wait."""
    max_named_lanes: int = 32
    """Distinct lane names in the life of a session."""
    max_queued: int = 64
    """Creates that wait."""
    max_queued_bytes: int = 64 * 1024 * 1024
    """Bytes of the creates that wait, as they came over the wire."""
    max_warm_ups: int = 8
    """Warm-ups that stay usable after a newer response took their lane."""
    max_event_ids: int = 1024
    """Newest `event_id`s of accepted creates, remembered to recognise a repeated one."""
    max_answer_bytes: int = 1024 * 1024
    """Terminal events of creates with an `event_id`, kept for one that is sent again."""
    max_pending_steers: int = 16
    """Steers that may wait for one response."""
    strict_content: bool = False
    """Whether assistant messages may hold `output_text` and `refusal` only."""
