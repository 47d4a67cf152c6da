"""The rules: checks without a scenario of their own, which judge everything that arrives."""

from __future__ import annotations

from typing import Final

from turnwire_server.conformance.checks import (
    EVERY_TRANSPORT,
    HTTP,
    PERSISTENT,
    STREAMING,
    Check,
    Transport,
)

__all__ = ["RULES"]

_SSE: tuple[Transport, ...] = ("sse",)
_WEBSOCKET: tuple[Transport, ...] = ("websocket",)
_BODIES: tuple[Transport, ...] = ("http", "sse")


RULES: Final[tuple[Check, ...]] = (
    # Order.
    Check(
        "order.created_first",
        "4.2",
        "A turn's first event is `response.created`.",
        STREAMING,
    ),
    Check(
        "order.created_once",
        "4.2",
        "A create gives one response, which is created once.",
        STREAMING,
    ),
    Check(
        "order.in_progress",
        "4.1",
        "`response.in_progress` comes before any output.",
        STREAMING,
    ),
    Check(
        "order.terminal",
        "4.1",
        "A turn has exactly one terminal event, and nothing of it follows.",
        STREAMING,
    ),
    Check("order.ends", "4.1", "Every turn comes to its end in time."),
    Check(
        "order.lane",
        "6",
        "A lane has one response at a time: no `response.created` before the last one's end.",
        PERSISTENT,
    ),
    Check(
        "sequence.numbers",
        "4",
        "`sequence_number` starts at 0 in every response and has no gap.",
        STREAMING,
    ),
    Check(
        "keepalive.after_created",
        "4.3",
        "A `keepalive` comes inside a turn only, after `response.created`.",
        STREAMING,
    ),
    # Responses.
    Check(
        "response.fresh",
        "4.1",
        "Before any output a response has `output: []`, and no usage, error or end.",
        STREAMING,
    ),
    Check("response.id", "4.2", "All lifecycle events of a turn carry the same id.", STREAMING),
    Check("response.once", "4.2", "No two responses have the same id."),
    Check("response.status", "4.1", "`status` fits the event that shows the response."),
    Check(
        "response.members",
        "4.4",
        "A response has every member that strict clients ask for, of the right type.",
    ),
    Check(
        "response.constant",
        "4.2",
        "Model, time, metadata and parent of a response never change.",
        STREAMING,
    ),
    # Items.
    Check("item.index", "4.2", "`output_index` counts the items, and none is reused.", STREAMING),
    Check(
        "item.open",
        "4.2",
        "An item's events come after its `output_item.added` and before its `output_item.done`.",
        STREAMING,
    ),
    Check(
        "item.identity",
        "4.2",
        "An item keeps its type, id, call id and name in every event.",
        STREAMING,
    ),
    Check("item.ids", "4.2", "Ids and call ids of items are there, and used once.", STREAMING),
    Check("item.fresh", "4.1", "An item that is added is in progress and empty.", STREAMING),
    Check("item.done", "4.2", "Every item that was added is done before the end.", STREAMING),
    Check("item.status", "4.1", "An item that is done is completed or incomplete.", STREAMING),
    Check("item.text", "4.1", "An item that is done says what its deltas said.", STREAMING),
    # Parts and calls.
    Check("part.added", "4.2", "Text comes after its part was added, at its index.", STREAMING),
    Check("part.fresh", "4.1", "A part that is added is empty.", STREAMING),
    Check("part.done", "4.1", "Every part is done, once, before its item.", STREAMING),
    Check("part.text", "4.1", "A part that is done says what its deltas said.", STREAMING),
    Check("text.done", "4.1", "Every text has its `done` event before its part's.", STREAMING),
    Check("text.deltas", "4.1", "The deltas of a text make up its `done` event.", STREAMING),
    Check("text.logprobs", "4.1", "Events of output text have a list `logprobs`.", STREAMING),
    Check("call.done", "4.1", "Every call has the `done` event of its arguments.", STREAMING),
    Check("call.deltas", "4.1", "The deltas of a call make up its `done` event.", STREAMING),
    # Ends.
    Check("terminal.output", "4.2", "The last event lists the items that were done.", STREAMING),
    Check("terminal.usage", "4.4", "A response that is over has its usage, with details."),
    Check("usage.sums", "4.4", "Usage adds up, and its parts are no more than the whole."),
    Check(
        "terminal.details",
        "4.1",
        "`completed_at`, `error` and `incomplete_details` fit the status.",
    ),
    Check(
        "terminal.whole",
        "4.1",
        "Only the last item may be incomplete, and none in a completed response.",
    ),
    # Lanes and errors.
    Check(
        "lane.tag",
        "6",
        "Events of a named lane carry its `stream_id`, those of the default lane none.",
        PERSISTENT,
    ),
    Check("lane.in_flight", "6", "No more than 16 responses run at once.", PERSISTENT),
    Check(
        "error.frame",
        "10.1",
        "An error event has an HTTP status and an error with type, code and message.",
        PERSISTENT,
    ),
    Check(
        "error.unnumbered",
        "21",
        "Error events carry no `sequence_number`.",
        PERSISTENT,
        ("turnwire",),
    ),
    Check("error.unprovoked", "10.3", "An error event answers a client event.", PERSISTENT),
    Check(
        "error.body",
        "10.2",
        "A refused request has a JSON body with type, code, message and param.",
        _BODIES,
    ),
    Check(
        "connection.open", "10", "The server keeps the connection open, errors or not.", PERSISTENT
    ),
    # Framing.
    Check(
        "frame.json",
        "2",
        "Each frame or event is one JSON object with a string `type`.",
        ("sse", "websocket"),
    ),
    Check("frame.text", "2", "The server sends text frames only.", _WEBSOCKET),
    Check("http.content_type", "14", "JSON answers are `application/json`.", HTTP),
    Check("sse.content_type", "14", "A stream is `text/event-stream`.", _SSE),
    Check("sse.event_name", "14", "`event` equals the event's `type`.", _SSE),
    Check("sse.done", "14", "A stream ends with `data: [DONE]`, once.", _SSE),
    Check("sse.no_id", "14", "A stream has `event` and `data` lines and comments only.", _SSE),
    # Judges from outside.
    Check(
        "types.official",
        "A",
        "Events and responses are valid by the official Python library's types, strictly.",
        EVERY_TRANSPORT,
    ),
    Check(
        "types.open_responses",
        "16.4",
        "Events and responses of core items have the shapes of Open Responses.",
        EVERY_TRANSPORT,
    ),
    Check(
        "types.open_responses_only",
        "16.4",
        "No event, item or tool is outside Open Responses.",
        EVERY_TRANSPORT,
        ("openresponses",),
    ),
)
"""The rules, in the order of a report."""
