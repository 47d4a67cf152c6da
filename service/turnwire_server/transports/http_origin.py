"""Which web pages may use the server, and by which names it may be called.

A browser sends requests to loopback addresses on behalf of any page that its user visits. Where no
keys are asked for, `Origin` tells such a page apart, and `Host` one whose name was bound to a
loopback address after it was loaded (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from turnwire.v1.error_pb2 import ERROR_REASON_PERMISSION_DENIED
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.http_errors import RefusedError

__all__ = ["OriginPolicy", "is_origin"]

_PREFLIGHT_AGE_S = 600
_NO_ORIGIN = "Web pages of this origin may not use the server; the setting is http.allowed_origins."
_NO_HOST = "The server has no keys, so it answers to loopback names and its own address only."


def is_origin(text: str) -> bool:
    """Return whether `text` is an origin as browsers send it: scheme, host, port if unusual."""
    parts = _split(text)
    return (
        parts is not None
        and bool(parts.scheme and parts.hostname)
        and f"{parts.scheme}://{parts.netloc}" == text.lower()
        and "@" not in text
    )


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text.lower())
        _ = parts.hostname, parts.port
    except ValueError:
        return None
    return parts


def _host_of(authority: str) -> str:
    """Return the host of `HOST[:PORT]`, an IPv6 one without brackets; empty if there is none."""
    parts = _split(f"//{authority}")
    return "" if parts is None else (parts.hostname or "").rstrip(".")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OriginPolicy:
    """Judges requests by the page that sent them."""

    def __init__(self, allowed: Sequence[str], *, has_keys: bool) -> None:
        """Make a policy.

        Args:
            allowed: Origins that may use the server.
            has_keys: Whether requests need a key; a page that has none then needs no refusal.
        """
        self._allowed = frozenset(origin.lower() for origin in allowed)
        self._hosts = frozenset(_host_of(urlsplit(origin).netloc) for origin in self._allowed)
        self._has_keys = has_keys

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse pages and names that are not known, before anything else happens."""
        if not self._has_keys:
            origin = request.headers.get("origin")
            if origin is not None and not self._may_use(origin):
                raise RefusedError(Rejection(ERROR_REASON_PERMISSION_DENIED, _NO_ORIGIN))
            if not self._is_own_name(request):
                raise RefusedError(Rejection(ERROR_REASON_PERMISSION_DENIED, _NO_HOST))
        return await handler(request)

    async def share(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let pages that may use the server read its answers, and ask before (CORS)."""
        origin = request.headers.get("origin")
        if origin is None or not self._may_use(origin):
            return
        headers = response.headers
        headers["access-control-allow-origin"] = origin
        headers["access-control-expose-headers"] = "*"
        headers.add("vary", "Origin")
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            headers["access-control-allow-methods"] = headers.get("allow", "")
            headers["access-control-allow-headers"] = "authorization, *"
            headers["access-control-max-age"] = str(_PREFLIGHT_AGE_S)

    def _may_use(self, origin: str) -> bool:
        if origin.lower() in self._allowed:
            return True
        parts = _split(origin)
        if self._has_keys or parts is None or parts.scheme not in ("http", "https"):
            return False
        return _is_loopback(parts.hostname or "")

    def _is_own_name(self, request: web.Request) -> bool:
        authority = request.headers.get("host")
        if authority is None:  # HTTP/1.0; no browser sends it.
            return True
        host = _host_of(authority)
        return _is_loopback(host) or host in self._hosts or host == _bound_host(request)


def _bound_host(request: web.Request) -> str | None:
    """Return the address that the client reached, None when the client is gone."""
    transport = request.transport
    address = None if transport is None else transport.get_extra_info("sockname")
    return address[0] if isinstance(address, tuple) else None
