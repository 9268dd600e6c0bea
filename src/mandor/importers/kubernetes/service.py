"""Converts Services: services of the workload that they select, or objects of kind service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import Made, filled, fitting_name
from mandor.importers.kubernetes.endpoints import Endpoint, ServiceEndpoints, external_addresses
from mandor.importers.kubernetes.meta import ObjectMeta, drop_labels, read_meta
from mandor.importers.kubernetes.shelf import place
from mandor.importers.kubernetes.usual import Unusual, drop_unusual
from mandor.importers.kubernetes.work import Work
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.model.group import PORTS_MOST
from mandor.model.service import HOST_NAME, SERVICES_MOST

AFFINITY_SECONDS, AFFINITY_MOST = 10_800, 86_400
"""Kubernetes' default of `sessionAffinityConfig.clientIP.timeoutSeconds`, and its largest value."""
_TYPES = frozenset({"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"})
_NEAR = {"PreferClose": "zone", "PreferSameZone": "zone", "PreferSameNode": "node"}
_BALANCER = "load balancers outside of the cluster are not configured"
_ADDRESS = "a service has an IPv4 and an IPv6 address, which the cluster assigns"
_OF_SERVICES: Unusual = {
    "loadBalancerIP": (_BALANCER, ()),
    "loadBalancerClass": (_BALANCER, ()),
    "allocateLoadBalancerNodePorts": (_BALANCER, (True,)),
    "healthCheckNodePort": (_BALANCER, ()),
    "externalIPs": ("ports are published on the nodes' own addresses", ()),
    "ipFamilies": (_ADDRESS, (["IPv4"], ["IPv4", "IPv6"])),
    "ipFamilyPolicy": (_ADDRESS, ("SingleStack", "PreferDualStack")),
    "clusterIP": (_ADDRESS, ("None",)),
    "clusterIPs": (_ADDRESS, (["None"],)),
}
_LATER = "instances of other nodes cannot be reached by this name without one network over all nodes"


@dataclass(frozen=True, slots=True)
class ConvertedService:
    """A service of the manifests, for routes that refer to it."""

    name: str
    ports: Mapping[str, int]
    """Numbers of its TCP ports by name, as written in the Service."""
    names: Mapping[str, str]
    """Names of its ports in the manifest, by their names in the Service."""


@dataclass(slots=True)
class ServiceReader:
    """Converts the Services of all files."""

    works: Sequence[Work]
    endpoints: ServiceEndpoints
    made: list[Made] = field(default_factory=list)
    """Objects of kind service."""
    found: dict[tuple[str, str], ConvertedService] = field(default_factory=dict)
    """All services by namespace and name in Kubernetes."""

    def read(self, part: Part) -> None:
        part.text("apiVersion"), part.text("kind")
        part.ignore("status")
        meta = read_meta(part)
        key = place(meta.namespace), meta.name
        if key in self.found:
            raise part.wrong("metadata", f"Service {meta.name} is defined twice")
        spec = part.part("spec")
        kind = spec.text("type") or "ClusterIP"
        if kind not in _TYPES:
            raise spec.wrong("type", f"{kind[:40]!r} is none of {', '.join(sorted(_TYPES))}")
        selector = spec.text_map("selector")
        here = [each for each in self.works if place(each.namespace) == key[0]]
        chosen = [each for each in here if selector and selector.items() <= each.labels.items()]
        if kind == "ExternalName":
            self._external_name(part, spec, meta)
        elif chosen:
            self._of_workloads(part, spec, meta, kind, chosen)
        elif selector:
            part.drop_all("kind", "it selects no workload of these files")
        elif endpoints := self.endpoints.take(*key):
            self._external(part, spec, meta, kind, endpoints)
        else:
            part.drop_all("kind", "it selects nothing, and these files have no Endpoints of its name")

    # Services of workloads.

    def _of_workloads(self, part: Part, spec: Part, meta: ObjectMeta, kind: str, chosen: list[Work]) -> None:
        listed = [each.manifest.get("services", []) for each in chosen]
        alone = len(chosen) == 1 and len(listed[0]) < SERVICES_MOST
        ports = _ServicePorts(chosen, publish=_publishes(spec, kind), shared=not alone)
        for each in _listed_ports(spec):
            ports.read(each)
        for work in chosen:
            work.group.update(filled(ports=work.pod.ports.short))
        rules = filled(port=ports.made) | _rules(spec)
        if not (ports.made or rules.get("headless")):
            part.drop_all("kind", "no port of it can be opened")
            return
        if spec.flag("publishNotReadyAddresses"):
            spec.guess("publishNotReadyAddresses", "each instance is found by its own name as soon as it runs")
        if alone:
            (work,) = chosen
            drop_labels(part, [work.labels])
            name = self._name(part, meta, ports)
            named = filled(name=None if name == work.manifest["name"] else name)
            work.manifest["services"] = [*listed[0], named | rules]
        else:
            to = [{"workload": each.manifest["name"]} for each in chosen]
            self._add(part, meta, self._name(part, meta, ports), rules | {"to": to})

    # Services outside of the cluster.

    def _external_name(self, part: Part, spec: Part, meta: ObjectMeta) -> None:
        target = (spec.text("externalName") or "").removesuffix(".")
        if not HOST_NAME.fullmatch(target):
            raise spec.wrong("externalName", f"{target[:80]!r} is not a host name")
        for key in ("ports", "sessionAffinity", "internalTrafficPolicy", "externalTrafficPolicy"):
            spec.ignore(key)  # without an effect on a name
        drop_unusual(spec, _OF_SERVICES)
        self._add(part, meta, self._name(part, meta, None), {"external_name": target})

    def _external(self, part: Part, spec: Part, meta: ObjectMeta, kind: str, endpoints: list[Endpoint]) -> None:
        if kind != "ClusterIP":
            spec.guess("type", "its ports are not published: it has no instances")
        ports = _ServicePorts([], publish=False, shared=False)
        targets: dict[str, tuple[str, str]] = {}
        for each in _listed_ports(spec):
            name = ports.read(each)
            if name:
                targets[name] = each.text("name") or "", (each.text("protocol") or "TCP").lower()
            each.ignore("targetPort")  # the ports of the endpoints apply
            each.drop("nodePort", "is not published")
        external, numbers = external_addresses(part, endpoints, targets)
        if not external or not ports.made:
            part.drop_all("kind", "it has no address with one of its ports")
            return
        for name, number in numbers.items():
            ports.made[name] = {**_long(ports.made[name]), "target": number}
        rules = filled(port=ports.made) | _rules(spec) | {"external": external}
        self._add(part, meta, self._name(part, meta, ports), rules)

    # All services.

    def _name(self, part: Part, meta: ObjectMeta, ports: "_ServicePorts | None") -> str:
        name = fitting_name(meta.name, most=63)
        if name != meta.name:
            part.part("metadata").guess("name", f"it is called {name} here")
        numbers, names = (ports.numbers, ports.names) if ports else ({}, {})
        self.found[place(meta.namespace), meta.name] = ConvertedService(name, numbers, names)
        return name

    def _add(self, part: Part, meta: ObjectMeta, name: str, rules: dict[str, Any]) -> None:
        head = filled(kind="service", name=name, namespace=meta.namespace or None, labels=dict(meta.labels))
        self.made.append(Made(head | rules, part.file, part.line))


@dataclass(slots=True)
class _ServicePorts:
    """The ports of one Service."""

    works: Sequence[Work]
    publish: bool
    """Publish the target ports on the nodes under the numbers that the Service asks for."""
    shared: bool
    """The service is an object of its own, so the manifests of the workloads must publish the target ports."""
    made: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def read(self, part: Part) -> str:
        """Read one port; return its name in the manifest, empty if it cannot be opened."""
        number, given = part.whole("port"), part.text("name") or ""
        protocol = (part.text("protocol") or "TCP").lower()
        part.drop("appProtocol", "a port is tcp or udp")
        if number is None or not 1 <= number <= 65535:
            raise part.wrong("port", "a port of a Service has a number from 1 to 65535")
        if protocol not in {"tcp", "udp"}:
            part.drop("protocol", f"no port of the protocol {protocol} can be opened")
            return ""
        name = (
            fitting_name(given, most=63) if given else f"port-{number}" + ("" if protocol == "tcp" else f"-{protocol}")
        )
        if name in self.made:
            raise part.wrong("name" if given else "port", f"two ports of the Service are called {name}")
        if any(
            (_long(each)["port"], _long(each).get("protocol", "tcp")) == (number, protocol)
            for each in self.made.values()
        ):
            raise part.wrong("port", f"two ports of the Service have the number {number}")
        target = self._target(part, name, number, protocol) if self.works else {}
        if target is None:
            return ""
        made = filled(port=number, protocol=_udp(protocol), **target)
        self.made[name] = number if made == {"port": number} else made
        self.names[given] = name
        if protocol == "tcp":
            self.numbers[name] = number
        return name

    def _target(self, part: Part, name: str, number: int, protocol: str) -> dict[str, Any] | None:
        """Return `target`, empty for the default; None: no workload has the port."""
        text = part.text("targetPort")
        asked = str(number) if text in {None, "", "0"} else str(text)  # Kubernetes' default is the port itself
        node_port = part.whole("nodePort")
        targets = {}
        for work in self.works:
            found = _declared(part, work, asked, protocol)
            if found:
                targets[work.manifest["name"]] = found
                self._publish(part, work, found, node_port)
        if node_port and not self.publish:
            part.drop("nodePort", "is not published")
        if not targets:
            names = ", ".join(each.manifest["name"] for each in self.works)
            part.drop("targetPort", f"{names} has no {protocol} port {asked}")
            return None
        taken = any(name in each.pod.ports.found for each in self.works)
        if set(targets.values()) == {name} or (asked == str(number) and not taken):
            return {}
        return {"target": int(asked) if asked.isdecimal() else fitting_name(asked)}

    def _publish(self, part: Part, work: Work, name: str, node_port: int | None) -> None:
        port = work.pod.ports.found[name]
        if "host" in port:
            return
        if self.publish:
            alone = (work.replicas or 1) == 1 or work.kind == "DaemonSet"
            port["host"] = node_port if node_port and alone and len(self.works) == 1 else "auto"
            if port["host"] == "auto":
                part.guess("nodePort" if node_port else "port", "a free port of the node is chosen")
        elif self.shared:
            port["host"] = "auto"


def _listed_ports(spec: Part) -> list[Part]:
    ports = spec.parts("ports")
    if len(ports) > PORTS_MOST:
        raise spec.wrong("ports", f"{len(ports)} ports; at most {PORTS_MOST} are allowed")
    return ports


def _declared(part: Part, work: Work, asked: str, protocol: str) -> str:
    """Return the name of the workload's port that a target means; empty: it has none of this name."""
    ports = work.pod.ports
    if not asked.isdecimal():
        name = fitting_name(asked)
        return name if name in ports.found and ports.found[name].get("protocol", "tcp") == protocol else ""
    number = int(asked)
    if not 1 <= number <= 65535:
        raise part.wrong("targetPort", f"{asked[:20]} is not a port number")
    known = ports.numbers.get((protocol, number))
    if known is not None:
        return known
    name = f"port-{number}" + ("" if protocol == "tcp" else f"-{protocol}")
    while name in ports.found:
        name = f"{name}-{number}"
    ports.found[name] = filled(port=number, protocol=_udp(protocol), host=number if ports.host_network else None)
    ports.numbers[protocol, number] = name
    return name


def _publishes(spec: Part, kind: str) -> bool:
    """Return whether the ports are published on the nodes; report how this differs from Kubernetes."""
    ranges = bool(spec.peek("loadBalancerSourceRanges"))
    spec.drop("loadBalancerSourceRanges", "source ranges are not supported", "so its ports are not published")
    policy = _policy(spec, "externalTrafficPolicy")
    published = kind in {"NodePort", "LoadBalancer"} and not ranges
    if published and policy != "Local":
        key = "externalTrafficPolicy" if "externalTrafficPolicy" in spec else "type"
        spec.guess(
            key, "its ports are open on the nodes of its instances, not on all nodes", "a `kind: route` for HTTP"
        )
    return published


def _policy(spec: Part, key: str) -> str:
    given = spec.text(key) or "Cluster"
    if given not in {"Cluster", "Local"}:
        raise spec.wrong(key, f"{given[:40]!r} is neither Cluster nor Local")
    return given


def _rules(spec: Part) -> dict[str, Any]:
    """Return how the service sends traffic to its endpoints."""
    headless = spec.text("clusterIP") == "None"
    if headless:
        spec.guess("clusterIP", _LATER)
    affinity = None
    config = spec.part("sessionAffinityConfig").part("clientIP")
    seconds = config.whole("timeoutSeconds", AFFINITY_SECONDS) or 0
    given = spec.text("sessionAffinity") or "None"
    if given not in {"ClientIP", "None"}:
        raise spec.wrong("sessionAffinity", f"{given[:40]!r} is neither ClientIP nor None")
    if given == "ClientIP":
        if not 0 < seconds <= AFFINITY_MOST:
            raise config.wrong("timeoutSeconds", f"it is from 1 to {AFFINITY_MOST}")
        affinity = str(Seconds(seconds))
    near = _NEAR.get(spec.text("trafficDistribution") or "")
    if "trafficDistribution" in spec and near is None:
        spec.drop("trafficDistribution", "it is none of the known ways")
    if _policy(spec, "internalTrafficPolicy") == "Local":
        near = "node"
        spec.guess("internalTrafficPolicy", "other nodes' instances are used if the node of the client has none")
    drop_unusual(spec, _OF_SERVICES)
    return filled(headless=headless or None, affinity=affinity, near=near)


def _long(port: int | dict[str, Any]) -> dict[str, Any]:
    return port if isinstance(port, dict) else {"port": port}


def _udp(protocol: str) -> str | None:
    """Return the value of `protocol` in a manifest; None for the default."""
    return None if protocol == "tcp" else protocol
