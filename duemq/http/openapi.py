"""OpenAPI document of the API, from the types of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Final

import msgspec

from duemq.http.endpoints import JSON, PREFIX, Endpoint, JsonObject, JsonValue, NoParameters
from duemq.http.problems import MEDIA_TYPE, ProblemDetails

VERSION: Final = "1.0.0"
EXAMPLES: Final = "examples.json"  # of tests.support.api_examples
SCHEMAS: Final = "#/components/schemas/{name}"
PROBLEMS: Final[Mapping[int, str]] = {
    400: "The request is invalid.",
    401: "The request needs an account.",
    403: "The account lacks a permission, or the source of the request is not allowed.",
    404: "The name does not exist.",
    409: "The name exists with another definition, or the state does not allow the command.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    422: "The idempotency key was used for another message.",
    429: "There are too many requests; Retry-After has the time to wait.",
    500: "The request failed; the log of the server has the reason.",
    501: "The broker does not have the feature.",
    502: "The broker refused the request.",
    503: "A broker did not respond, or it accepts no messages now.",
}
OF_EACH: Final = (400, 401, 403, 404, 429, 500, 501, 502, 503)
OF_BODIES: Final = (413, 415)


def document(endpoints: Iterable[Endpoint]) -> JsonObject:
    """Return the OpenAPI document."""
    endpoints = list(endpoints)
    types: list[object] = [ProblemDetails]
    for endpoint in endpoints:
        types += [each for each in (endpoint.body, endpoint.result) if each is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMAS)
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, JsonObject] = {}
    examples = read_examples()
    for endpoint in endpoints:
        operation = _operation(endpoint, by_type, examples.get(endpoint.handler.__name__, {}))
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DueMQ",
            "version": VERSION,
            "description": "Delayed messages of RocketMQ-compatible brokers.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "account": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Access key and secret of an account of the brokers.",
                },
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Token of an account, from POST /tokens.",
                },
            },
        },
        "security": [{"account": []}, {"token": []}, {}],
    }


def read_examples() -> dict[str, JsonObject]:
    """Return a `response`, and for operations with a body a `request`, by operation id."""
    data = files("duemq.http").joinpath(EXAMPLES).read_bytes()
    return msgspec.json.decode(data, type=dict[str, JsonObject])


def _operation(
    endpoint: Endpoint, by_type: Mapping[int, JsonObject], example: JsonObject
) -> JsonObject:
    statuses = {*OF_EACH, *endpoint.problems, *(OF_BODIES if endpoint.body else ())}
    problem = {MEDIA_TYPE: {"schema": by_type[id(ProblemDetails)]}}
    responses: JsonObject = {
        str(endpoint.status): {
            "description": "Success.",
            "content": {JSON: _media(by_type[id(endpoint.result)], example.get("response"))},
        }
    }
    for status in sorted(statuses):
        responses[str(status)] = {"description": PROBLEMS[status], "content": problem}
    operation: JsonObject = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": _parameters(endpoint),
        "responses": responses,
    }
    if endpoint.body is not None:
        content = {JSON: _media(by_type[id(endpoint.body)], example.get("request"))}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _media(schema: JsonObject, example: JsonValue) -> JsonObject:
    return {"schema": schema} | ({} if example is None else {"example": example})


def _parameters(endpoint: Endpoint) -> list[JsonObject]:
    parameters: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    parameters += [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]
    if endpoint.query is NoParameters:
        return parameters
    _, components = msgspec.json.schema_components([endpoint.query], ref_template=SCHEMAS)
    schema = components[endpoint.query.__name__]
    for name, value in schema["properties"].items():
        is_required = name in schema.get("required", ())
        parameters.append({"name": name, "in": "query", "required": is_required, "schema": value})
    return parameters
