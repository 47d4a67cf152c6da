"""JSON Schema from a function's signature, and arguments back into its types."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NotRequired, Required, TypeGuard, Union, get_args, get_origin

from turnwire._json import JSONValue

__all__ = ["Parameter", "bind", "docstring_parts", "parameters_of", "schema_of_parameters"]

_SCALARS: Mapping[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_LISTS = (list, Sequence, tuple, set, frozenset)
_MAPPINGS = (dict, Mapping)
_ANYTHING = (object, typing.Any)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool function."""

    name: str
    annotation: object
    required: bool
    description: str | None
    default: object = None


def parameters_of(function: Callable[..., object]) -> list[Parameter]:
    """Read a function's parameters.

    Raises:
        TypeError: A parameter cannot be filled from a JSON object, or has a type that JSON does
            not have; says which.
    """
    described = docstring_parts(inspect.getdoc(function) or "")[1]
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {name!r} of a tool must be one that a name can fill")
        annotation = hints.get(name, object)
        description = described.get(name)
        if get_origin(annotation) is Annotated:
            texts = [extra for extra in get_args(annotation)[1:] if isinstance(extra, str)]
            description = texts[0] if texts else description
        required = parameter.default is parameter.empty
        parameters.append(
            Parameter(
                name,
                annotation,
                required,
                description,
                None if required else parameter.default,
            )
        )
    return parameters


def schema_of_parameters(parameters: Sequence[Parameter]) -> dict[str, JSONValue]:
    """Return the JSON Schema of the arguments: an object, closed to other members.

    Raises:
        TypeError: A parameter has a type that JSON does not have; says which.
    """
    properties: dict[str, JSONValue] = {}
    for parameter in parameters:
        schema = _schema(parameter.annotation, parameter.name)
        if parameter.description:
            schema["description"] = parameter.description
        if not parameter.required and isinstance(parameter.default, (str, int, float, bool)):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    return {
        "type": "object",
        "properties": properties,
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def bind(parameters: Sequence[Parameter], arguments: Mapping[str, JSONValue]) -> dict[str, object]:
    """Return the keyword arguments for the function.

    Raises:
        ValueError: The arguments do not fit; says which and how, for the model to read.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    unknown = sorted(set(arguments) - set(by_name))
    if unknown:
        raise ValueError(f"unknown argument {unknown[0]!r}; known are {sorted(by_name)}")
    bound = {}
    for parameter in parameters:
        if parameter.name in arguments:
            bound[parameter.name] = _convert(
                parameter.annotation, arguments[parameter.name], parameter.name
            )
        elif parameter.required:
            raise ValueError(f"missing argument {parameter.name!r}")
    return bound


def docstring_parts(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring (Google style) into what the tool is for and what its arguments are.

    Returns:
        The text before the first section, and the descriptions under `Args:` by name.
    """
    lines = text.strip().splitlines()
    heads = [number for number, line in enumerate(lines) if re.fullmatch(r"[A-Z][A-Za-z ]*:", line)]
    described: dict[str, str] = {}
    for head in heads:
        if lines[head] not in ("Args:", "Arguments:", "Parameters:"):
            continue
        name = None
        for line in lines[head + 1 :]:
            if line and not line.startswith((" ", "\t")):
                break
            entry = re.match(r"(?: {4}|\t)(\w+)(?: \([^)]*\))?: *(.*)", line)
            if entry:
                name = entry[1]
                described[name] = entry[2].strip()
            elif name is not None and line.strip():
                described[name] = f"{described[name]} {line.strip()}".strip()
    purpose = "\n".join(lines[: heads[0]] if heads else lines).strip()
    return purpose, described


def _schema(annotation: object, path: str) -> dict[str, JSONValue]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _schema(arguments[0], path)
    if annotation in _ANYTHING:
        return {}
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option, path) for option in arguments]}
    if annotation in _LISTS or origin in _LISTS:
        of = _element(annotation, path)
        return {"type": "array"} if of is object else {"type": "array", "items": _schema(of, path)}
    if annotation in _MAPPINGS or origin in _MAPPINGS:
        of = _element(annotation, path)
        if of is object:
            return {"type": "object"}
        return {"type": "object", "additionalProperties": _schema(of, path)}
    if _is_enum(annotation):
        return {"enum": [member.value for member in annotation]}
    fields = _fields(annotation, path)
    return {
        "type": "object",
        "properties": {name: _schema(of, f"{path}.{name}") for name, (of, _) in fields.items()},
        "required": [name for name, (_, required) in fields.items() if required],
        "additionalProperties": False,
    }


def _convert(annotation: object, value: JSONValue, path: str) -> object:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _convert(arguments[0], value, path)
    if annotation in _ANYTHING:
        return value
    if annotation in _SCALARS:
        return _scalar(annotation, value, path)
    if origin is Literal:
        return _one_of({option: option for option in arguments}, value, path)
    if origin in (Union, types.UnionType):
        return _first_that_fits(arguments, value, path)
    if annotation in _LISTS or origin in _LISTS:
        if not isinstance(value, list):
            raise ValueError(f"{path}: expected an array")
        of = _element(annotation, path)
        elements = (_convert(of, one, f"{path}[{index}]") for index, one in enumerate(value))
        made = origin or annotation
        return list(elements) if made in (list, Sequence) else made(elements)  # type: ignore[operator]
    if annotation in _MAPPINGS or origin in _MAPPINGS:
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected an object")
        of = _element(annotation, path)
        return {name: _convert(of, one, f"{path}.{name}") for name, one in value.items()}
    if _is_enum(annotation):
        return _one_of({member.value: member for member in annotation}, value, path)
    return _object(annotation, value, path)


def _scalar(annotation: object, value: JSONValue, path: str) -> object:
    expected = _SCALARS[annotation]
    match expected:
        case "string" if isinstance(value, str):
            return value
        case "boolean" if isinstance(value, bool):
            return value
        case "null" if value is None:
            return value
        # To Python a bool is an int, to JSON it is not; and 3.0 is an integer to JSON Schema.
        case "integer" if not isinstance(value, bool):
            if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
                return int(value)
        case "number" if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    raise ValueError(f"{path}: expected {_with_article(expected)}")


def _one_of(choices: Mapping[object, object], value: JSONValue, path: str) -> object:
    for choice, made in choices.items():
        if choice == value and type(choice) is type(value):
            return made
    raise ValueError(f"{path}: expected one of {list(choices)}")


def _first_that_fits(options: Sequence[object], value: JSONValue, path: str) -> object:
    problem = ""
    for option in options:
        try:
            return _convert(option, value, path)
        except ValueError as error:
            # The first option is the one that was most likely meant: `T | None`.
            problem = problem or str(error)
    raise ValueError(problem)


def _object(annotation: object, value: JSONValue, path: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected an object")
    fields = _fields(annotation, path)
    for name in value:
        if name not in fields:
            raise ValueError(f"{path}: unknown member {name!r}; known are {sorted(fields)}")
    for name, (_, required) in fields.items():
        if required and name not in value:
            raise ValueError(f"{path}: missing member {name!r}")
    members = {
        name: _convert(fields[name][0], one, f"{path}.{name}") for name, one in value.items()
    }
    return annotation(**members) if callable(annotation) else members


def _element(annotation: object, path: str) -> object:
    """Return the type of a list's elements or of a mapping's values; `object` when not said."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments:
        return object
    if origin in _MAPPINGS:
        if arguments[0] is not str:
            raise TypeError(f"{path}: the members of a JSON object are named by strings")
        element: object = arguments[1]
        return element
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        raise TypeError(f"{path}: a tuple must be of one type and any length, as tuple[int, ...]")
    element = arguments[0]
    return element


def _fields(annotation: object, path: str) -> dict[str, tuple[object, bool]]:
    """Return the fields of a dataclass or a typed dict: type, and whether it is required."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        missing = dataclasses.MISSING
        return {
            field.name: (
                hints[field.name],
                field.default is missing and field.default_factory is missing,
            )
            for field in dataclasses.fields(annotation)
            if field.init
        }
    if typing.is_typeddict(annotation):
        # `__required_keys__` knows nothing where annotations are strings, as from __future__.
        hints = typing.get_type_hints(annotation, include_extras=True)
        usual: bool = annotation.__total__  # type: ignore[attr-defined]  # A typed dict has it.
        fields = {}
        for name, of in hints.items():
            mark = get_origin(of)
            marked = mark in (Required, NotRequired)
            fields[name] = (
                get_args(of)[0] if marked else of,
                mark is Required if marked else usual,
            )
        return fields
    raise TypeError(f"{path}: there is no JSON for the type {annotation!r}")


def _is_enum(annotation: object) -> TypeGuard[type[enum.Enum]]:
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)


def _with_article(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind == 'integer' else 'a'} {kind}"
