"""What a client may rely on, behaviour by behaviour.

Each behaviour has an id, its source and a sentence. `test_requirements.py` checks both ways that
every one is proven by a test of this folder and that every test names one. A behaviour that a
wire cannot have says so here, by `wires` and `why`, and its tests are not run there.

Sources: `api` is the public API's guide and types; `turnwire` our own decisions (docs/protocol);
`case` a fault that users of comparable systems reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from harness.peers import Wire

__all__ = [
    "EVERY_WIRE",
    "KNOWN_CASES",
    "REQUIREMENTS",
    "Requirement",
    "proofs_of",
    "requirement",
]

EVERY_WIRE: tuple[Wire, ...] = ("memory", "grpc", "websocket", "http")
_PERSISTENT: tuple[Wire, ...] = ("memory", "grpc", "websocket")
_ONE_TURN = "An HTTP request carries one turn and has no session."
_JSON: tuple[Wire, ...] = ("websocket", "http")
_NO_JSON = "A message cannot say it: its types are the contract's."
_MEMORY: tuple[Wire, ...] = ("memory",)
_INSIDE = "Only in memory can a test see the inside of the connection."
_HALF_CLOSE: tuple[Wire, ...] = ("memory", "grpc")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One behaviour."""

    source: str
    sentence: str
    wires: tuple[Wire, ...] = EVERY_WIRE
    why: str = ""
    """Why it is not on every wire; "" when it is."""


def _persistent(source: str, sentence: str) -> Requirement:
    return Requirement(source, sentence, _PERSISTENT, _ONE_TURN)


REQUIREMENTS: Mapping[str, Requirement] = MappingProxyType(
    {
        # Sequences.
        "sequence.text": Requirement("api", "A text answer has the canonical event sequence."),
        "sequence.function_call": Requirement(
            "api", "A function call has the canonical event sequence."
        ),
        "sequence.custom_call": Requirement(
            "api", "A call of a custom tool has the canonical event sequence."
        ),
        "sequence.reasoning": Requirement(
            "api", "Raw reasoning is an item with a part of its own, before what it led to."
        ),
        "sequence.mixed": Requirement(
            "case 29", "Text and calls in one response keep order and indices."
        ),
        "sequence.warm_up": _persistent(
            "api", "A warm-up is created, in progress and completed, with usage and no output."
        ),
        "sequence.empty": Requirement(
            "case 15", "An empty answer is a completed response of one message with empty text."
        ),
        "sequence.incomplete": Requirement(
            "case 37", "Out of tokens is `response.incomplete`, and the open item is incomplete."
        ),
        "sequence.failed": Requirement(
            "case 38", "An engine that breaks gives one `response.failed` and frees the lane."
        ),
        "sequence.numbers": Requirement(
            "case 28", "Sequence numbers start at 0 in every response and have no gap."
        ),
        "sequence.ids": Requirement(
            "case 33", "Ids of items are the same in every event and in the terminal response."
        ),
        "sequence.no_markup": Requirement(
            "case 35", "Reasoning and a call are items; none of their markup is text."
        ),
        "sequence.snapshot": Requirement(
            "case 39", "The terminal response has every item that was done."
        ),
        "sequence.at_once": Requirement(
            "case 42", "The last token ends a turn, whatever its engine does afterwards."
        ),
        "response.members": Requirement(
            "api", "A response has every member that strict clients ask for."
        ),
        "usage.sum": Requirement(
            "case 102", "Usage counts the whole context, once, and its parts add up."
        ),
        "usage.reasoning": Requirement("case 98", "Usage says how many tokens were reasoning."),
        "usage.ledger": Requirement(
            "case 98", "Every response that began leaves one usage record, failed ones too."
        ),
        # Continuing.
        "chain.unstored": _persistent(
            "api", "`store: false` turns are chained on their connection, with all their context."
        ),
        "chain.older": _persistent(
            "api", "A lane keeps its newest unstored response only; an older one is not found."
        ),
        "chain.store": Requirement(
            "api", "A stored response is continued on any connection, after its own is gone too."
        ),
        "chain.store_wires": Requirement("turnwire", "A stored response is continued on any wire."),
        "chain.store_private": _persistent(
            "case 54", "An unstored response exists on its own connection only."
        ),
        "chain.store_context": _persistent(
            "api", "A stored child of an unstored parent is stored with its whole context."
        ),
        "chain.store_rendered": _persistent(
            "turnwire", "A response stored without its token ids is rendered to the same ids."
        ),
        "chain.missing": Requirement(
            "case 56", "An unknown parent is `previous_response_not_found` before engine work."
        ),
        "chain.recovery": Requirement(
            "case 57", "After a missing parent the whole history is taken where it was refused."
        ),
        "chain.outputs_alone": Requirement(
            "case 59", "Outputs alone continue their parent; without one they are a 400."
        ),
        "chain.expired": Requirement(
            "case 64", "A stored chain that expired is not found before engine work, and counted."
        ),
        "chain.missing_evicts_nothing": _persistent(
            "api", "`previous_response_not_found` evicts nothing."
        ),
        "chain.incomplete": Requirement("api", "An incomplete response can be continued."),
        "chain.instructions": Requirement("api", "Instructions are not inherited."),
        "chain.tools": Requirement("api", "Tools are not inherited."),
        "chain.item_reference": _persistent(
            "case 4", "An `item_reference` stands for an item of any cached conversation."
        ),
        "chain.item_reference_parent": Requirement(
            "case 4", "An `item_reference` finds items of the parent; unknown is a 404."
        ),
        "chain.item_reference_stored": Requirement(
            "turnwire", "An `item_reference` finds items of the stores, of its tenant alone."
        ),
        "evict.continuation": _persistent(
            "api", "A failed continuation on the same lane evicts its parent."
        ),
        "evict.undecodable": Requirement(
            "api",
            "JSON that is no create counts as a failed continuation when its parent can be read.",
            ("websocket",),
            "Elsewhere a create is a message, or the turn has no connection.",
        ),
        "evict.stored": Requirement("case 58", "A stored parent is found again after eviction."),
        "evict.not_without_parent": _persistent(
            "turnwire", "A failed turn without a parent evicts nothing."
        ),
        "fork.other_lane": _persistent(
            "api", "A fork copies another lane's newest response and leaves that lane alone."
        ),
        "fork.failed": _persistent("api", "A failed fork leaves the parent to its lane."),
        "fork.running": _persistent(
            "turnwire", "A fork of a running parent waits for it, and is not found if it fails."
        ),
        "fork.pinned": _persistent("turnwire", "A parent is pinned when its create is enqueued."),
        "warm_up.continue": _persistent(
            "case 66", "A warm-up is continued, with or without input, and its tokens are cached."
        ),
        "warm_up.twice": _persistent("case 66", "Warm-ups stay usable for later turns."),
        "warm_up.middle": _persistent("api", "A warm-up may come anywhere in a chain."),
        # Lanes.
        "lanes.fifo": _persistent("api", "Creates of a lane run one at a time, in order."),
        "lanes.parallel": _persistent("api", "Lanes run side by side."),
        "lanes.tagged": _persistent(
            "case 88", "Events name their lane; those of the default lane have no `stream_id`."
        ),
        "lanes.in_flight": _persistent("api", "16 turns run at once; the next one waits."),
        "lanes.names": _persistent("api", "32 names per connection; the next one is refused."),
        "lanes.overflow": _persistent(
            "case 87", "Beyond the queue's bounds a create is a 429 on its lane, nothing else."
        ),
        "lanes.fresh": _persistent("api", "A lane decides order and never lineage."),
        "lanes.walk": _persistent(
            "case 90", "Whatever a client does, a response has its own chain for a context."
        ),
        "lanes.errors_apart": _persistent("api", "An error touches its own lane only."),
        # Cancelling, and names of events.
        "cancel.running": _persistent(
            "turnwire", "A cancelled turn ends with one `response.incomplete` and is the head."
        ),
        "cancel.call": _persistent(
            "turnwire", "A call that was cut needs no output; one that was whole does."
        ),
        "cancel.lane": _persistent("turnwire", "A cancel without an id ends its lane's turn."),
        "cancel.queued": _persistent(
            "turnwire", "A create named by its `event_id` is withdrawn, or ended if it runs."
        ),
        "cancel.nothing": _persistent("turnwire", "With nothing to cancel there is no answer."),
        "cancel.refused_create": _persistent(
            "turnwire", "A cancel does not take the place of a create's own error."
        ),
        "cancel.at_once": _persistent(
            "turnwire", "A create that is cancelled at once is created and cancelled."
        ),
        "event_id.echo": _persistent(
            "turnwire", "`event_id` comes back in `response.created` and on errors."
        ),
        "event_id.once": _persistent("turnwire", "A repeated `event_id` is never run twice."),
        "event_id.retry": _persistent(
            "turnwire", "A create that never got in line may be sent again under its `event_id`."
        ),
        "events.strict_types": Requirement(
            "api A, 16.4",
            "Every event is strictly valid by the official types; the core by Open Responses too.",
            _JSON,
            "They describe JSON.",
        ),
        "events.strict_session_types": Requirement(
            "api A, 16.4",
            "So are the events that only sessions have.",
            ("websocket",),
            "They describe JSON, of a session.",
        ),
        "events.sdk_types": Requirement(
            "case 32",
            "Every event is valid by the official SDK's types.",
            _JSON,
            "They describe JSON.",
        ),
        # Other client events.
        "events.steer": _persistent(
            "api", "A steer is answered by its own failure, never by an error event."
        ),
        "events.inject": _persistent(
            "api", "An inject is answered by its own failure, never by an error event."
        ),
        "events.malformed": _persistent(
            "api", "A malformed steer or inject is answered by its own failure too, in sequence."
        ),
        "events.malformed_json": Requirement(
            "turnwire",
            "A steer that only a lenient parser reads is known for one.",
            ("websocket",),
            "Elsewhere an event is a message.",
        ),
        "events.append": _persistent("turnwire", "An append that nothing waits for is an error."),
        "events.processed": _persistent("case", "`response.processed` is never answered."),
        "session.start": _persistent("turnwire", "A session is started first or not at all."),
        # Errors.
        "errors.settings": Requirement("api", "A bad setting is one error: code, status, param."),
        "errors.items": Requirement("case 6", "A bad item is one error with its exact path."),
        "errors.items_unsupported": Requirement(
            "case 3", "An item type that is known and not supported is a 400 that names it."
        ),
        "agents.turns": _persistent(
            "api", "Coding agents work as they are: their frames, tools, warm-ups and ids."
        ),
        "circles": Requirement(
            "turnwire", "An answer that its engine ended because it went in circles is a warning."
        ),
        "input.images": Requirement("api", "Images are taken by models that take them."),
        "errors.images": Requirement(
            "api", "A model that takes text only refuses an image, with its exact path."
        ),
        "errors.tools": Requirement("api", "A bad tool is one error with its exact path."),
        "errors.tool_choice": Requirement("case 51", "A bad `tool_choice` is one error."),
        "errors.http_only": Requirement(
            "turnwire",
            "Lanes, warm-ups and rollouts are refused over HTTP.",
            ("http",),
            "Elsewhere they are what the wire is for.",
        ),
        "errors.background": _persistent(
            "api 3.1", "A response in the background needs a request of its own."
        ),
        "errors.lane_names": _persistent("api", "A bad lane name is refused without a lane."),
        "errors.lane_order": _persistent(
            "turnwire", "A create that is refused is answered in its lane's order."
        ),
        "errors.context": Requirement("api", "An input beyond the context is refused."),
        "errors.nothing_asked": Requirement(
            "api", "Nulls, members that ask for nothing and unknown members are accepted."
        ),
        "errors.shape": Requirement(
            "case 18", "JSON of a wrong shape is one error with its exact path.", _JSON, _NO_JSON
        ),
        "errors.json": Requirement(
            "case 96", "What is no JSON object is one error.", _JSON, _NO_JSON
        ),
        "errors.json_text": Requirement(
            "turnwire",
            "A field of JSON text that holds none is one error.",
            ("grpc",),
            "JSON cannot say it.",
        ),
        "errors.surrogates": Requirement(
            "case 24", "A paired escape is a character.", _JSON, _NO_JSON
        ),
        "errors.bounded": Requirement(
            "case 2", "An error is under 4 KiB, whatever was sent.", _JSON, _NO_JSON
        ),
        "errors.labels_bounded": _persistent(
            "case 2", "Names that a client chose are not echoed without a bound."
        ),
        "errors.event_types": Requirement(
            "case 18",
            "An event of an unknown kind is one error.",
            ("websocket",),
            "A message has no unknown type, and HTTP has no events.",
        ),
        "errors.frame": Requirement(
            "case 41",
            "An error frame is `type`, `status` and `error`, and its lane.",
            ("websocket",),
            "gRPC has a message for it, and HTTP a status and a body.",
        ),
        "errors.binary": Requirement(
            "case 18", "A binary frame is read as JSON.", ("websocket",), "Only it has frames."
        ),
        # Going away.
        "leave.disconnect": Requirement(
            "case 80", "A disconnect cancels the generation in prefill, at first and mid-stream."
        ),
        "leave.disconnect_many": _persistent(
            "api", "A disconnect ends every lane and drops what waits."
        ),
        "leave.disconnect_others": Requirement(
            "api", "A disconnect leaves other connections alone."
        ),
        "leave.deadline": Requirement(
            "case 114",
            "A call whose deadline expires is cancelled, in its engine too.",
            ("grpc",),
            "Only gRPC has deadlines.",
        ),
        "leave.close": Requirement(
            "case 80",
            "A close, whatever its code, cancels every turn of a plain session.",
            ("websocket",),
            "Only a WebSocket is closed with a code.",
        ),
        "leave.same_call": Requirement(
            "turnwire",
            "Engines are told in the very call that says that the peer is gone.",
            _MEMORY,
            _INSIDE,
        ),
        "leave.half_close": Requirement(
            "case 106",
            "A half-close finishes what is queued, then the stream ends well.",
            _HALF_CLOSE,
            "A WebSocket is closed both ways at once.",
        ),
        "leave.half_close_error": Requirement(
            "case 106",
            "A half-close waits for errors too.",
            _HALF_CLOSE,
            "A WebSocket is closed both ways at once.",
        ),
        # Text.
        "unicode.split": Requirement("case 19", "A character split over tokens arrives whole."),
        "unicode.cut": Requirement(
            "case 23", "A character that is cut is one U+FFFD in delta, done and item alike."
        ),
        "unicode.no_repeat": Requirement(
            "case 21", "What was said is never said again when a split character is whole."
        ),
        "unicode.calls": Requirement("case 19", "Characters of calls arrive whole."),
        "unicode.input": Requirement("case 24", "A client's text arrives as it was sent."),
        # Tools.
        "tools.choice": Requirement("case 51", "`tool_choice` decides what is called."),
        "tools.choice_alone": Requirement(
            "case 16", "Without tools `auto` and `none` ask for nothing; `required` is one error."
        ),
        "tools.choice_enforced": Requirement(
            "case 51", "What is not allowed is not called, and a forced call is a constraint."
        ),
        "tools.parallel": Requirement(
            "case 52", "Several calls are answered together, in any order."
        ),
        "tools.pairs": Requirement(
            "case 48", "Calls and outputs are paired by parent and in full histories."
        ),
        "tools.answered_once": Requirement("case 52", "A call is answered once."),
        "tools.one_call": Requirement(
            "case 52", "`parallel_tool_calls: false` means one call at most."
        ),
        "tools.namespace": Requirement(
            "case 44", "A call of an inner tool has its name and its namespace apart."
        ),
        "tools.additional": Requirement(
            "api", "Tools of an `additional_tools` item may be called from then on."
        ),
        "tools.hosted": Requirement("case 46", "Hosted tools are dropped and reported."),
        "tools.extras": Requirement("case 47", "Unknown members of tools come back."),
        "tools.secrets": Requirement("turnwire", "Credentials of tools are not shown back."),
        # Cost.
        "timing.new_only": _persistent(
            "turnwire", "In a chain a turn renders its new tokens only, though all is resent."
        ),
        "timing.members": Requirement("turnwire", "Timing is there when it was asked for."),
        "timing.rerender": Requirement(
            "case 50", "A change of the head is named, and what came before is kept."
        ),
        "timing.one_pass": Requirement("case 61", "The engine gets each call and output once."),
        # Round trips.
        "round_trip.same_tokens": Requirement(
            "case 8", "Output that is sent back renders the same tokens as its continuation."
        ),
        "round_trip.kept": Requirement("case 8", "A chain of full histories goes on."),
        "round_trip.accepted": Requirement(
            "case 1", "History in every form that clients keep is accepted."
        ),
        "round_trip.trailing_reasoning": Requirement(
            "case 12", "Reasoning at the end of a history is dropped and reported."
        ),
        "round_trip.call_kept": Requirement("api", "Items keep the ids that clients gave them."),
        "round_trip.refusal": Requirement(
            "case 10", "A refusal in a history is accepted and told to the model."
        ),
        "prompt.order": Requirement(
            "case 14", "Instructions come first; developer and system messages stay in place."
        ),
        # Items.
        "items.assistant_parts": Requirement(
            "case 7", "Input parts of an assistant are taken, or refused by configuration."
        ),
        "items.pairs": Requirement(
            "api", "Calls of every tool that a client runs are told, and paired with outputs."
        ),
        "items.carried": Requirement(
            "turnwire", "Items that say nothing to a text model are kept and not told."
        ),
        "items.provider_calls": Requirement(
            "turnwire", "Calls that a provider ran are told with what they gave."
        ),
        "items.found_tools": Requirement(
            "api", "Tools that a tool search found may be called from then on."
        ),
        "items.approvals": Requirement(
            "api", "An approval must answer a request; a request may stay open."
        ),
        "items.configuration": Requirement(
            "api", "A `configuration_update` holds until a later one replaces it."
        ),
        "reasoning.sealed": Requirement(
            "case 11", "Sealed reasoning renders the same tokens when it comes back."
        ),
        "reasoning.tampered": Requirement(
            "case 11", "Sealed reasoning that was changed is a 400 at its path."
        ),
        "reasoning.summary": Requirement(
            "turnwire", "Reasoning can be shown as summaries, by configuration."
        ),
        "reasoning.tokens": Requirement(
            "case 98", "Reasoning tokens are the ids that gave reasoning, each once."
        ),
        "settings.grammar": Requirement(
            "turnwire", "A grammar that is not enforced is a warning; forcing a call on it a 400."
        ),
        "settings.sampling": Requirement(
            "turnwire", "Sampling parameters that an engine does not have are warnings."
        ),
        "prompts.filled": Requirement(
            "api", "A prompt template gives instructions, model and first messages."
        ),
        "prompts.refused": Requirement(
            "api", "A prompt template that cannot be filled is one error with its path."
        ),
        # Compaction.
        "compaction.threshold": Requirement(
            "api", "Beyond its threshold a context is compacted in the stream, and it goes on."
        ),
        "compaction.head": Requirement(
            "turnwire", "Instructions above the threshold do not compact every turn."
        ),
        "compaction.trigger": Requirement(
            "api", "A `compaction_trigger`, last in the input, gives one compaction item."
        ),
        "compaction.standalone": Requirement(
            "api", "`compact` gives the user's messages and one compaction item, for a new chain."
        ),
        "compaction.goes_on": Requirement(
            "case 68", "A conversation goes on from its compaction, by id and in full."
        ),
        "compaction.pairs": Requirement(
            "case 48", "Calls keep their outputs across a compaction; an orphan is a 400."
        ),
        "compaction.tampered": Requirement(
            "case 68", "A compaction that was changed is a 400 at its path."
        ),
        "compaction.restart": Requirement(
            "turnwire", "A compaction is opened by another server with the same key, by no other."
        ),
        "compaction.usage": Requirement(
            "case 101", "Usage counts the summary's tokens and the answer's, each once."
        ),
        "compaction.errors": Requirement(
            "turnwire", "What cannot be compacted is one error; one that breaks fails the turn."
        ),
        "compaction.cancel": _persistent(
            "turnwire", "A cancel amid a compaction leaves the conversation as it was."
        ),
        "compaction.screen": Requirement(
            "turnwire", "Nothing of a compaction leaves before the verdict on its input."
        ),
        "compaction.configuration": Requirement(
            "api", "A configuration in effect follows the compaction as a fresh item."
        ),
        # Conversations.
        "conversations.calls": Requirement(
            "api",
            "Conversations and their items have the calls and shapes of the official client.",
            ("http",),
            "Their calls are HTTP's.",
        ),
        "conversations.errors": Requirement(
            "api",
            "What cannot be done to a conversation is one error.",
            ("http",),
            "Their calls are HTTP's.",
        ),
        "conversations.create": Requirement(
            "api", "A create that names a conversation continues it and adds to it."
        ),
        "conversations.tokens": Requirement(
            "turnwire", "A turn of a conversation renders what is new, as in a chain."
        ),
        "conversations.unknown": Requirement(
            "api", "An unknown conversation is a 404; with a parent beside it a 400."
        ),
        "conversations.locked": Requirement(
            "turnwire", "A conversation of a response that runs is locked, and then free again."
        ),
        "conversations.failed": Requirement(
            "turnwire", "A turn that fails adds nothing to its conversation."
        ),
        "conversations.screened": Requirement(
            "turnwire", "Items that come without a turn are read by the next turn's screen."
        ),
        "conversations.rollout": _persistent(
            "turnwire", "A rollout is in its conversation in the order in which it happened."
        ),
        "conversations.compacted": Requirement(
            "turnwire", "A compacted conversation lists all items and tells the model the summary."
        ),
        # Truncation.
        "truncation.auto": Requirement(
            "api", "With `truncation: auto` whole turns are left out, oldest first, with a warning."
        ),
        "truncation.pairs": Requirement(
            "api", "Truncation never parts a call from its output, nor drops the head."
        ),
        "truncation.disabled": Requirement(
            "api", "Without it an input beyond the context is `context_length_exceeded`."
        ),
        "truncation.last_turn": Requirement(
            "turnwire", "A last turn that does not fit by itself is refused with `auto` too."
        ),
        "truncation.kept": Requirement(
            "turnwire", "What was left out stays out, and the next turn renders what is new."
        ),
        "count.same": Requirement("api", "`input_tokens` counts exactly what a create renders."),
        # Long connections.
        "silence.keepalive": Requirement(
            "api",
            "A silent turn gives `keepalive` events that count in its sequence.",
            ("memory", "websocket"),
            "Others have signs of life of their own.",
        ),
        "silence.in_progress": Requirement(
            "turnwire",
            "A sign of life may be `response.in_progress` once more.",
            ("memory", "websocket"),
            "Others have signs of life of their own.",
        ),
        "silence.off": Requirement(
            "case 71",
            "Strict clients can have no sign of life.",
            ("memory", "websocket"),
            "Others have signs of life of their own.",
        ),
        "silence.heartbeat": Requirement(
            "case 70", "A silent stream gets empty frames.", ("grpc",), "Only it has frames."
        ),
        "age.idle": _persistent("api", "An old connection gets one error and is closed."),
        "age.running": _persistent(
            "case 69", "At the age limit creates are refused and a running turn may finish."
        ),
        "age.cut": _persistent("turnwire", "A turn that outlives the grace ends cancelled."),
        "age.go_away": _persistent(
            "turnwire", "gRPC clients and clients with a session are told to go away first."
        ),
        "slow.nothing_lost": Requirement("case 91", "A slow reader loses nothing."),
        "slow.bounded": Requirement(
            "case 91",
            "A reader that stops holds back the engines; what waits is bounded.",
            _MEMORY,
            _INSIDE,
        ),
        "slow.overrun": Requirement(
            "turnwire",
            "A reader too far behind gets `slow_consumer`, never a gap.",
            _MEMORY,
            "Elsewhere the system buffers an unknown amount.",
        ),
        "slow.gone": Requirement(
            "case 109", "A reader that leaves while much waits for it ends its turns."
        ),
        # Rollouts.
        "rollout.sequence": _persistent(
            "turnwire", "A rollout pauses with `response.done`, and one sequence goes on."
        ),
        "rollout.same_tokens": _persistent(
            "turnwire", "A rollout gives the engine the very prompts that a chain of turns does."
        ),
        "rollout.once": _persistent(
            "turnwire", "A rollout is validated, stored and accounted for once."
        ),
        "rollout.usage": _persistent(
            "case 101", "Usage of a rollout sums its rounds and counts nothing twice."
        ),
        "rollout.continue": _persistent(
            "turnwire", "A rollout is continued like any response, stored or not."
        ),
        "rollout.lanes": _persistent(
            "turnwire", "A paused rollout keeps its own lane and no other."
        ),
        "rollout.append_errors": _persistent(
            "turnwire", "An append that cannot be used is one error, and the pause stands."
        ),
        "rollout.cancel": _persistent(
            "turnwire", "A cancel ends a paused rollout; a disconnect cuts it."
        ),
        "rollout.timeout": _persistent(
            "turnwire", "A rollout that waits too long ends incomplete and can be continued."
        ),
        "rollout.half_close": Requirement(
            "turnwire",
            "With a half-close nothing can be appended any more: paused rollouts are cancelled.",
            _HALF_CLOSE,
            "A WebSocket is closed both ways at once.",
        ),
        "rollout.limits": _persistent(
            "turnwire", "`max_output_tokens` holds for the whole rollout."
        ),
        "rollout.forced": _persistent(
            "turnwire", "A forced call is for a rollout's first round only."
        ),
        "rollout.screen": _persistent(
            "turnwire", "What is appended is screened before the output that answers it."
        ),
        "rollout.broken": _persistent("turnwire", "A rollout whose engine breaks fails once."),
        # Half-dead peers.
        "silence.dead": Requirement(
            "case 109",
            "A peer that answers no ping is found; its turns are cancelled, its memory given back.",
            ("grpc", "websocket"),
            "There is nobody to ping in memory, and an HTTP request is one turn.",
        ),
        "silence.dead_resumable": Requirement(
            "turnwire",
            "A peer that answers no ping has lost its connection, not its session.",
            ("grpc", "websocket"),
            "There is nobody to ping in memory, and an HTTP request is one turn.",
        ),
        # Resuming.
        "resume.start": _persistent(
            "turnwire", "Who asks for resume gets a token and a grace; nobody else does."
        ),
        "resume.exactly": _persistent(
            "case 84", "Wherever a connection is lost, the missed events come once and in order."
        ),
        "resume.live": _persistent(
            "turnwire", "Behind the missed events the turn goes on as if nothing had happened."
        ),
        "resume.lanes": _persistent(
            "turnwire", "Each lane goes on where its client stopped, and queued creates run."
        ),
        "resume.errors": _persistent(
            "turnwire", "An error that nobody saw is sent again, in its lane's order."
        ),
        "resume.rollout": _persistent(
            "turnwire", "A paused rollout and its steers survive a lost connection."
        ),
        "resume.announced": _persistent(
            "case 80", "A client that says that it goes cancels its turns at once, token or not."
        ),
        "resume.half_close": Requirement(
            "case 106",
            "A half-close finishes what is queued, token or not.",
            _HALF_CLOSE,
            "A WebSocket is closed both ways at once.",
        ),
        "resume.refused": _persistent(
            "turnwire",
            "A wrong id, a wrong token, another tenant and an expired session are one error.",
        ),
        "resume.tenant": Requirement(
            "case 117", "A token is worth nothing to another tenant.", _MEMORY, _INSIDE
        ),
        "resume.again": _persistent(
            "turnwire", "After a resume that was refused a session can be started or resumed."
        ),
        "resume.grace": _persistent(
            "turnwire", "When nobody comes within the grace everything is cancelled and forgotten."
        ),
        "resume.gap": _persistent(
            "turnwire", "Events that are no longer kept are a gap, and the session is over."
        ),
        "resume.taken_over": _persistent(
            "turnwire", "The newest connection wins, and the older one is told."
        ),
        "resume.age": _persistent(
            "turnwire", "A resumable session outlives the age limit of its connection uncut."
        ),
        "resume.room": Requirement(
            "turnwire",
            "Beyond the bound the session that has waited longest ends.",
            _MEMORY,
            _INSIDE,
        ),
        "resume.memory": Requirement(
            "turnwire",
            "Of a session that is over nothing is left in memory.",
            ("grpc", "websocket"),
            "In memory the peer itself holds the connection.",
        ),
        "resume.input": _persistent(
            "turnwire", "A client event that the lost connection brought is not lost."
        ),
        "repeat.running": _persistent(
            "turnwire", "A create that is sent again while it waits or runs is run once."
        ),
        "repeat.over": _persistent(
            "turnwire", "A create that is sent again after its end is answered as it ended."
        ),
        "repeat.turned_away": _persistent(
            "turnwire", "A create that was refused for the moment may be sent again and runs."
        ),
        "repeat.not_kept": _persistent(
            "turnwire", "A create whose end is no longer kept is not run again."
        ),
        # Steering.
        "steer.text": _persistent(
            "case 86", "A steered answer ends, and its successor has the steers as input."
        ),
        "steer.boundary": _persistent(
            "case 86", "A steered response ends with the item that the model is writing."
        ),
        "steer.pending": _persistent(
            "case 86", "Where calls wait for outputs, steers wait for the create that has them."
        ),
        "steer.order": _persistent(
            "api", "A successor comes before what is queued, and steers keep their order."
        ),
        "steer.failed": _persistent(
            "case 86", "A steer that cannot be applied is answered by its own failure."
        ),
        "steer.not_applied": _persistent(
            "api", "Steers of a response that fails or is cancelled are given back."
        ),
        "steer.rollout": _persistent(
            "turnwire", "Steers of a rollout are applied at its pause, before what is appended."
        ),
        "steer.leave": Requirement(
            "api",
            "A half-close waits for the successor.",
            _HALF_CLOSE,
            "A WebSocket is closed both ways at once.",
        ),
    }
)


_ELSEWHERE: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {
        26: (
            "tests/adapters/renderers/test_detokenizer.py::test_a_lone_surrogate_never_comes_out",
        ),
        31: (
            "tests/client/test_openai_sdk.py"
            "::test_the_sdk_accumulates_a_stream_and_continues_it_by_id",
        ),
        39: (
            "tests/client/test_session.py"
            "::test_an_empty_terminal_output_is_made_of_the_items_that_were_done",
        ),
        63: (
            "tests/client/openai/test_transport.py::test_a_lost_session_is_replaced",
            "tests/client/openai/test_transport.py"
            "::test_a_session_that_has_moved_on_gets_the_full_input",
        ),
    }
)
"""Tests of cases outside this folder: what a client does, or what no wire can be made to do."""

_ALSO: Mapping[int, tuple[str, ...]] = MappingProxyType({30: ("sequence.text",)})
"""Requirements that prove a case and have another source."""

_CASES = """
    1 2 3 4 6 7 8 10 11 12 14 15 16 18 19 21 23 24 26 28 29 30 31 32 33 35 37 38 39 41 42
    44 46 47 48 50 51 52 54 56 57 58 59 61 63 64 66 68
"""
KNOWN_CASES = tuple(map(int, _CASES.split()))
"""Numbers of the cases about items, text, streams, tools and chains, which all need a proof."""


def proofs_of(case: int) -> tuple[str, ...]:
    """Return what proves a case: ids of requirements, and `file::test` elsewhere."""
    here = tuple(name for name, one in REQUIREMENTS.items() if one.source == f"case {case}")
    return here + _ALSO.get(case, ()) + _ELSEWHERE.get(case, ())


def requirement(identifier: str) -> pytest.MarkDecorator:
    """Return the mark of a test that proves a requirement."""
    if identifier not in REQUIREMENTS:
        raise KeyError(identifier)
    return pytest.mark.requirement(identifier)
