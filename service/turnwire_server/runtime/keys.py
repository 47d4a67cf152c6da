"""Who may use the server: keys, each a tenant of its own."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from turnwire.v1 import error_pb2
from turnwire_server.session.errors import Rejection

__all__ = ["DEFAULT_TENANT", "ApiKeys"]

DEFAULT_TENANT = "default"
"""Whose everything is where there are no keys."""

_WRONG = Rejection(
    error_pb2.ERROR_REASON_INVALID_API_KEY,
    "Missing or incorrect API key. Send it as 'Authorization: Bearer KEY'.",
)
_REVOKED = Rejection(
    error_pb2.ERROR_REASON_INVALID_API_KEY,
    "The API key of this connection is no longer valid.",
)


class ApiKeys:
    """The keys that are valid now."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Let these keys be valid; without one everybody may use the server."""
        self._tenants: dict[bytes, str] = {}
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> None:
        """Let these keys be valid and no other; connections are asked again at their next turn."""
        self._tenants = {key.encode(): _tenant_of(key.encode()) for key in keys}
        self._valid = frozenset(self._tenants.values())

    def authorize(self, token: str | None) -> str | Rejection:
        """Return the tenant that `token` stands for; every key is compared, in constant time."""
        if not self._tenants:
            return DEFAULT_TENANT
        given = (token or "").encode(errors="replace")
        # A list, not next(): the time must not tell which key was nearly right.
        matches = [
            tenant for key, tenant in self._tenants.items() if hmac.compare_digest(given, key)
        ]
        return matches[0] if matches else _WRONG

    def refusal(self, tenant: str) -> Rejection | None:
        """Return why a tenant that was let in once may start nothing now, None when it may."""
        return None if not self._valid or tenant in self._valid else _REVOKED


def _tenant_of(key: bytes) -> str:
    """Return the tenant of a key: what one key stores, another does not find."""
    return "key_" + hashlib.sha256(key).hexdigest()[:24]
