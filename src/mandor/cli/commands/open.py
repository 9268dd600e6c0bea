"""`mandor open`: the URL at which a workload, a service or an instance answers."""

import sys
from typing import TYPE_CHECKING, Any

import click

from mandor.cli import routes
from mandor.cli.options import connected, namespace_option
from mandor.cli.reaching import Doc, ready_instances
from mandor.errors import MandorError, NotFound

if TYPE_CHECKING:
    from mandor.client.sync import Client

Object = dict[str, Any]
WEB = ("https", "http", "web", "ui")
"""Names of ports that are preferred, in this order."""


@click.command("open")
@click.option("--print", "only_print", is_flag=True, help="Print the URL and start no browser.")
@namespace_option
@click.argument("name")
@connected
def open_command(client: "Client", name: str, only_print: bool, namespace: str) -> None:
    """Open the URL of a route, service, workload or instance in the browser.

    The URL is that of a route to the service, or else a published port of a ready instance. In scripts, when standard
    output is not a terminal, the URL is only printed.
    """
    here = {"namespace": namespace}
    found = {plural: _list(client, plural, here) for plural in ("routes", "services", "instances")}
    url = find_url(name, found["routes"], found["services"], found["instances"])
    click.echo(url)
    if not only_print and sys.stdout.isatty():
        click.launch(url)


def _list(client: "Client", plural: str, query: dict[str, Any]) -> list[Object]:
    try:
        return client.list(plural, query)[0]
    except MandorError:
        if plural == "instances":
            raise
        return []  # A caller without this permission still finds published ports.


def find_url(name: str, routed: list[Object], services: list[Object], instances: list[Object]) -> str:
    """Return the URL for a name of the namespace; raises `NotFound` with what to do instead."""
    served = [
        each["meta"]["name"]
        for each in services
        if name == each["meta"]["name"] or any(name == source["workload"] for source in each["spec"].get("to", ()))
    ]
    for route in routed:
        targets = {each["service"] for each in route["spec"].get("to", ())}
        if (route["meta"]["name"] == name or targets & set(served)) and (url := _route_url(route)):
            return url
    sources = [{"workload": name}]
    for service in services:
        if service["meta"]["name"] == name:
            sources += service["spec"].get("to", ())
    own = [each for each in instances if each["meta"]["name"] == name] or ready_instances(instances, sources)
    urls = [_port_url(*found) for found in sorted(map(_published, own), key=_preference) if found[0]]
    if urls:
        return urls[0]
    if served or own:
        target = f"service/{served[0]}" if served else name
        message = f"{name} has no route, and no ready instance of it publishes a port"
        raise NotFound(message, hint=f"mandor port-forward {target} :PORT leads a local port to it")
    raise NotFound(f"no route, service, workload or instance {name} with a ready instance in this namespace")


def _route_url(route: Object) -> str:
    spec = route["spec"]
    host = spec.get("host", "")
    if spec.get("protocol", "http") != "http" or not host or "*" in host or spec.get("path_match") == "regex":
        return ""
    return f"{routes.scheme(route)}://{host}{spec.get('path', '/')}"


def _published(instance: Doc) -> tuple[str, str, int]:
    """Return address, name and number of the published TCP port that is preferred; empty: there is none."""
    status = instance["status"]
    ports = [each for each in status.get("ports", ()) if each.get("host") and each.get("protocol", "tcp") == "tcp"]
    found = [(status.get("host", ""), each["name"], each["host"]) for each in ports]
    return min(found, key=_preference) if found and status.get("host") else ("", "", 0)


def _preference(found: tuple[str, str, int]) -> tuple[int, str, str]:
    address, name, _ = found
    return (WEB.index(name) if name in WEB else len(WEB), name, address)


def _port_url(address: str, name: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{'https' if name == 'https' else 'http'}://{host}:{port}/"
