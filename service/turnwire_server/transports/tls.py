"""TLS of both listeners: one certificate, read when the server starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

__all__ = ["HTTP1", "HTTP2", "TlsFailure", "TlsFiles"]

HTTP1: Final = "http/1.1"
HTTP2: Final = "h2"


class TlsFailure(Exception):
    """The certificate or its key cannot be used. `str()` is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate and its key, as PEM files."""

    certificate: Path
    """The certificate, followed by those that vouch for it."""
    key: Path
    """Its key, without a passphrase."""

    def context(self, protocol: str) -> ssl.SSLContext:
        """Return a context for a server that speaks `protocol` (ALPN).

        Raises:
            TlsFailure: The files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        try:
            # Without the callback OpenSSL would ask the terminal for a passphrase.
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except OSError as error:  # `ssl.SSLError` is one.
            raise self._failure(error) from None
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the same for grpcio.

        Raises:
            TlsFailure: The files cannot be used.
        """
        self.context(HTTP2)  # grpcio would only log that they do not fit together.
        try:
            pair = (self.key.read_bytes(), self.certificate.read_bytes())
        except OSError as error:
            raise self._failure(error) from None
        return grpc.ssl_server_credentials([pair])

    def _failure(self, error: OSError) -> TlsFailure:
        if isinstance(error, ssl.SSLError):
            problem = "they are no PEM certificate and its key"
        else:
            problem = error.strerror or "they cannot be read"
        return TlsFailure(
            f"tls.certificate {self.certificate} and tls.key {self.key} cannot be used: {problem}."
        )


def _no_passphrase() -> str:
    return ""
