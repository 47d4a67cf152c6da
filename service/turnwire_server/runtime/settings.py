"""Settings of the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turnwire_server.runtime.prompts import StoredPrompt
from turnwire_server.session.settings import SessionSettings

__all__ = [
    "BackgroundSettings",
    "CompactionSettings",
    "CompatSettings",
    "IdempotencySettings",
    "OutboxSettings",
    "RuntimeSettings",
]


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """Bounds and flush windows of one connection's outbox."""

    outbox_bytes: int = 1 << 17
    """Encoded events that may wait; beyond it turns stop until the peer has read."""
    quiet_s: float = 0.02
    """After this long without an event the next one goes at once."""
    fast_window_s: float = 0.002
    """Longest that a delta waits for company at 200 deltas per second and more."""
    fastest_window_s: float = 0.005
    """The same at 2,000 deltas per second and more."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Bounds of a compaction."""

    max_summary_tokens: int = 2048
    """Most tokens of a summary; a longer one is cut."""
    max_request_chars: int = 16_384
    """Most characters of the user's latest request that are kept word for word."""


@dataclass(frozen=True, slots=True)
class BackgroundSettings:
    """Bounds of responses that run without a connection, and of the events kept of them."""

    max_running: int = 256
    """Most that run at once; one more is refused with 429."""
    max_running_per_tenant: int = 64
    """The same for one tenant."""
    log_bytes: int = 64 << 20
    """Events kept, of all together; beyond it those go first whose response ended first."""
    response_log_bytes: int = 8 << 20
    """Events kept of one response; beyond it its oldest go."""
    log_ttl_s: float = 300.0
    """How long events are kept after the end."""


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """What is kept for requests with an idempotency key."""

    grace_s: float = 60.0
    """How long a turn goes on after its last client hung up, until its request comes again."""
    max_bytes: int = 64 << 20
    """Responses with `store: false` that are kept; of older ones only the keys are."""
    max_keys: int = 100_000
    """Keys of such responses that are remembered; beyond it the oldest go."""
    ttl_s: float = 24 * 3600.0
    """How long they are kept."""
    wait_s: float = 600.0
    """How long a request waits for another server process that runs it, which may be gone."""


@dataclass(frozen=True, slots=True)
class CompatSettings:
    """Where public dialects differ."""

    reasoning_events: Literal["openai", "summary"] = "openai"
    """How reasoning is shown: `openai` as raw text (`response.reasoning_text.*`), `summary` as a
    summary (`response.reasoning_summary_text.*`), which strict clients of every dialect know."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Settings of the services that all connections share."""

    session: SessionSettings = field(default_factory=SessionSettings)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    compat: CompatSettings = field(default_factory=CompatSettings)
    background: BackgroundSettings = field(default_factory=BackgroundSettings)
    idempotency: IdempotencySettings = field(default_factory=IdempotencySettings)
    prompts: tuple[StoredPrompt, ...] = ()
    """Prompt templates that creates may name."""
    max_message_bytes: int = 64 * 1024 * 1024
    """Largest message of a client on any transport, after decompression."""
    auth_keys: tuple[str, ...] = ()
    """Keys that may use the server; empty means that everybody may."""
    connection_age_s: float = 3600.0
    """Age from which on a connection takes no more creates."""
    age_grace_s: float = 30.0
    """How long running turns may go on after that."""
    resume_grace_s: float = 60.0
    """How long a session whose client asked for resume outlives a lost connection; 0 for none."""
    resume_buffer_bytes: int = 2 * 1024 * 1024
    """Memory for events that such a session's client may not have seen; the oldest go first."""
    max_detached_sessions: int = 1000
    """Sessions without a connection; one more ends one of the tenant that has the most."""
    drain_grace_s: float = 30.0
    """How long running turns may go on after SIGTERM."""
    append_timeout_s: float = 600.0
    """How long a paused rollout waits for what is appended; then it ends incomplete."""
    keepalive_s: float = 30.0
    """Silence inside a turn after which a data-level sign of life is sent."""
    keepalive: Literal["event", "in_progress", "off"] = "event"
    """`event` (a `keepalive` event), `in_progress` (that event again) or `off`."""
    heartbeat_s: float = 30.0
    """Silence after which a transport's own sign of life is sent (an empty gRPC frame)."""
    sse_heartbeat_s: float = 15.0
    """The same for SSE comments."""
    response_ttl_s: int = 30 * 24 * 3600
    """How long stored responses are kept."""
    max_pending_tokens: int = 65_536
    """Generated ids that may wait for a slow reader; beyond it the turn fails."""
    audit_rate: float = 0.0
    """Part of the turns, 0 to 1, whose prompt is rendered again afterwards and compared."""
