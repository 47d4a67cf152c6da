"""The public JSON of every message, both ways; shared by the client and the server.

`protos/turnwire/v1/annotations.proto` says how a message looks in JSON. Each message type is
compiled once, at its first use, into closures that know nothing of descriptors any more.
"""

from __future__ import annotations

from turnwire._codec.decode import CREDENTIALS, JSON_ONLY, loads, parse
from turnwire._codec.encode import dumps, to_value
from turnwire._codec.errors import DecodeError
from turnwire._codec.quick import UNUSUAL, flat_members, is_flat, quick_decoder
from turnwire._codec.splice import Settled, Splicer
from turnwire._codec.verify import verify

__all__ = [
    "CREDENTIALS",
    "JSON_ONLY",
    "UNUSUAL",
    "DecodeError",
    "Settled",
    "Splicer",
    "dumps",
    "flat_members",
    "is_flat",
    "loads",
    "parse",
    "quick_decoder",
    "to_value",
    "verify",
]
