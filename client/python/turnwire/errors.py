"""What can go wrong, as types.

::

    TurnwireError
    ├── ConnectionFailed            the connection could not be opened; nothing was sent
    ├── ConnectionLost              it was open and ended while a turn ran or was asked for
    │   └── OutputLost              … after output had been given out that cannot be had again
    ├── SessionClosed               the session was closed on this side
    ├── ResponseRejected            the server refused the request; nothing changed by it
    │   ├── AuthenticationFailed    the key is missing or wrong, or may not do this
    │   ├── InvalidRequest          the request cannot be served as it is
    │   │   └── PreviousResponseNotFound   the parent is gone: send the full input instead
    │   ├── NotFound                no response or model has this name
    │   ├── RateLimited             too much at once: try again later
    │   ├── RequestCancelled        the create was cancelled before it started
    │   ├── ServerFailed            something broke in the server
    │   └── ServerOverloaded        no capacity now: try again later
    ├── TurnFailed                  the turn started and broke; has the failed response
    ├── ProtocolViolation           the server sent what the protocol does not allow
    └── Timeout                     nothing came within the bound; also a `TimeoutError`

Three meanings are kept apart: the connection (`Connection…`), the request (`ResponseRejected`) and
the turn (`TurnFailed`). Misuse of this library is a `ValueError` or `TypeError` as everywhere in
Python. Texts are prose for a person and unstable: look at the type and at `code`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnwire._response import Response
    from turnwire.v1.item_pb2 import Item

__all__ = [
    "AuthenticationFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "InvalidRequest",
    "NotFound",
    "OutputLost",
    "PreviousResponseNotFound",
    "ProtocolViolation",
    "RateLimited",
    "RequestCancelled",
    "ResponseRejected",
    "ServerFailed",
    "ServerOverloaded",
    "SessionClosed",
    "Timeout",
    "TurnFailed",
    "TurnwireError",
]


class TurnwireError(Exception):
    """Anything that this library raises on its own."""


class ConnectionFailed(TurnwireError):
    """The connection could not be opened; nothing was sent.

    Attributes:
        status: HTTP status of a refused handshake, or None when there was no answer.
        retry_after_s: Seconds to wait before the next try, when the server said so.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ConnectionLost(TurnwireError):
    """The connection ended while a turn ran or was asked for. The turn may have run.

    Attributes:
        close_code: The WebSocket close code (RFC 6455), or None.
        code: The stable code that the server gave, for example `message_too_large`, or None.
        retryable: Whether a new connection may do better.
        retry_after_s: Seconds to wait before that, when the server said so.
    """

    def __init__(
        self,
        message: str,
        *,
        close_code: int | None = None,
        code: str | None = None,
        retryable: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.close_code = close_code
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class OutputLost(ConnectionLost):
    """The connection was lost, and with it a turn of which output had been given out.

    It did not begin again by itself: the model would say something else. Nothing of it has to be
    undone either: none of its calls was run by `session.run`, except those of a rollout's rounds.

    Attributes:
        response_id: The response.
        items: Its items that were whole, as `turnwire.v1` messages, oldest first.
        response: The response as the server kept it, for example cancelled; None when it is gone.
    """

    def __init__(
        self,
        message: str,
        *,
        response_id: str,
        items: Sequence[Item] = (),
        response: Response | None = None,
        close_code: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, close_code=close_code, code=code, retryable=False)
        self.response_id = response_id
        self.items = tuple(items)
        self.response = response


class SessionClosed(TurnwireError):
    """The session was closed on this side."""


class ResponseRejected(TurnwireError):
    """The server refused the request; nothing changed by it.

    Attributes:
        code: Stable code, for example `previous_response_not_found`.
        status: HTTP status, on every wire, for example 400.
        message: English prose for a person; unstable.
        type: Public error type, for example `invalid_request_error`.
        param: Path of the member at fault, for example `input[2].content`, or None.
        retryable: Whether the same request may succeed when it is sent again later.
        retry_after_s: Seconds to wait before that, when the server said so.
        headers: Hints of the server as HTTP gives them in headers, for example `retry-after`.
    """

    def __init__(
        self,
        *,
        code: str,
        status: int,
        message: str,
        type: str | None = None,
        param: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{message} [{code}]" if param is None else f"{message} [{code}: {param}]")
        self.code = code
        self.status = status
        self.message = message
        self.type = type or ("server_error" if status >= 500 else "invalid_request_error")
        self.param = param
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.headers: Mapping[str, str] = dict(headers or {})


class AuthenticationFailed(ResponseRejected):
    """The key is missing or wrong, or may not do this."""


class InvalidRequest(ResponseRejected):
    """The request cannot be served as it is."""


class PreviousResponseNotFound(InvalidRequest):
    """The parent is in no cache and no store that this session may see: send the full input."""


class NotFound(ResponseRejected):
    """No response, model or path has this name."""


class RateLimited(ResponseRejected):
    """Too much at once, or the budget is used up (`insufficient_quota`, not retryable)."""


class RequestCancelled(ResponseRejected):
    """The create was cancelled before it started."""


class ServerFailed(ResponseRejected):
    """Something broke in the server."""


class ServerOverloaded(ResponseRejected):
    """No capacity now: try again later."""


class TurnFailed(TurnwireError):
    """The turn started and broke.

    Attributes:
        response: The failed response, with what was generated until then.
        code: Stable code, for example `server_error`.
    """

    def __init__(self, response: Response) -> None:
        error = response.message.error
        self.response = response
        self.code = error.code or "server_error"
        super().__init__(f"{error.message or 'The turn failed.'} [{self.code}]")


class ProtocolViolation(TurnwireError):
    """The server sent what the protocol does not allow."""


class Timeout(TurnwireError, TimeoutError):
    """Nothing came within the bound."""
