"""The load: a process that holds conversations, so that its CPU time is not the server's.

Each line in is a job, `{"do": name, …}`; the line out is its result, or `{"failure": reason}`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import orjson

import turnwire
from turnwire_bench import load_jobs, stop_jobs
from turnwire_bench.converse import converse, converse_echo, hold, make_driver, make_echo
from turnwire_bench.drivers import Driver, Place
from turnwire_bench.echo_drivers import Plan
from turnwire_bench.failure import BenchFailure
from turnwire_bench.loops import new_loop
from turnwire_bench.paced import paced
from turnwire_bench.peer_driver import PeerDriver
from turnwire_bench.processes import say
from turnwire_bench.scenario import Scenario

__all__ = ["main"]

Job = dict[str, Any]


class Worker:
    """Does one job after the other, on one loop."""

    def __init__(self) -> None:
        self._loop = new_loop()
        self._held: list[Driver] = []

    def run(self, job: Job) -> dict[str, Any]:
        """Do a job and return its result."""
        jobs: dict[str, Callable[[Job], Any]] = {
            "conversation": self._conversation,
            "echo": self._echo,
            "hold": self._hold,
            "release": self._release,
            "paced": paced,
            "burst": load_jobs.burst,
            "idle": load_jobs.idle,
            "let_go": load_jobs.let_go,
            "opens": load_jobs.opens,
            "stalled": load_jobs.stalled,
            "stop": stop_jobs.stop,
        }
        result: dict[str, Any] = self._loop.run_until_complete(jobs[job["do"]](job))
        return result

    async def _conversation(self, job: Job) -> dict[str, Any]:
        scenario = Scenario.from_json(job["scenario"])
        place = place_of(job["place"])
        options = scenario.options(job["tag"], job["rate"])
        driver: Driver
        if job.get("peer"):
            driver = PeerDriver(job["transport"], place, options)
        else:
            driver = make_driver(job["transport"], place, options, learn=job.get("learn", False))
        return (await converse(driver, scenario)).to_json()

    async def _echo(self, job: Job) -> dict[str, Any]:
        plans = [Plan(**plan) for plan in job["plans"]]
        driver = make_echo(job["transport"], job["port"], plans)
        return (await converse_echo(driver, len(plans))).to_json()

    async def _hold(self, job: Job) -> dict[str, Any]:
        scenario = Scenario.from_json(job["scenario"])
        place = place_of(job["place"])
        self._held += await hold(
            job["transport"], place, scenario, count=job["count"], tag=job["tag"]
        )
        return {}

    async def _release(self, _: Job) -> dict[str, Any]:
        while self._held:
            await self._held.pop().close()
        return {}


def place_of(value: dict[str, Any]) -> Place:
    """Return a place out of a job; a certificate comes as text."""
    certificate = value.get("certificate")
    return Place(**{**value, "certificate": certificate.encode() if certificate else None})


def main() -> None:
    """Do jobs until the standard input closes."""
    worker = Worker()
    say({"pid": os.getpid()})
    for line in sys.stdin.buffer:
        job = orjson.loads(line)
        try:
            answer = worker.run(job)
        except (BenchFailure, turnwire.TurnwireError, OSError) as failure:
            # A timeout is an `OSError`, and says nothing of itself.
            reason = str(failure) or type(failure).__name__
            answer = {"failure": f"{job['do']} {job.get('transport', '')}: {reason}"}
        say(answer)


if __name__ == "__main__":
    main()
