"""The event sequences of a turn as the public JSON has them, written by hand after the API's
documentation: what the codec must read and write without loss."""

from __future__ import annotations

from typing import Any

__all__ = ["EVENTS", "RESPONSE", "SEQUENCES", "USAGE"]

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1795958591,
    "completed_at": None,
    "status": "in_progress",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": None,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            "strict": None,
        }
    ],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "usage": None,
    "user": None,
    "metadata": {},
}
USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}


def _turn(
    *middle: dict[str, Any], output: list[dict[str, Any]], **end: Any
) -> list[dict[str, Any]]:
    """A whole turn: its opening, what is given, and its terminal event; numbered from 0."""
    terminal = {
        **RESPONSE,
        "status": "completed",
        "completed_at": 1795958592,
        "output": output,
        "usage": USAGE,
        **end,
    }
    events = [
        {"type": "response.created", "response": RESPONSE},
        {"type": "response.in_progress", "response": RESPONSE},
        *middle,
        {"type": f"response.{terminal['status']}", "response": terminal},
    ]
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def _in_content(type: str, item_id: str, **members: Any) -> dict[str, Any]:
    at = {"item_id": item_id, "output_index": 0, "content_index": 0}
    return {"type": type, **at, **members}


def _in_summary(type: str, item_id: str, **members: Any) -> dict[str, Any]:
    at = {"item_id": item_id, "output_index": 0, "summary_index": 0}
    return {"type": type, **at, **members}


def _item(type: str, /, **item: Any) -> dict[str, Any]:
    return {"type": type, "output_index": 0, "item": item}


_PART = {"type": "output_text", "text": "Hi 😀", "annotations": [], "logprobs": []}
_MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant"}
_DONE_MESSAGE = {**_MESSAGE, "status": "completed", "content": [_PART], "phase": "final_answer"}
_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather"}
_DONE_CALL = {**_CALL, "arguments": '{"city":"Köln"}', "status": "completed", "namespace": "geo"}
_CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "shell"}
_DONE_CUSTOM = {**_CUSTOM, "input": "echo hello", "status": "completed"}
_SUMMARY = {"type": "summary_text", "text": "Thought."}
_RAW = {"type": "reasoning_text", "text": "Hm."}
_REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
_DONE_REASONING = {**_REASONING, "summary": [_SUMMARY], "status": "completed"}
_DONE_RAW = {**_REASONING, "content": [_RAW], "encrypted_content": "…", "status": "completed"}
_REFUSAL = {"type": "refusal", "refusal": "No."}
_DONE_REFUSAL = {**_MESSAGE, "status": "completed", "content": [_REFUSAL]}
_COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": ""}
_STUB = {"type": "function_call_output", "call_id": "call_1", "name": "get_weather"}
_STEER = {"id": "steer_1", "previous_response_id": "resp_1"}

SEQUENCES: dict[str, list[dict[str, Any]]] = {
    "text": _turn(
        _item("response.output_item.added", **_MESSAGE, status="in_progress", content=[]),
        _in_content("response.content_part.added", "msg_1", part={**_PART, "text": ""}),
        _in_content("response.output_text.delta", "msg_1", delta="Hi ", logprobs=[]),
        _in_content(
            "response.output_text.delta",
            "msg_1",
            delta="😀",
            logprobs=[
                {
                    "token": "😀",
                    "bytes": [240, 159, 152, 128],
                    "logprob": -0.5,
                    "top_logprobs": [{"token": "a", "bytes": [97], "logprob": -1.5}],
                }
            ],
        ),
        _in_content("response.output_text.done", "msg_1", text="Hi 😀", logprobs=[]),
        _in_content("response.content_part.done", "msg_1", part=_PART),
        _item("response.output_item.done", **_DONE_MESSAGE),
        output=[_DONE_MESSAGE],
    ),
    "function call": _turn(
        _item("response.output_item.added", **_CALL, arguments="", status="in_progress"),
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 0,
            "delta": '{"city":',
        },
        {
            "type": "response.function_call_arguments.done",
            "item_id": "fc_1",
            "output_index": 0,
            "name": "get_weather",
            "arguments": '{"city":"Köln"}',
        },
        _item("response.output_item.done", **_DONE_CALL),
        output=[_DONE_CALL],
        tool_choice={"type": "function", "name": "get_weather"},
    ),
    "custom call": _turn(
        _item("response.output_item.added", **_CUSTOM, input="", status="in_progress"),
        {
            "type": "response.custom_tool_call_input.delta",
            "item_id": "ctc_1",
            "output_index": 0,
            "delta": "echo ",
        },
        {
            "type": "response.custom_tool_call_input.done",
            "item_id": "ctc_1",
            "output_index": 0,
            "input": "echo hello",
        },
        _item("response.output_item.done", **_DONE_CUSTOM),
        output=[_DONE_CUSTOM],
    ),
    "reasoning summary": _turn(
        _item("response.output_item.added", **_REASONING, status="in_progress"),
        _in_summary("response.reasoning_summary_part.added", "rs_1", part={**_SUMMARY, "text": ""}),
        _in_summary("response.reasoning_summary_text.delta", "rs_1", delta="Thought."),
        _in_summary("response.reasoning_summary_text.done", "rs_1", text="Thought."),
        _in_summary("response.reasoning_summary_part.done", "rs_1", part=_SUMMARY),
        _item("response.output_item.done", **_DONE_REASONING),
        output=[_DONE_REASONING],
    ),
    "raw reasoning": _turn(
        _item("response.output_item.added", **_REASONING, status="in_progress"),
        _in_content("response.content_part.added", "rs_1", part={**_RAW, "text": ""}),
        _in_content("response.reasoning_text.delta", "rs_1", delta="Hm."),
        _in_content("response.reasoning_text.done", "rs_1", text="Hm."),
        _in_content("response.content_part.done", "rs_1", part=_RAW),
        _item("response.output_item.done", **_DONE_RAW),
        output=[_DONE_RAW],
    ),
    "refusal": _turn(
        _item("response.output_item.added", **_MESSAGE, status="in_progress", content=[]),
        _in_content("response.content_part.added", "msg_1", part={**_REFUSAL, "refusal": ""}),
        _in_content("response.refusal.delta", "msg_1", delta="No."),
        _in_content("response.refusal.done", "msg_1", refusal="No."),
        _in_content("response.content_part.done", "msg_1", part=_REFUSAL),
        _item("response.output_item.done", **_DONE_REFUSAL),
        output=[_DONE_REFUSAL],
    ),
    "compaction": _turn(
        _item("response.output_item.added", **_COMPACTION),
        {"type": "response.compaction.compacting", "item_id": "cmp_1", "output_index": 0},
        _item("response.output_item.done", **{**_COMPACTION, "encrypted_content": "gAAA"}),
        output=[{**_COMPACTION, "encrypted_content": "gAAA"}],
    ),
    "warm-up": _turn(output=[]),
    "failed": _turn(
        output=[],
        status="failed",
        completed_at=None,
        error={"code": "server_error", "message": "Something broke here."},
    ),
    "cut": _turn(
        output=[{**_DONE_MESSAGE, "status": "incomplete"}],
        status="incomplete",
        completed_at=None,
        incomplete_details={"reason": "max_output_tokens"},
    ),
}
"""Whole turns on the default lane."""

EVENTS: dict[str, dict[str, Any]] = {
    "error frame": {
        "type": "error",
        "stream_id": "main",
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "Previous response with id 'resp_abc' not found.",
            "param": "previous_response_id",
        },
    },
    "error with hints": {
        "type": "error",
        "status": 429,
        "error": {
            "type": "rate_limit_error",
            "code": "rate_limit_exceeded",
            "message": "Please try again in 1.5s.",
            "param": None,
            "headers": {"retry-after": "2"},
        },
    },
    "on a lane": {
        "type": "response.output_text.delta",
        "sequence_number": 9,
        "stream_id": "main",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "a",
        "logprobs": [],
    },
    "steer accepted": {
        "type": "response.steer.accepted",
        "sequence_number": 4,
        "steer": _STEER,
    },
    "steer pending": {
        "type": "response.steer.pending",
        "sequence_number": 5,
        "steer": _STEER,
        "reason": "waiting_for_required_input",
        "required_input": [
            _STUB,
            {"type": "tool_search_output", "call_id": "call_3", "execution": "client"},
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"},
        ],
    },
    "steer failed": {
        "type": "response.steer.failed",
        "sequence_number": 0,
        "steer": {
            "previous_response_id": "resp_9",
            "input": [{"type": "message", "role": "user", "content": "Stop."}],
        },
        "error": {
            "type": "invalid_request_error",
            "code": "response_not_found",
            "message": "No such response.",
            "param": None,
        },
    },
    "keepalive": {"type": "keepalive", "sequence_number": 7},
    "rollout pause": {
        "type": "response.done",
        "sequence_number": 8,
        "response_id": "resp_1",
        "required_input": [_STUB],
        "usage": USAGE,
    },
    "inject failed": {
        "type": "response.inject.failed",
        "sequence_number": 0,
        "response_id": "resp_1",
        "input": [{"type": "function_call_output", "call_id": "call_1", "output": "x"}],
        "error": {
            "type": "invalid_request_error",
            "code": "response_not_found",
            "message": "No such response.",
            "param": None,
        },
    },
    "session": {
        "type": "turnwire.session.started",
        "session_id": "sess_1",
        "resume_token": "t",
        "resume_grace_s": 30.0,
    },
    "go-away": {"type": "turnwire.go_away", "reason": "drain", "time_left_s": 12.5},
    "timing": {
        "type": "response.completed",
        "sequence_number": 2,
        "response": {
            **RESPONSE,
            "status": "completed",
            "usage": USAGE,
            "warnings": [
                {"code": "tool_not_supported", "message": "Dropped.", "param": "tools[3]"}
            ],
            "turnwire": {
                "event_id": "e1",
                "timing": {
                    "queue_ms": 0.0,
                    "resolve_ms": 0.0,
                    "validate_ms": 0.5,
                    "render_ms": 0.25,
                    "screen_ms": 0.0,
                    "prefill_ms": 3.0,
                    "decode_ms": 9.0,
                    "commit_ms": 0.125,
                    "overhead_ms": 0.875,
                    "tokens": {"input": 12, "sent": 4, "rendered": 4, "cached": 8, "output": 3},
                    "rerender_reason": "",
                },
            },
        },
    },
}
"""Single events."""
