"""Converts jobs in JSON, as Nomad's API and `nomad job inspect` write them, into the form of job files."""

import re
from typing import Any

from mandor.importers.nomad.evaluation import Titled
from mandor.lib.yaml12 import List, Map

NAMES = {
    "Affinities": "affinity",
    "Artifacts": "artifact",
    "CPU": "cpu",
    "Checks": "check",
    "Constraints": "constraint",
    "CronSpec": "cron",
    "DestPath": "destination",
    "Devices": "device",
    "DiskMB": "disk",
    "EmbeddedTmpl": "data",
    "Envvars": "env",
    "GetterSource": "source",
    "LTarget": "attribute",
    "LogConfig": "logs",
    "MBits": "mbits",
    "MaxFileSizeMB": "max_file_size",
    "MemoryMB": "memory",
    "MemoryMaxMB": "memory_max",
    "Networks": "network",
    "Operand": "operator",
    "ParameterizedJob": "parameterized",
    "PortLabel": "port",
    "RTarget": "value",
    "ReschedulePolicy": "reschedule",
    "RestartPolicy": "restart",
    "ScalingPolicy": "scaling",
    "Services": "service",
    "SizeMB": "size",
    "SourcePath": "source",
    "Spec": "cron",
    "Specs": "crons",
    "SpreadTarget": "target",
    "Spreads": "spread",
    "TaskGroups": "group",
    "TaskName": "task",
    "Tasks": "task",
    "Templates": "template",
    "VolumeMounts": "volume_mount",
    "Volumes": "volume",
}
"""Keys with another name in a job file; all others are the same in snake case."""
_FREE = frozenset({"Config", "Env", "Meta", "Options", "Header", "GetterOptions", "CanaryMeta"})
"""Keys whose mappings have free names."""
_TITLED = {"group": "Name", "task": "Name", "device": "Name", "volume": "Name", "port": "Label"}


def job_from_json(source: Map) -> Titled:
    return _block(source, ())


def _block(source: Map, labels: tuple[str, ...], title: str = "") -> Titled:
    made = Titled(source.line, labels)
    for key, value in source.items():
        if key == title or value is None or value in ("", [], {}):
            continue  # the label, and Nomad's null values
        line = source.lines.get(key, source.line)
        if key in {"DynamicPorts", "ReservedPorts"}:
            _ports(made, value, line, fixed=key == "ReservedPorts")
        else:
            name = NAMES.get(key) or _small(key)
            made.set(name, value if key in _FREE else _value(name, value, line), line, source.texts.get(key))
    return made


def _value(name: str, value: Any, line: int) -> Any:
    if name == "volume" and isinstance(value, Map):
        made = List(line)
        for label, each in value.items():
            if isinstance(each, Map):
                made.add(_block(each, (label,), "Name"), value.lines.get(label, line))
        return made
    if isinstance(value, Map):
        made = List(line)
        made.add(_block(value, ()), line)
        return made
    if isinstance(value, List) and value and all(isinstance(each, Map) for each in value):
        made, title = List(line), _TITLED.get(name, "")
        for index, each in enumerate(value):
            labels = (str(each.get(title, "")),) if title else ()
            made.add(_block(each, labels, title), value.lines[index])
        return made
    return value


def _ports(made: Titled, value: Any, line: int, *, fixed: bool) -> None:
    held = made.get("port")
    ports = held if isinstance(held, List) else List(line)
    for each in value if isinstance(value, list) else []:
        if not isinstance(each, Map):
            continue
        port = Titled(each.line, (str(each.get("Label", "")),))
        for key, name in (("Value", "static" if fixed else ""), ("To", "to"), ("HostNetwork", "host_network")):
            if name and each.get(key) and each.get(key) != "default":
                port.set(name, each[key], each.lines.get(key, each.line))
        ports.add(port, each.line)
    made.set("port", ports, line)


def _small(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key).lower()
