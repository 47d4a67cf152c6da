"""Event assembly: from the pieces that a model said to the exact public event sequences.

One assembler per response. Its methods return the events to send, in order; numbers start at 0
and have no gap. The sequences are those of the public API: an item is added before its parts,
a part before its deltas, every part and item is done before the terminal event, and nothing
follows the terminal event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from turnwire.v1 import item_pb2, response_pb2, server_event_pb2
from turnwire_server.session.events import Outgoing
from turnwire_server.session.items import (
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenReasoningSummary,
    OpenRefusal,
    continues,
)
from turnwire_server.session.lifecycle import (
    RESPONSE_TABLE,
    ResponseState,
    ResponseTrigger,
    next_state,
)
from turnwire_server.session.open_text import OpenText
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.required_input import required_input
from turnwire_server.session.responses import usage_of

__all__ = ["ResponseAssembler"]

ServerEvent = server_event_pb2.ServerEvent


class ResponseAssembler(OpenText):
    """Assembles the events of one response."""

    __slots__ = (
        "_ends_with_item",
        "_is_cut",
        "_new_id",
        "_reasoning_item",
        "_round_start",
        "_seal_reasoning",
        "_stream_id",
        "has_dropped",
        "response",
    )

    def __init__(
        self,
        response: response_pb2.Response,
        *,
        stream_id: str | None,
        new_id: Callable[[str], str],
        seal_reasoning: Callable[[str], str] | None = None,
        summarizes_reasoning: bool = False,
    ) -> None:
        """Make an assembler.

        Args:
            response: The response as it is when it begins; it belongs to the assembler now.
            stream_id: The lane that every event names, None for the default lane.
            new_id: Returns a new id with the given prefix.
            seal_reasoning: Returns reasoning sealed, to be the `encrypted_content` of its item;
                None for items without.
            summarizes_reasoning: Whether reasoning is shown as summaries, not as raw text.
        """
        super().__init__()
        self.response = response
        self._seal_reasoning = seal_reasoning
        self._reasoning_item = OpenReasoningSummary if summarizes_reasoning else OpenReasoning
        self._stream_id = stream_id
        self._new_id = new_id
        self._is_cut = False
        """Whether an item ended incomplete: then it is the last one."""
        self._round_start = 0
        """Index of the first item since the response began or was resumed."""
        self._ends_with_item = False
        """Whether no item may begin after the one that is open."""
        self.has_dropped = False
        """Whether the model began one all the same: it and what follows is dropped."""

    @property
    def is_open(self) -> bool:
        """Whether it began and is not over."""
        return self._state in (ResponseState.OPEN, ResponseState.PAUSED)

    @property
    def has_output(self) -> bool:
        """Whether any item began."""
        return self._open is not None or bool(self.response.output)

    @property
    def waits_for_outputs(self) -> bool:
        """Whether its newest output has whole calls and no item that was cut."""
        if self._is_cut or isinstance(self._open, OpenCall):
            return False
        return bool(required_input(self.round_output))

    @property
    def round_output(self) -> list[item_pb2.Item]:
        """The items that are done since the response began or was resumed."""
        return list(self.response.output[self._round_start :])

    # The sequence.

    def begin(self) -> list[Outgoing]:
        """Return `response.created` and `response.in_progress`."""
        self._move(ResponseTrigger.BEGIN)
        created = self._event()
        created.response_created.response.CopyFrom(self.response)
        running = self._event()
        running.response_in_progress.response.CopyFrom(self.response)
        return [created, running]

    def add(self, pieces: Iterable[OutputPiece]) -> list[Outgoing]:
        """Return the events that `pieces` cause.

        A call that something else interrupts is cut. It ends incomplete, and since nothing may
        follow an incomplete item, whatever else the model says is dropped.
        """
        if self._state is not ResponseState.OPEN:  # the table is slow to ask
            self._move(ResponseTrigger.OUTPUT)
        events: list[Outgoing] = []
        for piece in pieces:
            if (delta := self.delta_of(piece)) is not None:
                events.append(delta)
                continue
            item = self._open
            if isinstance(self._open, OpenCall) and not isinstance(piece, CallDelta | CallEnded):
                events += self._close(item_pb2.ITEM_STATUS_INCOMPLETE)
                self._is_cut = True
            elif self._ends_with_item and not continues(self._open, piece):
                events += self._close(item_pb2.ITEM_STATUS_COMPLETED)
                self.has_dropped = True
            if self._is_cut or self.has_dropped:
                break
            match piece:
                case TextDelta(text=text):
                    message = OpenMessage(self._new_id("msg_"), self._next_index())
                    self._switch_to(message, events)
                    events.append(self._delta(message, text))
                case ReasoningDelta(text=text):
                    if not isinstance(item, OpenReasoning):
                        item = self._reasoning_item(
                            self._new_id("rs_"), self._next_index(), self._seal_reasoning
                        )
                        self._switch_to(item, events)
                    events.append(self._delta(item, text))
                case CallStarted():
                    prefix = "ctc_" if piece.custom else "fc_"
                    ids = (self._new_id(prefix), self._new_id("call_"))
                    self._switch_to(OpenCall(ids, self._next_index(), piece), events)
                case CallDelta(text=text):
                    events.append(self._delta(self._open_call(), text))
                case _:  # CallEnded
                    self._open_call()
                    events += self._close(item_pb2.ITEM_STATUS_COMPLETED)
        return events

    def end_after_item(self) -> None:
        """Let no item begin after the one that is open, if any. Idempotent."""
        self._ends_with_item = True

    def pause(self, usage: response_pb2.Usage) -> list[Outgoing]:
        """Return the rest of the output and `response.done`, which says what it waits for.

        It is not terminal: the sequence goes on after `resume`.
        """
        self._move(ResponseTrigger.PAUSE)
        events = self._close(item_pb2.ITEM_STATUS_COMPLETED)
        event = self._event()
        event.response_done.response_id = self.response.id
        event.response_done.required_input.extend(required_input(self.round_output))
        event.response_done.usage.CopyFrom(usage)
        events.append(event)
        return events

    def resume(self) -> None:
        """Note that what it waited for is there: the model goes on."""
        self._move(ResponseTrigger.RESUME)
        self._round_start = len(self.response.output)
        self._ends_with_item = self.has_dropped = False

    def add_compaction(self, sealed: str) -> list[Outgoing]:
        """Return the events that give the compaction, `sealed`, to the client; no item is open.

        It is announced no earlier: its public type has no status, so one that was broken off
        could not be shown to be over.
        """
        self._move(ResponseTrigger.OUTPUT)
        item = item_pb2.Item()
        item.compaction.id = self._new_id("cmp_")
        index = len(self.response.output)
        added, compacting = self._event(), self._event()
        added.response_output_item_added.output_index = index
        added.response_output_item_added.item.CopyFrom(item)
        body = compacting.response_compaction_compacting
        body.item_id, body.output_index = item.compaction.id, index
        item.compaction.encrypted_content = sealed
        return [added, compacting, self._whole(item)]

    def add_whole(self, item: item_pb2.Item) -> list[Outgoing]:
        """Return the events of an item that nobody writes piece by piece; no item is open."""
        self._move(ResponseTrigger.OUTPUT)
        added = self._event()
        added.response_output_item_added.output_index = len(self.response.output)
        added.response_output_item_added.item.CopyFrom(item)
        return [added, self._whole(item)]

    def complete(self, usage: response_pb2.Usage, *, completed_at: int) -> list[Outgoing]:
        """Return the rest and `response.completed`.

        An answer without a word is one message with empty text; that of a response that was
        resumed too. A call that was not ended makes the response incomplete.
        """
        if self._is_cut or isinstance(self._open, OpenCall):
            return self.incomplete("max_output_tokens", usage)
        self._move(ResponseTrigger.END)
        events: list[Outgoing] = []
        if self._open is None and len(self.response.output) == self._round_start:
            self._switch_to(OpenMessage(self._new_id("msg_"), self._round_start), events)
        events += self._close(item_pb2.ITEM_STATUS_COMPLETED)
        self.response.completed_at.seconds = completed_at
        return self._end(events, response_pb2.RESPONSE_STATUS_COMPLETED, usage)

    def refuse(self, text: str, usage: response_pb2.Usage, *, completed_at: int) -> list[Outgoing]:
        """Return a message that refuses with `text`, which is not empty, and `response.completed`.

        To be called before any output to the input that is refused.
        """
        self._move(ResponseTrigger.END)
        events: list[Outgoing] = []
        item = OpenRefusal(self._new_id("msg_"), self._next_index())
        self._switch_to(item, events)
        events.append(self._delta(item, text))
        events += self._close(item_pb2.ITEM_STATUS_COMPLETED)
        self.response.completed_at.seconds = completed_at
        return self._end(events, response_pb2.RESPONSE_STATUS_COMPLETED, usage)

    def complete_warm_up(self, usage: response_pb2.Usage, *, completed_at: int) -> list[Outgoing]:
        """Return `response.completed` without output."""
        self._move(ResponseTrigger.END)
        self.response.completed_at.seconds = completed_at
        return self._end([], response_pb2.RESPONSE_STATUS_COMPLETED, usage)

    def incomplete(self, reason: str, usage: response_pb2.Usage) -> list[Outgoing]:
        """Return the rest and `response.incomplete`; the open item ends incomplete."""
        self._move(ResponseTrigger.END)
        events = self._close(item_pb2.ITEM_STATUS_INCOMPLETE)
        self.response.incomplete_details.reason = reason
        return self._end(events, response_pb2.RESPONSE_STATUS_INCOMPLETE, usage)

    def cancelled(self, usage: response_pb2.Usage) -> list[Outgoing]:
        """Return the rest and `response.incomplete` with status `cancelled`."""
        self._move(ResponseTrigger.END)
        events = self._close(item_pb2.ITEM_STATUS_INCOMPLETE)
        return self._end(events, response_pb2.RESPONSE_STATUS_CANCELLED, usage)

    def fail(
        self, code: str, message: str, usage: response_pb2.Usage | None = None
    ) -> list[Outgoing]:
        """Return the rest and `response.failed`; without `usage` nothing was used."""
        self._move(ResponseTrigger.END)
        events = self._close(item_pb2.ITEM_STATUS_INCOMPLETE)
        self.response.error.code = code
        self.response.error.message = message
        return self._end(events, response_pb2.RESPONSE_STATUS_FAILED, usage or usage_of())

    def number(self, event: ServerEvent) -> None:
        """Give an answer about the response its place in the sequence.

        That of an answer which comes with the end follows the terminal event's.
        """
        event.sequence_number = self._sequence_number
        self._sequence_number += 1

    def fail_instead(self, code: str, message: str) -> Outgoing:
        """Return `response.failed` to be sent in place of the terminal event, which was not."""
        self.response.ClearField("completed_at")
        self.response.ClearField("incomplete_details")
        self.response.error.code = code
        self.response.error.message = message
        self._sequence_number -= 1
        (event,) = self._end([], response_pb2.RESPONSE_STATUS_FAILED, self.response.usage)
        return event

    def keepalive(self, *, as_in_progress: bool = False) -> list[Outgoing]:
        """Return a sign of life: `keepalive`, or `response.in_progress` once more."""
        self._move(ResponseTrigger.ASIDE)
        event = self._event()
        if as_in_progress:
            # The state when it began: output that was not announced as done is not shown.
            event.response_in_progress.response.CopyFrom(self.response)
            event.response_in_progress.response.ClearField("output")
        else:
            event.keepalive.SetInParent()
        return [event]

    # Private.

    def _move(self, trigger: ResponseTrigger) -> None:
        self._state = next_state(RESPONSE_TABLE, self._state, trigger)

    def _event(self) -> ServerEvent:
        event = ServerEvent()
        event.sequence_number = self._sequence_number
        self._sequence_number += 1
        if self._stream_id is not None:
            event.stream_id = self._stream_id
        return event

    def _next_index(self) -> int:
        return len(self.response.output) + (self._open is not None)

    def _open_call(self) -> OpenCall:
        if not isinstance(self._open, OpenCall):
            raise RuntimeError("a call's piece came without its start")
        return self._open

    def _switch_to(self, item: OpenItem, events: list[Outgoing]) -> None:
        """Close what is open and open `item`."""
        if self._open is not None:
            events += self._close(item_pb2.ITEM_STATUS_COMPLETED)
        item.open(self._stream_id)
        self._open = item
        added = self._event()
        body = added.response_output_item_added
        body.output_index = item.output_index
        item.write(body.item, item_pb2.ITEM_STATUS_IN_PROGRESS, None)
        events.append(added)
        if item.has_part:
            event = self._event()
            item.write_part(event, "", is_added=True)
            events.append(event)

    def _close(self, status: item_pb2.ItemStatus.ValueType) -> list[Outgoing]:
        """Return the last events of the item that is open, none when there is none."""
        item, self._open = self._open, None
        if item is None:
            return []
        text = item.text.decode()
        done = self._event()
        item.write_done(done, text)
        events: list[Outgoing] = [done]
        if item.has_part:
            event = self._event()
            item.write_part(event, text, is_added=False)
            events.append(event)
        whole = self.response.output.add()
        item.write(whole, status, text)
        finished = self._event()
        body = finished.response_output_item_done
        body.output_index = item.output_index
        body.item.CopyFrom(whole)
        events.append(finished)
        return events

    def _whole(self, item: item_pb2.Item) -> ServerEvent:
        finished = self._event()
        finished.response_output_item_done.output_index = len(self.response.output)
        finished.response_output_item_done.item.CopyFrom(item)
        self.response.output.append(item)
        self._round_start = len(self.response.output)  # the answer begins behind it
        return finished

    def _end(
        self,
        events: list[Outgoing],
        status: response_pb2.ResponseStatus.ValueType,
        usage: response_pb2.Usage,
    ) -> list[Outgoing]:
        self.response.status = status
        self.response.usage.CopyFrom(usage)
        event = self._event()
        if status == response_pb2.RESPONSE_STATUS_COMPLETED:
            event.response_completed.response.CopyFrom(self.response)
        elif status == response_pb2.RESPONSE_STATUS_FAILED:
            event.response_failed.response.CopyFrom(self.response)
        else:
            event.response_incomplete.response.CopyFrom(self.response)
        events.append(event)
        return events
