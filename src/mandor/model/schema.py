"""The manifest as a JSON Schema (2020-12), so that editors complete and check it."""

from copy import deepcopy
from functools import cache

from mandor.model.json_schema import Schema, schemas
from mandor.model.priority import PriorityClassSpec
from mandor.model.quota import QuotaSpec
from mandor.model.record import NamespaceSpec
from mandor.model.volume import VolumeSpec
from mandor.model.workload import WorkloadSpec

SCHEMA_ID = "urn:mandor:manifest"
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_NAME: Schema = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"}
_LABELS: Schema = {
    "type": "object",
    "additionalProperties": _SCALAR,
    "maxProperties": 64,
    "description": "Words by which objects are found: `mandor get workloads -l app=shop`.",
}


def manifest_schema() -> Schema:
    """The schema of one document of a manifest: flat, with groups, or another kind."""
    return deepcopy(_manifest_schema())


@cache
def _manifest_schema() -> Schema:
    defs = schemas([WorkloadSpec, NamespaceSpec, PriorityClassSpec, QuotaSpec, VolumeSpec])
    _shorten(defs)
    spec = defs.pop("WorkloadSpec")["properties"]
    del defs["RolloutOrders"]  # what commands write, and no manifest
    namespace = defs.pop("NamespaceSpec")["properties"]
    priority = defs.pop("PriorityClassSpec")["properties"]
    quota = defs.pop("QuotaSpec")["properties"]
    volume = defs.pop("VolumeSpec")["properties"]
    shared = {
        "kind": {"const": "workload", "description": "What this is; absent: a workload."},
        "name": _NAME | {"description": "The workload's name."},
        "namespace": _NAME | {"description": "Where it lives; absent: `default`."},
        "labels": _LABELS,
        **{key: spec[key] for key in ("type", "priority", "profile", "gates", "batch")},
    }
    group = {key: value for key, value in defs["Group"]["properties"].items() if key != "tasks"}
    task = {key: value for key, value in defs["Task"]["properties"].items() if key != "role"}
    flat = _mapping("A workload of one task.", {**shared, **group, **task}, ["name"])
    defs["flat"] = flat | {"anyOf": [{"required": ["image"]}, {"required": ["command"]}]}
    grouped = {**shared, "groups": spec["groups"]}
    defs["grouped"] = _mapping("A workload of groups of tasks.", grouped, ["name", "groups"])
    defs["namespace"] = _mapping(
        "A namespace, and what its workloads may use.",
        {"kind": {"const": "namespace"}, "name": _NAME, "labels": _LABELS, **namespace},
        ["kind", "name"],
    )
    defs["volume"] = _mapping(
        "A volume, made before anybody uses it.",
        {"kind": {"const": "volume"}, "name": _NAME, "namespace": shared["namespace"], "labels": _LABELS, **volume},
        ["kind", "name"],
    )
    defs["priority-class"] = _mapping(
        "A name for a priority.",
        {"kind": {"const": "priority-class"}, "name": _NAME, "labels": _LABELS, **priority},
        ["kind", "name", "value"],
    )
    place = _NAME | {"description": "Whose it is; absent: `default`."}
    defs["quota"] = _mapping(
        "How much of the cluster the instances of a namespace may take together; more of them wait.",
        {"kind": {"const": "quota"}, "name": _NAME, "namespace": place, "labels": _LABELS, **quota},
        ["kind", "name"],
    )
    workload: Schema = {
        "if": {"required": ["groups"]},
        "then": {"$ref": "#/$defs/grouped"},
        "else": {"$ref": "#/$defs/flat"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Mandor manifest",
        "type": "object",
        **_of_kind("namespace", _of_kind("priority-class", _of_kind("quota", _of_kind("volume", workload)))),
        "$defs": dict(sorted(defs.items())),
    }


def _of_kind(kind: str, otherwise: Schema) -> Schema:
    return {
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {"$ref": f"#/$defs/{kind}"},
        "else": otherwise,
    }


def _shorten(defs: dict[str, Schema]) -> None:
    """The short forms that people may write, and numbers where text belongs."""
    group = defs["Group"]["properties"]
    engines = group["engine"]
    group["engine"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    group["engine"]["description"] = engines["description"]
    group["count"] = group["replicas"] | {"description": "The same as `replicas`."}
    number = {"type": "integer", "minimum": 1, "maximum": 65535}
    group["ports"]["additionalProperties"] = {"anyOf": [number, {"$ref": "#/$defs/Port"}]}
    defs["Placement"]["properties"]["where"]["items"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Where"}]}
    task = defs["Task"]["properties"]
    task["env"]["additionalProperties"] = _SCALAR
    for words in (task["command"], task["args"], defs["Probe"]["properties"]["command"]["anyOf"][0]):
        words["items"] = _SCALAR
    for folder in (defs["File"], defs["GroupVolume"], defs["VolumeSpec"]):
        folder["properties"]["mode"] |= {"type": ["string", "integer"]}
    for folder in (defs["GroupVolume"], defs["VolumeSpec"]):
        folder["properties"]["owner"] |= {"type": ["string", "integer"]}
    defs["VolumeSpec"]["properties"]["where"]["items"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Where"}]}


def _mapping(description: str, properties: dict[str, Schema], required: list[str]) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
