"""Another configuration while the server runs: keys and models, without a session being lost.

Everything new is made and started before anything old goes. A configuration that cannot be used
is logged, and all stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from turnwire_server.app import StartFailure, make_model
from turnwire_server.config import Config, ConfigFailure, ModelConfig
from turnwire_server.ports.engine import EngineFailure
from turnwire_server.runtime.registry import ServedModel
from turnwire_server.runtime.reports import log_bug
from turnwire_server.runtime.services import Services

__all__ = ["Reloading"]

Models = dict[str, tuple[ModelConfig, ServedModel]]
"""Name -> what was configured, and what is served."""

_log = logging.getLogger("turnwire.process")


class Reloading:
    """Takes over what has changed in the configuration, when it is asked to."""

    def __init__(
        self, services: Services, config: Config, load: Callable[[], Config] | None
    ) -> None:
        """Make it for services that run as `config` says; `load` reads the new one."""
        self._services = services
        self._config = config
        self._load = load
        served = {model.name: model for model in services.models.models}
        self._models: Models = {one.name: (one, served[one.name]) for one in config.models}
        self._task: asyncio.Task[None] | None = None
        self._is_asked = False

    def request(self) -> None:
        """Reload soon. A request that comes meanwhile is another reload."""
        self._is_asked = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Reload no more. What is half done is given back."""
        self._is_asked = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while self._is_asked:
            self._is_asked = False
            try:
                await self._reload()
            except (ConfigFailure, StartFailure, EngineFailure) as failure:
                _log.error("the new configuration is not used: %s", failure)
            except Exception as bug:  # outermost frame of the task: the server must go on
                log_bug(_log, "the new configuration is not used", bug)

    async def _reload(self) -> None:
        if self._load is None:
            return _log.warning("this server cannot read its configuration again")
        fresh = await asyncio.to_thread(self._load)
        kept = {
            one.name: self._models[one.name]
            for one in fresh.models
            if one.name in self._models and self._models[one.name][0] == one
        }
        made = await self._made(fresh, [one for one in fresh.models if one.name not in kept])
        models = {one.name: kept.get(one.name) or made[one.name] for one in fresh.models}

        # From here on nothing waits: all of it is new, or nothing.
        self._services.keys.replace(fresh.runtime.auth_keys)
        served = [model for _, model in models.values()]
        self._services.serve_models(served, any_model=fresh.any_model)
        unused = _unused(self._config, fresh)
        self._config, self._models = _with_what_is_used(self._config, fresh), models
        _log.warning(
            "configuration reloaded models=%s keys=%d",
            ",".join(models),
            len(fresh.runtime.auth_keys),
        )
        if unused:
            _log.warning("only a restart takes over what has changed in %s", ", ".join(unused))

    async def _made(self, fresh: Config, wanted: Sequence[ModelConfig]) -> Models:
        """Make and start models; none is left running when one of them cannot be used."""
        made: Models = {}
        clock, directory = self._services.clock, fresh.models_directory
        try:
            for one in wanted:
                model = await asyncio.to_thread(
                    make_model, one, directory, clock, engines=fresh.engines
                )
                made[one.name] = (one, model)
                await model.engine.start()
        except BaseException:
            for _, model in made.values():
                await model.engine.close()
            raise
        return made


def _with_what_is_used(old: Config, fresh: Config) -> Config:
    """Return the configuration that the server has now."""
    runtime = replace(old.runtime, auth_keys=fresh.runtime.auth_keys)
    return replace(old, models=fresh.models, any_model=fresh.any_model, runtime=runtime)


def _unused(old: Config, fresh: Config) -> list[str]:
    """Return the parts of a new configuration that differ and are not taken over."""
    used = _with_what_is_used(old, fresh)
    return [
        entry.name
        for entry in fields(Config)
        if getattr(used, entry.name) != getattr(fresh, entry.name)
    ]
