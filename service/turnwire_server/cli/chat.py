"""`turnwire chat`: talk to a server in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

import turnwire
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.cli.local_tools import LOCAL_TOOLS

__all__ = ["add_parser"]

_DEFAULT_URL: Final = "grpc://127.0.0.1:50051"
_SHOWN: Final = 120
"""Characters of a tool's arguments and output that are shown."""


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "chat",
        help="talk to a server in the terminal",
        description=(
            "Talk to a server, one line at a time; end with Ctrl-D. The model may use local tools "
            f"that are safe: {', '.join(LOCAL_TOOLS)}."
        ),
    )
    parser.add_argument(
        "url",
        nargs="?",
        default=_DEFAULT_URL,
        help=f"grpc://, ws:// or http://HOST:PORT (default {_DEFAULT_URL})",
    )
    parser.add_argument("--model", metavar="NAME", help="the model; the server's first when absent")
    parser.add_argument("--instructions", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--no-tools", action="store_true", help="offer no tools")
    parser.add_argument(
        "--require-tool",
        action="store_true",
        help="make the model call a tool first (tiny models seldom do so by themselves)",
    )
    parser.add_argument("--api-key", metavar="KEY", help="one of the server's auth.keys")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of a turn")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.no_tools and options.require_tool:
        raise CommandFailure("--require-tool needs tools; leave out --no-tools.")
    console = Console(highlight=False)
    try:
        with turnwire.connect_sync(
            options.url, api_key=options.api_key, model=options.model
        ) as session:
            model = options.model or _first_model(session)
            console.print(f"[dim]{escape(model)} over {session.wire}; Ctrl-D ends[/dim]")
            _talk(session, console, options, model)
    except ValueError as error:
        raise CommandFailure(str(error)) from None
    except turnwire.ConnectionFailed as error:
        raise CommandFailure(
            f"{str(error).rstrip('.')}. Is a server running there? Start one with: turnwire serve"
        ) from None
    except turnwire.TurnwireError as error:
        raise CommandFailure(str(error)) from None
    return 0


def _first_model(session: turnwire.SyncSession) -> str:
    models = session.models()
    if not models:
        raise CommandFailure("The server serves no model.")
    return models[0].id


def _talk(
    session: turnwire.SyncSession, console: Console, options: argparse.Namespace, model: str
) -> None:
    parent: str | None = None
    while (line := _read_line(console)) is not None:
        if not line.strip():
            continue
        try:
            result = session.run(
                line,
                model=model,
                tools={} if options.no_tools else LOCAL_TOOLS,
                tool_choice="required" if options.require_tool else None,
                previous_response_id=parent,
                instructions=options.instructions,
                max_output_tokens=options.max_tokens,
                on_event=lambda event: _show_event(console, event),
                on_tool_output=lambda call, output: _show_call(console, call, output),
            )
        except (turnwire.ResponseRejected, turnwire.TurnFailed) as error:
            # The connection lives, and so does the conversation up to the turn before.
            console.print(f"\n[red]{escape(str(error))}[/red]")
            continue
        parent = result.response.id
        _show_end(console, result)


def _read_line(console: Console) -> str | None:
    """Return the next line, None at the end of the input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    try:
        return console.input("[bold cyan]> [/bold cyan]")
    except EOFError:
        console.print()
        return None


def _show_event(console: Console, event: turnwire.Event) -> None:
    if event.type == "response.output_text.delta":
        # Written as it is: what a model says is no markup.
        console.file.write(_harmless(event.delta or ""))
        console.file.flush()


def _show_call(console: Console, call: turnwire.FunctionCall, output: str) -> None:
    shown = f"{call.name}({_cut(call.arguments)}) = {_cut(output)}"
    console.print(f"[dim]  {escape(_harmless(shown))}[/dim]")


def _show_end(console: Console, result: turnwire.RunResult) -> None:
    console.print()
    if result.stop_reason != "answered":
        reason = result.response.incomplete_reason or result.stop_reason
        console.print(f"[yellow]stopped: {escape(reason)}[/yellow]")
    turns = result.turns
    first = next((turn.ttft_s for turn in turns if turn.ttft_s is not None), None)
    sent, cached = (
        sum(getattr(turn, name) or 0 for turn in turns) for name in ("tokens_sent", "tokens_cached")
    )
    ttft = "" if first is None else f", first token after {first * 1e3:.0f} ms"
    console.print(
        f"[dim]{len(turns)} turns, {sum(turn.total_s for turn in turns):.2f} s{ttft}; "
        f"{sent} tokens sent, {cached} cached[/dim]"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _harmless(text: str) -> str:
    """Return `text` without control characters, which could drive the terminal."""
    return "".join(
        character for character in text if character.isprintable() or character in "\n\t"
    )
