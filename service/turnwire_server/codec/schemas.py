"""JSON Schema of what the server sends, from the descriptors of its messages."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from turnwire._codec import options
from turnwire.v1 import annotations_pb2

__all__ = ["Schemas"]

_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
}


class Schemas:
    """Collects the schemas of message types and of all that they contain.

    Attributes:
        components: The schemas, by name: the message's, with an arm's `type` behind it where the
            message is more than one arm.
    """

    def __init__(self, prefix: str) -> None:
        """Make an empty collection.

        Args:
            prefix: Where references point to, for example `#/components/schemas/`.
        """
        self._prefix = prefix
        self.components: dict[str, dict[str, Any]] = {}

    def reference(self, descriptor: Descriptor, public_type: str = "") -> dict[str, Any]:
        """Return a reference to the schema of a message type, made at its first use.

        Args:
            descriptor: The message type.
            public_type: `type` of the object when the message is an arm of a union.
        """
        if descriptor.full_name == options.TIMESTAMP:
            return {"type": "integer", "description": "Seconds since 1970."}
        name = f"{descriptor.name}.{public_type}" if public_type else str(descriptor.name)
        if name not in self.components:
            self.components[name] = {}  # Known before it is filled: types contain themselves.
            self.components[name] = self._schema(descriptor, public_type)
        return {"$ref": f"{self._prefix}{name}"}

    def _schema(self, descriptor: Descriptor, public_type: str) -> dict[str, Any]:
        shape = options.shape(descriptor)
        if shape == annotations_pb2.SHAPE_LIST:
            return self._member(options.only_field(descriptor))
        if shape == annotations_pb2.SHAPE_UNION:
            return {"oneOf": [self._member(field) for field in options.arms_of(descriptor)]}
        if shape == annotations_pb2.SHAPE_ENVELOPE:
            return self._envelope(descriptor)
        return self._object(descriptor, public_type)

    def _object(self, descriptor: Descriptor, public_type: str) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        if public_type:
            properties["type"] = {"const": public_type}
            required.append("type")
        for field in descriptor.fields:
            if options.is_extra(field) or options.is_wire_only(field):
                continue
            name = options.public_name(field)
            member = self._member(field)
            if options.is_always(field):
                required.append(name)
                if not field.is_repeated:
                    member = {"anyOf": [member, {"type": "null"}]}
            elif not field.has_presence and not field.is_repeated:
                required.append(name)
            properties[name] = member
        return {"type": "object", "properties": properties, "required": required}

    def _envelope(self, descriptor: Descriptor) -> dict[str, Any]:
        arms = options.arms_of(descriptor)
        head = {f.name: self._member(f) for f in descriptor.fields if f not in arms}
        return {
            "type": "object",
            "properties": {"type": {"type": "string"}, **head},
            "required": ["type"],
            "oneOf": [self._member(field) for field in arms],
        }

    def _member(self, field: FieldDescriptor) -> dict[str, Any]:
        if options.is_map(field):
            return {"type": "object", "additionalProperties": {"type": "string"}}
        element = self._element(field)
        return {"type": "array", "items": element} if field.is_repeated else element

    def _element(self, field: FieldDescriptor) -> dict[str, Any]:
        if options.is_json_text(field):
            return {}
        if options.is_enum(field):
            return {"enum": list(options.enum_names(field).values())}
        if field.message_type is not None:
            return self.reference(field.message_type, options.public_type(field))
        return dict(_SCALARS[field.type])
