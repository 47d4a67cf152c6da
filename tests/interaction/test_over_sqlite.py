"""What depends on the store, once more with the store on a disk; each on one wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.peers import Wire
from harness.stores import sqlite_url
from interaction import test_compaction, test_continuation, test_conversations
from interaction.conftest import Connect

ON_ONE_WIRE = True

for _module in (test_continuation, test_conversations, test_compaction):
    globals().update(
        {name: value for name, value in vars(_module).items() if name.startswith("test_")}
    )


@pytest.fixture
async def connect(wire: Wire, tmp_path: Path) -> AsyncIterator[Connect]:
    """Peers of one server with a database."""
    async with AsyncExitStack() as exits:
        connected = Connect(wire, exits)
        connected.parts.database = sqlite_url(tmp_path)
        yield connected
