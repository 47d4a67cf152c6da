"""What all connections of a server share."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Sequence

from turnwire.v1 import error_pb2
from turnwire_server.adapters.sealing import RingSealer
from turnwire_server.adapters.stores.conversations import MemoryConversationStore
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.conversations import ConversationStore
from turnwire_server.ports.ledger import Ledger
from turnwire_server.ports.metrics import CountsRestarts, Levels, Metrics
from turnwire_server.ports.screen import Screen
from turnwire_server.ports.sealer import SealBroken, Sealer
from turnwire_server.ports.store import CountsDropped, ResponseStore
from turnwire_server.runtime.afterwork import AfterWork
from turnwire_server.runtime.audit import Auditor
from turnwire_server.runtime.connection import Connection, KeepaliveMode, Wire
from turnwire_server.runtime.conversations import Conversations
from turnwire_server.runtime.outbox import Sink
from turnwire_server.runtime.registry import ModelRegistry
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.runtime.validate import Validator
from turnwire_server.session.errors import Rejection
from turnwire_server.session.sealed import COMPACTION, REASONING, Compacted

__all__ = ["DEFAULT_TENANT", "Services", "random_id"]

DEFAULT_TENANT = "default"


def random_id(prefix: str) -> str:
    """Return `prefix` followed by 24 random bytes in hexadecimal."""
    return prefix + secrets.token_hex(24)


class Services:
    """The runtime of one server process."""

    def __init__(
        self,
        models: ModelRegistry,
        *,
        store: ResponseStore,
        ledger: Ledger,
        clock: Clock,
        settings: RuntimeSettings,
        screen: Screen | None = None,
        sealer: Sealer | None = None,
        conversations: ConversationStore | None = None,
        metrics: Metrics | None = None,
        new_id: Callable[[str], str] = random_id,
    ) -> None:
        """Put the parts together; `start` must be called before the first connection.

        Args:
            models: The models.
            store: Keeps responses.
            ledger: Keeps usage.
            clock: Time.
            settings: Bounds and choices.
            screen: Judges input, None for no screen.
            sealer: Seals what clients keep for us, None for a key that dies with the process.
            conversations: Keeps conversations, None for in memory.
            metrics: Counts what happens, None for nobody.
            new_id: Returns a new id with the given prefix.
        """
        self.models = models
        self.store = store
        self.ledger = ledger
        self.clock = clock
        self.settings = settings
        self.screen = screen
        self.new_id = new_id
        self.metrics = metrics
        self.afterwork = AfterWork()
        self.auditor = Auditor(settings.audit_rate, self.afterwork, metrics)
        self.sealer: Sealer = sealer or RingSealer([secrets.token_bytes(32)])
        self.validator = Validator(
            models,
            new_id,
            strict_content=settings.session.strict_content,
            unseal=self.unseal,
            prompts=settings.prompts,
        )
        self.conversations = Conversations(
            conversations or MemoryConversationStore(),
            clock,
            new_id,
            unseal=self.unseal,
            strict_content=settings.session.strict_content,
        )
        self.accepting = False
        """Whether new work is wanted: what `/readyz` says."""
        self.running: dict[str, tuple[Connection, TurnRun]] = {}
        """Running turns by response id."""
        self._connections: set[Connection] = set()
        self._keys: Sequence[bytes] = [key.encode() for key in settings.auth_keys]

    async def start(self) -> None:
        """Start the engines.

        Raises:
            EngineFailure: one cannot start.
        """
        for model in self.models.models:
            await model.engine.start()
        self.accepting = True

    async def close(self, grace_s: float = 5.0) -> None:
        """End all connections, finish after work within `grace_s`, stop engines and store."""
        self.accepting = False
        for connection in list(self._connections):
            connection.shut_down()
        await self.afterwork.finish(grace_s)
        for model in self.models.models:
            await model.engine.close()
        await self.store.close()
        await self.conversations.close()

    def seal_reasoning(self, text: str) -> str:
        """Return the `encrypted_content` of a reasoning item."""
        return self.sealer.seal(REASONING, text.encode())

    def seal_compaction(self, compacted: Compacted) -> str:
        """Return the `encrypted_content` of a compaction item."""
        return self.sealer.seal(COMPACTION, compacted.payload())

    def unseal(self, kind: str, text: str) -> bytes | None:
        """Return what was sealed, None when `text` is not one of ours."""
        try:
            return self.sealer.open(kind, text)
        except SealBroken:
            return None

    def authorize(self, token: str | None) -> str | Rejection:
        """Return the tenant that `token` stands for; every key is compared, in constant time."""
        if not self._keys:
            return DEFAULT_TENANT
        given = (token or "").encode()
        # A list, not any(): the time must not tell which key was nearly right.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if any(matches):
            # Each key is a tenant of its own: what one stores, another does not find.
            return "key_" + hashlib.sha256(given).hexdigest()[:24]
        return Rejection(
            error_pb2.ERROR_REASON_INVALID_API_KEY,
            "Missing or incorrect API key. Send it as 'Authorization: Bearer KEY'.",
        )

    def connect(
        self,
        sink: Sink,
        *,
        wire: Wire,
        tenant: str = DEFAULT_TENANT,
        keepalive: KeepaliveMode | None = None,
        persistent: bool = True,
    ) -> Connection:
        """Open a connection; the caller must await its `run`.

        Args:
            sink: The transport's way out.
            wire: Which transport it is.
            tenant: Whose it is.
            keepalive: Data-level sign of life inside a turn; None takes the setting on
                WebSocket and `off` elsewhere.
            persistent: False for a wire that carries one turn.
        """
        settings = self.settings
        if keepalive is None:
            keepalive = settings.keepalive if wire == "websocket" else "off"
        connection = Connection(
            self,
            sink,
            wire=wire,
            tenant=tenant,
            keepalive=keepalive,
            heartbeat_s=settings.sse_heartbeat_s if wire == "http" else settings.heartbeat_s,
            is_persistent=persistent,
        )
        self._connections.add(connection)
        return connection

    def forget(self, connection: Connection) -> None:
        """Note that a connection is over."""
        self._connections.discard(connection)

    def levels(self) -> Levels:
        """Return what can be read off the server now."""
        store, engines = self.store, [(each.name, each.engine) for each in self.models.models]
        return Levels(
            connections=Counter(connection.wire for connection in self._connections),
            running=len(self.running),
            queued=sum(connection.session.queued for connection in self._connections),
            dropped=store.dropped if isinstance(store, CountsDropped) else {},
            restarts={
                name: engine.restarts
                for name, engine in engines
                if isinstance(engine, CountsRestarts)
            },
        )

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)
