"""Draft: the workload of a service that is being read."""

from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import filled
from mandor.importers.daemon import fit_daemon

ENGINES = ("docker", "podman", "cri")
"""Engines that run the images of Compose files."""
WITH_OPTIONS = ("docker", "podman")
"""Engines with Docker's own options."""


@dataclass(slots=True)
class Draft:
    name: str
    type: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)
    """Keys of the group and the task without a field of their own below."""
    env: dict[str, str] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    ports: dict[str, dict[str, Any]] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)
    """Further names under which other services find it."""
    requests: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    placement: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    depends_on: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    security: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)

    def rule(self, kind: str, **rule: Any) -> None:
        self.placement.setdefault(kind, []).append(filled(**rule))

    def manifest(self, project: str) -> dict[str, Any]:
        engines = WITH_OPTIONS if self.options else ENGINES
        made = filled(
            name=self.name,
            type=self.type,
            labels={"project": project, **self.labels},
            engine=list(engines),
            batch=self.batch,
            **self.group,
            depends_on=self.depends_on,
            env=self.env,
            files=self.files,
            mounts=self.mounts,
            volumes=self.volumes,
            ports=self.ports,
            aliases=self.aliases,
            resources=filled(**self.requests, limits=self.limits),
            placement=self.placement,
            security=self.security,
            options={engine: dict(self.options) for engine in WITH_OPTIONS} if self.options else {},
        )
        if self.type == "daemon":
            fit_daemon(made)
        return made
