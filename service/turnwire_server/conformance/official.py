"""The official Python library's types as a judge, in strict mode. The library is optional."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from turnwire_server.conformance.checks import Json, bounded
from turnwire_server.conformance.findings import Findings

__all__ = ["OfficialTypes"]

_RULE = "types.official"


class OfficialTypes:
    """Judges by the types of the `openai` package that is installed."""

    def __init__(self) -> None:
        """Load the types; takes about a second.

        Raises:
            ImportError: The package is not installed.
        """
        from openai.types import responses
        from openai.types.responses import Response

        union: Any = getattr(responses, "ResponsesServerEvent", responses.ResponseStreamEvent)
        members = get_args(union)
        if not members or not isinstance(members[0], type):
            members = get_args(members[0])
        self._response: type[BaseModel] = Response
        self._events: dict[str, type[BaseModel]] = {}
        for member in members:
            for kind in get_args(member.model_fields["type"].annotation):
                self._events[kind] = member

    def judge(self, findings: Findings, event: Json) -> None:
        """Judge an event; one of a type that the library does not know passes unseen."""
        model = self._events.get(event["type"])
        if model is not None:
            _judge(findings, model, event)

    def judge_response(self, findings: Findings, response: Json) -> None:
        """Judge a response object."""
        _judge(findings, self._response, response)


def _judge(findings: Findings, model: type[BaseModel], value: Json) -> None:
    try:
        model.model_validate(value, strict=True)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(step) for step in detail["loc"])
        reason = f"{model.__name__}: {bounded(path)}: {detail['msg']}"
        findings.require(_RULE, False, reason[:300], value)
    else:
        findings.require(_RULE, True, "")
