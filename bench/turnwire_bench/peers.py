"""`turnwire bench peers`: other servers of the same API beside this one, over a plain client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnwire_bench.failure import BenchFailure
from turnwire_bench.meta import meta_of
from turnwire_bench.network import PROFILES
from turnwire_bench.peer_driver import PEER_TRANSPORTS
from turnwire_bench.processes import Child
from turnwire_bench.progress import Progress
from turnwire_bench.rows import Way, row_of
from turnwire_bench.samples import Conversation
from turnwire_bench.scenario import Scenario
from turnwire_bench.stand import Stand

__all__ = ["Peer", "PeersSettings", "parse_peer", "run_peers"]

OURS: Final = "turnwire"
_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A server."""

    name: str
    url: str
    """Base URL, for example `http://127.0.0.1:8080/v1`."""
    model: str = "sim"


@dataclass(frozen=True, slots=True)
class PeersSettings:
    """What to run."""

    peers: tuple[Peer, ...]
    scenario: Scenario
    rate: float = 1000.0
    """Pace of the simulated engine; that of a peer's own engine is not known."""
    repeats: int = 5
    transports: tuple[str, ...] = PEER_TRANSPORTS
    api_key: str | None = None
    pids: tuple[int, ...] = ()
    """Processes of the peers in their order, where their CPU is to be shown; 0 for none."""
    is_alone: bool = False
    """Whether this server is left out."""


def parse_peer(text: str) -> Peer:
    """Read `name=url` or `name=url,model`.

    Raises:
        BenchFailure: It is none of these.
    """
    name, equals, where = text.partition("=")
    url, _, model = where.partition(",")
    if not equals or not name or not url.startswith(("http://", "https://")):
        raise BenchFailure(f"{text!r} is no peer; NAME=URL[,MODEL] is needed.")
    return Peer(name, url.rstrip("/"), model or "sim")


def run_peers(settings: PeersSettings, progress: Progress) -> dict[str, Any]:
    """Run the same conversations against every server, interleaved.

    A peer that lacks a transport, or refuses, has rows that say why instead of figures.

    Returns:
        `{"meta", "rows"}`; docs/bench.md has the schema.
    """
    with Stand() as stand:
        worker = stand.worker()
        servers = list(settings.peers)
        pids: list[int | None] = [pid or None for pid in settings.pids]
        if not settings.is_alone:
            own = stand.server()
            servers.insert(0, Peer(OURS, own.ready["http"]))
            pids.insert(0, own.pid)
        pids += [None] * (len(servers) - len(pids))
        found = _converse(stand, worker, servers, pids, settings, progress)
    rows = []
    for (name, transport), outcome in found.items():
        row: dict[str, Any] = {
            "server": name,
            "scenario": settings.scenario.name,
            "profile": "loopback",
            "rate": settings.rate,
            "transport": transport,
        }
        if isinstance(outcome, str):
            row["failure"] = outcome
        else:
            way = Way(PROFILES["loopback"])
            row.update(row_of(outcome, settings.scenario, settings.rate, way))
        rows.append(row)
    return {
        "meta": meta_of(
            "peers",
            notes=[
                "Every server is spoken to by the same plain client. Overhead takes for granted "
                "that behind each is the simulated engine at the rate given."
            ],
            peers=[{"name": peer.name, "url": peer.url, "model": peer.model} for peer in servers],
            scenario=settings.scenario.to_json(),
            repeats=settings.repeats,
        ),
        "rows": rows,
    }


def _converse(
    stand: Stand,
    worker: Child,
    servers: Sequence[Peer],
    pids: Sequence[int | None],
    settings: PeersSettings,
    progress: Progress,
) -> dict[tuple[str, str], list[Conversation] | str]:
    found: dict[tuple[str, str], list[Conversation] | str] = {
        (server.name, transport): [] for transport in settings.transports for server in servers
    }
    for repeat in range(-1, settings.repeats):  # the first warms up, and is dropped
        for transport in settings.transports:
            for server, pid in zip(servers, pids, strict=True):
                outcome = found[server.name, transport]
                if isinstance(outcome, str):
                    continue
                progress(f"{repeat + 1} of {settings.repeats}: {server.name}, {transport}")
                job = {
                    "do": "conversation",
                    "peer": True,
                    "transport": transport,
                    "place": {
                        "url": server.url,
                        "model": server.model,
                        "api_key": settings.api_key,
                    },
                    "scenario": settings.scenario.to_json(),
                    "rate": settings.rate,
                    "tag": f"{repeat} {server.name} {transport}",
                }
                before = stand.cpu_seconds([pid]) if pid else None
                try:
                    answer = worker.ask(job, timeout_s=_TIMEOUT_S)
                except BenchFailure as failure:
                    found[server.name, transport] = str(failure)
                    continue
                conversation = Conversation.from_json(answer)
                if before is not None and pid:
                    conversation.server_cpu_s = (stand.cpu_seconds([pid]) or 0.0) - before
                if repeat >= 0:
                    outcome.append(conversation)
    return found
