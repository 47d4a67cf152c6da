"""The child process of the `openvino` engine: it owns the pipeline and speaks in frames.

A process of its own, because a step of the pipeline keeps the interpreter's lock. It reads
between steps, so a cancel waits for one chunk at most, and it ends when its parent is gone.
See `child_loop` for whom it talks to, and how.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from array import array
from collections.abc import Mapping
from typing import Any, Final

from turnwire_server.adapters.engines.child_loop import ChildLoop, Key, Ready, Refusal
from turnwire_server.adapters.engines.constraint_grammar import (
    ConstraintFailure,
    constraint_grammar,
)
from turnwire_server.adapters.engines.openvino_loops import LoopDetector
from turnwire_server.adapters.engines.prefix_model import PrefixModel, Sequence

__all__ = ["main"]

_PROBE_TOKENS: Final = 257
_BLOCK_SIZES: Final = (16, 32, 64, 128, 256)
_MOST_SEQUENCES: Final = 32
"""Generations that decode side by side; with the chunk above it, prompts still advance."""


class _Running:
    """One request in the pipeline."""

    __slots__ = ("handle", "loops", "prefill_only", "sequence")

    def __init__(
        self, handle: Any, sequence: Sequence, loops: LoopDetector | None, *, prefill_only: bool
    ) -> None:
        self.handle = handle
        self.sequence = sequence
        self.loops = loops
        self.prefill_only = prefill_only


class _Pipeline:
    """The OpenVINO pipeline with the requests that run in it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        # The package is there as a dependency of OpenVINO; a server must not call home.
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import numpy
        import openvino
        import openvino_genai

        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options["cache_gigabytes"]
        scheduler.max_num_batched_tokens = options["chunk_tokens"]
        scheduler.max_num_seqs = min(_MOST_SEQUENCES, options["chunk_tokens"])
        scheduler.enable_prefix_caching = options["prefix_cache"]
        scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": options["threads"]} if options["threads"] else {}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            options["model_path"], scheduler, "CPU", properties
        )
        self._running: dict[Key, _Running] = {}
        self._count = 0
        block_tokens, block_count = self._measure_blocks()
        self.capacity = block_tokens * block_count
        """Tokens that fit into the cache of keys and values."""
        self._model = PrefixModel(
            block_tokens=block_tokens,
            block_count=block_count if options["prefix_cache"] else 0,
            chunk=options["chunk_tokens"],
        )

    @property
    def is_busy(self) -> bool:
        return bool(self._running) or self._pipeline.has_non_finished_requests()

    def add(self, key: Key, ids: bytes, options: Mapping[str, Any]) -> None:
        """Begin a request.

        Raises:
            Refusal: its settings or its constraint are not possible.
        """
        tokens = array("I")
        tokens.frombytes(ids)
        config = self._config(options)
        try:
            handle = self._submit(tokens, config)
        except RuntimeError:
            raise Refusal("the engine does not accept these sampling settings") from None
        sequence = Sequence(tokens)
        self._model.add(sequence)
        loops = LoopDetector() if options["loop_stop"] else None
        self._running[key] = _Running(handle, sequence, loops, prefill_only=options["prefill_only"])

    def cancel(self, key: Key) -> None:
        running = self._running.pop(key, None)
        if running is not None:
            running.handle.cancel()

    def step(self) -> list[Ready]:
        """Run one step; return what became ready."""
        self._pipeline.step()
        self._model.step([running.sequence for running in self._running.values()])
        ready = []
        for key, running in list(self._running.items()):
            ids, finish = self._read(running)
            if finish is None and running.loops is not None and running.loops.feed(ids):
                running.handle.cancel()
                finish = "repeated"
            if finish is not None:
                del self._running[key]
            if not ids and finish is None:
                continue
            sequence = running.sequence
            cached = None if sequence.decoding else sequence.cached
            sequence.decoding = True
            sequence.tokens.extend(ids)
            if running.prefill_only and finish == "length":
                # The engine cannot stop before its first token; a warm-up is whole without it.
                finish = "stop"
            ready.append((key, [] if running.prefill_only else ids, finish, cached))
        return ready

    def _read(self, running: _Running) -> tuple[list[int], str | None]:
        ids: list[int] = []
        finish: str | None = None
        reasons = self._genai.GenerationFinishReason
        while running.handle.can_read():
            for output in running.handle.read().values():
                ids += output.generated_ids
                if output.finish_reason == reasons.STOP:
                    finish = "stop"
                elif output.finish_reason == reasons.LENGTH:
                    finish = "length"
        if finish is None and running.handle.get_status() == self._genai.GenerationStatus.IGNORED:
            finish = "full"
        return ids, finish

    def _submit(self, tokens: array[int], config: Any) -> Any:
        self._count += 1
        prompt = self._numpy.asarray(tokens, dtype=self._numpy.int64).reshape(1, -1)
        return self._pipeline.add_request(self._count, self._openvino.Tensor(prompt), config)

    def _config(self, options: Mapping[str, Any]) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = options["max_tokens"]
        stop_ids = options["stop_ids"]
        if stop_ids:
            config.set_eos_token_id(stop_ids[0])
            config.stop_token_ids = set(stop_ids)
        else:
            config.ignore_eos = True
        config.do_sample = options["temperature"] > 0 and options["top_p"] > 0
        if config.do_sample:
            config.temperature = options["temperature"]
            config.top_p = options["top_p"]
            seed = options["seed"]
            random = int.from_bytes(os.urandom(4), "little")
            config.rng_seed = random if seed is None else seed % 2**32
        config.presence_penalty = options["presence_penalty"]
        config.frequency_penalty = options["frequency_penalty"]
        config.repetition_penalty = options["repetition_penalty"]
        if options["constraint"] is not None:
            structured = self._genai.StructuredOutputConfig()
            structured.grammar = _grammar(*options["constraint"])
            config.structured_output_config = structured
        return config

    def _measure_blocks(self) -> tuple[int, int]:
        """Return tokens per block and the number of blocks, from the use two prompts make."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = 1
        usage = []
        for count in (1, _PROBE_TOKENS):
            handle = self._submit(array("I", [count % 7]) * count, config)
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            del handle
            usage.append(self._pipeline.get_metrics().cache_usage)
        one, many = usage
        used = round(many / one)
        sizes = [size for size in _BLOCK_SIZES if -(-_PROBE_TOKENS // size) == used]
        return (sizes[0] if sizes else 1), round(100 / one)


def _grammar(kind: str, text: str) -> str:
    """Return the grammar of a constraint.

    Raises:
        Refusal: there is none.
    """
    try:
        return constraint_grammar(kind, text)
    except ConstraintFailure as failure:
        raise Refusal(f"the constraint cannot be enforced: {failure}") from None


def main() -> None:
    """Serve the socket whose descriptor is the only argument."""
    # An interrupt at the terminal is for the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ChildLoop(socket.socket(fileno=int(sys.argv[1])), _Pipeline).run()


if __name__ == "__main__":
    main()
