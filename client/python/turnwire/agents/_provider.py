"""The provider and its models."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from agents.models.interface import Model, ModelProvider
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

from turnwire.openai import Transport, TransportStats
from turnwire.openai._httpx import httpx

__all__ = ["Provider", "SessionModel"]

# Never looked up: the transport has the server's address.
_BASE_URL = "http://turnwire.invalid/v1"
_TIMEOUT_S = 600.0


class SessionModel(OpenAIResponsesModel):
    """A model behind a session.

    What the runner asks for is turned into a request, and the answer into the runner's types, by
    the package's own model for the Responses API; only the wire under it is another.
    """


class Provider(ModelProvider):
    """Gives `openai-agents` its models: `RunConfig(model_provider=Provider("grpc://…"))`.

    Each conversation has a session of its own. Leave it as a context manager, or call `aclose`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        root_certificates: bytes | None = None,
        max_sessions: int = 32,
        idle_expiry_s: float = 300.0,
        timeout_s: float = _TIMEOUT_S,
        max_retries: int = 2,
    ) -> None:
        """Make a provider; nothing is opened before the first turn.

        Args:
            url: `grpc://host:port`, `grpcs://…`, `ws://…` or `wss://…`.
            api_key: Sent as a bearer token.
            model: The model of agents that name none.
            headers: More headers, or gRPC metadata.
            root_certificates: PEM of the authorities to trust instead of the system's.
            max_sessions: Most sessions at a time; further turns wait for one.
            idle_expiry_s: A session without a turn for so long is closed.
            timeout_s: Longest silence within a turn.
            max_retries: How often a turn is tried again after a lost connection or an error that
                may pass, before any of it was shown.

        Raises:
            ValueError: `url` is no such URL, or a bound is not positive.
        """
        self._model = model
        self._transport = Transport(
            url,
            headers=headers,
            root_certificates=root_certificates,
            max_sessions=max_sessions,
            idle_expiry_s=idle_expiry_s,
        )
        http_client = httpx.AsyncClient(
            transport=self._transport,
            timeout=timeout_s,
            event_hooks={} if api_key else {"request": [_without_key]},
        )
        self._client = AsyncOpenAI(
            # The SDK insists on a key, and would take one of another service from the environment.
            api_key=api_key or "none",
            base_url=_BASE_URL,
            http_client=http_client,
            timeout=timeout_s,
            max_retries=max_retries,
        )

    @property
    def stats(self) -> TransportStats:
        """What happened so far on the running event loop."""
        return self._transport.stats

    def get_model(self, model_name: str | None) -> Model:
        """Return the model of this name, or the provider's own.

        Raises:
            ValueError: Neither the agent nor the provider names one.
        """
        name = model_name or self._model
        if name is None:
            raise ValueError("neither the agent nor the provider names a model")
        return SessionModel(name, self._client, model_is_explicit=model_name is not None)

    async def aclose(self) -> None:
        """Close the sessions; turns that still run are cut."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


async def _without_key(request: httpx.Request) -> None:
    request.headers.pop("authorization", None)
