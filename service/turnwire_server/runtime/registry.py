"""The models that this server serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwire.v1 import error_pb2, models_service_pb2
from turnwire_server.ports.engine import Engine
from turnwire_server.ports.renderer import Renderer
from turnwire_server.session.errors import Rejection, quoted

__all__ = ["Leases", "ModelRegistry", "ServedModel"]

_MAX_NAME_CHARS = 256
"""Names are echoed in every response, also where one model answers to any."""


class Leases:
    """Who uses a model now: its engine is closed when nobody does."""

    __slots__ = ("_count", "_free")

    def __init__(self) -> None:
        self._count = 0
        self._free: asyncio.Future[None] | None = None

    def take(self) -> None:
        """Use the model until `give_back`."""
        self._count += 1

    def give_back(self) -> None:
        """Use it no longer."""
        self._count -= 1
        if not self._count and self._free is not None and not self._free.done():
            self._free.set_result(None)

    async def free(self) -> None:
        """Wait until nobody uses the model. One task may wait."""
        if self._count:
            self._free = asyncio.get_running_loop().create_future()
            await self._free


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name, the engine that runs it and the renderer of its prompts."""

    name: str
    engine: Engine
    renderer: Renderer
    created_at: int = 0
    """Unix seconds when it was loaded."""
    takes_steers: bool = True
    """Whether its responses may be steered."""
    leases: Leases = field(default_factory=Leases, compare=False)

    def message(self) -> models_service_pb2.Model:
        """Return the public form."""
        info = self.engine.info
        model = models_service_pb2.Model(
            id=self.name,
            object="model",
            owned_by=info.name,
            context_length=info.context_length,
            simulated=info.simulated,
        )
        model.created.seconds = self.created_at
        return model


class ModelRegistry:
    """Finds models by name."""

    def __init__(self, models: Sequence[ServedModel], *, any_model: bool = False) -> None:
        """Make a registry.

        Args:
            models: The models; at least one.
            any_model: Whether the first model answers to every other name too.
        """
        self._models: dict[str, ServedModel] = {}
        self._fallback: ServedModel | None = None
        self.replace(models, any_model=any_model)

    def replace(self, models: Sequence[ServedModel], *, any_model: bool) -> None:
        """Serve these models from now on; what runs on another one goes on there."""
        self._models = {model.name: model for model in models}
        self._fallback = models[0] if any_model else None

    def find(self, name: str) -> ServedModel | Rejection:
        """Return the model that answers to `name`."""
        model = self._models.get(name) or self._fallback
        if model is None or len(name) > _MAX_NAME_CHARS:
            return Rejection(
                error_pb2.ERROR_REASON_MODEL_NOT_FOUND,
                f"The model {quoted(name)} does not exist.",
                param="model",
            )
        return model

    @property
    def models(self) -> list[ServedModel]:
        """The models, by name."""
        return [self._models[name] for name in sorted(self._models)]
