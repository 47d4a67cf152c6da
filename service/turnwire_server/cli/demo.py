"""`turnwire demo`: the same agent loop over every transport, on a real model."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import turnwire
from turnwire_server.cli.child import ChildServer, child_server
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.cli.models import fetch_model
from turnwire_server.config import DEFAULT_MODEL, load_config

__all__ = ["add_parser"]

_QUESTION: Final = "How many CPU cores does this computer have?"
_FOLLOW_UP: Final = "Thank you. Now say it again in other words."
_MOST_TOKENS: Final = 60
_RUN_TIMEOUT_S: Final = 120.0
_TABLE_WIDTH: Final = 80

_NOTES: Final = """\
[bold]sent[/bold] tokens that the turn brought; [bold]rendered[/bold] tokens that the server had \
to tokenize for it; [bold]cached[/bold] prompt tokens that the engine had already computed.
[bold]overhead[/bold] is the time the client saw minus the engine's prefill and decode.
[bold]bytes[/bold] are payload: messages, JSON text and bodies, without headers and framing.
Instructions and tools are sent with every turn, as the API wants; a session knows them again. \
Only full history tokenizes everything again each turn: that is what a session saves, and it grows \
with the conversation. On one machine and a conversation this short the times differ little."""


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "demo",
        help="run an agent loop on a real model over every transport",
        description=(
            "Fetch the small model if it is missing, start a server on free ports, run the same "
            "three turns with a local tool over gRPC, WebSocket and HTTP, and compare them."
        ),
    )
    parser.add_argument(
        "--engine", choices=["sim", "openvino"], default="openvino", help="default openvino"
    )
    parser.add_argument(
        "--model", metavar="PATH_OR_NAME", help=f"for openvino; default {DEFAULT_MODEL}"
    )
    parser.set_defaults(run=_run)


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to reach the server."""

    label: str
    wire: Literal["grpc", "websocket", "http"]
    history: Literal["session", "full"]

    def url(self, server: ChildServer) -> str:
        urls = {
            "grpc": server.grpc_url,
            "websocket": server.websocket_url,
            "http": server.http_url,
        }
        return urls[self.wire]


_WAYS: Final = (
    _Way("gRPC", "grpc", "session"),
    _Way("WebSocket", "websocket", "session"),
    _Way("HTTP, with id", "http", "session"),
    _Way("HTTP, full history", "http", "full"),
)


@dataclass(slots=True)
class _Loop:
    """What one way came to."""

    way: _Way
    calls: list[str]
    answers: list[str]
    turns: list[turnwire.TurnStats]


def computer_fact(fact: Literal["cpu_cores", "operating_system", "python_version"]) -> str:
    """Look up a fact about this computer."""
    match fact:
        case "cpu_cores":
            return f"This computer has {os.cpu_count()} CPU cores."
        case "operating_system":
            return f"This computer runs {platform.system()} {platform.release()}."
        case "python_version":
            return f"This computer runs Python {platform.python_version()}."


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    console = Console(highlight=False)
    # Ending by SIGTERM must stop the server too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    arguments = ["--engine", options.engine]
    if options.engine == "openvino":
        model = options.model or DEFAULT_MODEL
        fetch_model(model, load_config().models_directory, console)
        arguments += ["--model", model]
    elif options.model is not None:
        raise CommandFailure("--model needs --engine openvino.")
    with console.status("Starting the server and loading the model"):
        child = child_server(arguments)
        server = child.__enter__()
    try:
        _introduce(console, options.engine, server)
        loops = asyncio.run(_run_loops(server, console))
    finally:
        child.__exit__(None, None, None)
    # A narrow terminal wraps the lines; rich would leave figures out.
    Console(highlight=False, width=max(console.width, _TABLE_WIDTH)).print(_table(loops))
    console.print(_NOTES)
    console.print(
        f"\n[green]Done[/green] in {time.monotonic() - started:.0f} s; the server is down."
    )
    return 0


def _introduce(console: Console, engine: str, server: ChildServer) -> None:
    kind = (
        "a simulation, no model runs: the answers mean nothing"
        if engine == "sim"
        else "a real language model on this CPU"
    )
    console.print(f"[bold]{escape(server.model)}[/bold] ({kind}) is served at")
    for url in (server.grpc_url, server.websocket_url, server.http_url):
        console.print(f"  {url}")
    console.print(
        f"\nTurn 1 asks: {_QUESTION}\n"
        "  with tool_choice 'required': the model is tiny and would seldom call a tool by itself.\n"
        "Turn 2 brings what the tool said, which really runs here.\n"
        f"Turn 3 asks: {_FOLLOW_UP}\n"
        "Answers are shown as the model wrote them, with the markup that a tiny one imitates.\n"
    )


async def _run_loops(server: ChildServer, console: Console) -> list[_Loop]:
    loops = []
    with console.status("Warming up") as status:
        # The engine's first generation allocates and compiles: it would count against one way.
        await _run_loop(server, _Way("warm-up", "grpc", "session"), 0)
        for number, way in enumerate(_WAYS, start=1):
            status.update(f"Running over {way.label}")
            loop = await _run_loop(server, way, number)
            loops.append(loop)
            _show(console, loop)
    return loops


async def _run_loop(server: ChildServer, way: _Way, number: int) -> _Loop:
    calls: list[str] = []

    def note(call: turnwire.FunctionCall, output: str) -> None:
        calls.append(f"{call.name}({call.arguments}) = {output}")

    options: turnwire.RunOptions = {
        # The number comes first, so that no way finds another's prompt in the prefix cache.
        "instructions": f"Conversation {number}. You are a helpful assistant.",
        "max_output_tokens": _MOST_TOKENS,
        "temperature": 0.0,
    }
    try:
        async with (
            asyncio.timeout(_RUN_TIMEOUT_S),
            turnwire.connect(way.url(server), model=server.model) as session,
        ):
            first = await session.run(
                _QUESTION,
                tools=[computer_fact],
                tool_choice="required",
                max_turns=2,
                history=way.history,
                on_tool_output=note,
                **options,
            )
            message: turnwire.InputItem = {"role": "user", "content": _FOLLOW_UP}
            second = await session.run(
                [message] if way.history == "session" else [*first.items, message],
                tools=[computer_fact],
                tool_choice="none",
                max_turns=1,
                history=way.history,
                previous_response_id=first.response.id if way.history == "session" else None,
                **options,
            )
    except TimeoutError:
        raise CommandFailure(
            f"The loop over {way.label} took longer than {_RUN_TIMEOUT_S:g} s."
        ) from None
    except turnwire.TurnwireError as error:
        raise CommandFailure(f"The loop over {way.label} failed: {error}") from None
    answers = [first.output_text, second.output_text]
    return _Loop(way, calls, answers, [*first.turns, *second.turns])


def _show(console: Console, loop: _Loop) -> None:
    console.print(f"[bold cyan]{loop.way.label}[/bold cyan]")
    for call in loop.calls:
        console.print(f"  1  calls  {escape(call)}")
    for number, answer in enumerate(loop.answers, start=2):
        text = " ".join(answer.split()) or "(nothing)"
        console.print(f"  {number}  says   {escape(text)}")


def _table(loops: list[_Loop]) -> Table:
    table = Table(
        title="\nWhat each turn cost",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("transport", no_wrap=True)
    for name in (
        "turn",
        "first\ntoken ms",
        "total\nms",
        "tokens\nsent",
        "tokens\nrendered",
        "tokens\ncached",
        "bytes\nup",
        "bytes\ndown",
        "overhead\nms",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for loop in loops:
        # A line of the label beside each turn keeps the table inside 80 columns.
        label = [*loop.way.label.split(", "), "", ""]
        for number, turn in enumerate(loop.turns, start=1):
            table.add_row(
                label[number - 1],
                str(number),
                _milliseconds(turn.ttft_s),
                _milliseconds(turn.total_s),
                _count(turn.tokens_sent),
                _count(turn.tokens_rendered),
                _count(turn.tokens_cached),
                _count(turn.bytes_up),
                _count(turn.bytes_down),
                "-" if turn.overhead_ms is None else f"{turn.overhead_ms:.1f}",
                end_section=number == len(loop.turns),
            )
    return table


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
