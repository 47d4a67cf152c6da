"""`turnwire conformance`: examine a server of the protocol."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnwire_server.conformance import (
    Report,
    Result,
    SuiteFailure,
    SuiteSettings,
    catalogue,
    run_suite,
)

__all__ = ["add_parser"]

_EPILOG = """\
Exit code: 0 when nothing failed, 1 when something did, 2 when the server could not be examined.
docs/conformance.md describes the checks and how to read the report.
"""
_MARKS: Final = {
    "pass": "[green]pass[/green]",
    "fail": "[red]FAIL[/red]",
    "skipped": "[dim]-[/dim]",
}
_TRANSPORTS: Final = ("http", "sse", "websocket", "grpc")


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "conformance",
        help="examine a server of the protocol",
        description="Check that a server keeps the protocol, strictly, event by event.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--base-url", metavar="URL", help="base URL of HTTP, for example http://127.0.0.1:8080/v1"
    )
    parser.add_argument("--grpc", metavar="HOST:PORT", help="where gRPC is; left out when absent")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument("--model", metavar="NAME", help="the model; the server's first when absent")
    parser.add_argument(
        "--only", metavar="ID,…", default="", help="report these checks only, see --list"
    )
    parser.add_argument(
        "--profile",
        choices=["turnwire", "openresponses"],
        default="turnwire",
        help="openresponses: nothing outside that specification (default turnwire)",
    )
    parser.add_argument(
        "--transport",
        action="append",
        choices=_TRANSPORTS,
        help="examine this transport only; may be repeated",
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="most seconds of silence (60)"
    )
    parser.add_argument(
        "--parallel", type=int, default=4, metavar="N", help="checks that run at once (4)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the report there; - for the output")
    parser.add_argument("--list", action="store_true", help="print all checks and stop")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.list:
        sys.stdout.write(catalogue())
        return 0
    if not options.base_url:
        sys.stderr.write("turnwire: --base-url is needed.\n")
        return 2
    settings = SuiteSettings(
        base_url=options.base_url,
        grpc_target=(options.grpc or "").removeprefix("grpc://") or None,
        api_key=options.api_key,
        model=options.model,
        profile=options.profile,
        timeout_s=options.timeout,
        parallel=max(1, options.parallel),
        transports=tuple(options.transport or _TRANSPORTS),
    )
    only = [name.strip() for name in options.only.split(",") if name.strip()]
    # With the JSON on the standard output, people read the standard error.
    console = Console(stderr=options.json == "-", highlight=False)
    try:
        with console.status("Examining the server") as status:

            def tell(result: Result) -> None:
                status.update(f"{result.check.id} ({result.transport})")

            report = asyncio.run(run_suite(settings, only=only, on_result=tell))
        _write(options.json, report)
    except SuiteFailure as failure:
        sys.stderr.write(f"turnwire: {failure}.\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"turnwire: the report cannot be written: {error.strerror}.\n")
        return 2
    _show(console, report)
    return 1 if report.failed else 0


def _write(where: str | None, report: Report) -> None:
    if where is None:
        return
    text = json.dumps(report.to_json(), indent=2) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        Path(where).write_text(text, encoding="utf-8")


def _show(console: Console, report: Report) -> None:
    transports = [each for each in _TRANSPORTS if each in report.settings.transports]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("§", style="dim")
    for transport in transports:
        table.add_column(transport, justify="center")
    rows: dict[str, dict[str, Result]] = {}
    for result in report.results:
        rows.setdefault(result.check.id, {})[result.transport] = result
    for identifier, results in rows.items():
        marks = [_MARKS[results[each].outcome] if each in results else "" for each in transports]
        source = next(iter(results.values())).check.source
        table.add_row(identifier, source, *marks)
    console.print(table)
    _show_reasons(console, report)
    judge = report.official_version
    official = f"openai {judge}" if judge else "the official library is not installed"
    console.print(
        f"[bold]{report.count('pass')} passed, {report.count('fail')} failed, "
        f"{report.count('skipped')} skipped[/bold] "
        f"[dim]({escape(report.model)}, profile {report.settings.profile}, {official})[/dim]"
    )


def _show_reasons(console: Console, report: Report) -> None:
    skipped: dict[str, list[str]] = {}
    for result in report.results:
        if result.outcome == "skipped":
            skipped.setdefault(result.reason, []).append(f"{result.check.id} ({result.transport})")
    for reason, names in skipped.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        console.print(f"[dim]skipped: {escape(reason)}: {escape(shown)}[/dim]")
    for result in report.failed:
        console.print(
            f"[red]FAIL[/red] {result.check.id} ({result.transport}, § {result.check.source}): "
            f"{escape(result.check.sentence)}"
        )
        console.print(f"     {escape(result.reason)}", markup=True)
        if result.event is not None:
            console.print(f"     [dim]{escape(result.event)}[/dim]", soft_wrap=True)
