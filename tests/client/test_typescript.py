"""Node, with the stubs that `scripts/typescript` generates, against the real server."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "client/typescript"
READY = shutil.which("node") is not None and (HERE / "gen").is_dir()


@pytest.mark.skipif(
    not READY and "CI" not in os.environ,
    reason="needs Node and the stubs that scripts/typescript makes",
)
async def test_an_agent_loop_in_node_runs_over_grpc_with_the_generated_stubs(grpc_target: str):
    address = grpc_target.removeprefix("grpc://")
    async with asyncio.timeout(60):  # Node's own start is part of it.
        node = await asyncio.create_subprocess_exec(
            "node",
            str(HERE / "agent_loop.mjs"),
            f"http://{address}",
            "sim",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            answer, log = await node.communicate()
        finally:
            if node.returncode is None:
                node.kill()
                await node.wait()
    assert node.returncode == 0, log.decode()
    assert answer.strip() != b""
    # The tool ran once here, with arguments that its schema allows, and its result went back.
    assert log.decode().count("word_count(") == 1
