"""The prompt format of the simulated model: ChatML-like, and it keeps prefixes.

`docs/sim.md` shows it. Every item is tokenized by itself and what was rendered or sampled
stays as it is, so the ids of a turn's prompt are always a prefix of the next turn's.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.adapters.renderers.call_members import forced_call_schema
from turnwire_server.adapters.renderers.image_facts import image_facts
from turnwire_server.adapters.renderers.item_text import content_text, part_text
from turnwire_server.adapters.renderers.sim_tokens import IM_END, sim_tokens
from turnwire_server.adapters.renderers.text_parser import TextParser
from turnwire_server.adapters.renderers.tool_calls import (
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    ToolCallParser,
)
from turnwire_server.ports.engine import Constraint, FinishReason
from turnwire_server.ports.renderer import (
    Rendered,
    RenderFailure,
    RenderRequest,
    RerenderReason,
)
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["CALL_OPENING", "SimParser", "SimRenderer"]

CALL_OPENING: Final = f"{CALL_OPEN}\n"
"""How a call begins; the end of the prompt when a call is forced."""

_TEMPLATE_VERSION: Final = "sim-chatml-1"
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_STOP_IDS: Final = frozenset({IM_END})
_HOW_TO_CALL: Final = (
    "# Tools\n\nYou may call these tools, one JSON object per line:\n<tools>\n{tools}\n</tools>\n\n"
    "To call one, write its name and its arguments:\n"
    '<tool_call>\n{{"name": …, "arguments": {{…}}}}\n</tool_call>\n'
    'A tool of type custom takes free-form text: {{"name": …, "input": "…"}}.'
)


_HeadKey = tuple[str, bytes]
"""Instructions, and the fingerprint of the tools."""


class _Head(NamedTuple):
    """The beginning of prompts: instructions and tools."""

    ids: TokenIds
    key: _HeadKey | None
    """What decides it, None for tools that have no fingerprint."""


class SimParser(TextParser):
    """Reads the output of one turn."""

    __slots__ = ()


class SimRenderer:
    """Renders for the simulated model (`ports.Renderer`)."""

    def __init__(self, *, max_cached_head_tokens: int = 1_000_000) -> None:
        """Load the vocabulary, once per process.

        Args:
            max_cached_head_tokens: Bound on the ids of heads kept (4 bytes each), so that
                instructions and tools that come again are not tokenized again.
        """
        self._tokens = sim_tokens()
        self._max_cached = max_cached_head_tokens
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        self._fingerprints: dict[_HeadKey, str] = {}
        """The key of each of `_heads`: to look it up is faster than to take its digests again."""
        self._cached = 0
        self._fingerprint = _digest(
            f"{_TEMPLATE_VERSION}\n{self._tokens.vocabulary.digest}\n{_HOW_TO_CALL}".encode()
        )
        encode = self._tokens.encode_template
        self._newline = encode("\n")
        self._close = tuple(encode("<|im_end|>\n"))
        self._headers = {role: encode(f"<|im_start|>{role}\n") for role in sorted(_ROLES)}
        self._response_open = encode("<tool_response>\n")
        self._response_close = encode("\n</tool_response>")
        self._opening = encode(CALL_OPENING)

    @property
    def fingerprint(self) -> str:
        """Digest of tokenizer and template."""
        return self._fingerprint

    @property
    def stop_ids(self) -> frozenset[int]:
        """The id that ends an assistant turn."""
        return _STOP_IDS

    @property
    def keeps_prefixes(self) -> bool:
        """Always; see `ports.Auditable`."""
        return True

    def cold(self) -> SimRenderer:
        """Return one that remembers no heads; see `ports.Auditable`."""
        fresh = copy.copy(self)
        fresh._heads, fresh._fingerprints, fresh._cached = OrderedDict(), {}, 0
        return fresh

    def render(self, request: RenderRequest) -> Rendered:
        """Render one turn; a new head costs the head, everything else only the new items.

        Raises:
            RenderFailure: an item or a part is of a kind that is not text.
        """
        fingerprint = self._full_fingerprint(request)
        previous = request.previous
        reason: RerenderReason = ""
        if previous is not None and previous.fingerprint != fingerprint:
            reason = _reason(previous, fingerprint)
        items: Iterable[item_pb2.Item] = request.new_items
        if previous is None or reason == "template":
            history = request.history()
            reason = reason or ("store" if history else "first")
            items = [*history, *request.new_items]
            ids = self._head(fingerprint, request)
            head_length, kept, is_open = len(ids), 0, False
            ids = TokenIds(ids.as_array())  # its own buffer: the cached head must not grow
        elif reason:
            head = self._head(fingerprint, request)
            kept_ids = previous.ids.as_array(previous.head_length)
            ids = TokenIds(head.as_array()).extended(kept_ids)
            head_length, kept, is_open = len(head), len(kept_ids), bool(previous.tail)
        else:
            ids, head_length = previous.ids, previous.head_length
            kept, is_open = len(ids), bool(previous.tail)

        new: list[int] = []
        for item in items:
            is_open = self._write_item(item, new, is_open=is_open)
        opening = ""
        if request.generate:
            new += self._newline if is_open else self._headers["assistant"]
            is_open = True
            if request.force is not None:
                opening = CALL_OPENING
                new += self._opening
        ids = ids.extended(new)
        return Rendered(
            prompt=Prompt(
                fingerprint=fingerprint,
                ids=ids,
                head_length=head_length,
                tail=self._close if is_open else (),
            ),
            rendered_tokens=len(ids) - kept,
            rerender_reason=reason,
            constraint=_constraint(request),
            opening=opening,
        )

    def parser(self, request: RenderRequest, rendered: Rendered) -> SimParser:
        """Return a parser for the output of this turn."""
        force = request.force
        return SimParser(
            self._tokens.token_bytes,
            ToolCallParser(
                request.tools,
                opening=rendered.opening,
                forced=force is not None,
                parallel=request.parallel_calls and (force is None or force.parallel),
                reasoning=True,
            ),
            opening=rendered.opening,
        )

    def sampled(self, rendered: Rendered, ids: Sequence[int], finish: FinishReason) -> Prompt:
        """Return the prompt after `ids` were sampled: verbatim, the turn left open."""
        # The end-of-turn id is part of the tail, so that more can join this assistant turn.
        kept = ids[:-1] if ids and ids[-1] == IM_END else ids
        prompt = rendered.prompt
        return Prompt(
            fingerprint=prompt.fingerprint,
            ids=prompt.ids.extended(kept),
            head_length=prompt.head_length,
            tail=self._close,
        )

    def count(self, text: str) -> int:
        """Return how many tokens `text` is."""
        return len(self._tokens.encode(text))

    def _full_fingerprint(self, request: RenderRequest) -> str:
        """Return renderer, instructions and tools, each as a digest of its own."""
        # Tools without a fingerprint have no key, and so are not among these.
        known = self._fingerprints.get((request.instructions, request.tools.fingerprint))
        if known is not None and (request.tools.fingerprint or not request.tools):
            return known
        instructions = _digest(request.instructions.encode())
        tools = request.tools
        tools_key = tools.fingerprint or repr(tools.tools).encode()
        return f"{self._fingerprint}.{instructions}.{_digest(tools_key) if tools else ''}"

    def _head(self, fingerprint: str, request: RenderRequest) -> TokenIds:
        head = self._heads.get(fingerprint)
        if head is not None:
            self._heads.move_to_end(fingerprint)
            return head.ids
        ids = TokenIds(self._render_head(request.instructions, request.tools))
        head = self._heads[fingerprint] = _Head(ids, _head_key(request))
        if head.key is not None:
            self._fingerprints[head.key] = fingerprint
        self._cached += len(ids)
        while self._cached > self._max_cached:
            _, dropped = self._heads.popitem(last=False)
            self._cached -= len(dropped.ids)
            if dropped.key is not None:
                del self._fingerprints[dropped.key]
        return ids

    def _render_head(self, instructions: str, tools: ToolSet) -> list[int]:
        if not instructions and not tools:
            return []
        encode = self._tokens.encode
        ids = [*self._headers["system"], *encode(instructions)]
        if tools:
            before, after = _HOW_TO_CALL.split("{tools}")
            template = self._tokens.encode_template
            ids += template(("\n\n" if instructions else "") + before)
            ids += encode("\n".join(_tool_line(tool) for tool in tools.tools))
            ids += template(after.format())
        return [*ids, *self._close]

    def _write_item(self, item: item_pb2.Item, out: list[int], *, is_open: bool) -> bool:
        """Append `item`; return whether an assistant turn is open behind it."""
        kind = item.WhichOneof("item")
        match kind:
            case "message":
                message = item.message
                role = message.role
                if role not in _ROLES:
                    raise RenderFailure("a message has a role that the model does not know")
                if role != "assistant":
                    self._write_turn(role, _shown_text(message.content), out, is_open=is_open)
                    return False
                body = self._tokens.encode(content_text(message.content))
            case "function_call":
                call = item.function_call
                member = f'"arguments": {call.arguments or "{}"}'
                body = self._call_body(call.namespace, call.name, member)
            case "custom_tool_call":
                custom = item.custom_tool_call
                member = f'"input": {json.dumps(custom.input, ensure_ascii=False)}'
                body = self._call_body(custom.namespace, custom.name, member)
            case "function_call_output":
                text = _shown_text(item.function_call_output.output)
                self._write_output(text, out, is_open=is_open)
                return False
            case "custom_tool_call_output":
                text = _shown_text(item.custom_tool_call_output.output)
                self._write_output(text, out, is_open=is_open)
                return False
            case "reasoning":
                body = self._reasoning_body(item.reasoning)
                if not body:
                    return is_open  # sealed or empty reasoning: nothing to show
            case _:
                raise RenderFailure(f"items of type {kind or 'unknown'} cannot be rendered")
        out += self._newline if is_open else self._headers["assistant"]
        out += body
        return True

    def _write_turn(self, role: str, text: str, out: list[int], *, is_open: bool) -> None:
        if is_open:
            out += self._close
        out += self._headers[role]
        out += self._tokens.encode(text)
        out += self._close

    def _write_output(self, text: str, out: list[int], *, is_open: bool) -> None:
        if is_open:
            out += self._close
        out += self._headers["user"]
        out += self._response_open
        out += self._tokens.encode(text)
        out += self._response_close
        out += self._close

    def _call_body(self, namespace: str, name: str, member: str) -> list[int]:
        qualified = ToolSpec(name, namespace=namespace or None).qualified_name
        template = self._tokens.encode_template
        text = f'{{"name": {json.dumps(qualified, ensure_ascii=False)}, {member}}}\n'
        return [*self._opening, *self._tokens.encode(text), *template(CALL_CLOSE)]

    def _reasoning_body(self, item: item_pb2.ReasoningItem) -> list[int]:
        text = "".join(map(part_text, item.content))
        if not text:
            return []
        template = self._tokens.encode_template
        return [*template(THINK_OPEN), *self._tokens.encode(text), *template(THINK_CLOSE)]


def _reason(previous: Prompt, fingerprint: str) -> RerenderReason:
    """Return why a prompt with this fingerprint cannot go on from `previous`."""
    before, now = previous.fingerprint.split("."), fingerprint.split(".")
    if len(before) != 3 or before[0] != now[0]:
        return "template"
    return "instructions" if before[1] != now[1] else "tools"


def _head_key(request: RenderRequest) -> _HeadKey | None:
    """Return what decides the head, None for tools that have no fingerprint."""
    tools = request.tools
    return (request.instructions, tools.fingerprint) if tools.fingerprint or not tools else None


def _shown_text(content: content_pb2.Content) -> str:
    """Return the text of what a client gave; in the place of an image, what is known of it."""
    if content.WhichOneof("value") != "parts":
        return content.text
    return "".join(map(_shown_part, content.parts.parts))


def _shown_part(part: content_pb2.ContentPart) -> str:
    if part.HasField("input_image"):
        return str(image_facts(part.input_image.image_url))
    return part_text(part)


def _tool_line(tool: ToolSpec) -> str:
    line: dict[str, object] = {"type": tool.kind, "name": tool.qualified_name}
    if tool.description:
        line["description"] = tool.description
    if tool.kind == "function":
        try:
            line["parameters"] = json.loads(tool.parameters or "{}")
        except ValueError:
            line["parameters"] = {}
    elif tool.grammar:
        line["format"] = {
            "type": "grammar",
            "syntax": tool.grammar_syntax,
            "definition": tool.grammar,
        }
    return json.dumps(line, ensure_ascii=False)


def _constraint(request: RenderRequest) -> Constraint | None:
    if request.force is not None and request.generate:
        return Constraint("json_schema", forced_call_schema(request.tools, request.force))
    return request.text_format if request.generate else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
