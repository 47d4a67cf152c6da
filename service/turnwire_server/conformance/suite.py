"""Runs the checks against a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from turnwire_server.conformance.checks import (
    Check,
    Failure,
    Json,
    Profile,
    Result,
    Skip,
    Transport,
    bounded,
)
from turnwire_server.conformance.clients.grpc import GrpcClient
from turnwire_server.conformance.clients.http import HttpClient
from turnwire_server.conformance.context import Context, Server, SuiteSettings
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.official import OfficialTypes
from turnwire_server.conformance.open_responses import OpenResponses
from turnwire_server.conformance.rules import RULES
from turnwire_server.conformance.scenarios import SCENARIOS

__all__ = ["CHECKS", "Report", "SuiteFailure", "catalogue", "run_suite"]

CHECKS: Final[tuple[Check, ...]] = (*SCENARIOS, *RULES)
"""All checks, scenarios first."""

_CONNECT_S: Final = 10.0


class SuiteFailure(Exception):
    """The suite cannot be run. `str()` says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run."""

    settings: SuiteSettings
    model: str
    results: tuple[Result, ...]
    official_version: str | None
    """Version of the official library that judged; None when it is not installed."""

    @property
    def failed(self) -> tuple[Result, ...]:
        """The results that are failures."""
        return tuple(result for result in self.results if result.outcome == "fail")

    def count(self, outcome: str) -> int:
        """Return how many results have an outcome."""
        return sum(result.outcome == outcome for result in self.results)

    def to_json(self) -> Json:
        """Return the report as a JSON object."""
        return {
            "base_url": self.settings.base_url,
            "grpc_target": self.settings.grpc_target,
            "profile": self.settings.profile,
            "model": self.model,
            "official_library": self.official_version,
            "passed": self.count("pass"),
            "failed": self.count("fail"),
            "skipped": self.count("skipped"),
            "results": [result.to_json() for result in self.results],
        }


def catalogue() -> str:
    """Return the list of all checks as Markdown tables, for the documentation."""
    parts = []
    for title, checks in (("Scenarios", SCENARIOS), ("Rules", RULES)):
        lines = [
            f"### {title}",
            "",
            "| id | § | the server is right when | runs on |",
            "|---|---|---|---|",
        ]
        for check in checks:
            where = ", ".join(check.transports)
            if check.profiles == ("turnwire",):
                where += "; not in `openresponses`"
            elif check.profiles == ("openresponses",):
                where += "; only in `openresponses`"
            lines.append(f"| `{check.id}` | {check.source} | {check.sentence} | {where} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


async def run_suite(
    settings: SuiteSettings,
    *,
    only: Collection[str] = (),
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Examine a server.

    Args:
        settings: Which server, and how.
        only: Ids of the checks to report; all when empty. Of scenarios only those named are run;
            when only rules are named, all are.
        on_result: Called with each result as it comes.

    Raises:
        SuiteFailure: An id is unknown, or the server cannot be reached.
    """
    unknown = sorted(set(only) - {check.id for check in CHECKS})
    if unknown:
        raise SuiteFailure(f"there is no check {', '.join(unknown)}")
    official, version = await asyncio.to_thread(_official)
    http = HttpClient(settings.base_url, settings.api_key, settings.timeout_s)
    grpc = None
    try:
        if settings.grpc_target is not None:
            grpc = GrpcClient(settings.grpc_target, settings.api_key)
        model = settings.model or await _first_model(http)
        server = Server(settings, model, http, grpc, official, OpenResponses(settings.profile))
        run = _Run(server, only, on_result)
        await run.everything()
    finally:
        await http.close()
        if grpc is not None:
            await grpc.close()
    return Report(settings, model, tuple(run.results), version)


def _official() -> tuple[OfficialTypes | None, str | None]:
    try:
        import openai

        return OfficialTypes(), openai.__version__
    except ImportError:
        return None, None


async def _first_model(http: HttpClient) -> str:
    try:
        answer = await http.request("GET", "/models")
    except Skip as reason:
        raise SuiteFailure(f"the server cannot be asked for its models: {reason}") from None
    body = answer.json
    models = body.get("data") if isinstance(body, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise SuiteFailure(
            f"GET /models was answered with {answer.status} and lists no model; name one"
        )
    return str(models[0].get("id"))


class _Run:
    """One run of the suite."""

    def __init__(
        self,
        server: Server,
        only: Collection[str],
        on_result: Callable[[Result], None] | None,
    ) -> None:
        self.results: list[Result] = []
        self._server = server
        self._only = frozenset(only)
        self._on_result = on_result
        self._profile: Profile = server.settings.profile
        self._free = asyncio.Semaphore(server.settings.parallel)

    async def everything(self) -> None:
        """Run the checks on all transports, side by side."""
        missing = {each: await self._missing(each) for each in self._server.settings.transports}
        found = await asyncio.gather(
            *(self._on_transport(transport, reason) for transport, reason in missing.items())
        )
        order = {check.id: index for index, check in enumerate(CHECKS)}
        self.results = [result for results in found for result in results]
        self.results.sort(key=lambda result: order[result.check.id])

    async def _missing(self, transport: Transport) -> str | None:
        """Return why a transport cannot be examined, None when it can.

        Raises:
            SuiteFailure: It was asked for and is not there.
        """
        server = self._server
        if transport == "grpc":
            if server.grpc is None:
                return "no gRPC target was given"
            try:
                await server.grpc.ready(_CONNECT_S)
            except TimeoutError:
                target = server.settings.grpc_target
                raise SuiteFailure(f"no gRPC server at {target}") from None
            return None
        try:
            if transport != "websocket":
                await server.http.request("GET", "/models")
                return None
            socket = await server.http.upgrade()
            await socket.close()
        except Skip as reason:
            raise SuiteFailure(f"no server at {server.settings.base_url}: {reason}") from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 426:
                return "the server answers upgrades with 426"
            raise SuiteFailure(f"the WebSocket upgrade was answered with {error.status}") from None
        except aiohttp.ClientError as error:
            raise SuiteFailure(
                f"no server at {server.settings.base_url}: {type(error).__name__}"
            ) from None
        return None

    def _chosen(self, checks: Sequence[Check], transport: Transport) -> list[Check]:
        return [
            check
            for check in checks
            if transport in check.transports and self._profile in check.profiles
        ]

    def _reported(self, check: Check) -> bool:
        return not self._only or check.id in self._only

    async def _on_transport(self, transport: Transport, missing: str | None) -> list[Result]:
        scenarios = self._chosen(SCENARIOS, transport)
        rules = [rule for rule in self._chosen(RULES, transport) if self._reported(rule)]
        if any(check.id in self._only for check in SCENARIOS):
            scenarios = [check for check in scenarios if self._reported(check)]
        if missing is not None:
            checks = [check for check in (*scenarios, *rules) if self._reported(check)]
            return [self._say(Result(check, transport, "skipped", missing)) for check in checks]
        findings = Findings(transport)
        used_ids: set[str] = set()
        results = await asyncio.gather(
            *(self._scenario(check, transport, findings, used_ids) for check in scenarios)
        )
        results = [result for result in results if self._reported(result.check)]
        return results + [self._say(result) for result in findings.results(rules)]

    async def _scenario(
        self, check: Check, transport: Transport, findings: Findings, used_ids: set[str]
    ) -> Result:
        assert check.run is not None
        async with self._free:
            context = Context(self._server, transport, findings, used_ids)
            began = time.perf_counter()
            try:
                try:
                    await check.run(context)
                finally:
                    await context.close()
                result = Result(check, transport, "pass", seconds=time.perf_counter() - began)
            except Skip as reason:
                result = Result(check, transport, "skipped", str(reason))
            except Failure as failure:
                result = _failure(check, transport, failure, time.perf_counter() - began)
            except Exception as error:  # The outermost frame: a server may send anything.
                unread = f"the check could not read what the server sent: {type(error).__name__}"
                result = Result(check, transport, "fail", unread)
        return self._say(result) if self._reported(check) else result

    def _say(self, result: Result) -> Result:
        if self._on_result is not None:
            self._on_result(result)
        return result


def _failure(check: Check, transport: Transport, failure: Failure, seconds: float) -> Result:
    """Return the result of a scenario that failed."""
    event = None if failure.event is None else bounded(failure.event)
    return Result(check, transport, "fail", str(failure), event, seconds)
