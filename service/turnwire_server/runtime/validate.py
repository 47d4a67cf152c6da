"""Checking a create: the session's rules, with the models and the earlier items at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, response_pb2, tool_pb2
from turnwire_server.ports.engine import Constraint, TurnOutline
from turnwire_server.ports.renderer import RenderRequest, ToolForce
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resolve import Parent
from turnwire_server.session.conversation import Conversation, shown_items
from turnwire_server.session.create_rules import TIMING, check_create
from turnwire_server.session.errors import Rejection
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.tool_choice import CheckedChoice, check_tool_choice
from turnwire_server.session.tool_rules import ToolCatalogue
from turnwire_server.session.tools import ToolSet

__all__ = ["CheckedCreate", "Validator"]

Create = client_event_pb2.ResponseCreate

_SIM_SCRIPT = "turnwire.sim"


@dataclass(frozen=True, slots=True)
class CheckedCreate:
    """A create that may run."""

    create: Create
    model: ServedModel
    conversation: Conversation
    """The parent's conversation followed by the new input."""
    items: tuple[item_pb2.Item, ...]
    """The new input."""
    tools: ToolSet
    callable_tools: ToolSet
    """The tools that the turn may call: those that `tool_choice` allows."""
    choice: CheckedChoice
    text_format: Constraint | None
    echo: tuple[tool_pb2.Tool, ...]
    warnings: tuple[response_pb2.Warning, ...]
    is_warm_up: bool

    @property
    def wants_timing(self) -> bool:
        """Whether the terminal event says where the time went."""
        return TIMING in self.create.include

    @property
    def is_stored(self) -> bool:
        """Whether the response outlives its session."""
        return self.create.store or not self.create.HasField("store")

    def render_request(self, parent: Parent) -> RenderRequest:
        """Return what the renderer gets."""
        parallel = self.create.parallel_tool_calls or not self.create.HasField(
            "parallel_tool_calls"
        )
        force = None
        if self.choice.mode == "required":
            names = tuple(tool.qualified_name for tool in self.callable_tools.tools)
            force = ToolForce(names, parallel=parallel)
        return RenderRequest(
            new_items=shown_items(self.items),
            history=lambda: shown_items(parent.conversation.items()),
            previous=parent.prompt,
            instructions=self.create.instructions,
            tools=self.tools,
            force=force,
            text_format=self.text_format,
            parallel_calls=parallel,
            generate=not self.is_warm_up,
        )

    def parser_request(self, request: RenderRequest) -> RenderRequest:
        """Return the same turn for the output parser, which may recognise allowed tools only."""
        return replace(request, tools=self.callable_tools)

    def outline(self) -> TurnOutline:
        """Return the plain facts of the turn for an engine that acts a part."""
        return TurnOutline(
            tools=self.callable_tools,
            tool_choice=self.choice.outline,
            tool_outputs=self.conversation.tool_outputs,
            last_user_text=self.conversation.last_user_text,
            script=self.create.metadata.get(_SIM_SCRIPT, ""),
        )


class Validator:
    """Applies the rules to creates; what was checked before is known by fingerprint."""

    def __init__(
        self, models: ModelRegistry, new_id: Callable[[str], str], *, strict_content: bool
    ) -> None:
        """Make a validator for the models of this server."""
        self._models = models
        self._new_id = new_id
        self._strict = strict_content
        self._tools = ToolCatalogue()

    def check(
        self,
        create: Create,
        parent: Parent,
        *,
        find_item: Callable[[str], item_pb2.Item | None],
        stream_id: str | None,
        is_persistent: bool,
        is_warm_up: bool,
    ) -> CheckedCreate | Rejection:
        """Check a create; work is proportional to what is new."""
        rejection = check_create(create, stream_id=stream_id, is_persistent=is_persistent)
        if rejection is not None:
            return rejection
        model = self._models.find(create.model)
        if isinstance(model, Rejection):
            return model

        def find(item_id: str) -> item_pb2.Item | None:
            return parent.conversation.find_item(item_id) or find_item(item_id)

        rules = ItemRules(self._new_id, find, self._tools, is_strict=self._strict)
        checked = rules.check(
            create.input if create.HasField("input") else None,
            parent.conversation,
            outputs_required=not is_warm_up,
        )
        if isinstance(checked, Rejection):
            return checked
        conversation = parent.conversation.extended(checked.items)
        tools = self._tools.check(create.tools, conversation.added_tools)
        if isinstance(tools, Rejection):
            return tools
        choice = check_tool_choice(
            create.tool_choice if create.HasField("tool_choice") else None, tools.tools
        )
        if isinstance(choice, Rejection):
            return choice
        text_format = _text_format(create, model)
        if isinstance(text_format, Rejection):
            return text_format
        warnings = (*checked.warnings, *tools.warnings, *_ignored(create))
        return CheckedCreate(
            create=create,
            model=model,
            conversation=conversation,
            items=checked.items,
            tools=tools.tools,
            callable_tools=_callable(tools.tools, choice),
            choice=choice,
            text_format=text_format,
            echo=tools.echo,
            warnings=warnings,
            is_warm_up=is_warm_up,
        )


def _callable(tools: ToolSet, choice: CheckedChoice) -> ToolSet:
    if choice.mode == "none":
        return ToolSet()
    if choice.allowed is None:
        return tools
    return ToolSet.of(
        tuple(tools.by_qualified_name[name] for name in choice.allowed), tools.fingerprint
    )


def _text_format(create: Create, model: ServedModel) -> Constraint | Rejection | None:
    match create.text.format.WhichOneof("format"):
        case "json_schema":
            constraint = Constraint("json_schema", create.text.format.json_schema.schema)
        case "json_object":
            constraint = Constraint("json_object", "")
        case _:
            return None
    if constraint.kind in model.engine.info.constraints:
        return constraint
    return Rejection(
        error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
        f"The model's engine cannot hold its text to {constraint.kind}.",
        param="text.format.type",
    )


def _ignored(create: Create) -> list[response_pb2.Warning]:
    warnings = []
    if create.top_logprobs or "message.output_text.logprobs" in create.include:
        warnings.append(
            response_pb2.Warning(
                code="logprobs_not_available",
                message="This server gives no log probabilities.",
                param="top_logprobs" if create.top_logprobs else "include",
            )
        )
    return warnings
