"""One agent of a seed: runs of three tool calls through the Python client, which recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import turnwire
from faults.plan import AgentPlan
from faults.seen import Seen

__all__ = ["work"]

_MOST_ATTEMPTS = 60
"""A run that was lost is begun anew so often; more than there are faults."""
_PAUSE_S = 0.5


async def work(plan: AgentPlan, url: str, seen: Seen, on_event: Callable[[], None]) -> None:
    """Do the planned runs, each as often as it takes.

    Args:
        plan: What to do.
        url: Where the server is, through a relay.
        seen: Where everything is noted.
        on_event: Called after each event was noted.
    """
    for number in range(plan.runs):
        for _ in range(_MOST_ATTEMPTS):
            try:
                await _run(plan, url, seen, number, on_event)
            except turnwire.TurnwireError as error:
                # What the client cannot mend by itself, an application begins anew.
                seen.losses.append(type(error).__name__)
                # As an application would: a server that is starting is not asked all the time.
                await asyncio.sleep(_PAUSE_S)
                continue
            break


async def _run(
    plan: AgentPlan, url: str, seen: Seen, number: int, on_event: Callable[[], None]
) -> None:
    made: list[str] = []

    async def look(path: str) -> str:
        # Others work meanwhile, and a connection may break here too.
        await asyncio.sleep(0)
        return f"The file {path} is empty."

    def note(event: turnwire.Event) -> None:
        seen.event(event, store=plan.store)
        on_event()

    def executed(call: turnwire.FunctionCall, output: str) -> None:
        del output
        seen.executed[call.call_id] += 1
        made.append(call.call_id)

    async with turnwire.connect(url, model="sim", resume=plan.wire != "http") as session:
        result = await session.run(
            f"Look at the files, run {number}.",
            tools={"look": look},
            store=plan.store,
            rollout=plan.rollout,
            on_event=note,
            on_tool_output=executed,
        )
    if result.stop_reason == "answered":
        seen.finished.append((result.output_text, tuple(made)))
    else:
        raise turnwire.TurnwireError(f"the run ended {result.stop_reason}")
