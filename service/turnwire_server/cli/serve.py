"""`turnwire serve`: run a server."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from turnwire_server.app import Server, StartFailure, run
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.config import Config, ConfigFailure, load_config

__all__ = ["add_parser", "config_of"]

_EPILOG = """\
One line of JSON on the standard output says when the server is ready and where it listens;
everything else goes to the standard error. SIGTERM or Ctrl-C stops it in order.

Without --config, --engine and --model it serves the model smollm2 (turnwire models pull smollm2).
"""


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "serve",
        help="run a server",
        description="Serve the Responses API over gRPC, WebSocket and HTTP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="where HTTP and WebSocket listen (default 127.0.0.1:8080; port 0 takes a free one)",
    )
    parser.add_argument(
        "--grpc", metavar="HOST:PORT", help="where gRPC listens (default 127.0.0.1:50051)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a turnwire.toml")
    parser.add_argument(
        "--engine",
        choices=["sim", "openvino"],
        help="openvino runs a real model on this CPU (default); sim simulates one, and says so",
    )
    parser.add_argument(
        "--model",
        metavar="PATH_OR_NAME",
        help="a GGUF file or a name of `turnwire models list`; for sim the name it answers to",
    )
    parser.add_argument(
        "--any-model", action="store_true", help="answer to any model name with the one engine"
    )
    simulated = parser.add_argument_group("with --engine sim")
    simulated.add_argument(
        "--rate", type=float, metavar="N", help="tokens per second; 0: as fast as possible"
    )
    simulated.add_argument(
        "--prefill-rate", type=float, metavar="N", help="prompt tokens per second; 0: at once"
    )
    simulated.add_argument(
        "--tool-rounds", type=int, metavar="N", help="tool calls before the answer (default 1)"
    )
    parser.add_argument("--verbose", action="store_true", help="log more; never content")
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="also stop at the end of the standard input (for programs that start a server)",
    )
    parser.set_defaults(run=_run)


def config_of(options: argparse.Namespace) -> Config:
    """Return the configuration that the options ask for.

    Raises:
        CommandFailure: They, the file or the environment cannot be used.
    """
    given: dict[str, object] = {}
    if options.http is not None:
        given["http.address"] = options.http
    if options.grpc is not None:
        given["grpc.address"] = options.grpc
    if options.any_model:
        given["any_model"] = True
    simulation = {
        "tokens_per_second": options.rate,
        "prefill_tokens_per_second": options.prefill_rate,
        "tool_rounds": options.tool_rounds,
    }
    simulation = {key: value for key, value in simulation.items() if value is not None}
    if simulation and options.engine != "sim":
        raise CommandFailure("--rate, --prefill-rate and --tool-rounds need --engine sim.")
    if options.engine is not None or options.model is not None:
        model: dict[str, object] = {"engine": options.engine or "openvino", **simulation}
        if options.model is not None:
            model["name" if model["engine"] == "sim" else "path"] = options.model
        given["models"] = [model]
    try:
        return load_config(options.config, options=given)
    except ConfigFailure as failure:
        raise CommandFailure(str(failure)) from None


def _run(options: argparse.Namespace) -> int:
    config = config_of(options)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    console = Console(stderr=True)
    names = ", ".join(model.name for model in config.models)
    status = console.status(f"Starting {names}")
    # On a terminal only: in a log the animation would be noise.
    if console.is_terminal:
        status.start()

    def announce(server: Server) -> None:
        status.stop()
        _announce(server, console)

    try:
        run(config, on_ready=announce, until_stdin_closes=options.until_stdin_closes)
    except StartFailure as failure:
        raise CommandFailure(str(failure)) from None
    finally:
        status.stop()
    return 0


def _announce(server: Server, console: Console) -> None:
    """Say that the server is ready: a line for programs, and a few for people."""
    models = server.services.models.models
    ready = {
        "event": "ready",
        "http": server.http_url,
        "websocket": server.websocket_url,
        "grpc": server.grpc_url,
        "models": [model.name for model in models],
        "pid": os.getpid(),
    }
    sys.stdout.write(orjson.dumps(ready).decode() + "\n")
    sys.stdout.flush()
    console.print("[bold]turnwire[/bold] is ready")
    for name, url in (
        ("HTTP", server.http_url),
        ("WebSocket", server.websocket_url),
        ("gRPC", server.grpc_url),
    ):
        console.print(f"  {name:<10} {url}", highlight=False)
    for model in models:
        info = model.engine.info
        kind = "a simulation, no model runs" if info.simulated else f"on {info.name}"
        length = f"{info.context_length:,} tokens of context"
        console.print(
            f"  model      {model.name} ({kind}, {length})", highlight=False, markup=False
        )
