"""Generator of docs/reference/http-api.md from the OpenAPI document."""

from __future__ import annotations

import time
from typing import Any

from duemq.http.api import endpoints
from duemq.http.openapi import OF_EACH, PROBLEMS, document
from duemq.http.tokens import Tokens


def http_page(generated: str) -> str:
    """Return the page; `generated` is the note of generated pages."""
    shown = document(endpoints(Tokens(time.monotonic)))
    lines = [
        "# HTTP API reference",
        "",
        generated,
        "",
        "`/api/v1/openapi.json` has the complete types. [How to use it](../how-to/http-api.md).",
        "",
        "| method and path | | parameters | body | result |",
        "|---|---|---|---|---|",
    ]
    for path, operations in shown["paths"].items():
        for method, operation in operations.items():
            lines.append(_row(path, method, operation))
    lines += ["", "Statuses of problems:", "", "| status | meaning |", "|---|---|"]
    lines += [
        f"| {status} | {text}{'' if status in OF_EACH else ' Only where it applies.'} |"
        for status, text in PROBLEMS.items()
    ]
    for name, schema in sorted(shown["components"]["schemas"].items()):
        if schema.get("properties"):
            lines += _type(name, schema)
    return "\n".join([*lines, ""])


def _row(path: str, method: str, operation: dict[str, Any]) -> str:
    names = [f"`{each['name']}`" for each in operation["parameters"] if each["in"] != "path"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    result = next(iter(operation["responses"].values()))["content"]["application/json"]
    cells = [
        f"`{method.upper()} {path}`",
        operation["summary"],
        ", ".join(names),
        _name(body.get("schema", {})),
        _name(result["schema"]),
    ]
    return f"| {' | '.join(cells)} |"


def _type(name: str, schema: dict[str, Any]) -> list[str]:
    required = schema.get("required", ())
    rows = [
        f"| `{field}` | {_name(value)} | {'required' if field in required else _default(value)} |"
        for field, value in schema["properties"].items()
    ]
    return ["", f"## {name}", "", "| field | type | default |", "|---|---|---|", *rows]


def _name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_name, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "object" if schema else ""))
    if kind == "array":
        return f"array of {_name(schema.get('items', {}))}".removesuffix(" of ")
    limits = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "up to"))
        if key in schema
    ]
    form = schema.get("format") or schema.get("contentEncoding")
    return " ".join([kind, *([f"({form})"] if form else []), *limits])


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default in (None, "", [], {}) else f"`{default}`"
