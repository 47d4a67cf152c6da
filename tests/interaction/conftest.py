"""The fixture that runs one test on every wire that its requirements name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from harness.grpc_backends import served_by
from harness.peers import Peer, Wire
from harness.stack import Parts, Stack, running_stack
from interaction.requirements import EVERY_WIRE, REQUIREMENTS
from turnwire_server.runtime.connection import KeepaliveMode


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on the wires that all of its requirements have."""
    if "wire" not in metafunc.fixturenames:
        return
    wires = set(EVERY_WIRE)
    for mark in metafunc.definition.iter_markers("requirement"):
        wires &= set(REQUIREMENTS[mark.args[0]].wires)
    chosen = [pytest.param(wire, id=wire) for wire in EVERY_WIRE if wire in wires]
    if "grpc" in wires:
        chosen.append(pytest.param("grpc", id="grpcio", marks=pytest.mark.grpcio))
    if getattr(metafunc.module, "ON_ONE_WIRE", False):
        del chosen[1:]
    metafunc.parametrize("wire", chosen)


@pytest.fixture(autouse=True)
def _other_grpc_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Serve gRPC with grpcio, which is not the default, where the test is run for it."""
    if request.node.get_closest_marker("grpcio") is None:
        yield
        return
    with served_by("grpcio"):
        yield


class Connect:
    """Opens peers on the test's wire; `parts` may be changed before the first one."""

    def __init__(self, wire: Wire, exits: AsyncExitStack) -> None:
        self.wire = wire
        self.parts = Parts()
        self._exits = exits
        self._stack: Stack | None = None

    @property
    def stack(self) -> Stack:
        """The server; there is one after the first peer."""
        assert self._stack is not None
        return self._stack

    async def start(self) -> Stack:
        """Start the server if it does not run yet."""
        if self._stack is None:
            self._stack = await self._exits.enter_async_context(running_stack(self.parts))
        return self._stack

    async def __call__(
        self, wire: Wire | None = None, *, keepalive: KeepaliveMode | None = None
    ) -> Peer:
        """Open a peer, on another wire if one is named."""
        stack = await self.start()
        return await stack.connect(wire or self.wire, keepalive=keepalive)


@pytest.fixture
async def connect(wire: Wire) -> AsyncIterator[Connect]:
    """Peers of one server on the wire that the test is run for."""
    async with AsyncExitStack() as exits:
        yield Connect(wire, exits)
