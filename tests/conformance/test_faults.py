"""The suite finds what is broken: each seeded fault fails the check meant for it, and no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from conformance.faults import FAULTS
from harness.faulty_proxy import Fault, faulty_proxy
from harness.server import RunningServer, running_server
from turnwire_server.conformance import CHECKS, SuiteSettings, run_suite

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TIMEOUT_S = 10.0
# What takes the most time; run for the faults that are meant for it, and for the unbroken server.
_SLOW = {
    *("cancel.continue", "cancel.queued", "cancel.running", "input.forms", "lanes.limit"),
    *("lanes.names", "lanes.parallel", "lanes.queue", "steer.successor", "websocket.large"),
}

# Of a session's faults none is about what these ask; they are run for the other transports.
_OF_EXCHANGES = ("sequence.", "input.", "store.", "compact.", "tokens.", "response.echo")


def _only(fault: Fault) -> set[str]:
    is_session = fault.transport in ("websocket", "grpc")
    left_out = {
        check.id
        for check in CHECKS
        if check.id in _SLOW
        or (is_session and check.run is not None and check.id.startswith(_OF_EXCHANGES))
    }
    return {check.id for check in CHECKS} - left_out | {fault.caught_by}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[RunningServer]:
    """One server for all faults: they are in the proxy."""
    logger = logging.getLogger("turnwire")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # Engines break on purpose here.
    async with running_server() as running:
        yield running
    logger.setLevel(before)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
async def test_a_fault_is_caught_by_the_check_meant_for_it(
    server: RunningServer, fault: Fault
) -> None:
    async with asyncio.timeout(30), faulty_proxy(server, fault) as proxy:
        settings = SuiteSettings(
            proxy.base_url,
            proxy.grpc_target,
            model="sim",
            profile=fault.profile,
            timeout_s=1.0 if fault.name == "no terminal event" else _TIMEOUT_S,
            parallel=16,
            transports=(fault.transport,),
        )
        report = await run_suite(settings, only=_only(fault))
    found = {result.check.id: result.reason for result in report.failed}
    assert found.keys() == {fault.caught_by}, found
