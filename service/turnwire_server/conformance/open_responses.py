"""The shapes of Open Responses as a judge: presence and types, open to extra members.

Made from the protocol's account of the specification (version 2026-04-24); no text of it is here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwire_server.conformance.checks import Json, Profile, bounded
from turnwire_server.conformance.findings import Findings

__all__ = ["OpenResponses"]

_RULE = "types.open_responses"
_ONLY = "types.open_responses_only"


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _OutputText(_Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]


class _Refusal(_Shape):
    type: Literal["refusal"]
    refusal: str


class _ReasoningText(_Shape):
    type: Literal["reasoning_text"]
    text: str


class _SummaryText(_Shape):
    type: Literal["summary_text"]
    text: str


class _InputText(_Shape):
    type: Literal["input_text"]
    text: str


class _InputImage(_Shape):
    type: Literal["input_image"]


class _InputFile(_Shape):
    type: Literal["input_file"]


_Status = Literal["in_progress", "completed", "incomplete"]
_Content = Annotated[
    _OutputText | _Refusal | _ReasoningText | _SummaryText | _InputText | _InputImage | _InputFile,
    Field(discriminator="type"),
]


class _Message(_Shape):
    type: Literal["message"]
    id: str
    status: _Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[_Content]


class _FunctionCall(_Shape):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: _Status


class _FunctionCallOutput(_Shape):
    type: Literal["function_call_output"]
    id: str
    call_id: str
    output: str | list[_Content]
    status: _Status


class _Reasoning(_Shape):
    type: Literal["reasoning"]
    id: str
    summary: list[_SummaryText]
    # Absent or a value; null does not validate.
    content: list[_ReasoningText] = []
    encrypted_content: str = ""


class _Compaction(_Shape):
    type: Literal["compaction"]
    id: str
    encrypted_content: str


_Item = Annotated[
    _Message | _FunctionCall | _FunctionCallOutput | _Reasoning | _Compaction,
    Field(discriminator="type"),
]


class _FunctionTool(_Shape):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class _InputDetails(_Shape):
    cached_tokens: int


class _OutputDetails(_Shape):
    reasoning_tokens: int


class _Usage(_Shape):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: _InputDetails
    output_tokens_details: _OutputDetails


class _ReasoningSettings(_Shape):
    effort: str | None
    summary: str | None


class _TextSettings(_Shape):
    format: dict[str, Any]


class _ResponseError(_Shape):
    code: str
    message: str


class _Incomplete(_Shape):
    reason: str


class _Response(_Shape):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: _Incomplete | None
    model: str
    previous_response_id: str | None
    instructions: str | list[Any] | None
    output: list[_Item]
    error: _ResponseError | None
    tools: list[_FunctionTool]
    tool_choice: str | dict[str, Any]
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: _TextSettings
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: _ReasoningSettings | None
    usage: _Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, Any]
    safety_identifier: str | None
    prompt_cache_key: str | None


class _Event(_Shape):
    sequence_number: int


class _OfResponse(_Event):
    response: _Response


class _OfItem(_Event):
    output_index: int
    item: _Item


class _InItem(_Event):
    item_id: str
    output_index: int


class _InContent(_InItem):
    content_index: int


class _OfPart(_InContent):
    part: _Content


class _InSummary(_InItem):
    summary_index: int


class _OfSummaryPart(_InSummary):
    part: _SummaryText


class _ContentDelta(_InContent):
    delta: str


class _ContentText(_InContent):
    text: str


class _RefusalDone(_InContent):
    refusal: str


class _Annotation(_InContent):
    annotation_index: int


class _SummaryDelta(_InSummary):
    delta: str


class _SummaryDone(_InSummary):
    text: str


class _ArgumentsDelta(_InItem):
    delta: str


class _ArgumentsDone(_InItem):
    arguments: str


class _FrameError(_Shape):
    code: str
    message: str


class _ErrorFrame(_Shape):
    status: int
    error: _FrameError


_EVENTS: Final[dict[str, type[BaseModel]]] = {
    "response.created": _OfResponse,
    "response.queued": _OfResponse,
    "response.in_progress": _OfResponse,
    "response.completed": _OfResponse,
    "response.failed": _OfResponse,
    "response.incomplete": _OfResponse,
    "response.output_item.added": _OfItem,
    "response.output_item.done": _OfItem,
    "response.content_part.added": _OfPart,
    "response.content_part.done": _OfPart,
    "response.output_text.delta": _ContentDelta,
    "response.output_text.done": _ContentText,
    "response.output_text.annotation.added": _Annotation,
    "response.refusal.delta": _ContentDelta,
    "response.refusal.done": _RefusalDone,
    "response.reasoning.delta": _ContentDelta,
    "response.reasoning.done": _ContentText,
    "response.reasoning_summary_part.added": _OfSummaryPart,
    "response.reasoning_summary_part.done": _OfSummaryPart,
    "response.reasoning_summary_text.delta": _SummaryDelta,
    "response.reasoning_summary_text.done": _SummaryDone,
    "response.function_call_arguments.delta": _ArgumentsDelta,
    "response.function_call_arguments.done": _ArgumentsDone,
    "error": _ErrorFrame,
}
"""The 24 events of the union, with the shape of each."""

_CORE: Final = {"message", "function_call", "function_call_output", "reasoning", "compaction"}


class OpenResponses:
    """Judges by the shapes; by the profile, also what has none."""

    def __init__(self, profile: Profile) -> None:
        """Judge for a profile: with `openresponses`, nothing else is allowed."""
        self._is_strict = profile == "openresponses"

    def judge(self, findings: Findings, event: Json) -> None:
        """Judge an event."""
        kind = event["type"]
        model = _EVENTS.get(kind)
        if self._is_strict:
            reason = f"`{kind}` is not an event of Open Responses"
            findings.require(_ONLY, model is not None, reason, event)
        if model is None:
            return
        if self._is_core(findings, event):
            _judge(findings, model, event)

    def judge_response(self, findings: Findings, response: Json) -> None:
        """Judge a response object."""
        if self._is_core(findings, {"response": response}):
            _judge(findings, _Response, response)

    def _is_core(self, findings: Findings, event: Json) -> bool:
        """Return whether all items and tools are of the core, and say so where they must be."""
        shown = event.get("response")
        items: list[Any] = [event.get("item")]
        tools: list[Any] = []
        if isinstance(shown, dict):
            items = shown["output"] if isinstance(shown.get("output"), list) else []
            tools = shown["tools"] if isinstance(shown.get("tools"), list) else []
        kinds = [each.get("type") for each in items if isinstance(each, dict)]
        foreign = [kind for kind in kinds if kind not in _CORE]
        foreign += [
            tool.get("type")
            for tool in tools
            if isinstance(tool, dict) and tool.get("type") != "function"
        ]
        if self._is_strict:
            reason = f"{bounded(foreign)} is not of Open Responses"
            findings.require(_ONLY, not foreign, reason, event)
        return not foreign


def _judge(findings: Findings, model: type[BaseModel], value: Json) -> None:
    try:
        model.model_validate(value)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(step) for step in detail["loc"])
        findings.require(_RULE, False, f"{bounded(path)}: {detail['msg']}"[:300], value)
    else:
        findings.require(_RULE, True, "")
