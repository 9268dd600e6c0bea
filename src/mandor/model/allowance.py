"""Checks of a workload against its namespace's lists and security level. Pure; used by admission and by agents.

A list set on the namespace (`engines`, `users`, `host_paths`, `options`, `pools`, `registries`) decides its topic
alone. Topics without a list follow the namespace's level.
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from mandor.model.group import GroupTemplate
from mandor.model.image_reference import registry_allowed
from mandor.model.level import Level
from mandor.model.level_rules import CONTROL_PLANE_TAINTS, IMAGE_SERVER, LOW_PORTS, RULES, option_allowed
from mandor.model.placement import Where
from mandor.model.record import USERS_PER_NAMESPACE, NamespaceSpec
from mandor.model.task import Task
from mandor.model.volume import path_allowed
from mandor.model.workload import Workload

_NUMBER = re.compile(r"(\d{1,10})(:(\d{1,10}))?")

_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+)(:[0-9]+)?(/[A-Za-z0-9._/-]*)?")


class Refusal(NamedTuple):
    """One setting of a group that the namespace does not allow; `path` is relative to the group."""

    message: str
    hint: str
    path: str


class Allowance(NamedTuple):
    """The limits that a namespace sets for its workloads."""

    name: str
    rules: NamespaceSpec
    first_user: int = 0

    @property
    def level(self) -> Level:
        return self.rules.level

    @property
    def of_level(self) -> str:
        """The namespace and its level for messages: `the namespace shop (level restricted)`."""
        return f"the namespace {self.name} (level {self.level})"

    def engine_allowed(self, engine: str) -> bool:
        if self.rules.engines is not None:
            return engine in self.rules.engines
        return engine not in RULES[self.level].by_name

    def owns_user(self, user: int) -> bool:
        return bool(self.first_user) and self.first_user <= user < self.first_user + USERS_PER_NAMESPACE

    def refusals(self, group: GroupTemplate, engine: str = "") -> Iterator[Refusal]:
        """Yield every setting of a group that this namespace does not allow.

        `engine` is the engine that runs the group on a node; empty means that any engine listed by the group may run
        it.
        """
        yield from self._engines(group, engine)
        yield from self._pools(group)
        yield from self._tolerations(group)
        yield from self._host_paths(group)
        process = "process" in ((engine,) if engine else group.engine)
        yield from self._ports(group, on_node=process and bool(_without_image(group)))
        for name, task in group.tasks.items():
            path = f"tasks.{name}"
            yield from self._options(task, path)
            yield from self._security(task, path)
            yield from self._user(task, path, on_node=process and task.image is None)
            yield from self._registry(task, path, set((engine,) if engine else group.engine))

    def _engines(self, group: GroupTemplate, engine: str) -> Iterator[Refusal]:
        allowed = self.rules.engines
        hint = (
            f"it allows: {_listed(allowed)}"
            if allowed is not None
            else "an admin can add it to `engines` of the namespace"
        )
        for name in (engine,) if engine else group.engine:
            if not self.engine_allowed(name):
                who = f"the namespace {self.name}" if allowed is not None else self.of_level
                yield Refusal(f"{who} does not allow the engine {name}", hint, "engine")
        if engine or group.engine:
            return
        if allowed is not None:
            message = f"the namespace {self.name} allows only some engines, so the group must set `engine`"
            yield Refusal(message, hint, "")
        elif RULES[self.level].by_name and (plain := _without_image(group)):
            yield Refusal(
                f"task {plain} has no image, and {self.of_level} does not allow the engine process, which runs "
                "commands on the node itself",
                "give the task an `image`; or an admin can add `engines: [process]` to the namespace, or set its level "
                "to privileged",
                f"tasks.{plain}",
            )

    def _pools(self, group: GroupTemplate) -> Iterator[Refusal]:
        allowed, named = self.rules.pools, group.placement.pool
        if allowed is not None and named is not None and group.placement.home not in allowed:
            message = f"the namespace {self.name} does not allow the pool {group.placement.home}"
            yield Refusal(message, f"it allows: {_listed(allowed)}", "placement.pool")

    def _tolerations(self, group: GroupTemplate) -> Iterator[Refusal]:
        if RULES[self.level].control_plane:
            return
        for number, each in enumerate(group.placement.tolerate):
            if not each.key or each.key in CONTROL_PLANE_TAINTS:
                what = f"the taint {each.key}" if each.key else "every taint"
                yield Refusal(
                    f"{self.of_level} does not allow tolerating {what}, because that admits control plane nodes",
                    "tolerate only other taints, each by its key",
                    f"placement.tolerate[{number}]",
                )

    def _host_paths(self, group: GroupTemplate) -> Iterator[Refusal]:
        allowed = self.rules.host_paths
        if allowed is None and RULES[self.level].host_paths:
            return
        for name, volume in group.volumes.items():
            if volume.path is not None and not path_allowed(volume.path, allowed or ()):
                who = f"the namespace {self.name}" if allowed is not None else self.of_level
                yield Refusal(
                    f"{who} does not allow the host path {volume.path}",
                    f"it allows: {_listed(allowed or ())}; an admin can add paths to `host_paths` of the namespace",
                    f"volumes.{name}",
                )

    def _ports(self, group: GroupTemplate, *, on_node: bool) -> Iterator[Refusal]:
        """Yield host ports below `LOW_PORTS`. `on_node` is true when tasks listen on the node's own ports."""
        if RULES[self.level].low_ports:
            return
        for name, port in group.ports.items():
            host = port.host if port.host is not None or not on_node else port.port
            if isinstance(host, int) and host < LOW_PORTS:
                yield Refusal(
                    f"{self.of_level} does not allow the host port {host}",
                    f"use a port of at least {LOW_PORTS}, or `auto`",
                    f"ports.{name}",
                )

    def _options(self, task: Task, path: str) -> Iterator[Refusal]:
        allowed = self.rules.options
        for engine, options in task.options.items():
            for key, value in options.items():
                where = f"{path}.options.{engine}.{key}"
                if allowed is not None:
                    if not _named(f"{engine}.{key}", allowed):
                        message = f"the namespace {self.name} does not allow the option {engine}.{key}"
                        yield Refusal(message, f"it allows: {_listed(allowed)}", where)
                elif engine == "incus" and key in IMAGE_SERVER and self.rules.registries is not None:
                    continue  # checked together with the image against `registries`
                elif not option_allowed(self.level, engine, key, value):
                    yield Refusal(
                        f"{self.of_level} does not allow the option {engine}.{key} with the value {_short(value)}",
                        f"remove the option; or an admin can add `{engine}.{key}` to `options` of the namespace",
                        where,
                    )

    def _security(self, task: Task, path: str) -> Iterator[Refusal]:
        """Yield privileges (`privileged`, `cap_add`) that the namespace does not allow; they count as options."""
        security, allowed, rules = task.security, self.rules.options, RULES[self.level]
        if allowed is not None:
            for key in ("privileged", "cap_add"):
                if getattr(security, key) and not _named(f"security.{key}", allowed):
                    message = f"the namespace {self.name} does not allow security.{key}"
                    yield Refusal(message, f"it allows: {_listed(allowed)}", f"{path}.security.{key}")
            return
        if security.privileged and not rules.privileged:
            yield Refusal(
                f"{self.of_level} does not allow security.privileged",
                "an admin can add `security.privileged` to `options` of the namespace, or set its level to privileged",
                f"{path}.security.privileged",
            )
        for name in security.cap_add if rules.capabilities is not None else ():
            if name.removeprefix("CAP_") not in (rules.capabilities or ()):
                yield Refusal(
                    f"{self.of_level} does not allow adding the capability {name}",
                    f"it allows: {_listed(sorted(rules.capabilities or ()))}; an admin can add `security.cap_add` to "
                    "`options` of the namespace",
                    f"{path}.security.cap_add",
                )

    def _user(self, task: Task, path: str, *, on_node: bool) -> Iterator[Refusal]:
        user, allowed, where = task.security.user, self.rules.users, f"{path}.security.user"
        given = self.level == "restricted" or (on_node and self.level != "privileged")
        if user is None and given:
            return  # The task runs as a user of its namespace's range.
        if allowed is not None:
            if user is None or str(user) not in allowed:
                who = "the user of the agent" if user is None else user
                message = f"the namespace {self.name} does not allow tasks to run as {who}"
                yield Refusal(message, f"set security.user to one of: {_listed(allowed)}", where)
            return
        if user is None or self.level == "privileged":
            return
        number = _NUMBER.fullmatch(str(user))
        if on_node:
            if number is None or not self.owns_user(int(number[1])):
                yield Refusal(
                    f"{self.of_level} does not allow tasks to run as {user} on the node itself",
                    "remove `user`: the task then runs as a user of its namespace; an admin can add others to `users`",
                    where,
                )
        elif not RULES[self.level].root:
            if number is None:
                yield Refusal(
                    f"{self.of_level} does not allow the user name {user!r}: an image can map a name to user id 0",
                    "set a user id other than 0, or remove `user`; an admin can add others to `users` of the namespace",
                    where,
                )
            elif 0 in (int(number[1]), int(number[3] or 1)):
                yield Refusal(
                    f"{self.of_level} does not allow tasks to run as root",
                    "set a user id other than 0, or remove `user`: the task then runs as a user of its namespace",
                    where,
                )

    def _registry(self, task: Task, path: str, engines: set[str]) -> Iterator[Refusal]:
        allowed = self.rules.registries
        if allowed is None:
            return
        server = task.options.get("incus", {}).get("server")
        places = [(task.image, f"{path}.image"), (_host(server), f"{path}.options.incus.server")]
        if server and engines == {"incus"}:
            del places[0]  # The image is a name on that server.
        for image, where in places:
            if image is not None and not registry_allowed(image, allowed):
                yield Refusal(
                    f"the namespace {self.name} does not allow images from {image}",
                    f"it allows: {_listed(allowed)}",
                    where,
                )


def with_allowed(workload: Workload, rules: NamespaceSpec) -> Workload:
    """Return the workload with the namespace's engines and pools set on groups that list none."""
    if rules.engines is None and rules.pools is None:
        return workload
    groups = {}
    for name, group in workload.spec.groups.items():
        changed = group
        if rules.engines and not group.engine:
            changed = msgspec.structs.replace(changed, engine=rules.engines)
        if rules.pools is not None and group.placement.only_pool is None:
            rule = Where(rule=f"pool in [{', '.join(rules.pools)}]")
            if rule not in group.placement.where:
                placement = msgspec.structs.replace(group.placement, where=(*group.placement.where, rule))
                changed = msgspec.structs.replace(changed, placement=placement)
        groups[name] = changed
    return workload.changed(spec=msgspec.structs.replace(workload.spec, groups=groups))


def _without_image(group: GroupTemplate) -> str:
    return next((name for name, task in group.tasks.items() if task.image is None), "")


def _named(option: str, allowed: Collection[str]) -> bool:
    return option in allowed or f"{option.partition('.')[0]}.*" in allowed


def _host(server: object) -> str | None:
    """The server of an Incus image, written as a registry reference. A value that is not a plain URL matches no entry
    of `registries`.
    """
    if not server:
        return None
    found = _ADDRESS.fullmatch(str(server))
    if not found:
        return f"//{server}"
    host, port, path = found[1], found[2] or "", (found[3] or "").rstrip("/")
    if not port and "." not in host:
        port = ":443"  # A registry without a dot needs a port; otherwise it is a path of Docker Hub.
    return f"{host}{port}{path}/image"


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "(none)"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
