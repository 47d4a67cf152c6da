"""The suite finds what is broken: each seeded fault fails the check meant for it, and no other."""

from __future__ import annotations

import asyncio

import pytest

from conformance.faults import FAULTS
from harness.faulty_proxy import Fault, faulty_proxy
from harness.server import running_server
from turnwire_server.conformance import SuiteSettings, run_suite

_TIMEOUT_S = 3.0


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
async def test_a_fault_is_caught_by_the_check_meant_for_it(fault: Fault) -> None:
    async with (
        asyncio.timeout(30),
        running_server() as server,
        faulty_proxy(server, fault) as proxy,
    ):
        settings = SuiteSettings(
            proxy.base_url,
            proxy.grpc_target,
            model="sim",
            profile=fault.profile,
            timeout_s=_TIMEOUT_S,
            parallel=16,
            transports=(fault.transport,),
        )
        report = await run_suite(settings)
    found = {result.check.id: result.reason for result in report.failed}
    assert found.keys() == {fault.caught_by}, found
