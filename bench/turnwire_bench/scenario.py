"""What is measured: an agent run, as data. `docs/bench.md` describes the files.

A scenario is one JSON object in `bench/scenarios/`; a recorded trajectory is a file of JSON lines.
Both become a `Scenario`: what each turn brings, and what the simulated engine says to it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from turnwire_bench.failure import BenchFailure

__all__ = ["Scenario", "load_scenario", "scenario_names"]

Items = list[dict[str, Any]]
"""Items as in the public JSON."""

_WORDS: Final = (
    "the session keeps what earlier turns computed and a new turn sends only what is new so the "
    "server works only for what is new while the engine keeps its cache and the client waits less"
).split()
_FOLDERS: Final = (
    Path(__file__).parent / "scenarios",  # where a wheel has them
    Path(__file__).parents[1] / "scenarios",  # in a checkout
)
_TRAJECTORY: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Sizes are in tokens of the simulated engine, to within a few percent: a word is about one."""

    name: str
    about: str = ""
    instructions: str = "Work step by step and use the tools."
    tools: tuple[dict[str, Any], ...] = ()
    history_tokens: int = 0
    """Length of the conversation that is there before the run, in messages."""
    history_message_tokens: int = 250
    """Length of each of its messages."""
    messages: int = 1
    """User messages of the run."""
    message_tokens: int = 60
    tool_calls: int = 0
    """Tool calls between each user message and its answer; a call is a turn."""
    call_tokens: int = 60
    output_tokens: tuple[int, ...] = (60,)
    """Lengths of the tools' outputs, in turn."""
    answer_tokens: int = 200
    recorded: tuple[dict[str, Any], ...] = ()
    """Turns of a trajectory: `input` or `outputs`, and `says`; replaces the sizes."""

    @property
    def turns(self) -> int:
        """Turns of a run."""
        return len(self.recorded) or self.messages * (self.tool_calls + 1)

    def begins_run(self, turn: int) -> bool:
        """Return whether turn number `turn` (from 0) brings a user message, not outputs."""
        if self.recorded:
            return turn == 0
        return turn % (self.tool_calls + 1) == 0

    def is_answer(self, turn: int) -> bool:
        """Return whether the model answers that turn in text."""
        if self.recorded:
            return turn == self.turns - 1
        return turn % (self.tool_calls + 1) == self.tool_calls

    def input(self, turn: int) -> Items:
        """Return the items that a turn which begins a run brings."""
        if self.recorded:
            return list(self.recorded[turn]["input"])
        items = self._history() if turn == 0 else []
        items.append(_message("user", _text(self.message_tokens, turn)))
        return items

    def outputs(self, turn: int, call_ids: list[str]) -> Items:
        """Return the tools' outputs that a turn brings, for the calls of the turn before."""
        if self.recorded:
            texts = self.recorded[turn]["outputs"]
            if len(texts) != len(call_ids):
                raise BenchFailure(
                    f"Turn {turn + 1} of the trajectory has {len(texts)} outputs for "
                    f"{len(call_ids)} calls."
                )
        else:
            size = self.output_tokens[turn % len(self.output_tokens)]
            texts = [_text(size, turn + call) for call in range(len(call_ids))]
        return [
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id, text in zip(call_ids, texts, strict=True)
        ]

    def script(self, rate: float) -> str | None:
        """Return what tells the simulated engine to act so, at `rate` tokens per second.

        None for a trajectory: its engine has a trace.
        """
        if self.recorded:
            return None
        return json.dumps(
            {
                "tool_rounds": self.tool_calls,
                "call_tokens": self.call_tokens,
                "tokens": self.answer_tokens,
                "tokens_per_second": rate,
            }
        )

    def engine_s(self, turn: int, tokens: int, rate: float) -> float:
        """Return how long the engine takes for a turn by its settings, in seconds.

        The first token is due at once, each further one a period later; a recorded turn that has
        times takes these.

        Args:
            turn: Number of the turn, from 0.
            tokens: Tokens that it generated.
            rate: Tokens per second, 0 for as fast as they are read.
        """
        if self.recorded and "steps" in self.recorded[turn]["says"]:
            return float(sum(seconds for seconds, _ in self.recorded[turn]["says"]["steps"]))
        return max(0, tokens - 1) / rate if rate else 0.0

    def options(self, tag: str, rate: float) -> dict[str, Any]:
        """Return what every create repeats, as the API wants it.

        Args:
            tag: Stands first in the prompt, so that no conversation finds another's prefix.
            rate: Tokens per second, 0 for as fast as they are read.
        """
        script = self.script(rate)
        return {
            "instructions": f"Conversation {tag}. {self.instructions}",
            "tools": list(self.tools),
            "metadata": {"turnwire.sim": script} if script else {},
            "include": ["turnwire.timing"],
        }

    def trace(self) -> str:
        """Return the engine's trace of a trajectory, as `docs/sim.md` describes it."""
        return "".join(json.dumps(turn["says"]) + "\n" for turn in self.recorded)

    def to_json(self) -> dict[str, Any]:
        """Return everything, for another process or a results file."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Scenario:
        """Return what `to_json` gave.

        Raises:
            BenchFailure: It is no scenario.
        """
        known = dict(value)
        for name in ("tools", "output_tokens", "recorded"):
            if name in known:
                known[name] = tuple(known[name])
        try:
            scenario = cls(**known)
        except TypeError as error:
            raise BenchFailure(f"This is no scenario: {error}.") from None
        sizes = (scenario.messages, scenario.answer_tokens, *scenario.output_tokens)
        if min(sizes) < 1 or min(scenario.tool_calls, scenario.history_tokens) < 0:
            raise BenchFailure(f"The scenario {scenario.name!r} has sizes that cannot be.")
        if scenario.tool_calls and not scenario.tools:
            raise BenchFailure(f"The scenario {scenario.name!r} has calls but no tools.")
        return scenario

    def _history(self) -> Items:
        items: Items = []
        left = self.history_tokens
        while left > 0:
            size = min(left, self.history_message_tokens)
            role = ("user", "assistant")[len(items) % 2]
            items.append(_message(role, _text(size, len(items) * 7)))
            left -= size
        return items


def scenario_names() -> list[str]:
    """Return the names of the scenarios that come with the benchmark."""
    return sorted(
        path.stem
        for path in _folder().iterdir()
        if path.suffix in (".json", _TRAJECTORY) and not path.stem.startswith("tools")
    )


def load_scenario(name: str) -> Scenario:
    """Read a scenario or a trajectory.

    Args:
        name: One of `scenario_names()`, or a path that ends in `.json` or `.jsonl`.

    Raises:
        BenchFailure: There is none, or it cannot be used.
    """
    path = Path(name)
    if path.suffix not in (".json", _TRAJECTORY):
        found = [_folder() / f"{name}{suffix}" for suffix in (".json", _TRAJECTORY)]
        path = next((each for each in found if each.exists()), path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        known = ", ".join(scenario_names())
        raise BenchFailure(f"There is no scenario {name!r}; known are {known}.") from None
    try:
        if path.suffix == _TRAJECTORY:
            return _trajectory(path.stem, text)
        value = orjson.loads(text)
        if isinstance(value.get("tools"), str):
            value["tools"] = orjson.loads((path.parent / value["tools"]).read_bytes())
        return Scenario.from_json({"name": path.stem, **value})
    except (OSError, ValueError, KeyError, AttributeError):
        raise BenchFailure(f"The scenario {name!r} cannot be read.") from None


def _trajectory(name: str, text: str) -> Scenario:
    lines = [orjson.loads(line) for line in text.splitlines() if line.strip()]
    head = lines.pop(0) if lines and "says" not in lines[0] else {}
    if not lines or "input" not in lines[0]:
        raise BenchFailure(f"The trajectory {name!r} does not begin with an input.")
    for number, line in enumerate(lines[1:], start=2):
        if "outputs" not in line or not isinstance(line.get("says"), dict):
            raise BenchFailure(f"Turn {number} of the trajectory {name!r} lacks outputs or says.")
    return Scenario.from_json({"name": name, **head, "recorded": lines})


def _folder() -> Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _text(size: int, start: int) -> str:
    """Return about `size` tokens of text; another `start` gives another text."""
    return " ".join(_WORDS[(start * 7 + position) % len(_WORDS)] for position in range(size))
