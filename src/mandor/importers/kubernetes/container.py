"""Converts one container into a task."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import filled, fitting_name
from mandor.importers.kubernetes.amounts import resources
from mandor.importers.kubernetes.env import environment, expanded_words
from mandor.importers.kubernetes.probe import probe
from mandor.importers.kubernetes.security import security
from mandor.importers.kubernetes.sharing import container_sharing, with_sharing
from mandor.importers.kubernetes.shelf import Owner, ReferencedObjects
from mandor.importers.kubernetes.usual import Unusual, drop_unusual
from mandor.importers.kubernetes.volumes import Volumes
from mandor.importers.part import Part

_TERMINAL = "a task has no terminal; `mandor exec` opens one"
_PROBES = {"startupProbe": "startup", "livenessProbe": "health", "readinessProbe": "readiness"}
_PULLS = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
_OF_CONTAINERS: Unusual = {
    "terminationMessagePath": ("termination messages are in the logs", ("/dev/termination-log",)),
    "terminationMessagePolicy": ("termination messages are in the logs", ("File",)),
    "resizePolicy": ("changed resources make a new release", ()),
    "restartPolicyRules": ("all tasks of an instance are restarted in the same way", ()),
    "stdinOnce": (_TERMINAL, ()),
}
_SIGNAL = re.compile(r"SIG[A-Z0-9]+")


@dataclass(slots=True)
class Ports:
    """The ports of a group, from all its containers."""

    host_network: bool = False
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[tuple[str, int], str] = field(default_factory=dict)
    """Names of the ports in the manifest, by protocol and number."""

    def add(self, container: Part) -> dict[str, str]:
        """Return the names of its ports in the manifest, by their names in the container."""
        names: dict[str, str] = {}
        for each in container.parts("ports"):
            protocol = (each.text("protocol") or "TCP").lower()
            number, host, name = each.whole("containerPort"), each.whole("hostPort"), each.text("name")
            each.drop("hostIP", "host ports are published on all addresses")
            if protocol not in {"tcp", "udp"} or not number:
                each.drop_all("containerPort", f"no port of the protocol {protocol} can be opened")
                continue
            here = self._named(name, protocol, number)
            host = host or (number if self.host_network else None)
            self.found[here] = filled(port=number, host=host, protocol=None if protocol == "tcp" else protocol)
            self.numbers[protocol, number] = here
            if name:
                names[name] = here
        return names

    def _named(self, name: str | None, protocol: str, number: int) -> str:
        wanted = fitting_name(name) if name else f"port-{number}" + ("" if protocol == "tcp" else f"-{protocol}")
        free = wanted
        while free in self.found and self.numbers.get((protocol, number)) != free:
            free = f"{wanted}-{number}" if free == wanted else f"{free}-{protocol}"
        return free

    @property
    def short(self) -> dict[str, Any]:
        """Return the ports as users write them: only a number where the other fields are defaults."""
        return {name: each["port"] if each.keys() == {"port"} else each for name, each in self.found.items()}


@dataclass(frozen=True, slots=True)
class ContainerReader:
    """Reads the containers of one pod."""

    owner: Owner
    shelf: ReferencedObjects
    volumes: Volumes
    ports: Ports
    security: Part
    """Security context of the pod."""
    options: dict[str, Any]
    """Engine options of the pod."""
    sharing: dict[str, Any]
    """Options of the pod for engines with Docker's options."""
    grace: str
    pull_secret: str | None = None
    """Name of the secret with the login for its images."""

    def task(self, part: Part, role: str) -> dict[str, Any]:
        names = self.ports.add(part)
        env = environment(part, self.owner, self.shelf)
        mounts, files = self.volumes.mounts(part, env)
        options = self.options | self._pull(part)
        more = self.sharing | container_sharing(part)
        lifecycle = part.part("lifecycle")
        for key in ("postStart", "preStop"):
            lifecycle.drop(key, "lifecycle hooks are not supported")
        drop_unusual(part, _OF_CONTAINERS)
        return filled(
            role=None if role == "main" else role,
            image=part.text("image"),
            pull_secret=self.pull_secret,
            command=expanded_words(part, "command", env),
            args=expanded_words(part, "args", env),
            env=env.values,
            secrets=env.secrets,
            files=files,
            mounts=mounts,
            working_dir=part.text("workingDir"),
            resources=resources(part.part("resources")),
            **self._probes(part, role, self._find_port(names)),
            stop=self._stop(lifecycle),
            security=security(self.security, part.part("securityContext")),
            options=with_sharing(options, more),
        )

    def _pull(self, part: Part) -> dict[str, Any]:
        policy = part.text("imagePullPolicy")
        if policy in {None, "", "IfNotPresent"}:
            return {}
        if policy not in _PULLS:
            raise part.wrong("imagePullPolicy", f"there is no policy {str(policy)[:40]!r}")
        return {"pull": _PULLS[policy]}

    def _stop(self, lifecycle: Part) -> dict[str, Any]:
        signal = lifecycle.text("stopSignal")
        if signal is not None and not _SIGNAL.fullmatch(signal):
            raise lifecycle.wrong("stopSignal", f"{signal[:40]!r} is no signal")
        return filled(signal=signal, grace=self.grace)

    def _find_port(self, names: dict[str, str]) -> Callable[[str], int | str]:
        def find(asked: str) -> int | str:
            return int(asked) if asked.isdecimal() else names.get(asked, asked)

        return find

    def _probes(self, part: Part, role: str, port: Callable[[str], int | str]) -> dict[str, Any]:
        found = {}
        for key, name in _PROBES.items():
            if role == "init":
                part.drop(key, "tasks that run to completion have no probes")
            elif part.peek(key):
                found[name] = probe(part.part(key), port)
            else:
                part.take(key)
        return found
