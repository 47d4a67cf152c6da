"""The demo, as a user runs it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from turnwire_server.adapters.models import CATALOGUE, is_pulled
from turnwire_server.config import DEFAULT_MODEL, Config

WAYS = ("gRPC", "WebSocket", "HTTP, with id", "HTTP, full history")
PULLED = is_pulled(CATALOGUE[DEFAULT_MODEL], Config().models_directory)


async def start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwire", "demo", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )


async def output_of(process: Process, *, within_s: float) -> str:
    try:
        async with asyncio.timeout(within_s):
            output, log = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 0, log.decode()
    return output.decode()


def rows(output: str) -> list[list[str]]:
    """Turn number, milliseconds, tokens and bytes of each of the table's rows."""
    found = re.findall(r"^ (?:\S+(?: \S+)*)?  +(\d  .*)$|^ +([123]  .*)$", output, re.MULTILINE)
    return [
        (first or second).replace(",", "").split()
        for first, second in found
        if len((first or second).split()) == 9
    ]


def check(output: str) -> None:
    places = [output.index(f"\n{way}\n") for way in WAYS]
    assert places == sorted(places)
    assert output.count("calls  computer_fact(") == len(WAYS)
    table = rows(output)
    assert [row[0] for row in table] == ["1", "2", "3"] * len(WAYS)
    for way, turns in zip(WAYS, (table[at : at + 3] for at in range(0, 12, 3)), strict=True):
        for _, _, _, sent, rendered, _, _, _, _ in turns[1:]:
            # A session tokenizes what came; full history tokenizes everything again.
            assert (int(rendered) == int(sent)) == (way != "HTTP, full history")
        assert all(int(cached) > 0 for _, _, _, _, _, cached, _, _, _ in turns[1:])


async def test_the_demo_runs_the_same_loop_over_every_way_and_leaves_nothing_running():
    process = await start("--engine", "sim")
    output = await output_of(process, within_s=60)
    check(output)
    assert "a simulation, no model runs" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.skipif(
    not PULLED and "CI" not in os.environ, reason="needs turnwire models pull smollm2"
)
async def test_the_demo_runs_on_the_real_model():
    process = await start()
    output = await output_of(process, within_s=240)
    check(output)
    assert "a real language model on this CPU" in output
    assert "tool_choice 'required'" in output


async def test_ending_the_demo_ends_its_server():
    process = await start("--engine", "sim")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
            assert b"is served at" in line
            process.send_signal(signal.SIGTERM)
            await process.communicate()
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def test_a_demo_on_the_simulation_takes_no_model(capsys):
    from turnwire_server.cli import main

    assert main(["demo", "--engine", "sim", "--model", "x"]) == 1
    assert "--engine openvino" in capsys.readouterr().err


def test_the_demo_is_what_the_script_runs():
    script = Path(__file__).parents[1] / "scripts/demo"
    assert "turnwire demo" in script.read_text(encoding="utf-8")
