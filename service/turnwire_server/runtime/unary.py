"""The calls that match the HTTP API beside creating: get, delete, cancel, list, count, models."""

from __future__ import annotations

import asyncio
from functools import partial

from turnwire.v1 import (
    client_event_pb2,
    error_pb2,
    item_pb2,
    models_service_pb2,
    response_pb2,
    responses_service_pb2,
)
from turnwire_server.ports.engine import EngineFailure
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.screen import Verdict
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.background import DetachedTurn
from turnwire_server.runtime.commit import FLAGGED
from turnwire_server.runtime.compaction import CompactionPlan, plan_summary, write_summary
from turnwire_server.runtime.conversations import conversation_id_of
from turnwire_server.runtime.event_log import Gap
from turnwire_server.runtime.paging import PageRequest, page_of
from turnwire_server.runtime.prepare import Ready, prepare
from turnwire_server.runtime.resolve import Parent, resolve_references, stored_parent
from turnwire_server.runtime.screening import Screening
from turnwire_server.runtime.services import Services
from turnwire_server.runtime.spent import Spent
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.listed import listed_item
from turnwire_server.session.replay import is_over
from turnwire_server.session.responses import usage_of
from turnwire_server.session.sealed import Compacted

__all__ = ["UnaryApi"]


class UnaryApi:
    """Answers with the message, or with the `Rejection` that says why not."""

    def __init__(self, services: Services) -> None:
        """Make the calls of one server."""
        self._services = services

    async def get(self, response_id: str, *, tenant: str) -> response_pb2.Response | Rejection:
        """Return a stored response; one that runs without a client as it stands."""
        turn = self._services.detached.find(response_id, tenant=tenant)
        if turn is not None and turn.is_stored and (state := turn.state()) is not None:
            return state
        record = await self._find(response_id, tenant)
        if isinstance(record, Rejection):
            return record
        return response_pb2.Response.FromString(record.response)

    async def delete(
        self, response_id: str, *, tenant: str
    ) -> responses_service_pb2.DeleteResult | Rejection:
        """Forget a stored response; one that runs without a client ends first."""
        turn = self._services.detached.find(response_id, tenant=tenant)
        if turn is not None and turn.is_stored:
            turn.cancel()
            await turn.ended()
            self._services.detached.forget(response_id)
        else:
            record = await self._find(response_id, tenant)
            if isinstance(record, Rejection):
                return record
            if not record.is_over and record.owner != self._services.instance_id:
                return _elsewhere(response_id)  # it would be kept again at its end
        if not await self._services.store.delete(response_id, tenant=tenant):
            return _unknown(response_id)
        return responses_service_pb2.DeleteResult(id=response_id, object="response", deleted=True)

    async def cancel(self, response_id: str, *, tenant: str) -> response_pb2.Response | Rejection:
        """End a running response and return it; one that is over is returned as it is."""
        running = self._services.running.get(response_id)
        if running is not None and running[1].tenant == tenant:
            connection, run = running
            connection.cancel(response_id)
            response = await asyncio.shield(run.over)
            if response is not None:
                return response
        found = await self.get(response_id, tenant=tenant)
        if isinstance(found, Rejection) or is_over(found):
            return found
        return _elsewhere(response_id)

    async def find_stream(
        self, response_id: str, *, after: int | None, tenant: str
    ) -> DetachedTurn | response_pb2.Response | Rejection:
        """Return what can be streamed of a stored response.

        Args:
            response_id: Which.
            after: Number of the newest event that the client has, None for none.
            tenant: Who asks.

        Returns:
            A turn, all of whose events behind `after` are there or will come; else, for a client
            that has none, a response that is over.
        """
        turn = self._services.detached.find(response_id, tenant=tenant)
        if turn is not None and turn.is_stored:
            await turn.opening()
            if not isinstance(turn.missed(-1 if after is None else after), Gap):
                return turn
        response = await self.get(response_id, tenant=tenant)
        if isinstance(response, Rejection):
            return response
        if not is_over(response):
            return _events_gone("The events are not kept in this server process.")
        if after is not None:
            return _events_gone(f"The events behind number {after} are no longer kept.")
        return response

    async def list_input_items(
        self, request: responses_service_pb2.ListInputItemsRequest, *, tenant: str
    ) -> responses_service_pb2.ListInputItemsResult | Rejection:
        """List the items that a stored response was given."""
        record = await self._find(request.response_id, tenant)
        if isinstance(record, Rejection):
            return record
        limit = request.limit if request.HasField("limit") else None
        page = page_of(record.input_items, PageRequest(request.after, limit, request.order))
        if isinstance(page, Rejection):
            return page
        return responses_service_pb2.ListInputItemsResult(
            object="list",
            data=page.items,
            first_id=page.first_id,
            last_id=page.last_id,
            has_more=page.has_more,
        )

    async def count_input_tokens(
        self, create: client_event_pb2.ResponseCreate, *, tenant: str
    ) -> responses_service_pb2.CountInputTokensResult | Rejection:
        """Count the tokens of the whole prompt that `create` would have."""
        ready = await self._ready(create, tenant)
        if isinstance(ready, Rejection):
            return ready
        return responses_service_pb2.CountInputTokensResult(
            object="response.input_tokens", input_tokens=len(ready.rendered.prompt.ids)
        )

    async def compact(
        self, request: responses_service_pb2.CompactRequest, *, tenant: str
    ) -> responses_service_pb2.CompactResult | Rejection:
        """Let the model sum a conversation up; the result is the input of a new chain.

        Cancelling it cancels the generation.
        """
        services = self._services
        create = _create_of(request)
        ready = await self._ready(create, tenant)
        if isinstance(ready, Rejection):
            return ready
        plan = plan_summary(ready, services.settings.compaction)
        if isinstance(plan, Rejection):
            return plan
        result_id, spent = services.new_id("resp_"), Spent()
        created_at = services.clock.wall()
        services.ledger.open(result_id, tenant, create.model, created_at)
        status = "failed"
        try:
            outcome = await self._summary(plan, result_id, spent)
            status = "completed" if isinstance(outcome, str) else "failed"
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            record = self._record(result_id, tenant, create.model, status, spent, created_at)
            services.ledger.settle(record)
            close = partial(services.ledger.close_record, record)
            services.afterwork.soon(close, response_id=result_id)
        if isinstance(outcome, Rejection):
            return outcome
        sealed = services.seal_compaction(Compacted(outcome))
        result = responses_service_pb2.CompactResult(
            id=result_id,
            object="response.compaction",
            output=[
                listed_item(item)
                for item in ready.checked.conversation.items()
                if item.WhichOneof("item") == "message" and item.message.role == "user"
            ],
            usage=usage_of(
                input_tokens=spent.input_tokens,
                cached_tokens=spent.cached_tokens,
                output_tokens=spent.output_tokens,
                reasoning_tokens=spent.reasoning_tokens,
            ),
        )
        result.created_at.seconds = created_at
        compaction = result.output.add().compaction
        compaction.id, compaction.encrypted_content = services.new_id("cmp_"), sealed
        return result

    async def _ready(
        self, create: client_event_pb2.ResponseCreate, tenant: str
    ) -> Ready | Rejection:
        """Return the prompt that `create` would have."""
        services = self._services
        parent = Parent()
        if create.previous_response_id:
            found = await stored_parent(create.previous_response_id, services.store, tenant)
            if isinstance(found, Rejection):
                return found
            parent = found
        elif conversation_id := conversation_id_of(create):
            named = await services.conversations.find(conversation_id, tenant=tenant)
            if isinstance(named, Rejection):
                return named
            parent = Parent.of(named)
        find_item = await resolve_references(
            create.input,
            parent.conversation.find_item,
            services.store,
            services.conversations,
            tenant,
        )
        checked = services.validator.check(
            create,
            parent,
            find_item=find_item,
            stream_id=None,
            is_persistent=False,
            is_warm_up=False,
        )
        return checked if isinstance(checked, Rejection) else prepare(checked, parent)

    async def _summary(self, plan: CompactionPlan, result_id: str, spent: Spent) -> str | Rejection:
        """Return what the model writes, unless the screen refuses what it shall sum up."""
        services, checked = self._services, plan.checked
        engine = checked.model.engine
        request = plan.engine_request(result_id, result_id, services.settings.max_pending_tokens)
        checked.model.leases.take()
        generation = engine.generate(request)
        screening: Screening | None = None
        if services.screen is not None:
            conversation = checked.conversation
            unscreened = [item_pb2.Item.FromString(one) for one in conversation.unscreened]
            check = services.screen.check(
                conversation.screen_state,
                checked.shown((*unscreened, *checked.items)),
                instructions=checked.create.instructions,
            )
            screening = Screening(check, on_refusal=generation.cancel)
        verdict: Verdict | None = None

        async def may_go_on() -> bool:
            nonlocal verdict
            if screening is None:
                return True
            verdict = await screening.verdict()
            return verdict is not None and verdict.allowed

        try:
            summary = await write_summary(generation, plan, spent, may_go_on=may_go_on)
        finally:
            checked.model.leases.give_back()
            if screening is not None:
                screening.stop()
        if summary is not None:
            return summary
        if verdict is not None and not verdict.allowed:
            return Rejection(
                error_pb2.ERROR_REASON_INVALID_PROMPT, verdict.refusal or FLAGGED, param="input"
            )
        raise EngineFailure("the engine stopped a summary")

    def list_models(self) -> models_service_pb2.ListModelsResult:
        """List the models by name."""
        return models_service_pb2.ListModelsResult(
            object="list", data=[model.message() for model in self._services.models.models]
        )

    def get_model(self, name: str) -> models_service_pb2.Model | Rejection:
        """Return one model."""
        model = self._services.models.find(name)
        return model if isinstance(model, Rejection) else model.message()

    def _record(
        self,
        result_id: str,
        tenant: str,
        model: str,
        status: str,
        spent: Spent,
        created_at: int,
    ) -> UsageRecord:
        return UsageRecord(
            response_id=result_id,
            tenant=tenant,
            model=model,
            status=status,
            input_tokens=spent.input_tokens,
            cached_tokens=spent.cached_tokens,
            output_tokens=spent.output_tokens,
            reasoning_tokens=spent.reasoning_tokens,
            created_at=created_at,
            closed_at=self._services.clock.wall(),
        )

    async def _find(self, response_id: str, tenant: str) -> StoredResponse | Rejection:
        record = await self._services.store.get(response_id, tenant=tenant)
        return record if record is not None else _unknown(response_id)


def _create_of(request: responses_service_pb2.CompactRequest) -> client_event_pb2.ResponseCreate:
    """Return the create whose conversation a request wants to be shorter."""
    create = client_event_pb2.ResponseCreate(store=False)
    if request.HasField("model"):
        create.model = request.model
    if request.HasField("input"):
        create.input.CopyFrom(request.input)
    if request.previous_response_id:
        create.previous_response_id = request.previous_response_id
    if request.HasField("instructions"):
        create.instructions = request.instructions
    return create


def _elsewhere(response_id: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_RESPONSE_NOT_ACTIVE,
        f"Response with id {quoted(response_id)} runs on another server process; only that can "
        "cancel it.",
        param="response_id",
    )


def _events_gone(why: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_RESUME_GAP,
        f"{why} Get the response without `stream`.",
        param="starting_after",
        headers={"x-should-retry": "false"},  # clients try most answers with 409 again
    )


def _unknown(response_id: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
        f"Response with id {quoted(response_id)} not found.",
        param="response_id",
    )
