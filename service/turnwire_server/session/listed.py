"""Items as the public API lists them: whole, whatever short form the client sent."""

from __future__ import annotations

from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.session.presence import has

__all__ = ["listed_item"]


def listed_item(item: item_pb2.Item) -> item_pb2.Item:
    """Return `item`, a copy where it is changed: content as parts, and a status.

    The item must have passed the item rules.
    """
    arm = item.WhichOneof("item") or ""
    value = getattr(item, arm)
    is_short = arm == "message" and value.content.WhichOneof("value") == "text"
    lacks_status = "status" in value.DESCRIPTOR.fields_by_name and not has(value, "status")
    if not is_short and not lacks_status:
        return item
    whole = item_pb2.Item()
    whole.CopyFrom(item)
    value = getattr(whole, arm)
    if is_short:
        text = value.content.text
        part = (
            content_pb2.ContentPart(output_text=content_pb2.OutputText(text=text))
            if value.role == "assistant"
            else content_pb2.ContentPart(input_text=content_pb2.InputText(text=text))
        )
        value.content.parts.parts.append(part)
    if lacks_status:
        field = value.DESCRIPTOR.fields_by_name["status"]
        value.status = item_pb2.ITEM_STATUS_COMPLETED if field.enum_type else "completed"
    return whole
