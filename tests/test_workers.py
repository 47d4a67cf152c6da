"""Several processes on one port are one server: shared work, one sum, one start and one end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from harness.peers import GrpcPeer, Peer
from harness.reading import arm_of, response_of, status_of
from harness.served_process import ServedProcess, served
from interaction.scripts import script
from turnwire_server.config import WorkerPlace

# One server for most of the tests, so they share its loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """\
workers = 2
[runtime]
drain_grace_s = 600
[[models]]
engine = "sim"
tokens_per_second = 0
"""
MANY = 40
"""So many connections reach both workers, but for one time in billions."""
WAIT_S = 30.0


def samples(text: str) -> dict[str, float]:
    """Name -> the sum of its samples; those of a transport also as `name/transport`."""
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
            if "transport" in sample.labels:
                sums[f"{sample.name}/{sample.labels['transport']}"] += sample.value
    return sums


async def summed(server: ServedProcess) -> dict[str, float]:
    """The metrics of the server."""
    origin = server.ready["http"].removesuffix("/v1")
    async with asyncio.timeout(WAIT_S), aiohttp.ClientSession() as client:
        async with client.get(f"{origin}/metrics") as answer:
            assert answer.status == 200
            return samples(await answer.text())


def place_of(pid: int) -> dict[str, Any]:
    """Where a worker was put by its parent."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    place: dict[str, Any] = json.loads(words[words.index(b"--worker") + 1])
    return place


async def asked(pid: int, path: str) -> tuple[int, str]:
    """What one worker answers to the others: status and text."""
    place = place_of(pid)
    socket = Path(place["directory"]) / f"{place['number']}.sock"
    async with (
        asyncio.timeout(WAIT_S),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as client,
        client.get(f"http://worker{path}") as answer,
    ):
        return answer.status, await answer.text()


async def own(pid: int) -> dict[str, float]:
    """The metrics of one worker."""
    return samples((await asked(pid, "/metrics"))[1])


async def draining(pid: int) -> None:
    """Wait until a worker takes no new work."""
    async with asyncio.timeout(WAIT_S):
        while (await asked(pid, "/readyz"))[0] != 503:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)


def workers_of(server: ServedProcess) -> list[int]:
    """The workers that live now, by their number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # it has ended
            said = (path / "stat").read_text().rsplit(")", 1)[1].split()
            if said[0] != "Z" and int(said[1]) == server.ready["pid"]:
                found[place_of(int(path.name))["number"]] = int(path.name)
    return [found[number] for number in sorted(found)]


def lives(pid: int) -> bool:
    """Whether a process is there; one that nobody reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_there(path: str) -> bool:
    return Path(path).exists()


async def gone(*pids: int) -> None:
    """Wait for the ends of processes."""
    async with asyncio.timeout(WAIT_S):
        while any(map(lives, pids)):  # noqa: ASYNC110  # other people's children
            await asyncio.sleep(0.02)


async def turn(peer: Peer, **more: Any) -> Any:
    """Run a turn and return its response."""
    async with asyncio.timeout(WAIT_S):
        response = response_of(await peer.turn(**{"input": "Hi", **more}))
    assert status_of(response) == "completed"
    return response


class OwnGrpcPeer(GrpcPeer):
    """A gRPC peer with a connection of its own: channels of a process share theirs."""

    def __init__(self, target: str) -> None:
        place: Any = SimpleNamespace(port=int(target.rpartition(":")[2]))
        super().__init__(target, proxy=place)


async def grpc_turn(server: ServedProcess) -> None:
    peer = OwnGrpcPeer(server.ready["grpc"])
    try:
        await peer.open()
        await turn(peer)
    finally:
        await peer.close()


async def http_turn(server: ServedProcess, **more: Any) -> Any:
    peer = await server.connect("http")
    try:
        return await turn(peer, **more)
    finally:
        await peer.close()


async def until_both(server: ServedProcess, name: str, act: Callable[[], Awaitable[Any]]) -> int:
    """Act until a count of both workers has grown; return how often."""
    before = {pid: (await own(pid))[name] for pid in workers_of(server)}
    for number in range(1, MANY):
        await act()
        now = [(await own(pid))[name] for pid in before]
        if all(new > old for new, old in zip(now, before.values(), strict=True)):
            return number
    raise AssertionError(f"one worker never got a connection: {name}")


async def logged_again(server: ServedProcess, text: str, act: Callable[[], None]) -> None:
    """Act, and wait until a text was logged once more."""
    before = server.log().count(text)
    act()
    await server.logged(text, times=before + 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its files are."""
    return tmp_path_factory.mktemp("server")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path) -> AsyncIterator[ServedProcess]:
    """One that every test leaves running, but the last."""
    async with served(folder, CONFIG, "--grpc-backend", "grpcio") as started:
        yield started


async def test_both_workers_serve_every_wire_and_their_metrics_are_one_sum(
    server: ServedProcess,
) -> None:
    before = await summed(server)
    peers: list[Peer] = []

    async def websocket_turn() -> None:
        peers.append(await server.connect("websocket"))
        await turn(peers[-1])

    wires: dict[str, Callable[[], Awaitable[Any]]] = {
        "grpc": lambda: grpc_turn(server),
        "websocket": websocket_turn,
        "http": lambda: http_turn(server),
    }
    done = {
        wire: await until_both(server, f"turnwire_turns_total/{wire}", act)
        for wire, act in wires.items()
    }
    total = await summed(server)

    def grown(name: str) -> float:
        return total[name] - before[name]

    for wire in wires:
        assert grown(f"turnwire_turns_total/{wire}") == done[wire]
    assert grown("turnwire_turn_overhead_seconds_count") == sum(done.values())
    assert grown("turnwire_connections/websocket") == done["websocket"]
    assert total["turnwire_workers"] == 2
    for pid in workers_of(server):
        assert (await own(pid))["turnwire_workers"] == 1
    assert (await server.get("/readyz"))[0] == 200
    for peer in peers:
        await peer.close()


async def test_a_stored_response_of_one_is_continued_on_the_other(server: ServedProcess) -> None:
    first = await http_turn(server)

    async def go_on() -> None:
        again = await http_turn(server, previous_response_id=first.id)
        assert again.previous_response_id == first.id
        assert again.usage.input_tokens > first.usage.input_tokens

    await until_both(server, "turnwire_turns_total", go_on)


async def test_a_worker_that_was_killed_comes_back_and_the_counts_stay(
    server: ServedProcess,
) -> None:
    await until_both(server, "turnwire_turns_total", lambda: http_turn(server))
    before = (await summed(server))["turnwire_turns_total"]
    killed, other = workers_of(server)

    def kill() -> None:
        os.kill(killed, signal.SIGKILL)

    coming = asyncio.create_task(logged_again(server, "worker serves again", kill))
    await gone(killed)
    # Whether the new one serves already or not.
    assert (await summed(server))["turnwire_turns_total"] == before
    await coming
    assert "worker ended number=0 exit_code=-9" in server.log()
    assert workers_of(server)[1] == other
    after = await summed(server)
    assert (after["turnwire_turns_total"], after["turnwire_workers"]) == (before, 2)
    done = await until_both(server, "turnwire_turns_total", lambda: http_turn(server))
    assert (await summed(server))["turnwire_turns_total"] == before + done


async def test_a_worker_that_is_told_to_end_by_somebody_else_comes_back(
    server: ServedProcess,
) -> None:
    ended = workers_of(server)[1]
    await logged_again(server, "worker serves again", lambda: os.kill(ended, signal.SIGTERM))
    assert "number=1 exit_code=0" in server.log()
    assert (await summed(server))["turnwire_workers"] == 2


async def test_sighup_reaches_both(server: ServedProcess, folder: Path) -> None:
    file = folder / "turnwire.toml"
    file.write_text(CONFIG + '[[models]]\nengine = "sim"\nname = "more"\n')
    before = server.log().count("configuration reloaded")
    server.signal(signal.SIGHUP)
    await server.logged("configuration reloaded", times=before + 2)
    await until_both(server, "turnwire_turns_total", lambda: http_turn(server, model="more"))
    assert "only a restart" not in server.log()


async def busy_peers(server: ServedProcess, **talk: float) -> list[Peer]:
    """Sessions on both workers, each with a turn that talks."""
    peers: list[Peer] = []

    async def begin() -> None:
        peers.append(await server.connect("websocket"))
        await peers[-1].create(input="talk", metadata=script(**talk))
        await peers[-1].until("response_created")

    await until_both(server, "turnwire_turns_running", begin)
    return peers


async def ends_of(peers: list[Peer]) -> set[str]:
    """The statuses that the turns of peers end with; the server goes away behind them."""
    statuses: set[str] = set()
    async with asyncio.timeout(WAIT_S):
        for peer in peers:
            events = [one for one in await peer.finish() if arm_of(one) != "keepalive"]
            statuses.add(status_of(response_of(events)))
        for peer in peers:  # who reads the good-bye answers it, and is not waited for
            assert await peer.ended() in ("1001", "1012")
    return statuses


async def test_sigterm_lets_both_finish_what_runs_whoever_else_gets_it(tmp_path: Path) -> None:
    # On the other back end, whose listeners are others.
    async with served(tmp_path, CONFIG, "--grpc-backend", "grpclib") as server:
        assert server.ready["workers"] == workers_of(server)
        await until_both(server, "turnwire_turns_total/grpc", lambda: grpc_turn(server))
        peers = await busy_peers(server, tokens=60, tokens_per_second=10)
        workers = workers_of(server)
        directory = place_of(workers[0])["directory"]
        server.signal(signal.SIGTERM)
        for pid in workers:  # as a service manager may do
            await draining(pid)
            os.kill(pid, signal.SIGTERM)
        assert await ends_of(peers) == {"completed"}
        assert await server.exit_code() == 0
        assert not any(map(lives, workers))
        assert not is_there(directory)


async def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with served(tmp_path, CONFIG) as server:
        workers = workers_of(server)
        directory = place_of(workers[0])["directory"]
        assert os.stat(directory).st_mode & 0o777 == 0o700
        assert stat.S_ISSOCK(os.stat(WorkerPlace(Path(directory), 0).engines).st_mode)
        server.signal(signal.SIGKILL)
        await server.exit_code()
        await gone(*workers)
        assert not is_there(directory)


async def test_a_worker_that_cannot_start_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        async with served(tmp_path, 'workers = 2\n[[models]]\npath = "missing.gguf"\n'):
            pass
    assert "missing.gguf" in str(failure.value)
    assert "turnwire: Worker 0 did not start (exit code 1)." in str(failure.value)


async def test_a_second_signal_ends_both_at_once(server: ServedProcess) -> None:
    """The last test of this server: it ends it."""
    peers = await busy_peers(server, tokens=10_000, tokens_per_second=1)
    server.signal(signal.SIGTERM)
    for pid in workers_of(server):
        await draining(pid)
    server.signal(signal.SIGTERM)
    assert await ends_of(peers) == {"cancelled"}
    assert await server.exit_code() == 0
