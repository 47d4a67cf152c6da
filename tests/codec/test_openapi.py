from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from turnwire.v1 import response_pb2
from turnwire_server.codec.openapi import openapi

PATHS = {
    "/v1/conversations": {"post"},
    "/v1/conversations/{conversation_id}": {"delete", "get", "post"},
    "/v1/conversations/{conversation_id}/items": {"get", "post"},
    "/v1/conversations/{conversation_id}/items/{item_id}": {"delete", "get"},
    "/v1/models": {"get"},
    "/v1/models/{model}": {"get"},
    "/v1/responses": {"get", "post"},
    "/v1/responses/compact": {"post"},
    "/v1/responses/input_tokens": {"post"},
    "/v1/responses/{response_id}": {"get", "delete"},
    "/v1/responses/{response_id}/cancel": {"post"},
    "/v1/responses/{response_id}/input_items": {"get"},
}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (value["$ref"] for key in value if key == "$ref" and isinstance(value[key], str))
        for content in value.values():
            yield from references(content)
    elif isinstance(value, list):
        for content in value:
            yield from references(content)


def test_every_path_is_described() -> None:
    paths = openapi()["paths"]

    assert {path: set(operations) - {"parameters"} for path, operations in paths.items()} == PATHS


def test_path_parameters_are_declared() -> None:
    for path, operations in openapi()["paths"].items():
        declared = [p["name"] for p in operations.get("parameters", []) if p["in"] == "path"]
        assert declared == re.findall(r"{(\w+)}", path)


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    document = openapi()
    found = set(references(document))

    for reference in found:
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
    prefix = "#/components/schemas/"
    unused = {name for name in document["components"]["schemas"] if prefix + name not in found}
    assert unused == set()


def test_the_document_is_json_of_plain_values() -> None:
    assert orjson.loads(orjson.dumps(openapi())) == openapi()


def test_answers_are_described_as_the_codec_writes_them() -> None:
    schema = openapi()["components"]["schemas"]["Response"]

    fields = {field.name for field in response_pb2.Response.DESCRIPTOR.fields}
    assert set(schema["properties"]) == fields
    assert {"id", "usage", "tools", "metadata", "temperature"} <= set(schema["required"])
    assert "turnwire" not in schema["required"]
    assert schema["properties"]["usage"] == {
        "anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]
    }
    assert schema["properties"]["status"]["enum"][0] == "queued"


def test_requests_are_described_by_the_shapes_that_check_them() -> None:
    schemas = openapi()["components"]["schemas"]

    assert "async" in schemas["Request.FunctionTool"]["properties"]
    assert schemas["Request.MessageItem"]["required"] == ["role"]
    body = openapi()["paths"]["/v1/responses"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["$ref"].endswith("/Request.ResponseCreate")
