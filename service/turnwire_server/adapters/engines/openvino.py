"""The embedded engine: OpenVINO GenAI on the CPU, in a child process.

The model is a GGUF file, or a folder in OpenVINO's own format. Prompts share one prefix cache;
generations run side by side (continuous batching); a constraint becomes a grammar (see
`json_grammar`).

`temperature` unset means greedy decoding (`default_temperature`), which is what small models
need to call tools; the same ids then come out every time. `cached_tokens` is what a model of
the pipeline's block manager says, since the pipeline itself does not tell; see `prefix_model`
for why it is a lower bound.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal

from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.child_process import (
    ChildProcess,
    SharedChild,
    status_text,
)
from turnwire_server.adapters.engines.constraint_grammar import (
    ConstraintFailure,
    constraint_grammar,
)
from turnwire_server.adapters.engines.openvino_files import trained_context
from turnwire_server.adapters.engines.openvino_generation import OpenVinoGeneration
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.engine import (
    Constraint,
    EngineFailure,
    EngineInfo,
    EngineRequest,
)

__all__ = ["CHILD_COMMAND", "OpenVinoEngine", "OpenVinoSettings"]

_logger = logging.getLogger("turnwire.engines.openvino")

_MOST_CHUNK_TOKENS: Final = 64
"""A cancel waits for one chunk; larger ones are not faster either."""
CHILD_COMMAND: Final = (sys.executable, "-m", "turnwire_server.adapters.engines.openvino_child")


@dataclass(frozen=True, slots=True)
class OpenVinoSettings:
    """Settings of the engine."""

    model_path: Path
    """The GGUF file, or a folder in OpenVINO's own format."""
    context_length: int | None = None
    """Most prompt plus output tokens; None means what the model was trained for."""
    chunk_tokens: int = _MOST_CHUNK_TOKENS
    """Prompt tokens per step, 1 to 64."""
    cache_gigabytes: int = 1
    """Memory for keys and values, shared by all generations and the prefix cache."""
    prefix_cache: bool = True
    """Whether prompts share the keys and values of their common prefix."""
    threads: int | None = None
    """Threads of the inference; None means one per core."""
    default_temperature: float | None = None
    """What an unset temperature means; None is greedy."""
    repetition_penalty: float = 1.0
    """Divides the likelihood of tokens that are there already, in prompt or output; 1 is none."""
    loop_stop: bool = True
    """Whether an answer ends when the model says the same over and over: 256 tokens and 4 times
    at least, or 320 and 11 times but for a number that counts."""
    start_timeout_s: float = 180.0
    """Most seconds that loading the model may take."""
    stop_timeout_s: float = 5.0
    """Seconds that the child gets to end by itself."""
    restart_delay_s: float = 0.5
    """Seconds before a lost child is started again for the second time, when it finished no
    generation in between; twice as long each time. The first time, it is started at once."""
    longest_restart_delay_s: float = 30.0
    """Most seconds before a lost child is started again."""
    engine_process: Literal["shared", "per_worker"] = "shared"
    """Whether the workers of a server share one child, or each has its own."""


@lru_cache(maxsize=256)
def _refusal(constraint: Constraint) -> str | None:
    try:
        constraint_grammar(constraint.kind, constraint.text)
    except ConstraintFailure as failure:
        return str(failure)
    return None


class OpenVinoEngine:
    """Runs a model in a child process (`ports.Engine`).

    When the child dies, running generations fail, and it is started again; generations that
    begin meanwhile wait for it.
    """

    def __init__(
        self,
        settings: OpenVinoSettings,
        *,
        clock: Clock | None = None,
        command: Sequence[str] = CHILD_COMMAND,
        host: Path | None = None,
    ) -> None:
        """Make an engine; `start` loads the model.

        Args:
            settings: What to run and how.
            clock: What waits before a child that does not live is started again; the
                system's by default.
            command: What runs the child; tests have children of their own.
            host: Where the owner of shared engines listens (`engine_host`), which then runs the
                child; None for a child of its own.
        """
        if not 1 <= settings.chunk_tokens <= _MOST_CHUNK_TOKENS:
            raise ValueError(f"chunk_tokens must be 1 to {_MOST_CHUNK_TOKENS}")
        self._path = settings.model_path
        self._settings = settings
        self._clock = clock or SystemClock()
        self._command = tuple(command)
        self._host = host
        self._info: EngineInfo | None = None
        self._child: ChildProcess | SharedChild | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._is_serving = False
        self._is_closed = False
        self._restart: asyncio.Task[None] | None = None
        self._losses = 0
        self._restarts = 0
        self._next_key = 0
        self._running: dict[int, OpenVinoGeneration] = {}
        self._held: dict[int, OpenVinoGeneration] = {}
        """Generations that wait for a child."""

    @property
    def info(self) -> EngineInfo:
        """What it is; known once `start` has returned."""
        if self._info is None:
            raise RuntimeError("the engine has not been started")
        return self._info

    @property
    def host(self) -> Path | None:
        """Who runs its child; None when it does so itself."""
        return self._host

    @property
    def restarts(self) -> int:
        """How many times a lost child was started again."""
        return self._restarts

    async def start(self) -> None:
        """Check the model file, then load it in the child. Cancelling ends the child.

        Raises:
            EngineFailure: it cannot be loaded; `str()` names file or tensor, and why.
        """
        trained = await asyncio.to_thread(trained_context, self._path)
        facts = await self._launch()
        limits = (trained, facts["capacity"], self._settings.context_length or trained)
        self._info = EngineInfo(
            name="openvino",
            context_length=min(limits),
            constraints=frozenset({"json_schema", "json_object", "regex"}),
        )

    async def close(self) -> None:
        """End running generations as cancelled, and the child with them. Idempotent."""
        self._is_closed = True
        self._is_serving = False
        for generation in (*self._running.values(), *self._held.values()):
            generation.cancel()
        restart, self._restart = self._restart, None
        if restart is not None:
            restart.cancel()
            await asyncio.gather(restart, return_exceptions=True)
        child, self._child = self._child, None
        if child is not None:
            await child.stop(self._settings.stop_timeout_s)

    def refusal(self, constraint: Constraint) -> str | None:
        """Return why no grammar can be made of `constraint`, None when one can."""
        return _refusal(constraint)

    def generate(self, request: EngineRequest) -> OpenVinoGeneration:
        """Begin a generation. Never blocks; failures surface in the iterator."""
        self._next_key += 1
        key = self._next_key
        generation = OpenVinoGeneration(key, request, self._cancel)
        if self._info is None or self._is_closed:
            generation.fail("the engine is not running")
        elif len(request.ids) >= self._info.context_length or not request.ids:
            generation.take((), "length", 0)
        elif self._is_serving:
            self._begin(generation)
        else:
            self._held[key] = generation
        return generation

    def _begin(self, generation: OpenVinoGeneration) -> None:
        request = generation.request
        sampling = request.sampling
        room = self.info.context_length - len(request.ids)
        constraint = request.constraint
        temperature = sampling.temperature
        if temperature is None:
            temperature = self._settings.default_temperature or 0.0
        options = {
            "max_tokens": 1 if request.prefill_only else max(1, min(sampling.max_tokens, room)),
            "temperature": temperature,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "presence_penalty": sampling.presence_penalty or 0.0,
            "frequency_penalty": sampling.frequency_penalty or 0.0,
            "repetition_penalty": self._settings.repetition_penalty,
            # What must match a constraint is not whole before its end.
            "loop_stop": self._settings.loop_stop and constraint is None,
            "seed": sampling.seed,
            "stop_ids": sorted(request.stop_ids),
            "constraint": (constraint.kind, constraint.text) if constraint else None,
            "prefill_only": request.prefill_only,
        }
        self._running[generation.key] = generation
        if self._child is not None:
            ids = request.ids.as_array().tobytes()
            self._child.send("generate", generation.key, ids, options)

    def _cancel(self, key: int) -> None:
        self._held.pop(key, None)
        if self._running.pop(key, None) is not None and self._child is not None:
            self._child.send("cancel", key)

    # The child.

    async def _launch(self) -> dict[str, Any]:
        """Start a child and wait until it serves.

        Raises:
            EngineFailure: it does not.
        """
        settings = self._settings
        name = self._path.name
        ready = self._ready = asyncio.get_running_loop().create_future()
        child: ChildProcess | SharedChild
        if self._host is None:
            child = own = ChildProcess(on_message=self._message, on_lost=self._lost)
            start = partial(own.start, self._command)
        else:
            child = shared = SharedChild(on_message=self._message, on_lost=self._lost)
            start = partial(shared.start, self._host)
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                await start()
                child.send(
                    "start",
                    {
                        "model_path": str(self._path),
                        "chunk_tokens": settings.chunk_tokens,
                        "cache_gigabytes": settings.cache_gigabytes,
                        "prefix_cache": settings.prefix_cache,
                        "threads": settings.threads,
                        "edition": _edition(self._path),
                    },
                )
                facts: dict[str, Any] = await ready
        except BaseException as error:
            self._ready = None
            # One that failed ends by itself, and its status is worth hearing.
            is_ending = isinstance(error, EngineFailure)
            status = await child.stop(settings.stop_timeout_s if is_ending else 0)
            if isinstance(error, TimeoutError):
                raise EngineFailure(
                    f"{name} was not loaded within {settings.start_timeout_s:g} s."
                ) from error
            if isinstance(error, OSError):
                raise EngineFailure(f"The engine process cannot be started: {error}.") from error
            if isinstance(error, EngineFailure) and not str(error):
                raise EngineFailure(self._ended_text(status)) from error
            raise
        self._ready = None
        self._child = child
        self._is_serving = True
        return facts

    def _ended_text(self, status: int | None) -> str:
        return f"The engine process ended ({status_text(status)}) while loading {self._path.name}."

    def _message(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("steps", steps):
                for key, ids, finish, cached in steps:
                    self._step(key, ids, finish, cached)
            case ("refused", key, why):
                generation = self._running.pop(key, None)
                if generation is not None:
                    generation.fail(why)
            case ("ready", facts) if self._ready is not None and not self._ready.done():
                self._ready.set_result(facts)
            case ("failed", why) if self._ready is not None and not self._ready.done():
                name = self._path.name
                self._ready.set_exception(
                    EngineFailure(f"{name} cannot be loaded by OpenVINO: {why}")
                )
            case ("ended", status) if self._ready is not None and not self._ready.done():
                self._ready.set_exception(EngineFailure(self._ended_text(status)))
            case ("broken", why):
                _logger.error("the engine process gives up: %s", why)

    def _step(self, key: int, ids: list[int], finish: str | None, cached: int | None) -> None:
        generation = self._running.get(key)
        if generation is None:
            return  # it was cancelled while this was on its way
        if finish is not None:
            del self._running[key]
            self._losses = 0
        if finish == "full":
            generation.fail("the cache of keys and values is full")
        else:
            generation.take(ids, finish, cached)  # type: ignore[arg-type]  # "stop" or "length"

    def _lost(self) -> None:
        if self._ready is not None:
            if not self._ready.done():
                self._ready.set_exception(EngineFailure(""))
            return
        child, self._child = self._child, None
        self._is_serving = False
        running, self._running = self._running, {}
        for generation in running.values():
            generation.fail("the engine process ended")
        if not self._is_closed and child is not None:
            self._restart = asyncio.get_running_loop().create_task(self._start_again(child))

    async def _start_again(self, lost: ChildProcess | SharedChild) -> None:
        """Start a child for the one that was lost; gives up never, but waits longer and longer."""
        status = await lost.stop(self._settings.stop_timeout_s)
        _logger.warning("the engine process ended (%s) and is started again", status_text(status))
        settings = self._settings
        while True:
            if self._losses:
                delay = settings.restart_delay_s * 2.0 ** min(self._losses - 1, 30)
                await self._clock.sleep(min(delay, settings.longest_restart_delay_s))
            self._losses += 1
            try:
                facts = await self._launch()
            except EngineFailure as failure:
                _logger.error("the engine process does not start: %s", failure)
                held, self._held = self._held, {}
                for generation in held.values():
                    generation.fail("the engine process does not start")
                continue
            # Of those that share a child, the first that has it again counts.
            self._restarts += facts.get("counts", True)
            held, self._held = self._held, {}
            for generation in held.values():
                self._begin(generation)
            return


def _edition(path: Path) -> tuple[int, int]:
    """Tell a model from another one in its place: a shared child has one of them loaded."""
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    facts = [file.stat() for file in files]
    newest = max((fact.st_mtime_ns for fact in facts), default=0)
    return newest, sum(fact.st_size for fact in facts)
