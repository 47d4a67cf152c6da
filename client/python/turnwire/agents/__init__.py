"""A model provider for `openai-agents` over a persistent session.

::

    from agents import Agent, RunConfig, Runner
    from turnwire.agents import Provider

    async with Provider("grpc://127.0.0.1:50051", model="smollm2") as provider:
        agent = Agent(name="Helper", instructions="Be brief.")
        config = RunConfig(model_provider=provider)
        result = await Runner.run(agent, "Say hello.", run_config=config)

The runner resends its history with each turn; the provider sends only what the session does not
hold. See docs/openai-drop-in.md.
"""

from __future__ import annotations

try:
    import agents as _agents  # noqa: F401  # Only to say clearly that it is missing.
except ImportError:
    raise ImportError(
        "turnwire.agents is for the package openai-agents, which is not installed: "
        "pip install 'turnwire[agents]'"
    ) from None

from turnwire.agents._provider import Provider, SessionModel

__all__ = ["Provider", "SessionModel"]
