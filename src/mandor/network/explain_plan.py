"""Explains step by step why an instance can or cannot reach a service or another instance: pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from mandor.model.instance import Instance
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort
from mandor.network.endpoints import SeenInstance, Viewpoint, by_workload, endpoints, seen_instance
from mandor.network.traffic_report import TrafficReport

SHOWN_MOST = 20
"""Endpoints of which one explanation lists the reasons."""


class Step(Struct, frozen=True, gc=False, omit_defaults=True):
    """One step on the way from a client to its target."""

    name: str
    good: bool
    message: str


class TrafficExplanation(Struct, frozen=True, gc=False, omit_defaults=True):
    """The way from an instance to a target."""

    source: str
    target: str
    reaches: bool
    """Whether every step works."""
    steps: tuple[Step, ...]


class RelatedObjects(NamedTuple):
    """The objects that the explanation is about."""

    instances: Sequence[Instance]
    """Instances of the namespace of the target."""
    nodes: Mapping[str, Node]
    report: TrafficReport | None = None
    """Report of the client's node about the service; None: the node did not answer."""


def explain_service(source: Instance, service: Service, port: str, objects: RelatedObjects) -> TrafficExplanation:
    """Explain the way from an instance to a port of a service. `port` empty: its only port."""
    steps = [_client(source), _node_of("client's node", source.node, objects.nodes)]
    steps.append(_name(service))
    chosen, step = _port(service, port)
    steps.append(step)
    view = _view(source, objects.nodes)
    if chosen is not None:
        steps += _endpoints(service, *chosen, objects, view)
    if not (service.spec.headless or service.spec.external_name):
        steps.append(_data_path(source.node, objects.report, chosen[0] if chosen is not None else ""))
    target = f"service {service.meta.namespace}/{service.meta.name}" + (f" port {chosen[0]}" if chosen else "")
    return _explanation(source, target, steps)


def explain_instance(source: Instance, target: Instance, port: str, nodes: Mapping[str, Node]) -> TrafficExplanation:
    """Explain the way from an instance to a port of another instance. `port` empty: its only port."""
    steps = [_client(source), _node_of("client's node", source.node, nodes)]
    state = instance_state(target, check_ready=False)
    steps.append(Step("target", not state, state or f"{target.meta.name} runs on {target.node}"))
    if target.node and target.node != source.node:
        steps.append(_node_of("target's node", target.node, nodes))
    view = _view(source, nodes)
    seen = seen_instance(target, target.status, view)
    if not state:
        steps.append(_address(target, seen, port, near=target.node == source.node))
    return _explanation(source, f"instance {target.meta.namespace}/{target.meta.name}", steps)


def instance_state(instance: Instance, *, check_ready: bool = True) -> str:
    """Return why an instance gets no traffic; empty: it does."""
    status = instance.status
    if not instance.node:
        return f"{instance.meta.name} has no node: {status.message or status.phase}"
    if status.phase is not Phase.RUNNING:
        reason = f": {status.reason or status.message}" if status.reason or status.message else ""
        return f"{instance.meta.name} is {status.phase}{reason}"
    if instance.spec.stop is not None:
        return f"{instance.meta.name} is stopping: {instance.spec.stop.reason}"
    if check_ready and not status.ready:
        return f"{instance.meta.name} is not ready: its readiness probe fails or has not passed yet"
    return ""


class EndpointState(NamedTuple):
    """One instance of a service with the reason why it gets no traffic."""

    instance: Instance
    reason: str
    """Empty: it gets traffic."""


def endpoint_states(service: Service, instances: Iterable[Instance]) -> list[EndpointState]:
    """Return the instances of the service's workloads, those without traffic with their reasons."""
    found = []
    for each in sorted(instances, key=lambda instance: instance.meta.name):
        if is_member(service, each):
            reason = instance_state(each)
            if not reason:
                seen = seen_instance(each, each.status, Viewpoint(each.node, each.status.host or "127.0.0.1"))
                reason = _unreached(service, seen)
            found.append(EndpointState(each, reason))
    return found


def is_member(service: Service, instance: Instance) -> bool:
    """Return whether the instance belongs to a workload of the service."""
    spec = instance.spec
    return service.meta.namespace == instance.meta.namespace and any(
        each.workload == spec.workload and each.group in {"", spec.group} for each in service.spec.to
    )


def _unreached(service: Service, seen: SeenInstance | None) -> str:
    if seen is None:
        return "it has no address and publishes no port"
    lacking = [name for name, port in service.spec.port.items() if seen.reached_at(name, port) is None]
    return f"it does not have the target of the port {', '.join(lacking)}" if lacking else ""


def _client(source: Instance) -> Step:
    state = instance_state(source, check_ready=False)
    return Step("client", not state, state or f"{source.meta.name} runs on {source.node}")


def _node_of(what: str, name: str, nodes: Mapping[str, Node]) -> Step:
    node = nodes.get(name)
    if not name:
        return Step(what, False, "it has no node yet")
    if node is None:
        return Step(what, False, f"the node {name} does not exist any more")
    phase = node.status.phase
    message = f"{name} is {phase}" + (f": {node.status.reason}" if node.status.reason else "")
    return Step(what, phase is NodePhase.READY, message)


def _name(service: Service) -> Step:
    spec, status, full = service.spec, service.status, f"{service.meta.name}.{service.meta.namespace}"
    if spec.external_name:
        return Step("name", True, f"{full} stands for {spec.external_name}, outside of the cluster")
    if spec.headless:
        return Step("name", True, f"{full} is headless: it resolves to the addresses of the ready instances")
    if not status.number:
        return Step("name", False, f"{full} has no virtual address: {status.message or 'not assigned yet'}")
    return Step("name", True, f"{full} has the virtual address number {status.number}")


def _port(service: Service, wanted: str) -> tuple[tuple[str, ServicePort] | None, Step]:
    ports = service.spec.port
    known = ", ".join(f"{name} ({each.port}/{each.protocol})" for name, each in ports.items()) or "none"
    if not wanted and len(ports) != 1:
        return None, Step("port", bool(not ports), f"name one of its ports: {known}" if ports else "it has no ports")
    for name, each in ports.items():
        if not wanted or wanted in {name, str(each.port)}:
            target = name if each.target is None else each.target
            return (name, each), Step("port", True, f"{name}: {each.port}/{each.protocol} leads to the port {target}")
    return None, Step("port", False, f"it has no port {wanted}; its ports: {known}")


def _endpoints(service: Service, name: str, port: ServicePort, objects: RelatedObjects, view: Viewpoint) -> list[Step]:
    if service.spec.external_name:
        return []
    excluded = objects.report.excluded if objects.report is not None else {}
    if service.spec.external:
        usable = endpoints(service, name, port, {}, view, failing=excluded)
        steps = [Step("endpoint", False, f"{text}: {reason}") for text, reason in sorted(excluded.items())]
        shown = ", ".join(f"{each.address}:{each.port}" for each in usable)
        return [*steps[:SHOWN_MOST], Step("endpoints", bool(usable), f"{len(usable)} usable: {shown}"[:1000])]
    seen = [each for each in (seen_instance(one, one.status, view) for one in objects.instances) if each is not None]
    usable = endpoints(service, name, port, by_workload(seen), view)
    steps = []
    members = [each for each in objects.instances if is_member(service, each)]
    reached = {each.instance for each in usable}
    for each in sorted(members, key=lambda one: one.meta.name):
        if each.meta.name not in reached:
            steps.append(Step("endpoint", False, _why_not(each, service, name, port, view)))
    sources = ", ".join(each.workload for each in service.spec.to)
    summary = f"{len(usable)} of {len(members)} instances of {sources or 'no workload'} get traffic"
    down = {each.node for each in usable if not _node_of("", each.node, objects.nodes).good}
    steps = steps[:SHOWN_MOST] + [_node_of("endpoint's node", each, objects.nodes) for each in sorted(down)]
    return [*steps, Step("endpoints", any(each.node not in down for each in usable), summary)]


def _why_not(instance: Instance, service: Service, name: str, port: ServicePort, view: Viewpoint) -> str:
    if reason := instance_state(instance):
        return reason
    seen = seen_instance(instance, instance.status, view)
    own = instance.meta.name
    if seen is None:
        return f"{own} on {instance.node} publishes no port, so other nodes do not reach it"
    if seen.reached_at(name, port) is None:
        target = name if port.target is None else port.target
        return f"{own} has no {port.protocol} port {target} that {view.node} reaches"
    return f"{own} is not used: `near: {service.spec.near}` prefers others"


def _data_path(node: str, report: TrafficReport | None, port: str) -> Step:
    if report is None:
        return Step("data path", False, f"the agent of {node} did not answer")
    if report.problem:
        return Step("data path", False, f"{node}: {report.problem}")
    found = next((each for each in report.ports if each.port == port), None)
    if found is None:
        return Step("data path", False, f"{node} does not balance the port {port}")
    addresses = ", ".join(f"{each}:{found.number}" for each in found.addresses)
    counts = f"{found.connections} connections, {found.failures} failures"
    count = len(found.endpoints)
    return Step("data path", bool(count), f"{node} balances {addresses} over {count} endpoints ({counts})")


def _address(target: Instance, seen: SeenInstance | None, port: str, *, near: bool) -> Step:
    if seen is None:
        return Step("address", False, f"{target.meta.name} publishes no port, so other nodes do not reach it")
    ports = {each.name: (each, number) for each, number in seen.ports}
    for each, number in ports.values():
        if port in {"", each.name, str(each.port)} and (port or len(ports) == 1):
            return Step("address", True, f"the port {each.name} is reached at {seen.address}:{number}")
    known = ", ".join(f"{each.name} ({each.port})" for each, _ in ports.values()) or "none"
    if near and target.status.address and port.isdecimal():
        return Step("address", True, f"{seen.address}:{port} is its own address; the port is not declared")
    asked = f"has no port {port} that is reached" if port else "has several ports: name one"
    return Step("address", False, f"{target.meta.name} {asked}; reached ports: {known}")


def _view(source: Instance, nodes: Mapping[str, Node]) -> Viewpoint:
    node = nodes.get(source.node)
    return Viewpoint(source.node, node.status.address if node is not None else "", source.status.zone)


def _explanation(source: Instance, target: str, steps: list[Step]) -> TrafficExplanation:
    decisive = [each for each in steps if each.name not in {"endpoint", "endpoint's node"}]
    reaches = all(each.good for each in decisive)
    return TrafficExplanation(f"instance {source.meta.namespace}/{source.meta.name}", target, reaches, tuple(steps))
