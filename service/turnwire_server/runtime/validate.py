"""Checking a create: the session's rules, with the models and the earlier items at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, response_pb2
from turnwire_server.ports.engine import Constraint, TurnOutline
from turnwire_server.ports.renderer import RenderRequest, ToolForce
from turnwire_server.runtime.known_settings import (
    CheckedSettings,
    KnownSettings,
    check_settings,
)
from turnwire_server.runtime.prompts import PromptTemplates, StoredPrompt
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resolve import FindItem, Parent
from turnwire_server.session.checked_input import check_message_alone
from turnwire_server.session.configuration import apply_configuration
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.create_rules import check_create, check_own
from turnwire_server.session.errors import Rejection
from turnwire_server.session.item_rules import ItemRules
from turnwire_server.session.sealed import Unseal, unseals_nothing
from turnwire_server.session.shown import shown_items
from turnwire_server.session.tool_choice import CheckedChoice
from turnwire_server.session.tool_rules import ToolCatalogue
from turnwire_server.session.tools import ToolSet

__all__ = ["CheckedCreate", "Validator"]

Create = client_event_pb2.ResponseCreate

_SIM_SCRIPT = "turnwire.sim"


@dataclass(slots=True)  # not frozen: made per turn, and that takes thrice as long
class CheckedCreate:
    """A create that may run."""

    create: Create
    model: ServedModel
    settings: CheckedSettings
    conversation: Conversation
    """The parent's conversation followed by the new input."""
    items: tuple[item_pb2.Item, ...]
    """The new input."""
    tools: ToolSet
    callable_tools: ToolSet
    """The tools that the turn may call: those that `tool_choice` allows."""
    choice: CheckedChoice
    text_format: Constraint | None
    shown_settings: bytes
    """What the response shows of its settings: a serialized `Response`."""
    warnings: tuple[response_pb2.Warning, ...]
    context_length: int
    """Most tokens that its engine takes, the output included."""
    is_warm_up: bool
    unseal: Unseal = unseals_nothing
    """Opens what this server sealed."""
    covered: int | None = None
    """Not None when a compaction among `items` stands in the place of everything before it: its
    index."""
    is_compaction: bool = False
    """Whether the turn compacts the conversation and generates nothing else."""
    compact_threshold: int | None = None
    """Tokens of the prompt from which on the context is compacted first; None for never."""

    @property
    def wants_sealed_reasoning(self) -> bool:
        """Whether reasoning items shall have `encrypted_content`."""
        return self.settings.wants_sealed_reasoning

    @property
    def is_filled(self) -> bool:
        """Whether a template or a configuration may have made the create longer than it came."""
        return bool(self.conversation.configuration) or self.create.HasField("prompt")

    @property
    def takes_steers(self) -> bool:
        """Whether the response may be steered."""
        create = self.create
        if self.is_warm_up or create.HasField("conversation") or create.context_management:
            return False
        return self.model.takes_steers

    @property
    def is_stored(self) -> bool:
        """Whether the response outlives its session."""
        return self.settings.is_stored

    @property
    def force(self) -> ToolForce | None:
        """The call that the turn must begin with."""
        if self.choice.mode != "required":
            return None
        names = tuple(tool.qualified_name for tool in self.callable_tools.tools)
        return ToolForce(names, parallel=self.settings.is_parallel)

    def render_request(self, parent: Parent) -> RenderRequest:
        """Return what the renderer gets."""
        is_covered = self.covered is not None
        return RenderRequest(
            new_items=self.shown(self.items[self.covered or 0 :]),
            history=lambda: [] if is_covered else self.shown(parent.conversation.items()),
            previous=None if is_covered else parent.prompt,
            instructions=self.create.instructions,
            tools=self.tools,
            force=self.force,
            text_format=self.text_format,
            parallel_calls=self.settings.is_parallel,
            generate=not self.is_warm_up,
        )

    def shown(self, items: Sequence[item_pb2.Item]) -> Sequence[item_pb2.Item]:
        """Return what the model is told of `items`."""
        return shown_items(items, self.unseal)

    def parser_request(self, request: RenderRequest) -> RenderRequest:
        """Return the same turn for the output parser, which may recognise allowed tools only."""
        if self.callable_tools is request.tools:
            return request
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
    """Applies the rules to creates; tools and settings that were checked before are known."""

    def __init__(
        self,
        models: ModelRegistry,
        new_id: Callable[[str], str],
        *,
        strict_content: bool,
        unseal: Unseal = unseals_nothing,
        prompts: Sequence[StoredPrompt] = (),
    ) -> None:
        """Make a validator for the models of this server.

        Args:
            models: The models.
            new_id: Returns a new id with the given prefix.
            strict_content: Whether assistant messages may hold `output_text` and `refusal` only.
            unseal: Opens what this server sealed.
            prompts: The templates that creates may name.
        """
        self._models = models
        self._new_id = new_id
        self._strict = strict_content
        self._unseal = unseal
        self._tools = ToolCatalogue()
        self._settings = KnownSettings()
        self._prompts = PromptTemplates(prompts, new_id)

    def check(
        self,
        create: Create,
        parent: Parent,
        *,
        find_item: FindItem,
        stream_id: str | None,
        is_persistent: bool,
        is_warm_up: bool,
        before: Sequence[item_pb2.Item] = (),
    ) -> CheckedCreate | Rejection:
        """Check a create; work is proportional to what is new.

        Args:
            create: The create. What a prompt template or a configuration update says is written
                into it.
            parent: What it continues.
            find_item: Returns an earlier item by its id; see `resolve_references`.
            stream_id: Its lane.
            is_persistent: Whether it came over a stream that outlives it.
            is_warm_up: Whether nothing is to be generated.
            before: Messages, checked already, to be put before its input.
        """
        if create.HasField("prompt"):
            is_first = not parent.conversation.item_count
            templated = self._prompts.apply(create, is_first=is_first)
            if isinstance(templated, Rejection):
                return templated
            before = (*templated, *before)
        model = self._models.find(create.model)
        settings = self._settings.find(create, model, parent.conversation.added_tools)
        check = check_create if settings is None else check_own
        rejection = check(create, stream_id=stream_id, is_persistent=is_persistent)
        if rejection is not None:
            return rejection
        if isinstance(model, Rejection):
            return model

        given = check_message_alone(
            create.input,
            parent.conversation,
            self._new_id,
            outputs_required=not is_warm_up,
            before=before,
        )
        if given is None:
            rules = ItemRules(
                self._new_id,
                find_item,
                self._tools,
                is_strict=self._strict,
                unseal=self._unseal,
                takes_images=(settings.engine if settings else model.engine.info).images,
            )
            given = rules.check_items(
                create.input.items.items,
                parent.conversation,
                outputs_required=not is_warm_up,
                before=before,
            )
        if isinstance(given, Rejection):
            return given
        if given.wants_compaction and is_warm_up:
            return Rejection(
                error_pb2.ERROR_REASON_INVALID_VALUE,
                "A compaction generates; it cannot be a warm-up.",
                param="generate",
            )
        conversation = parent.conversation.extended(given.items)
        if given.is_covering:  # a compaction takes the place of what it covers
            conversation = conversation.replaced_by(given.items[given.covered :])
        if conversation.configuration:
            apply_configuration(create, conversation.configuration)
            settings = None
        elif conversation.added_tools is not parent.conversation.added_tools:
            settings = self._settings.find(create, model, conversation.added_tools)
        if settings is None:
            checked = self._check_settings(create, model, conversation)
            if isinstance(checked, Rejection):
                return checked
            settings = checked
        return CheckedCreate(
            create=create,
            model=model,
            settings=settings,
            conversation=conversation,
            items=given.items,
            tools=settings.tools,
            callable_tools=settings.callable_tools,
            choice=settings.choice,
            text_format=settings.text_format,
            shown_settings=settings.shown,
            warnings=(*given.warnings, *settings.warnings),
            context_length=settings.engine.context_length,
            is_warm_up=is_warm_up,
            unseal=self._unseal,
            covered=given.covered if given.is_covering else None,
            is_compaction=given.wants_compaction,
            compact_threshold=settings.compact_threshold,
        )

    def knows_settings(self, event: bytes, create: Create | None = None) -> bool:
        """Return whether the settings of the create in a serialized `ClientEvent` passed before.

        Args:
            event: The bytes.
            create: What was read from them: `check` need not look for its settings again then.
        """
        return self._settings.has(event, create)

    def forget_settings(self) -> None:
        """Forget the settings that were checked: models were replaced."""
        self._settings.forget()

    def _check_settings(
        self, create: Create, model: ServedModel, conversation: Conversation
    ) -> CheckedSettings | Rejection:
        tools = self._tools.check(create.tools, conversation.added_tools)
        if isinstance(tools, Rejection):
            return tools
        settings = check_settings(create, model, tools)
        # What a configuration wrote into the create has not passed `check_create`.
        if not isinstance(settings, Rejection) and not conversation.configuration:
            self._settings.add(create, conversation.added_tools, settings)
        return settings
