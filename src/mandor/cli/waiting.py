"""Waiting until the requested state is reached, with a progress line."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.progress import Progress
from mandor.cli.tables import moment
from mandor.errors import MandorError, NotFound, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PAUSE_SECONDS = 0.5
Names = Sequence[tuple[str, str]]
"""(namespace, name) of workloads."""


def wait_until_ready(client: "Client", workloads: Names, patience: float) -> None:
    """Wait until all instances of every service are ready and every batch has succeeded; raises an error if a
    workload fails.
    """
    deadline = time.monotonic() + patience
    with Progress("waiting") as progress:
        for namespace, name in workloads:
            while (missing := _missing(client, namespace, name)) is not None:
                progress.text = missing
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"timed out after {patience:g} s: {missing}",
                        hint=f"see `mandor describe workload {name} -n {namespace}`",
                    )
                time.sleep(PAUSE_SECONDS)
            click.echo(f"workload {namespace}/{name} is ready{_next(client, namespace, name)}", err=True)


def wait_until_gone(client: "Client", workloads: Names, patience: float) -> None:
    """Wait until no instance of the workloads is left."""
    deadline = time.monotonic() + patience
    with Progress("waiting") as progress:
        for namespace, name in workloads:
            while left := _left(client, namespace, name):
                progress.text = f"{len(left)} instances of {name} are left"
                if time.monotonic() > deadline:
                    raise Unavailable(f"timed out after {patience:g} s: {progress.text}: {', '.join(left[:5])}")
                time.sleep(PAUSE_SECONDS)


def _next(client: "Client", namespace: str, name: str) -> str:
    at = client.get("workloads", name, namespace)["status"].get("next_at", 0.0)
    return f", runs next at {moment(at)} UTC" if at else ""


def _left(client: "Client", namespace: str, name: str) -> list[str]:
    items, _ = client.list("instances", {"namespace": namespace})
    return [item["meta"]["name"] for item in items if item["spec"]["workload"] == name]


def _missing(client: "Client", namespace: str, name: str) -> str | None:
    """Describe what is missing until the workload is ready; None if it is ready."""
    workload = client.get("workloads", name, namespace)
    status = workload["status"]
    shown = f"{name} is {status['phase']}"
    if "schedule" in workload["spec"]:
        return None if status.get("schedule") else f"{name} is not processed by its controller yet"
    if not is_processed(client, workload):
        return f"{name} is not processed by its controller yet"
    rollout = status.get("rollout") or {}
    if rollout.get("phase") in {"RollingBack", "RolledBack", "Failed"}:
        raise MandorError(
            f"the rollout of {name} failed: {rollout.get('message', '')}",
            hint=f"see `mandor describe workload {name} -n {namespace}`",
        )
    if status["phase"] == "Failed":
        raise MandorError(
            f"the workload {name} failed: {status.get('message') or 'unknown reason'}",
            hint=f"see `mandor describe workload {name} -n {namespace}`",
        )
    if workload["spec"].get("type") == "batch":
        done = f"{status.get('succeeded', 0)} of {status.get('wanted', 0)} done"
        return None if status["phase"] == "Succeeded" else f"{shown}, {done}{_why(status)}"
    ready, wanted = status.get("ready", 0), status.get("wanted", 0)
    if status["phase"] == "Running" and ready == wanted:
        return None
    return f"{shown}, {ready} of {wanted} ready{_why(status)}"


def _why(status: dict[str, Any]) -> str:
    return f" ({status['message']})" if status.get("message") else ""


def is_processed(client: "Client", workload: dict[str, Any]) -> bool:
    """Return whether the status refers to the current spec: its release is made from this template."""
    from mandor.model.codec import from_plain
    from mandor.model.unknown_fields import split_unknown_fields
    from mandor.model.workload import WorkloadSpec, template_hash

    release = workload["status"].get("release")
    if not release:
        return False
    known, unknown = split_unknown_fields(workload["spec"], WorkloadSpec)
    spec = from_plain(known, WorkloadSpec)
    try:
        made = client.get("releases", release, workload["meta"].get("namespace"))
    except NotFound:
        return False
    # The release of a workload with fields unknown to this version cannot be computed here.
    if not unknown.parts and made["spec"]["hash"] != template_hash(spec.template, spec.restarted):
        return False
    return spec.type != "service" or workload["status"].get("wanted", 0) == sum(
        group.count for group in spec.groups.values()
    )
