"""Sealing with AES-256-GCM, and the key file.

A sealed text is base64url without padding over

    version (1 byte, 1) | key id (4 bytes) | nonce (12 bytes) | ciphertext | tag (16 bytes)

Version, key id and kind are authenticated with it. Nonces are random, so one key should seal fewer
than 2^32 texts: rotate it before, by putting a new key in front of the ring.

A key file holds one key per line, 32 bytes in base64url, the one that seals first; empty lines
and lines that begin with `#` are skipped.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnwire_server.ports.sealer import SealBroken

__all__ = ["KeyFailure", "RingSealer", "load_or_create_keys", "new_key", "parse_key"]

_VERSION: Final = b"\x01"
_KEY_BYTES: Final = 32
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_HEADER_BYTES: Final = len(_VERSION) + _KEY_ID_BYTES
_LEAST_BYTES: Final = _HEADER_BYTES + _NONCE_BYTES + _TAG_BYTES
_MAX_FILE_BYTES: Final = 64 * 1024
_NEW_FILE: Final = "# Keys that seal reasoning and compacted conversations. The first one seals.\n"


class KeyFailure(Exception):
    """The keys cannot be used. `str()` is a sentence for the operator, without any key."""


class RingSealer:
    """Implements `ports.Sealer` with a ring of keys: the first one seals, every one opens."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Take the keys, newest first.

        Raises:
            ValueError: There is none, or one is not 32 bytes long.
        """
        if not keys or any(len(key) != _KEY_BYTES for key in keys):
            raise ValueError(f"keys of {_KEY_BYTES} bytes are needed")
        self._ciphers = [(_key_id(key), AESGCM(key)) for key in keys]

    def seal(self, kind: str, payload: bytes) -> str:
        """Encrypt and authenticate; see `ports.Sealer`."""
        key_id, cipher = self._ciphers[0]
        header = _VERSION + key_id
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = cipher.encrypt(nonce, payload, header + kind.encode())
        return _to_text(header + nonce + sealed)

    def open(self, kind: str, text: str) -> bytes:
        """Check and decrypt; see `ports.Sealer`."""
        token = _from_text(text)
        header, nonce = token[:_HEADER_BYTES], token[_HEADER_BYTES:][:_NONCE_BYTES]
        if len(token) < _LEAST_BYTES or header[:1] != _VERSION:
            raise SealBroken
        sealed = token[_HEADER_BYTES + _NONCE_BYTES :]
        for key_id, cipher in self._ciphers:
            if key_id == header[1:]:
                with suppress(InvalidTag):
                    return cipher.decrypt(nonce, sealed, header + kind.encode())
        raise SealBroken


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"turnwire sealing key id\0" + key).digest()[:_KEY_ID_BYTES]


def _to_text(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode("ascii")


def _from_text(text: str) -> bytes:
    try:
        token = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise SealBroken from None
    if _to_text(token) != text:  # base64 reads more than one text as the same bytes
        raise SealBroken
    return token


# Keys.


def new_key() -> str:
    """Return a new random key as a key file and the configuration hold it."""
    return _to_text(secrets.token_bytes(_KEY_BYTES))


def parse_key(text: str) -> bytes:
    """Return the key that `text` stands for: 32 bytes in base64 or base64url, padded or not.

    Raises:
        KeyFailure: It is something else. The message does not hold it.
    """
    plain = text.strip().rstrip("=").replace("+", "-").replace("/", "_")
    try:
        key = _from_text(plain)
    except SealBroken:
        key = b""
    if len(key) != _KEY_BYTES:
        raise KeyFailure(f"a key is needed: {_KEY_BYTES} random bytes in base64")
    return key


def load_or_create_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys of the file at `path`; make it with one new key if there is none; blocks.

    The new file is there at once and whole, for its owner alone. Of several processes that make it
    at the same time one wins, and all return its key.

    Raises:
        KeyFailure: The file cannot be read, made or used, or others than its owner may use it.
    """
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise KeyFailure(f"{path}: the keys cannot be read or made: {error.strerror}.") from None


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{_NEW_FILE}{new_key()}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first; its key counts
            os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: Path) -> tuple[bytes, ...]:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyFailure(f"{path}: only its owner may have access to it: chmod 600 {path}")
        content = file.read(_MAX_FILE_BYTES + 1)
    keys = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(parse_key(line))
            except KeyFailure as failure:
                raise KeyFailure(f"{path}: line {number}: {failure}.") from None
    if not keys or len(content) > _MAX_FILE_BYTES:
        raise KeyFailure(f"{path}: 1 key or more and at most {_MAX_FILE_BYTES} bytes are needed.")
    return tuple(keys)
