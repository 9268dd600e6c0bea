"""Services of Compose workloads: each one is found by its names, on all nodes, at the ports on which it listens.

In Compose, a container is reached at any port. A service has ports, so ports that no key declares are taken from the
texts of the other workloads (`db:5432`, `redis://cache`), and from the image.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mandor.importers.base import Made, filled, fitting_name
from mandor.importers.part import Part
from mandor.model.group import PORTS_MOST

_SCHEMES = {
    "amqp": 5672, "ftp": 21, "http": 80, "https": 443, "ldap": 389, "memcached": 11211, "mongodb": 27017,
    "mqtt": 1883, "mysql": 3306, "nats": 4222, "postgres": 5432, "postgresql": 5432, "redis": 6379, "smtp": 25,
}  # fmt: skip
"""Ports of URLs without a port."""
_IMAGES = {
    "adminer": 8080, "cassandra": 9042, "elasticsearch": 9200, "ghost": 2368, "gitea": 3000, "grafana": 3000,
    "httpd": 80, "influxdb": 8086, "kafka": 9092, "mailhog": 1025, "mariadb": 3306, "memcached": 11211, "minio": 9000,
    "mongo": 27017, "mysql": 3306, "nats": 4222, "nextcloud": 80, "nginx": 80, "phpmyadmin": 80, "postgis": 5432,
    "postgres": 5432, "prometheus": 9090, "rabbitmq": 5672, "redis": 6379, "registry": 5000, "valkey": 6379,
    "wordpress": 80, "zookeeper": 2181,
}  # fmt: skip
"""Ports on which well-known images listen."""
_NO_NAMES = frozenset({"host", "none"})
"""Networks on which Compose gives a service no name."""


def add_services(made: Sequence[Made], services: Part) -> list[Made]:
    """Add a service to each workload whose ports are known; return services for aliases that several workloads have."""
    others = {each.manifest["name"]: list(_texts(each.manifest)) for each in made}
    shared = _shared_aliases(made, services)
    direct = {fitting_name(name) for name in services if _resolves_to_instances(services.peek(name))}
    for each in made:
        manifest = each.manifest
        if manifest.get("type") == "batch" or _network(manifest) in _NO_NAMES:
            continue
        talk = [text for name, texts in others.items() if name != manifest["name"] for text in texts]
        _infer_ports(manifest, talk, services)
        if not manifest.get("ports"):
            continue
        names = [name for name in manifest.pop("aliases", ()) if name not in shared]
        headless = True if manifest["name"] in direct else None
        manifest["services"] = [filled(port=_service_ports(manifest["ports"]), aliases=names, headless=headless)]
    return [_shared_service(name, owners) for name, owners in shared.items()]


def _resolves_to_instances(service: Any) -> bool:
    deploy = service.get("deploy") if isinstance(service, dict) else None
    return isinstance(deploy, dict) and deploy.get("endpoint_mode") == "dnsrr"


def _shared_aliases(made: Sequence[Made], services: Part) -> dict[str, list[Made]]:
    """Return the aliases that several workloads have, unless one of them has no known ports."""
    counts = Counter(name for each in made for name in each.manifest.get("aliases", ()))
    found = {}
    for name, count in counts.items():
        owners = [each for each in made if name in each.manifest.get("aliases", ())]
        if count > 1 and name not in services and all(each.manifest.get("ports") for each in owners):
            found[name] = owners
    return found


def _shared_service(name: str, owners: list[Made]) -> Made:
    ports: dict[str, Any] = {}
    for each in owners:
        ports |= {key: port for key, port in _service_ports(each.manifest["ports"]).items() if key not in ports}
    labels = {"project": owners[0].manifest["labels"]["project"]}
    to = [{"workload": each.manifest["name"]} for each in owners]
    manifest = {"kind": "service", "name": name, "labels": labels, "port": ports, "to": to}
    return Made(manifest, owners[0].file, owners[0].line)


def _infer_ports(manifest: dict[str, Any], talk: Sequence[str], services: Part) -> None:
    """Add ports that other workloads use; report them, or that no port is known."""
    name, names = manifest["name"], [manifest["name"], *manifest.get("aliases", ())]
    ports: dict[str, dict[str, Any]] = manifest.get("ports", {})
    known = {each.get("port") for each in ports.values() if each.get("protocol", "tcp") == "tcp"}
    wanted = sorted(_named_ports(names, talk) - known)
    if not known and not wanted and _is_named(names, talk):
        wanted = list(filter(None, [_IMAGES.get(_image_name(manifest.get("image", "")))]))
    for number in wanted[: PORTS_MOST - len(ports)]:
        ports[f"port-{number}"] = {"port": number}
    place = next((key for key in services if fitting_name(key) == name), name)
    if wanted:
        manifest["ports"] = ports
        numbers = ", ".join(map(str, wanted))
        services.guess(place, f"the service has the port {numbers}, found in other texts", "`expose` declares ports")
    elif not ports and _is_named(names, talk):
        services.guess(place, "its name resolves on its own node only: no port is known", "`expose` declares ports")


def _named_ports(names: Iterable[str], talk: Sequence[str]) -> set[int]:
    """Return the ports at which texts use one of the names, as `name:80` or in a URL without a port."""
    found: set[int] = set()
    for name in names:
        plain = re.compile(rf"(?<![\w.-]){re.escape(name)}:(\d{{1,5}})(?![\w.])")
        url = re.compile(rf"\b([a-z]+)(?:\+\w+)?://(?:[^\s/@]*@)?{re.escape(name)}(?![\w.:-])")
        for text in talk:
            found |= {int(number) for number in plain.findall(text) if 1 <= int(number) <= 65535}
            found |= {_SCHEMES[scheme] for scheme in url.findall(text) if scheme in _SCHEMES}
    return found


def _is_named(names: Iterable[str], talk: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text) for name in names for text in talk)


def _texts(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Return the texts in which a workload names others."""
    yield from manifest.get("env", {}).values()
    yield from manifest.get("command", ())
    yield from manifest.get("args", ())
    yield from (each["content"] for each in manifest.get("files", ()) if "content" in each)
    yield from (name for name, condition in manifest.get("depends_on", {}).items() if condition != "completed")


def _service_ports(ports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ports of a service: those on which the tasks listen, each number once."""
    found: dict[str, Any] = {}
    taken = set()
    for name, each in ports.items():
        key = each["port"], each.get("protocol", "tcp")
        if key not in taken:
            found[name] = {"port": key[0], "protocol": key[1]} if key[1] != "tcp" else key[0]
        taken.add(key)
    return found


def _image_name(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _network(manifest: Mapping[str, Any]) -> str:
    options: dict[str, Any] = manifest.get("options", {}).get("docker", {})
    return str(options.get("network", ""))
