"""Nomad's `network` and `service` blocks: ports of a group, probes of its tasks, labels with service names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mandor.importers.base import filled, fitting_name
from mandor.importers.nomad.blocks import block, blocks, drop_all, duration, label, merged_text, pairs, seconds
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.model.task import CHECKS_MOST

_SERVICE = {
    "connect": "service meshes are not supported",
    "address_mode": "services use the addresses of their instances",
    "address": "services use the addresses of their instances",
    "canary_tags": "canaries have the same labels",
    "canary_meta": "canaries have the same labels",
    "enable_tag_override": "labels are set in the manifest",
    "on_update": "probes always apply",
    "tagged_addresses": "services use the addresses of their instances",
    "identity": "there is no identity for services",
    "weights": "instances have equal weight",
    "cluster": "regions are not supported",
    "kind": "service kinds are not supported",
}
_CHECK = {
    "initial_status": "an instance is ready after the first good answer",
    "address_mode": "probes run on the node of the instance",
    "expose": "service meshes are not supported",
    "header": "a probe sends no headers",
    "body": "a probe sends no body",
    "on_update": "probes always apply",
    "tls_server_name": "a probe speaks plain HTTP",
    "tls_skip_verify": "a probe speaks plain HTTP",
    "grpc_service": "gRPC probes are not supported",
    "grpc_use_tls": "gRPC probes are not supported",
    "failures_before_warning": "check warnings are not supported",
    "interpolate": "templates are rendered once",
    "notes": "a probe has no notes",
}


def read_network(ports: dict[str, dict[str, Any]], options: dict[str, Any], part: Part) -> None:
    mode = part.text("mode", "host") or "host"
    if mode == "none":
        options["network"] = "none"
    elif mode.startswith("cni/"):
        part.drop("mode", "CNI networks are configured on the node")
    elif mode not in {"host", "bridge"}:
        raise part.wrong("mode", f"{mode!r} is none of host, bridge, none, cni/…")
    options |= filled(hostname=part.text("hostname"))
    for each in blocks(part, "port"):
        name = label(each, "port")
        static, to = each.whole("static"), each.whole("to")
        if "host_network" in each:
            each.drop("host_network", "ports are open on all addresses of the node")
        each.drop("ignore_collision", "two instances with the same port go to different nodes")
        ports[fitting_name(name)] = filled(port=to if to and to > 0 else None, host=static or "auto")
    part.ignore("mbits")  # ignored by Nomad since 0.12
    names = block(part, "dns")
    options |= filled(
        dns=names.texts("servers"), dns_search=names.texts("searches"), dns_options=names.texts("options")
    )
    drop_all(part, {"cni": "CNI networks are configured on the node"})


PORT_OF_CHOSEN = 80
"""Port of a service whose target port is chosen when the task starts."""


class NamedPort(NamedTuple):
    """One port of a service."""

    service: str
    group: str
    label: str
    """Name of the port in the manifest."""
    number: int
    part: Part


def services_of_workload(named: Sequence[NamedPort], groups: int) -> list[dict[str, Any]]:
    """Return `services` of a workload with that many groups; a number is the port of one label of a service only."""
    found: dict[str, dict[str, int]] = {}
    owners: dict[str, set[str]] = {}
    for each in named:
        ports = found.setdefault(each.service, {})
        owners.setdefault(each.service, set()).add(fitting_name(each.group))
        number = each.number
        while number in ports.values() and each.label not in ports and number < 65535:
            number += 1
        if number != each.number:
            each.part.guess(
                "port", f"clients use {each.service}:{number}: {each.number} is its port {_label(ports, each)}"
            )
        ports.setdefault(each.label, number)
    return [
        filled(name=name, group=min(owners[name]) if groups > 1 and len(owners[name]) == 1 else None, port=ports)
        for name, ports in found.items()
    ]


def _label(ports: dict[str, int], port: NamedPort) -> str:
    return next(label for label, number in ports.items() if number == port.number)


class Services:
    """Services of one group, and the probes that they need."""

    def __init__(self, ports: dict[str, dict[str, Any]], group: str) -> None:
        self.ports = ports
        self.group = group
        self.labels: dict[str, str] = {}
        self.named: list[NamedPort] = []
        """Ports of services with a name."""
        self.asked: dict[str, dict[str, Any]] = {}
        """Probes by task: `readiness`, and `health` where a failure restarts the task."""

    def read(self, part: Part, task: str, job: str) -> None:
        name = part.text("name") or f"{job}-{self.group}-{task}"
        name = name.replace("${JOB}", job).replace("${TASKGROUP}", self.group).replace("${BASE}", f"{job}-{self.group}")
        port, tags = part.text("port"), part.texts("tags")
        if part.text("provider", "consul") not in {"consul", "nomad"}:
            raise part.wrong("provider", "it is `consul` or `nomad`")
        part.text("task")
        meta = pairs(part, "meta")
        key = fitting_name(name, most=60)
        self.labels[f"service/{key}"] = port or ""
        if tags and len(merged_text(tags)) <= 256:
            self.labels[f"service-tags/{key}"] = merged_text(tags)
        elif tags:
            part.drop("tags", "together they are too long for a label")
        for word, value in meta.items():
            self.labels[f"service-meta/{key}.{fitting_name(word)}"] = value[:256]
        if port:
            self._open(part, fitting_name(name, most=63), port)
        restart = block(part, "check_restart")
        for each in sorted(blocks(part, "check"), key=lambda check: check.peek("type") == "tcp"):
            self._check(each, port, each.text("task") or task, restart)
            if (called := each.text("name")) is not None:
                self._name(f"service-check/{key}", called)
        _drain(restart)
        drop_all(part, _SERVICE)

    def _open(self, part: Part, name: str, port: str) -> None:
        """Add a port to the service of this name."""
        label = fitting_name(port)
        if port.isdecimal() and label not in self.ports:
            if not 1 <= int(port) <= 65535:
                raise part.wrong("port", f"{port[:20]} is not a port number")
            known = [key for key, each in self.ports.items() if int(port) in {each.get("port"), each.get("host")}]
            label = known[0] if known else f"port-{port}"
            self.ports.setdefault(label, {"port": int(port)})
        if label not in self.ports:
            part.drop("port", f"the `network` of the group has no port {port[:60]}", "the service gets no name")
            return
        found = self.ports[label]
        fixed = [found[key] for key in ("host", "port") if isinstance(found.get(key), int)]
        if not fixed:
            part.guess("port", f"clients use {name}:{PORT_OF_CHOSEN}: Nomad chooses the port when it starts the task")
        self.named.append(NamedPort(name, self.group, label, fixed[0] if fixed else PORT_OF_CHOSEN, part))

    def _name(self, key: str, called: str) -> None:
        """Keep the service name as a label, if it is short enough."""
        names = [*filter(None, self.labels.get(key, "").split(",")), called]
        self.labels[key] = merged_text(names)[:256]

    def _check(self, part: Part, port: str | None, task: str, outer: Part) -> None:
        kind = part.text("type", "") or ""
        inner = block(part, "check_restart")
        probe = self._probe(part, kind, part.text("port") or port)
        interval, timeout = duration(part, "interval"), duration(part, "timeout")
        good, bad = part.whole("success_before_passing"), part.whole("failures_before_critical")
        method, protocol = part.text("method", "GET"), part.text("protocol", "http")
        if protocol not in {"http", ""}:
            part.guess("protocol", "the probe uses plain HTTP")
        if method not in {"GET", "HEAD"}:
            part.guess("method", "the probe uses GET")
        drop_all(part, _CHECK)
        taken = self.asked.get(task)
        if probe is not None and taken is not None and _covered(probe, taken["readiness"]):
            part.guess("type", "another check of the same port is stricter")
            for key in ("interval", "timeout", "check_restart"):
                part.drop(key, "another check of the same port is stricter")
            return
        if probe is None or (taken is not None and len(taken["readiness"].get("also", ())) >= CHECKS_MOST):
            why = "this type of check is not supported" if probe is None else "a probe has at most 8 further checks"
            for key in ("type", "path", "command", "args", "port", "interval", "timeout", "check_restart"):
                part.drop(key, why)
            return
        probe |= filled(
            interval=interval,
            timeout=timeout,
            successes=(good or 0) + 1 if good else None,
            failures=(bad or 0) + 1 if bad else None,
        )
        asked: dict[str, Any] = {"readiness": probe}
        restart = inner or outer
        if restart and (limit := restart.whole("limit", 0)):
            asked["health"] = dict(probe) | filled(
                failures=limit, start_period=str(Seconds(seconds(restart, "grace") or 1))
            )
            if restart.flag("ignore_warnings"):
                restart.drop("ignore_warnings", "check warnings are not supported")
        if taken is None:
            self.asked[task] = asked
        else:
            self._join(part, taken, asked, probe, timeout)

    def _join(
        self, part: Part, taken: dict[str, Any], asked: dict[str, Any], probe: dict[str, Any], timeout: str | None
    ) -> None:
        """Add a further check to the probes of a task; all checks have the pace of the first one."""
        kept = {key: value for key, value in probe.items() if key in {"http", "tcp", "command", "port"}}
        check = kept | filled(timeout=timeout)
        taken["readiness"].setdefault("also", []).append(check)
        if "health" in asked and "health" in taken:
            taken["health"].setdefault("also", []).append(dict(check))
        elif "health" in asked:
            taken["health"] = asked["health"]
        for key in ("interval", "success_before_passing", "failures_before_critical"):
            if key in part:
                part.guess(key, "all checks of a task are made at the pace of the first one")

    def _probe(self, part: Part, kind: str, port: str | None) -> dict[str, Any] | None:
        path, command, args = part.text("path"), part.text("command"), part.texts("args")
        if kind == "script":
            return {"command": [command or "", *args]} if command else None
        if kind not in {"http", "tcp", "grpc"} or not port:
            return None
        if kind == "grpc":
            part.guess("type", "becomes a TCP probe")
        asked: str | int = int(port) if port.isdecimal() else fitting_name(port)
        if isinstance(asked, str) and asked not in self.ports:
            return None
        if kind != "http":
            return {"tcp": asked}
        return {"http": path if path and path.startswith("/") else f"/{path or ''}", "port": asked}


def _covered(probe: dict[str, Any], taken: dict[str, Any]) -> bool:
    """Remove TCP checks of ports that also have an HTTP check."""
    return "tcp" in probe and "http" in taken and probe["tcp"] == taken["port"]


def _drain(part: Part) -> None:
    for key in part:
        part.take(key)
