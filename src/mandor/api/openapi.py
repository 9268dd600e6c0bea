"""The OpenAPI 3.1 document, generated from the operations and their types, and its page, which works offline."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, get_args

import msgspec

from mandor import __version__
from mandor.api.http.problems import STATUS, Problem
from mandor.api.operation import JSON, NDJSON, Operation
from mandor.model.json_schema import Schema, SchemaMaker

ALWAYS = ("invalid", "unauthenticated", "forbidden", "too_many", "unavailable", "internal")
"""Error codes that every operation may return."""
WITH_BODY = ("too_large",)
_PARAMETER = re.compile(r"\{(\w+)\}")
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    maker = SchemaMaker("#/components/schemas/{name}")
    maker.schema(Problem)
    maker.defs["Problem"]["additionalProperties"] = True
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, maker)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mandor",
            "version": __version__,
            "description": "Cluster scheduler and orchestrator: places and runs workloads on any engine.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(maker.defs.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Operation, maker: SchemaMaker) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": each.name, "summary": each.summary, "tags": [each.tag]}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _NAME} for name in _PARAMETER.findall(each.path)
    ]
    parameters += _query(each.query, maker)
    if parameters:
        found["parameters"] = parameters
    if each.body is not None:
        found["requestBody"] = {
            "required": not each.body_optional,
            "content": {kind: {"schema": _body(each, kind, maker)} for kind in each.takes},
        }
    found["responses"] = _responses(each, maker)
    if each.open:
        found["security"] = []
    return found


def _body(each: Operation, content_type: str, maker: SchemaMaker) -> Schema:
    if each.body is bytes and content_type != JSON:
        return {"type": "string"}
    shape = maker.schema(each.shape if each.shape is not None else each.body)
    # A JSON body may be a manifest itself.
    return {"anyOf": [shape, {"type": "object"}]} if each.body is bytes else shape


def _query(wanted: type | None, maker: SchemaMaker) -> list[dict[str, Any]]:
    found = []
    for each in msgspec.structs.fields(wanted) if wanted is not None else ():
        required = each.default is msgspec.NODEFAULT and each.default_factory is msgspec.NODEFAULT
        parameter: dict[str, Any] = {"name": each.encode_name, "in": "query", "required": required}
        description = _description(each.type)
        if description:
            parameter["description"] = description
        # A query parameter cannot be null: an optional one is omitted.
        options = [option for option in get_args(each.type) if option is not type(None)]
        optional = type(None) in get_args(each.type) and len(options) == 1
        parameter["schema"] = maker.schema(options[0] if optional else each.type)
        found.append(parameter)
    return found


def _description(kind: Any) -> str | None:
    for each in (kind, *get_args(kind)):
        for note in getattr(each, "__metadata__", ()):
            if isinstance(note, msgspec.Meta) and note.description:
                return note.description
    return None


def _responses(each: Operation, maker: SchemaMaker) -> dict[str, Any]:
    schema: Schema = {"type": "string"} if each.gives == NDJSON else maker.schema(each.result)
    if each.gives == NDJSON and each.result is not Any:
        maker.schema(each.result)
        schema["description"] = f"Lines of JSON; each line is a {each.result.__name__}."
    content: dict[str, Any] = {each.gives: {"schema": schema}}
    if each.gives == "text/plain":
        content[NDJSON] = {"schema": {"type": "string"}}
    found: dict[str, Any] = {str(each.status): {"description": "Success.", "content": content}}
    codes = {*(() if each.open else ALWAYS), *each.refuses, "internal", "unavailable", "invalid", "forbidden"}
    if each.body is not None:
        codes |= set(WITH_BODY)
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUS[code], []).append(code)
    if each.body is not None:
        by_status.setdefault(415, []).append("unsupported")
    by_status.setdefault(413, []).append("too_large")
    for status, names in sorted(by_status.items()):
        found[str(status)] = {
            "description": " or ".join(f"`{name}`" for name in sorted(set(names))),
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


@cache
def page() -> bytes:
    """Return Swagger UI as one page that includes its scripts."""
    from offapi import OpenAPITemplate

    text: str = OpenAPITemplate.SWAGGER.value.format(spec_url="/openapi.json")
    # By default the page sends the document to a validator on the internet.
    return text.replace('layout: "StandaloneLayout",', 'layout: "StandaloneLayout", validatorUrl: null,').encode()
