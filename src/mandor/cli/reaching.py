"""Chooses the instance and port that a name of a workload or service leads to."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mandor.client.forward import Choose, InstancePort, fixed
from mandor.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

Doc = Mapping[str, Any]
SERVICE = ("service/", "services/", "svc/")


def chooser(client: "Client", target: str, port: str, namespace: str) -> Choose:
    """Return a function that chooses the instance and port of each connection."""
    kind, slash, name = target.rpartition("/")
    if f"{kind}/" in SERVICE:
        return _of_service(client, name, port, namespace)
    if slash and kind not in {"instance", "instances", "workload", "workloads"}:
        raise Invalid(f"{target} is not an instance, a workload or a service", hint="web-0, web or service/web")
    if not kind.startswith("workload"):
        try:
            client.get("instances", name, namespace)
        except NotFound:
            if kind:
                raise
        else:
            return fixed(name, port)
    return _of_workload(client, name, port, namespace)


def _of_workload(client: "Client", name: str, port: str, namespace: str) -> Choose:
    client.get("workloads", name, namespace)

    async def choose() -> InstancePort:
        instances = await asyncio.to_thread(_instances, client, namespace)
        own = ready_instances(instances, [{"workload": name}])
        return InstancePort(_one(own, f"the workload {name}"), port)

    return choose


def _of_service(client: "Client", name: str, port: str, namespace: str) -> Choose:
    spec = client.get("services", name, namespace)["spec"]
    if not spec.get("to"):
        message = f"the service {name} has no instances: its endpoints are outside of the cluster"
        raise Invalid(message, hint="connect to these addresses directly")
    wanted = service_port(name, spec.get("port", {}), port)

    async def choose() -> InstancePort:
        instances = await asyncio.to_thread(_instances, client, namespace)
        ready = ready_instances(instances, spec["to"])
        chosen = _one(ready, f"the service {name}")
        declared = next(each for each in ready if each["meta"]["name"] == chosen)["status"].get("ports", ())
        return InstancePort(chosen, target_port(wanted, spec["port"][wanted], declared))

    return choose


def service_port(service: str, ports: Doc, wanted: str) -> str:
    """Return the name of the service's port with this name or number."""
    for name, each in ports.items():
        if wanted in {name, str(port_number(each))}:
            return str(name)
    known = ", ".join(f"{name} ({port_number(each)})" for name, each in ports.items())
    raise NotFound(f"the service {service} has no port {wanted}", hint=f"its ports: {known}")


def port_number(port: Any) -> int:
    """Return the number of a service's port, which may be written without its other fields."""
    return int(port["port"] if isinstance(port, Mapping) else port)


def target_port(name: str, port: Any, declared: Iterable[Doc]) -> str:
    """Return the name or number of the port of an instance to which the service's port leads."""
    target = port.get("target") if isinstance(port, Mapping) else None
    if target is not None:
        return str(target)
    return name if any(each["name"] == name for each in declared) else str(port_number(port))


def ready_instances(instances: Iterable[Doc], sources: Iterable[Doc]) -> list[Doc]:
    """Return the ready instances of the sources of a service."""
    wanted = {(each["workload"], each.get("group", "")) for each in sources}
    return [
        each
        for each in instances
        if {(each["spec"]["workload"], ""), (each["spec"]["workload"], each["spec"].get("group", "main"))} & wanted
        and each["status"].get("phase") == "Running"
        and each["status"].get("ready")
        and not each["spec"].get("stop")
    ]


def _instances(client: "Client", namespace: str) -> list[dict[str, Any]]:
    return client.list("instances", {"namespace": namespace})[0]


def _one(ready: list[Doc], what: str) -> str:
    if not ready:
        raise Unavailable(f"{what} has no ready instance", hint="`mandor get instances` shows their phases")
    return str(random.choice(ready)["meta"]["name"])
