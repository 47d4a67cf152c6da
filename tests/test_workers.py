"""Several processes on one port are one server: shared work, one sum, one start and one end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.peers import GrpcPeer, Peer
from harness.reading import arm_of, response_of, status_of
from harness.served_process import ServedProcess, served
from interaction.scripts import script

SIM = 'workers = 2\n[[models]]\nengine = "sim"\ntokens_per_second = {}\n'
FAST = SIM.format(0)
PATIENT = "[runtime]\ndrain_grace_s = 600\n"
MANY = 24
"""So many connections reach both workers, but for one time in millions."""
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


@pytest.mark.parametrize("backend", ["grpcio", "grpclib"])
async def test_both_workers_serve_every_wire_and_their_metrics_are_one_sum(
    tmp_path: Path, backend: str
) -> None:
    async with served(tmp_path, FAST, "--grpc-backend", backend) as server:
        first, second = server.ready["workers"]
        assert len({first, second, server.ready["pid"]}) == 3
        for _ in range(MANY):
            await turn(await server.connect("websocket"))
            await turn(await server.connect("http"))
            await grpc_turn(server)
        for one in [await own(pid) for pid in (first, second)]:
            for wire in ("grpc", "websocket", "http"):
                assert one[f"turnwire_turns_total/{wire}"] > 0
            assert one["turnwire_workers"] == 1
        total = await summed(server)
        for wire in ("grpc", "websocket", "http"):
            assert total[f"turnwire_turns_total/{wire}"] == MANY
        assert total["turnwire_turn_overhead_seconds_count"] == 3 * MANY
        assert total["turnwire_connections/websocket"] == MANY
        assert total["turnwire_workers"] == 2
        assert (await server.get("/readyz"))[0] == 200


async def test_a_stored_response_of_one_is_continued_on_the_other(tmp_path: Path) -> None:
    async with served(tmp_path, FAST) as server:
        first = await turn(await server.connect("http"))
        for _ in range(MANY):
            peer = await server.connect("http")
            again = await turn(peer, previous_response_id=first.id)
            assert again.previous_response_id == first.id
            assert again.usage.input_tokens > first.usage.input_tokens
        each = [(await own(pid))["turnwire_turns_total"] for pid in server.ready["workers"]]
        assert min(each) > 0


async def busy_peers(server: ServedProcess) -> list[Peer]:
    """Sessions on both workers, each with a turn that talks."""
    peers = [await server.connect("websocket") for _ in range(MANY)]
    for peer in peers:
        await peer.create(input="talk", metadata=script(tokens=40))
        await peer.until("response_created")
    for pid in server.ready["workers"]:
        assert (await own(pid))["turnwire_turns_running"] > 0
    return peers


@pytest.mark.parametrize("reached", ["the parent", "everybody"])
async def test_sigterm_lets_both_finish_what_runs(tmp_path: Path, reached: str) -> None:
    async with served(tmp_path, PATIENT.join(("workers = 2\n", SIM[12:].format(10)))) as server:
        peers = await busy_peers(server)
        workers = server.ready["workers"]
        server.signal(signal.SIGTERM)
        if reached == "everybody":  # as a service manager may do
            for pid in workers:
                await draining(pid)
                os.kill(pid, signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            for peer in peers:
                events = [one for one in await peer.finish() if arm_of(one) != "keepalive"]
                assert status_of(response_of(events)) == "completed"
        assert await server.exit_code() == 0
        assert not any(map(lives, workers))


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_second_signal_ends_both_at_once(tmp_path: Path, second: signal.Signals) -> None:
    endless = PATIENT.join(("workers = 2\n", SIM[12:].format(1)))
    async with served(tmp_path, endless) as server:
        peers = await busy_peers(server)
        server.signal(signal.SIGTERM)
        for pid in server.ready["workers"]:
            await draining(pid)
        server.signal(second)
        async with asyncio.timeout(WAIT_S):
            for peer in peers:
                events = [one for one in await peer.finish() if arm_of(one) != "keepalive"]
                assert status_of(response_of(events)) == "cancelled"
        assert await server.exit_code() == 0


async def test_a_worker_that_was_killed_comes_back_and_the_counts_stay(tmp_path: Path) -> None:
    async with served(tmp_path, FAST) as server:
        for _ in range(MANY):
            await turn(await server.connect("http"))
        assert (await summed(server))["turnwire_turns_total"] == MANY
        killed, other = server.ready["workers"]
        os.kill(killed, signal.SIGKILL)
        await gone(killed)
        # Whether the new one serves already or not.
        assert (await summed(server))["turnwire_turns_total"] == MANY
        await server.logged("worker serves again")
        assert "worker ended number=0 exit_code=-9" in server.log()
        after = await summed(server)
        assert (after["turnwire_turns_total"], after["turnwire_workers"]) == (MANY, 2)
        for _ in range(MANY):
            await turn(await server.connect("http"))
        assert (await summed(server))["turnwire_turns_total"] == 2 * MANY
        assert MANY > (await own(other))["turnwire_turns_total"] / 2 > 0
        server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0


async def test_a_worker_that_is_told_to_end_by_somebody_else_comes_back(tmp_path: Path) -> None:
    async with served(tmp_path, FAST) as server:
        os.kill(server.ready["workers"][1], signal.SIGTERM)
        await server.logged("worker serves again")
        assert "number=1 exit_code=0" in server.log()
        assert (await summed(server))["turnwire_workers"] == 2


async def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with served(tmp_path, FAST) as server:
        workers = server.ready["workers"]
        directory = place_of(workers[0])["directory"]
        assert os.stat(directory).st_mode & 0o777 == 0o700
        server.signal(signal.SIGKILL)
        await server.exit_code()
        await gone(*workers)
        assert not is_there(directory)


async def test_the_directory_goes_with_the_server(tmp_path: Path) -> None:
    async with served(tmp_path, FAST) as server:
        directory = place_of(server.ready["workers"][0])["directory"]
        server.signal(signal.SIGINT)
        assert await server.exit_code() == 0
        assert not is_there(directory)


async def test_sighup_reaches_both(tmp_path: Path) -> None:
    async with served(tmp_path, FAST) as server:
        (tmp_path / "turnwire.toml").write_text(
            FAST + '[[models]]\nengine = "sim"\nname = "more"\n'
        )
        server.signal(signal.SIGHUP)
        await server.logged("configuration reloaded", times=2)
        for _ in range(MANY):
            await turn(await server.connect("http"), model="more")
        assert "only a restart" not in server.log()


async def test_a_worker_that_cannot_start_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        async with served(tmp_path, 'workers = 2\n[[models]]\npath = "missing.gguf"\n'):
            pass
    assert "missing.gguf" in str(failure.value)
    assert "turnwire: Worker 0 did not start (exit code 1)." in str(failure.value)
