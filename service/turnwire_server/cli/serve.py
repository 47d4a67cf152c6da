"""`turnwire serve`: run a server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from turnwire_server.app import Server, StartFailure
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.config import Config, ConfigFailure, WorkerPlace, load_config
from turnwire_server.process import run
from turnwire_server.runtime.registry import ServedModel
from turnwire_server.supervisor import Plan, ReservedPorts, supervise

__all__ = ["add_parser", "config_of"]

_log = logging.getLogger("turnwire.supervisor")

_EPILOG = """\
One line of JSON on the standard output says when the server is ready and where it listens;
everything else goes to the standard error. SIGTERM lets what runs finish before it stops, for as
long as runtime.drain_grace_s; a second one, or Ctrl-C, stops it at once and in order. SIGHUP takes
over keys and models from the configuration. With --workers all of this holds for the parent,
which passes it on.

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
    parser.add_argument(
        "--grpc-backend",
        choices=["grpcio", "grpclib"],
        help="what speaks gRPC (default grpclib, which takes less CPU)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="serve with N processes on the same ports, as many as there are cores (default 1)",
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
    # For the parent of several workers: what it was given, and which worker this is.
    parser.add_argument("--worker", type=orjson.loads, default=None, help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def config_of(options: argparse.Namespace) -> Config:
    """Return the configuration that the options ask for.

    Raises:
        CommandFailure: They, the file or the environment cannot be used.
    """
    try:
        return _load(options)
    except ConfigFailure as failure:
        raise CommandFailure(str(failure)) from None


def _load(options: argparse.Namespace) -> Config:
    config = load_config(options.config, options=_given(options))
    if options.worker is None:
        return config
    place = WorkerPlace(Path(options.worker["directory"]), options.worker["number"])
    return config.of_worker(place)


def _given(options: argparse.Namespace) -> dict[str, object]:
    """Return what the options say, by the key's path."""
    given: dict[str, object] = {}
    if options.worker is not None:
        given.update(options.worker["given"])
        return given
    if options.workers is not None:
        given["workers"] = options.workers
    if options.http is not None:
        given["http.address"] = options.http
    if options.grpc is not None:
        given["grpc.address"] = options.grpc
    if options.grpc_backend is not None:
        given["grpc.backend"] = options.grpc_backend
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
    return given


def _run(options: argparse.Namespace) -> int:
    config = config_of(options)
    is_worker = options.worker is not None
    _forbid_core_dumps()
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format=f"%(asctime)s %(levelname)s {'%(process)d ' * is_worker}%(name)s %(message)s",
        stream=sys.stderr,
    )
    console = Console(stderr=True)
    names = ", ".join(model.name for model in config.models)
    status = console.status(f"Starting {names}")
    # On a terminal only: in a log the animation would be noise. Of workers the parent speaks.
    if console.is_terminal and not is_worker:
        status.start()

    def announce(ready: Mapping[str, Any]) -> None:
        status.stop()
        _announce(ready, console, is_worker=is_worker)

    try:
        if config.workers > 1 and not is_worker:
            _run_workers(config, options, announce)
        else:
            run(
                config,
                on_ready=lambda server: announce(_ready(server)),
                until_stdin_closes=options.until_stdin_closes,
                load=lambda: _load(options),
                takes_orders=is_worker,
            )
    except StartFailure as failure:
        raise CommandFailure(str(failure)) from None
    finally:
        status.stop()
    return 0


def _run_workers(
    config: Config, options: argparse.Namespace, announce: Callable[[Mapping[str, Any]], None]
) -> None:
    """Run several servers on the same ports.

    Raises:
        StartFailure: They cannot be started, or not kept.
    """
    if config.database.is_memory:
        _log.warning(
            "without a database each of the %d workers knows only its own responses", config.workers
        )
    with (
        closing(ReservedPorts()) as ports,
        tempfile.TemporaryDirectory(prefix="turnwire-", ignore_cleanup_errors=True) as directory,
    ):
        given = {
            **_given(options),
            "http.address": str(ports.reserve("HTTP", config.http_address)),
            "grpc.address": str(ports.reserve("gRPC", config.grpc_address)),
        }
        plan = Plan(
            config.workers,
            partial(_worker_command, options, given, directory),
            config.runtime.drain_grace_s,
            WorkerPlace(Path(directory), 0).engines,
        )

        def on_ready(said: Sequence[Mapping[str, Any]]) -> None:
            pids = [one["pid"] for one in said]
            announce({**said[0], "pid": os.getpid(), "workers": pids})

        asyncio.run(
            supervise(plan, on_ready=on_ready, until_stdin_closes=options.until_stdin_closes)
        )


def _worker_command(
    options: argparse.Namespace, given: Mapping[str, object], directory: str, number: int
) -> list[str]:
    """Return the command of a worker: the parent's, with real ports and its place."""
    place = {"given": given, "directory": directory, "number": number}
    command = [sys.executable, "-m", "turnwire", "serve", "--worker", orjson.dumps(place).decode()]
    if options.config is not None:
        command += ["--config", str(options.config)]
    return [*command, "--verbose"] if options.verbose else command


def _forbid_core_dumps() -> None:
    """Keep what clients said out of core dumps; the engines' processes inherit it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows, which has none
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _ready(server: Server) -> dict[str, Any]:
    """Return what is said about a server that is ready."""
    models = server.services.models.models
    return {
        "event": "ready",
        "http": server.http_url,
        "websocket": server.websocket_url,
        "grpc": server.grpc_url,
        "models": [model.name for model in models],
        "pid": os.getpid(),
        "lines": [_line(model) for model in models],
    }


def _line(model: ServedModel) -> str:
    info = model.engine.info
    kind = "a simulation, no model runs" if info.simulated else f"on {info.name}"
    return f"{model.name} ({kind}, {info.context_length:,} tokens of context)"


def _announce(ready: Mapping[str, Any], console: Console, *, is_worker: bool) -> None:
    """Say that the server is ready: a line for programs, and a few for people.

    Args:
        ready: What to say; `lines` are for people.
        console: Where people look.
        is_worker: Whether the parent will say the rest.
    """
    said = ready if is_worker else {key: ready[key] for key in ready if key != "lines"}
    sys.stdout.write(orjson.dumps(said).decode() + "\n")
    sys.stdout.flush()
    if is_worker:
        return
    console.print("[bold]turnwire[/bold] is ready")
    for name, key in (("HTTP", "http"), ("WebSocket", "websocket"), ("gRPC", "grpc")):
        console.print(f"  {name:<10} {ready[key]}", highlight=False)
    for line in ready["lines"]:
        console.print(f"  model      {line}", highlight=False, markup=False)
    if "workers" in ready:
        console.print(f"  workers    {len(ready['workers'])}", highlight=False)
