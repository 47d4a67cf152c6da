"""Which session without a connection makes room for another one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.clock import ManualClock
from harness.stack import Parts, Stack, running_stack
from turnwire_server.runtime.following import EndlessOutlet
from turnwire_server.runtime.host import SessionHost
from turnwire_server.runtime.settings import RuntimeSettings


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    settings = RuntimeSettings(max_detached_sessions=3)
    async with running_stack(Parts(settings=settings, clock=ManualClock())) as running:
        yield running


def waiting_after(stack: Stack, tenants: str) -> str:
    """Lose sessions of these tenants, one after another; return whose wait then, in order."""
    sessions = stack.services.sessions
    hosts: list[SessionHost] = []
    for tenant in tenants:
        outlet = EndlessOutlet(lambda event: None)
        host = SessionHost(stack.services, outlet, wire="grpc", tenant=tenant, is_persistent=True)
        hosts.append(host)
        sessions.add(host)
        sessions.await_client(host)
    return "".join(host.tenant for host in hosts if host in sessions._waiting)


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("aaaa", "aaa"),
        ("baaaaa", "baa"),
        ("aaab", "aab"),
        ("aabb", "aab"),
        ("abcd", "abc"),
        ("aaabbbbb", "aab"),
    ],
    ids=[
        "a tenant alone loses its own",
        "one with many does not take another's",
        "one with none takes from who has most",
        "shares grow equal",
        "nobody takes from an equal",
        "and no further",
    ],
)
async def test_one_session_too_many_ends_one_of_the_tenant_that_has_the_most(
    stack: Stack, lost: str, left: str
) -> None:
    assert waiting_after(stack, lost) == left


async def test_of_a_tenant_the_one_goes_that_has_waited_longest(stack: Stack) -> None:
    waiting_after(stack, "bcaa")
    waiting = list(stack.services.sessions._waiting)
    assert [host.tenant for host in waiting] == ["b", "c", "a"]
    assert waiting_after(stack, "a") == "a"
    assert waiting[2] not in stack.services.sessions._waiting
