"""What all connections of a server share."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence

from turnwire_server.adapters.sealing import RingSealer
from turnwire_server.adapters.stores.conversations import MemoryConversationStore
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.conversations import ConversationStore
from turnwire_server.ports.ledger import Ledger
from turnwire_server.ports.metrics import CountsRestarts, CountsUsage, Levels, Metrics
from turnwire_server.ports.resource import Resource
from turnwire_server.ports.screen import Screen
from turnwire_server.ports.sealer import SealBroken, Sealer
from turnwire_server.ports.store import CountsDropped, ResponseStore
from turnwire_server.runtime.afterwork import AfterWork
from turnwire_server.runtime.audit import Auditor
from turnwire_server.runtime.background import DetachedTurns
from turnwire_server.runtime.connection import Connection, KeepaliveMode, Wire
from turnwire_server.runtime.conversations import Conversations
from turnwire_server.runtime.host import SessionHost
from turnwire_server.runtime.idempotency import IdempotencyKeys
from turnwire_server.runtime.keys import DEFAULT_TENANT, ApiKeys
from turnwire_server.runtime.outbox import Sink
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resting import RestingSessions
from turnwire_server.runtime.retiring import RetiringModels
from turnwire_server.runtime.run import TurnRun
from turnwire_server.runtime.sessions import ResumableSessions
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.runtime.validate import Validator
from turnwire_server.session.errors import Rejection
from turnwire_server.session.sealed import COMPACTION, REASONING, Compacted

__all__ = ["DEFAULT_TENANT", "Services", "random_id"]


_DRAIN_LOOK_S = 0.05
"""How often it is looked whether everything has finished."""


def random_id(prefix: str) -> str:
    """Return `prefix` followed by 24 random bytes in hexadecimal."""
    return prefix + os.urandom(24).hex()


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
        resources: Sequence[Resource] = (),
        instance_id: str = "",
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
            resources: What the other parts are built on, in the order in which it is opened.
            instance_id: What this server process is called where others see it: the ledger's
                id of it. A random one when empty.
        """
        self.instance_id = instance_id or random_id("inst_")
        self._resources = tuple(resources)
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
        self.running: dict[str, tuple[SessionHost, TurnRun]] = {}
        """Running turns by response id."""
        self.hosts: set[SessionHost] = set()
        """The sessions, those too that have no connection now."""
        self.resting = RestingSessions(clock)
        self.sessions = ResumableSessions(self)
        self.detached = DetachedTurns(self)
        self.idempotency = IdempotencyKeys(self)
        self._connections: set[Connection] = set()
        self.keys = ApiKeys(settings.auth_keys)
        self._retiring = RetiringModels(clock)

    async def start(self) -> None:
        """Open the resources and start the engines.

        Raises:
            DatabaseFailure: the database cannot be used.
            EngineFailure: one cannot start.
            LedgerFailure: the usage that a dead process left behind cannot be closed.
        """
        for resource in self._resources:
            await resource.start()
        await self.ledger.start()
        if dead := self.ledger.dead_owners():
            await self.store.fail_orphans(dead)
        self.ledger.forget_dead()  # what dead processes left behind is cleared up by now
        for model in self.models.models:
            await model.engine.start()
        self.accepting = True

    def serve_models(self, models: Sequence[ServedModel], *, any_model: bool) -> None:
        """Serve these models, whose engines run, from now on.

        What runs on a model that is not among them finishes there; then its engine is closed.
        """
        gone = [model for model in self.models.models if model not in models]
        self.models.replace(models, any_model=any_model)
        self.validator.forget_settings()
        for model in gone:
            self._retiring.add(model, [run for _, run in self.running.values()])

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Take no new work and let what runs finish, for `grace_s` seconds or until `hurry`.

        Connections with nothing to do are closed; `close` must follow.
        """
        self.accepting = False
        for connection in list(self._connections):
            connection.drain(grace_s)
        deadline = self.clock.monotonic() + grace_s
        while not hurry.is_set() and self.clock.monotonic() < deadline:
            self.sessions.end_idle()
            if not self._connections and not self.hosts:
                return
            await self.clock.sleep(min(_DRAIN_LOOK_S, grace_s))

    async def close(self, grace_s: float = 5.0) -> None:
        """End all connections, finish after work within `grace_s`, stop engines and store."""
        self.accepting = False
        self.detached.interrupt()
        for connection in list(self._connections):
            connection.shut_down()
        self.sessions.close()
        if ending := [run.over for _, run in self.running.values()]:
            await asyncio.wait(ending, timeout=grace_s)  # what they add to after work counts
        await self.detached.finish(grace_s)
        await self.sessions.finish(grace_s)
        await self.afterwork.finish(grace_s)
        for model in self.models.models:
            await model.engine.close()
        await self._retiring.close()
        await self.ledger.close()
        await self.store.close()
        await self.conversations.close()
        for resource in reversed(self._resources):
            await resource.close()

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
        """Return the tenant that `token` stands for."""
        return self.keys.authorize(token)

    def refusal(self, tenant: str) -> Rejection | None:
        """Return why a tenant may start no turn now, None when it may. Asked for every turn."""
        return self.keys.refusal(tenant)

    def connect(
        self,
        sink: Sink,
        *,
        wire: Wire,
        tenant: str = DEFAULT_TENANT,
        keepalive: KeepaliveMode | None = None,
        persistent: bool = True,
        was_lost: Callable[[], bool] = lambda: True,
    ) -> Connection:
        """Open a connection; the caller must await its `run`.

        Args:
            sink: The transport's way out.
            wire: Which transport it is.
            tenant: Whose it is.
            keepalive: Data-level sign of life inside a turn; None takes the setting on
                WebSocket and `off` elsewhere.
            persistent: False for a wire that carries one turn.
            was_lost: Says, once the peer is gone, whether it went without a word.
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
            was_lost=was_lost,
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
            queued=sum(host.session.queued for host in self.hosts),
            dropped=store.dropped if isinstance(store, CountsDropped) else {},
            restarts={
                name: engine.restarts
                for name, engine in engines
                if isinstance(engine, CountsRestarts)
            },
            detached=self.sessions.waiting,
            tasks=len(asyncio.all_tasks()),
            usage=self.ledger.usage_levels() if isinstance(self.ledger, CountsUsage) else None,
        )

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)
