"""A drop-in for code that uses the official `openai` SDK over HTTP: it runs over sessions.

::

    import httpx2 as httpx  # the SDK's own; `httpx` with SDKs before 3
    import turnwire.openai
    from openai import AsyncOpenAI

    transport = turnwire.openai.Transport("grpc://127.0.0.1:50051")
    client = AsyncOpenAI(http_client=httpx.AsyncClient(transport=transport))

Nothing else changes: requests, answers, streams and errors are those of the HTTP API. See
docs/openai-drop-in.md.
"""

from __future__ import annotations

from turnwire.openai._transport import SyncTransport, Transport
from turnwire.openai._values import TransportStats

__all__ = ["SyncTransport", "Transport", "TransportStats"]
