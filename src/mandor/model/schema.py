"""JSON Schema (2020-12) of manifests, for completion and validation in editors."""

from copy import deepcopy
from functools import cache

from msgspec import Struct

from mandor.model.json_schema import Schema, schemas
from mandor.model.limit_defaults import LimitDefaultsSpec
from mandor.model.log_sink import LogSinkSpec
from mandor.model.network import NetworkSpec
from mandor.model.pool import NodePoolSpec
from mandor.model.priority import PriorityClassSpec
from mandor.model.quota import QuotaSpec
from mandor.model.rebalance import RebalanceSpec
from mandor.model.receiver import EventBusSpec, WebhookSpec
from mandor.model.record import NamespaceSpec
from mandor.model.reservation import ReservationSpec
from mandor.model.role import IssuerSpec, RoleBindingSpec, RoleSpec
from mandor.model.route import RouteSpec
from mandor.model.secret import SecretSpec
from mandor.model.service import ServiceSpec
from mandor.model.volume import VolumeSpec
from mandor.model.workload import WorkloadSpec

SCHEMA_ID = "urn:mandor:manifest"
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_NAME: Schema = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"}
_LABELS: Schema = {
    "type": "object",
    "additionalProperties": _SCALAR,
    "maxProperties": 64,
    "description": "Labels to select objects by: `mandor get workloads -l app=shop`. At most 64.",
}

_OTHERS: dict[str, tuple[type[Struct], bool, str]] = {
    "namespace": (NamespaceSpec, False, "A namespace and the limits of its workloads."),
    "priority-class": (PriorityClassSpec, False, "A named priority."),
    "quota": (
        QuotaSpec,
        True,
        "Limits on the resources of all instances of a namespace; instances above them stay pending.",
    ),
    "limit-defaults": (
        LimitDefaultsSpec,
        True,
        "Default and maximum resources of the tasks in a namespace.",
    ),
    "volume": (VolumeSpec, True, "A volume created before it is used."),
    "node-pool": (NodePoolSpec, False, "Maintenance windows and autoscaling of the nodes in a pool."),
    "secret": (SecretSpec, True, "Confidential values for tasks; stored encrypted."),
    "reservation": (ReservationSpec, True, "Resources held for certain workloads for a period of time."),
    "service": (ServiceSpec, True, "A stable name and virtual address for workloads or external addresses."),
    "route": (RouteSpec, True, "A host and path, or a port, of gateways that leads to services."),
    "network": (NetworkSpec, False, "Addresses for instances that are unique in the cluster."),
    "rebalance": (RebalanceSpec, False, "A request to move the instances that would gain most on other nodes."),
    "webhook": (WebhookSpec, False, "A receiver of events over HTTP; messages are signed."),
    "event-bus": (EventBusSpec, False, "A NATS or Kafka server to which events are published."),
    "log-sink": (LogSinkSpec, False, "A destination for the logs of instances and agents."),
    "role": (RoleSpec, False, "Rules that allow verbs on objects."),
    "role-binding": (RoleBindingSpec, False, "Grants a role to users and groups of an OpenID provider."),
    "issuer": (IssuerSpec, False, "An OpenID provider whose ID tokens the API accepts."),
}
"""Kinds other than workloads: the spec, whether the kind is namespaced, and its description."""


def manifest_schema() -> Schema:
    """Return the schema of one document of a manifest: flat, with groups, or of another kind."""
    return deepcopy(_manifest_schema())


@cache
def _manifest_schema() -> Schema:
    defs = schemas([WorkloadSpec, *(spec for spec, _, _ in _OTHERS.values())])
    _shorten(defs)
    spec = defs.pop("WorkloadSpec")["properties"]
    del defs["RolloutOrders"]  # written by commands, not by manifests
    shared = {
        "kind": {"const": "workload", "description": "Kind of the object. Defaults to `workload`."},
        "name": _NAME | {"description": "Name of the workload."},
        "namespace": _NAME | {"description": "Namespace of the workload. Defaults to `default`."},
        "labels": _LABELS,
        **{key: spec[key] for key in ("type", "priority", "profile", "gates", "batch", "services")},
        "schedule": {
            "anyOf": [{"type": "string"}, *spec["schedule"]["anyOf"]],
            "description": spec["schedule"]["description"],
        },
    }
    group = {key: value for key, value in defs["Group"]["properties"].items() if key != "tasks"}
    task = {key: value for key, value in defs["Task"]["properties"].items() if key != "role"}
    flat = _mapping("A workload with one task.", {**shared, **group, **task}, ["name"])
    defs["flat"] = flat | {"anyOf": [{"required": ["image"]}, {"required": ["command"]}]}
    grouped = {**shared, "groups": spec["groups"]}
    defs["grouped"] = _mapping("A workload with groups of tasks.", grouped, ["name", "groups"])
    chosen: Schema = {
        "if": {"required": ["groups"]},
        "then": {"$ref": "#/$defs/grouped"},
        "else": {"$ref": "#/$defs/flat"},
    }
    place = _NAME | {"description": "Namespace of the object. Defaults to `default`."}
    for kind, (cls, namespaced, description) in _OTHERS.items():
        own = defs.pop(cls.__name__)
        meta = {"kind": {"const": kind}, "name": _NAME, **({"namespace": place} if namespaced else {})}
        properties = {**meta, "labels": _LABELS, **own["properties"]}
        defs[kind] = _mapping(description, properties, ["kind", "name", *own.get("required", ())])
        chosen = _of_kind(kind, chosen)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Mandor manifest",
        "type": "object",
        **chosen,
        "$defs": dict(sorted(defs.items())),
    }


def _of_kind(kind: str, otherwise: Schema) -> Schema:
    return {
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {"$ref": f"#/$defs/{kind}"},
        "else": otherwise,
    }


def _shorten(defs: dict[str, Schema]) -> None:
    """Add the short forms allowed in manifests, and numbers where text is expected."""
    group, alternative = defs["Group"]["properties"], defs["Alternative"]["properties"]
    for form in (group, alternative):
        described = form["engine"]["description"]
        form["engine"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        form["engine"]["description"] = described
    group["count"] = group["replicas"] | {"description": "The same as `replicas`."}
    number = {"type": "integer", "minimum": 1, "maximum": 65535}
    for ports in (group["ports"], alternative["ports"]["anyOf"][0]):
        ports["additionalProperties"] = {"anyOf": [number, {"const": "auto"}, {"$ref": "#/$defs/Port"}]}
    for each in ("WorkloadService", "ServiceSpec"):
        defs[each]["properties"]["port"]["additionalProperties"] = {"anyOf": [number, {"$ref": "#/$defs/ServicePort"}]}
    defs["Placement"]["properties"]["where"]["items"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Where"}]}
    times = defs["Schedule"]["properties"]["cron"]
    times |= {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    del times["type"], times["items"]
    task, variant = defs["Task"]["properties"], defs["TaskVariant"]["properties"]
    commands = [task["command"], task["args"], defs["Probe"]["properties"]["command"]["anyOf"][0]]
    for each in (variant, alternative):
        commands += [each["command"]["anyOf"][0], each["args"]["anyOf"][0]]
    for each in (task, variant, alternative):
        each["env"]["additionalProperties"] = _SCALAR
    for words in commands:
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
