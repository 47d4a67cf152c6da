"""What a response waits for: the stubs of `response.done` and `response.steer.pending`."""

from __future__ import annotations

from collections.abc import Iterable

from turnwire.v1 import item_pb2, server_event_pb2

__all__ = ["required_input"]


def required_input(output: Iterable[item_pb2.Item]) -> list[server_event_pb2.RequiredInput]:
    """Return a stub for each whole call of an output, in the model's order."""
    stubs = []
    for item in output:
        arm = item.WhichOneof("item")
        if arm not in ("function_call", "custom_tool_call"):
            continue
        call = item.function_call if arm == "function_call" else item.custom_tool_call
        if call.status == item_pb2.ITEM_STATUS_INCOMPLETE:
            continue
        required = server_event_pb2.RequiredOutput(call_id=call.call_id, name=call.name)
        if arm == "function_call":
            stubs.append(server_event_pb2.RequiredInput(function_call_output=required))
        else:
            stubs.append(server_event_pb2.RequiredInput(custom_tool_call_output=required))
    return stubs
