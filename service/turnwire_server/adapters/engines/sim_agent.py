"""What the simulated model says: an agent that calls an offered tool, then answers.

No model runs. The same prompt and outline give the same output.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from turnwire_server.adapters.engines.schema_example import Json, NoExample, example_of
from turnwire_server.adapters.engines.sim_pacing import Pace
from turnwire_server.adapters.engines.sim_script import (
    ScriptFailure,
    SimCall,
    SimScript,
    read_script,
)
from turnwire_server.adapters.renderers.sim_chatml import CALL_OPENING
from turnwire_server.adapters.renderers.sim_tokens import IM_END, SimTokens
from turnwire_server.adapters.renderers.tool_calls import (
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
)
from turnwire_server.ports.engine import Constraint, EngineRequest, TurnOutline
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["AgentSettings", "SimAgent", "SimOutput"]

_SHELL_NAMES: Final = (
    "exec_command",
    "bash",
    "shell",
    "shell_command",
    "local_shell",
    "run_command",
    "execute_command",
    "terminal",
)
_COMMAND_KEYS: Final = ("cmd", "command")
_COMMAND: Final = "echo hello"
_SUMMARY_CHARS: Final = 400
_CODE_MODE: Final = f'text(await tools.exec_command({{cmd:"{_COMMAND}"}}))'
_WORDS: Final = (
    "a tool answers when it is asked and waits when it is not",
    "the next step follows from the last one",
    "every token of this text was chosen by a counter",
    "tokens arrive at the pace that was set",
    "the stream goes on until the turn is over",
    "what was sent before is not sent again",
)
_MOST_ANSWERS: Final = 256


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How the agent acts."""

    tool_rounds: int = 1
    """Call a tool while fewer tool outputs than this follow the last user message."""
    answer_tokens: int = 0
    """Exact length of an answer that no script gives; 0 for 20 to 60, by the prompt."""
    call_tokens: int = 0
    """Least length of a call of a shell-like tool, in tokens, by a comment in the command."""


@dataclass(frozen=True, slots=True)
class SimOutput:
    """A whole output, decided before its first token."""

    ids: Sequence[int]
    """The end-of-turn id included."""
    pace: Pace
    fail_after: int | None = None
    repeat_after: int | None = None


class SimAgent:
    """Decides outputs."""

    def __init__(
        self,
        tokens: SimTokens,
        settings: AgentSettings,
        *,
        tokens_per_second: float = 0.0,
        trace: Sequence[SimScript] = (),
    ) -> None:
        """Act by `settings`; a `trace` replaces the defaults, a request's script the trace."""
        self._tokens = tokens
        self._settings = settings
        self._tokens_per_second = tokens_per_second
        self._trace = trace
        self._opening = tokens.encode_template(CALL_OPENING)
        self._filler = tokens.encode(" and then " + " and then ".join(_WORDS))
        self._encode_answer = functools.lru_cache(_MOST_ANSWERS)(tokens.encode)
        """For answers of its own words, of which there are few; to encode one takes its time."""

    def output(self, request: EngineRequest) -> SimOutput:
        """Return what the model will say to `request`."""
        outline = request.outline
        if outline.task == "summary":
            return self.text_output(_summary(request))
        script = self._script(outline)
        if script.steps:
            return self._replayed(script)
        opened = list(request.ids[-len(self._opening) :]) == self._opening
        calls = self._calls(outline, script, opened=opened)
        ids: list[int] = []
        if script.reasoning and not opened:
            self._part(ids, [THINK_OPEN, script.reasoning, THINK_CLOSE])
        if (script.text is not None or not calls) and not opened:
            self._next(ids)
            ids += self._message(request, script)
        for call in calls:
            self._part(ids, [CALL_OPENING, self._call_text(call), CALL_CLOSE])
        if script.after and calls:
            self._part(ids, ["", script.after])
        if opened and calls:
            del ids[: len(self._opening)]
        ids.append(IM_END)
        return SimOutput(ids, self._pace(script), script.fail_after, script.repeat_after)

    def text_output(self, said: str | Sequence[int]) -> SimOutput:
        """Return an output that a test wrote: text with markup, or ids as they are."""
        ids = self._tokens.encode_template(said) if isinstance(said, str) else list(said)
        if not ids or ids[-1] != IM_END:
            ids.append(IM_END)
        return SimOutput(ids, Pace(self._tokens_per_second))

    def _script(self, outline: TurnOutline) -> SimScript:
        if outline.script:
            try:
                return read_script(outline.script)
            except ScriptFailure as failure:
                return SimScript(text=f"Simulated answer; the script was not used: {failure}.")
        if not self._trace:
            return SimScript()
        # A line is one turn of an agent run: tool outputs so far say which one this is.
        answered = 0
        for line in self._trace:
            if answered >= outline.tool_outputs:
                break
            written = "".join(text for _, text in line.steps).count(CALL_OPEN)
            answered += len(line.calls) or written or 1
        else:
            line = self._trace[-1]
        if line.calls and line.tool_rounds is None:
            line = dataclasses.replace(line, tool_rounds=outline.tool_outputs + 1)
        return line

    def _pace(self, script: SimScript) -> Pace:
        rate = script.tokens_per_second
        return Pace(
            self._tokens_per_second if rate is None else rate,
            silent_s=script.silent_s,
            silent_after=script.silent_after,
        )

    def _replayed(self, script: SimScript) -> SimOutput:
        ids: list[int] = []
        times: list[float] = []
        now = 0.0
        for seconds, text in script.steps:
            now += seconds
            part = self._tokens.encode_template(text)
            ids += part
            times += [now] * len(part)
        ids.append(IM_END)
        times.append(now)
        pace = Pace(times=tuple(times), silent_s=script.silent_s, silent_after=script.silent_after)
        return SimOutput(ids, pace, script.fail_after, script.repeat_after)

    def _calls(self, outline: TurnOutline, script: SimScript, *, opened: bool) -> Sequence[SimCall]:
        choice = outline.tool_choice
        must = bool(outline.tools) and (opened or choice not in ("auto", "none"))
        rounds = script.tool_rounds
        if rounds is None:
            # Whoever scripts the message alone wants the message, not a call.
            alone = script.text is not None or script.tokens is not None
            rounds = 1 if script.calls else 0 if alone else self._settings.tool_rounds
        if not must and (choice == "none" or outline.tool_outputs >= rounds):
            return ()
        if script.calls:
            return script.calls
        if not outline.tools:
            return ()
        named = outline.tools.by_qualified_name.get(choice)
        return [self._call(named or _preferred(outline.tools), script)]

    def _call(self, tool: ToolSpec, script: SimScript) -> SimCall:
        length = self._settings.call_tokens if script.call_tokens is None else script.call_tokens
        call = _call_with(tool, "")
        missing = length - self._count(call)
        return _call_with(tool, " x" * missing) if missing > 0 else call

    def _count(self, call: SimCall) -> int:
        body = self._tokens.encode(self._call_text(call))
        return len(self._opening) + len(body) + 1

    def _call_text(self, call: SimCall) -> str:
        name = json.dumps(call.name, ensure_ascii=False)
        if call.input is not None:
            return f'{{"name": {name}, "input": {json.dumps(call.input, ensure_ascii=False)}}}\n'
        return f'{{"name": {name}, "arguments": {call.arguments or "{}"}}}\n'

    def _message(self, request: EngineRequest, script: SimScript) -> list[int]:
        text, exact, encode = script.text, script.tokens, self._tokens.encode
        if text is None:
            text = _formatted(request.constraint)
            if not text:
                text, encode = self._answer(request), self._encode_answer
                exact = exact if exact is not None else self._settings.answer_tokens or None
        if script.split_characters:
            ids = self._tokens.vocabulary.encode_bytes(text.encode())
        else:
            ids = [*encode(text)]
        if exact is None:
            return ids
        while len(ids) < exact:
            ids += self._filler
        return ids[:exact]

    def _answer(self, request: EngineRequest) -> str:
        tail = request.ids.as_array(max(0, len(request.ids) - 256))
        seed = zlib.crc32(tail.tobytes(), len(request.ids))
        start, stride = seed >> 8, 1 if seed & 1 else len(_WORDS) - 1
        chosen = [_WORDS[(start + index * stride) % len(_WORDS)] for index in range(2 + seed % 3)]
        outputs = request.outline.tool_outputs
        seen = f" after {outputs} tool output{'s' * (outputs != 1)}" if outputs else ""
        return f"Simulated answer{seen}: {', and '.join(chosen)}."

    def _next(self, ids: list[int]) -> None:
        if ids:
            ids += self._tokens.encode("\n")

    def _part(self, ids: list[int], parts: Sequence[str]) -> None:
        """Append markup, content and markup; only what is markup becomes markers."""
        self._next(ids)
        for index, part in enumerate(parts):
            encode = self._tokens.encode if index == 1 else self._tokens.encode_template
            ids += encode(part)


def _summary(request: EngineRequest) -> str:
    words = request.outline.last_user_text[:_SUMMARY_CHARS]
    asked = f" The user's last words were: {words}" if words else ""
    return f"Simulated summary of a conversation of {len(request.ids)} tokens.{asked}"


def _preferred(tools: ToolSet) -> ToolSpec:
    """Return the tool to call: a shell if there is one."""
    by_name = {tool.name: tool for tool in reversed(tools.tools)}
    for name in _SHELL_NAMES:
        tool = by_name.get(name)
        if tool is not None and (tool.kind == "custom" or _command_key(tool)):
            return tool
    code_mode = by_name.get("exec")
    if code_mode is not None and code_mode.kind == "custom":
        return code_mode
    functions = [tool for tool in tools.tools if tool.kind == "function"]
    shells = [tool for tool in functions if _command_key(tool)]
    return (shells or functions or list(tools.tools))[0]


def _call_with(tool: ToolSpec, padding: str) -> SimCall:
    """Return a call of `tool`, its command made longer by `padding` in a comment."""
    name = tool.qualified_name
    if tool.kind == "custom":
        text = _CODE_MODE if tool.name == "exec" else _COMMAND
        comment = " //" if tool.name == "exec" else " #"
        return SimCall(name, input=text + (comment + padding if padding else ""))
    arguments = _arguments(tool)
    key = _command_key(tool)
    if key is not None:
        command = _COMMAND + (" #" + padding if padding else "")
        is_list = _type_of(_properties(tool).get(key)) == "array"
        arguments[key] = ["bash", "-lc", command] if is_list else command
    return SimCall(name, arguments=json.dumps(arguments, ensure_ascii=False))


@functools.lru_cache(maxsize=256)
def _parsed(parameters: str) -> object:
    try:
        schema: object = json.loads(parameters or "{}")
    except ValueError:
        return {}
    if isinstance(schema, dict) and "type" not in schema:
        return {"type": "object", **schema}
    return schema


def _properties(tool: ToolSpec) -> Mapping[str, object]:
    schema = _parsed(tool.parameters)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _type_of(schema: object) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), None)
    return kind if isinstance(kind, str) else ""


def _command_key(tool: ToolSpec) -> str | None:
    properties = _properties(tool)
    for key in _COMMAND_KEYS:
        shape = properties.get(key)
        free = isinstance(shape, dict) and not {"enum", "const", "pattern"} & set(shape)
        if free and _type_of(shape) in ("string", "array"):
            return key
    return None


def _arguments(tool: ToolSpec) -> dict[str, Json]:
    try:
        value = example_of(_parsed(tool.parameters))
    except NoExample:
        value = {}
    # A copy: an example may be a part of the schema itself.
    return dict(value) if isinstance(value, dict) else {}


def _formatted(constraint: Constraint | None) -> str:
    """Return an answer in the format asked for, "" when none is or it has no example."""
    if constraint is None:
        return ""
    if constraint.kind == "json_object":
        return '{"answer": "simulated"}'
    if constraint.kind != "json_schema":
        return ""
    try:
        return json.dumps(example_of(json.loads(constraint.text)), ensure_ascii=False)
    except (ValueError, NoExample):
        return ""
