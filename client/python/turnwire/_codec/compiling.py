"""What is compiled once for each message type, where types contain themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import Descriptor

__all__ = ["compiled_once"]

Kind = TypeVar("Kind")
Convert: TypeAlias = Callable[[Any], Any]


def compiled_once(
    compile_type: Callable[[Descriptor, Kind], Convert],
) -> Callable[[Descriptor, Kind], Convert]:
    """Return what compiles a message type for a kind of use at the first call, and keeps it.

    A type inside itself, such as the tools of a namespace, looks its own result up when it is used.
    """
    compiled: dict[tuple[Descriptor, Kind], Convert] = {}
    compiling: set[tuple[Descriptor, Kind]] = set()

    def find(descriptor: Descriptor, kind: Kind) -> Convert:
        key = (descriptor, kind)
        convert = compiled.get(key)
        if convert is not None:
            return convert
        if key in compiling:
            return lambda value: compiled[key](value)
        compiling.add(key)
        try:
            convert = compile_type(descriptor, kind)
        finally:
            compiling.discard(key)
        compiled[key] = convert
        return convert

    return find
