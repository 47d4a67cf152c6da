"""Reads a GGUF model file: its metadata and what it says about its tensors.

Standard library only, on a memory map. Nothing that a file says about itself is trusted:
every count and length is checked against the file's size before it is used.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["GgufFailure", "GgufFile", "GgufTensor", "GgufValue", "read_gguf"]

GgufValue = int | float | bool | str | list["GgufValue"]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_DIMENSIONS: Final = 8
_MOST_NESTED_ARRAYS: Final = 4
_LONGEST_NAME: Final = 1_024
"""Bytes of a key or of a tensor's name."""

_TEXT: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TENSOR_TYPES: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}

_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from


class GgufFailure(Exception):
    """The file is no usable GGUF. `str()` is one sentence that names the file and the place."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """What the file says about one tensor; its data is not read."""

    name: str
    type_name: str
    """E.g. `Q4_K`; `type <number>` for one that this reader does not know."""
    shape: tuple[int, ...]
    """Elements per dimension, innermost first."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata and tensors of one file."""

    path: Path
    metadata: dict[str, GgufValue]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """E.g. `llama`: the prefix of the keys that describe the network."""
        return self.text("general.architecture")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text value, or `default` when the key is absent.

        Raises:
            GgufFailure: absent and without default, or of another type.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer value, or `default` when the key is absent.

        Raises:
            GgufFailure: absent and without default, or of another type.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer")
        return value

    def texts(self, key: str) -> list[str]:
        """Return an array of texts.

        Raises:
            GgufFailure: absent, or of another type.
        """
        value = self._value(key, None)
        if not isinstance(value, list) or (value and not isinstance(value[0], str)):
            raise self._wrong(key, "an array of texts")
        return value  # type: ignore[return-value]  # arrays of the format have one element type

    def integers(self, key: str) -> list[int]:
        """Return an array of integers.

        Raises:
            GgufFailure: absent, or of another type.
        """
        value = self._value(key, None)
        if not isinstance(value, list) or (value and not isinstance(value[0], int)):
            raise self._wrong(key, "an array of integers")
        return value  # type: ignore[return-value]  # arrays of the format have one element type

    def _value(self, key: str, default: GgufValue | None) -> GgufValue:
        value = self.metadata.get(key, default)
        if value is None:
            raise GgufFailure(f"{self.path.name} has no metadata key {key}.")
        return value

    def _wrong(self, key: str, wanted: str) -> GgufFailure:
        return GgufFailure(f"{self.path.name}: metadata key {key} is not {wanted}.")


def read_gguf(path: Path) -> GgufFile:
    """Read metadata and tensor descriptions of the file at `path`.

    Raises:
        GgufFailure: it cannot be read, is no GGUF, is cut or contradicts itself.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Reader(path, data).read()
    except FileNotFoundError:
        raise GgufFailure(f"There is no model file at {path}.") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        reason = error.strerror if isinstance(error, OSError) else "it is empty"
        raise GgufFailure(f"{path} cannot be read: {reason}.") from error


class _Reader:
    """A cursor over the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._offset = 0

    def read(self) -> GgufFile:
        self._need(24, "its header")
        if self._data[:4] != _MAGIC:
            raise GgufFailure(f"{self._path} is not a GGUF file: it does not begin with 'GGUF'.")
        (version,) = _u32(self._data, 4)
        if version not in _VERSIONS:
            raise GgufFailure(
                f"{self._path} is GGUF version {version}; versions 2 and 3 can be read."
            )
        (tensor_count,) = _u64(self._data, 8)
        (key_count,) = _u64(self._data, 16)
        self._offset = 24
        # A key takes 13 bytes at least, a tensor's description 24.
        self._need_items(key_count, 13, "metadata keys")
        metadata: dict[str, GgufValue] = {}
        for _ in range(key_count):
            key = self._name("a metadata key")
            metadata[key] = self._value(self._integer32(key), key, 0)
        self._need_items(tensor_count, 24, "tensors")
        tensors = tuple(self._tensor() for _ in range(tensor_count))
        return GgufFile(self._path, metadata, tensors)

    def _tensor(self) -> GgufTensor:
        name = self._name("a tensor")
        dimensions = self._integer32(name)
        if dimensions > _MOST_DIMENSIONS:
            raise self._broken(f"tensor {name} has {dimensions} dimensions")
        self._need(8 * dimensions + 12, f"tensor {name}")
        shape = struct.unpack_from(f"<{dimensions}Q", self._data, self._offset)
        self._offset += 8 * dimensions
        type_number = self._integer32(name)
        self._offset += 8
        return GgufTensor(name, _TENSOR_TYPES.get(type_number, f"type {type_number}"), shape)

    def _value(self, kind: int, key: str, depth: int) -> GgufValue:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return self._scalars(scalar, 1, key)[0]
        if kind == _TEXT:
            return self._string(key)
        if kind != _ARRAY or depth >= _MOST_NESTED_ARRAYS:
            raise self._broken(f"metadata key {key} has a value of unknown type {kind}")
        element = self._integer32(key)
        self._need(8, key)
        (count,) = _u64(self._data, self._offset)
        self._offset += 8
        scalar = _SCALARS.get(element)
        if scalar is not None:
            return self._scalars(scalar, count, key)
        self._need_items(count, 8, f"values of {key}")
        if element == _TEXT:
            return [self._string(key) for _ in range(count)]
        return [self._value(element, key, depth + 1) for _ in range(count)]

    def _scalars(self, code: str, count: int, key: str) -> list[GgufValue]:
        size = struct.calcsize(f"<{code}")
        self._need_items(count, size, f"values of {key}")
        values = struct.unpack_from(f"<{count}{code}", self._data, self._offset)
        self._offset += count * size
        return list(values)

    def _name(self, what: str) -> str:
        name = self._string(what, longest=_LONGEST_NAME)
        if not name.isprintable():
            raise self._broken(f"the name of {what} is not text")
        return name

    def _string(self, what: str, *, longest: int | None = None) -> str:
        self._need(8, what)
        (length,) = _u64(self._data, self._offset)
        self._offset += 8
        if longest is not None and length > longest:
            raise self._broken(f"the name of {what} is {length} bytes long")
        self._need(length, what)
        text = self._data[self._offset : self._offset + length].decode("utf-8", "replace")
        self._offset += length
        return text

    def _integer32(self, what: str) -> int:
        self._need(4, what)
        (value,) = _u32(self._data, self._offset)
        self._offset += 4
        return int(value)

    def _need(self, size: int, what: str) -> None:
        if size > self._size - self._offset:
            raise self._broken(f"the file ends within {what}")

    def _need_items(self, count: int, size: int, what: str) -> None:
        if count > (self._size - self._offset) // size:
            raise self._broken(f"the file is too short for its {count} {what}")

    def _broken(self, reason: str) -> GgufFailure:
        return GgufFailure(f"{self._path.name} is damaged at byte {self._offset}: {reason}.")
