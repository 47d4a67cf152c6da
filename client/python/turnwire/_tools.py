"""Tools: functions of the client that a model may call."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, overload

from turnwire._json import JSONValue
from turnwire._response import FunctionCall
from turnwire._schema import Parameter, bind, docstring_parts, parameters_of, schema_of_parameters
from turnwire.v1.tool_pb2 import CustomTool, FunctionTool
from turnwire.v1.tool_pb2 import Tool as ToolMessage

__all__ = ["Tool", "ToolFunction", "Tools", "as_tools", "call_tool", "tool"]

ToolFunction: TypeAlias = Callable[..., object | Awaitable[object]]
"""A tool's function, sync or async. A sync one runs in a worker thread."""

MAX_ERROR_CHARS = 2000
"""Bound on what a model is told about an error of a tool."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that the model may call by name. Made by `turnwire.tool`; callable as itself."""

    name: str
    """1 to 128 of `A-Z a-z 0-9 _ -`."""
    description: str
    """What it is for, for the model to read."""
    parameters: Mapping[str, JSONValue]
    """JSON Schema of the arguments; empty and unused when `is_custom`."""
    function: ToolFunction
    """Gets the arguments by name; a custom tool's gets its input as the only argument."""
    is_custom: bool = False
    """Whether the input is free-form text and not JSON."""
    message: ToolMessage = dataclasses.field(repr=False, compare=False, default_factory=ToolMessage)
    """The definition as a `turnwire.v1` message."""
    _signature: Sequence[Parameter] | None = dataclasses.field(
        repr=False, compare=False, default=None
    )

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function as it is."""
        return self.function(*args, **kwargs)


@overload
def tool(function: ToolFunction, /) -> Tool: ...


@overload
def tool(
    function: ToolFunction,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, JSONValue] | None = None,
    strict: bool | None = None,
    custom: bool = False,
) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, JSONValue] | None = None,
    strict: bool | None = None,
    custom: bool = False,
) -> Callable[[ToolFunction], Tool]: ...


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, JSONValue] | None = None,
    strict: bool | None = None,
    custom: bool = False,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a tool of a function; also a decorator, with or without arguments.

    Args:
        function: Sync or async; what it returns goes to the model, as it is when it is text, as
            JSON otherwise.
        name: Name for the model; the function's when not given.
        description: What it is for; the docstring's text before its first section when not given.
        parameters: JSON Schema of the arguments. When not given it is made of the signature: type
            hints (`str`, `int`, `float`, `bool`, `None`, `list`, `dict`, `Literal`, unions, enums,
            dataclasses, typed dicts, `Annotated[T, "description"]`), defaults, and the docstring's
            `Args:`; and the function gets its arguments checked and in these types. With a schema
            of your own they are passed as they come.
        strict: Whether the server must hold the model to the schema.
        custom: The model writes free-form text, which the function gets as its only argument.

    Returns:
        The tool; or the decorator.

    Raises:
        TypeError: A parameter has a type that JSON does not have; says which.
        ValueError: There is no name, as with a lambda.
    """
    if function is None:
        return lambda decorated: tool(
            decorated,
            name=name,
            description=description,
            parameters=parameters,
            strict=strict,
            custom=custom,
        )
    called = name or getattr(function, "__name__", "")
    if not called or called == "<lambda>":
        raise ValueError("a tool needs a name")
    if description is None:
        description = docstring_parts(inspect.getdoc(function) or "")[0]
    if custom:
        message = ToolMessage(custom=CustomTool(name=called, description=description or None))
        return Tool(called, description, {}, function, is_custom=True, message=message)
    signature = None if parameters is not None else parameters_of(function)
    schema = schema_of_parameters(signature) if signature is not None else dict(parameters or {})
    message = ToolMessage(
        function=FunctionTool(
            name=called,
            description=description or None,
            parameters=json.dumps(schema, separators=(",", ":"), ensure_ascii=False),
            strict=strict,
        )
    )
    return Tool(called, description, schema, function, message=message, _signature=signature)


Tools: TypeAlias = (
    Mapping[str, ToolFunction | Tool] | Sequence[Tool | ToolFunction | Mapping[str, JSONValue]]
)
"""Functions by name; or a list of tools, functions, and public JSON of tools that run elsewhere."""


def as_tools(given: Tools | None) -> tuple[list[Tool], list[Mapping[str, JSONValue]]]:
    """Return the tools that run here, and the definitions of those that run elsewhere.

    Raises:
        TypeError: One of them is no tool.
        ValueError: Two have one name.
    """
    own: list[Tool] = []
    hosted: list[Mapping[str, JSONValue]] = []
    entries: Iterable[tuple[str | None, object]] = (
        given.items() if isinstance(given, Mapping) else ((None, one) for one in given or ())
    )
    for name, entry in entries:
        if isinstance(entry, Tool):
            own.append(_renamed(entry, name or entry.name))
        elif isinstance(entry, Mapping):
            hosted.append(entry)
        elif callable(entry):
            own.append(tool(entry, name=name))
        else:
            raise TypeError(f"{entry!r} is neither a tool nor a function")
    names = [one.name for one in own]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two tools are named {name!r}")
    return own, hosted


async def call_tool(tools: Mapping[str, Tool], call: FunctionCall, *, timeout_s: float) -> str:
    """Run one call and return its output as text.

    An error is an output too: the model reads it and goes on. Cancelling is safe; a sync function
    that runs in its thread then finishes there, and its output is dropped.

    Args:
        tools: The tools by name.
        call: The call.
        timeout_s: Bound on the call.
    """
    found = tools.get(call.name)
    if found is None:
        return f"Error: there is no tool named {call.name!r}; there are {sorted(tools)}."
    try:
        async with asyncio.timeout(timeout_s) as bound:
            return _as_text(await _run(found, call))
    except TimeoutError as error:
        if bound.expired():
            return f"Error: the tool did not finish within {timeout_s:g} s."
        return _error_text(error)
    except Exception as error:
        # Whatever a tool raises is for the model to read; the loop goes on.
        return _error_text(error)


def _renamed(given: Tool, name: str) -> Tool:
    if name == given.name:
        return given
    message = ToolMessage()
    message.CopyFrom(given.message)
    arm = message.custom if given.is_custom else message.function
    arm.name = name
    return dataclasses.replace(given, name=name, message=message)


async def _run(found: Tool, call: FunctionCall) -> object:
    if call.is_custom or found.is_custom:
        positional: tuple[object, ...] = (call.arguments,)
        named: dict[str, object] = {}
    else:
        positional, arguments = (), call.parse_arguments()
        signature = found._signature
        named = bind(signature, arguments) if signature is not None else {**arguments}
    if inspect.iscoroutinefunction(found.function):
        return await found.function(*positional, **named)
    result = await asyncio.to_thread(found.function, *positional, **named)
    return await result if inspect.isawaitable(result) else result


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    return json.dumps(result, ensure_ascii=False, default=str)


def _error_text(error: Exception) -> str:
    return f"Error: {type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
