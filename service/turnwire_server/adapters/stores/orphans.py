"""What becomes of a response whose server has died."""

from __future__ import annotations

from typing import Final

from turnwire.v1 import error_pb2, response_pb2
from turnwire_server.session.errors import error_code

__all__ = ["failed_response"]

_MESSAGE: Final = "The server was stopped while it worked on the response."


def failed_response(encoded: bytes) -> bytes:
    """Return a serialized response as it is when its server has died."""
    response = response_pb2.Response.FromString(encoded)
    response.status = response_pb2.RESPONSE_STATUS_FAILED
    response.error.code = error_code(error_pb2.ERROR_REASON_SERVER_ERROR)
    response.error.message = _MESSAGE
    return response.SerializeToString()
