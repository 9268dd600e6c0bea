"""Converts a pod template into tasks and the settings of their group."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import filled, fitting_name
from mandor.importers.kubernetes.amounts import amounts_of, duration, named
from mandor.importers.kubernetes.container import ContainerReader, Ports
from mandor.importers.kubernetes.placement import PlacementReader
from mandor.importers.kubernetes.secret import pull_secret
from mandor.importers.kubernetes.sharing import engines_of, pod_sharing
from mandor.importers.kubernetes.shelf import Owner, ReferencedObjects, containers_of, maps_in, mounts_of
from mandor.importers.kubernetes.usual import Unusual, drop_unusual
from mandor.importers.kubernetes.volumes import Volumes
from mandor.importers.kubernetes.words import ENGINES, PROFILES, SYSTEM_PRIORITIES, plain_name
from mandor.importers.part import Part
from mandor.model.group import FLAT

_GRACE = "30s"
"""Kubernetes' default for `terminationGracePeriodSeconds`."""
NO_IDENTITY = "Nomad identities are not converted"
_OF_PODS: Unusual = {
    "subdomain": ("the host name is the instance's name", ()),
    "setHostnameAsFQDN": ("the host name is the instance's name", ()),
    "shareProcessNamespace": ("tasks see their own processes", ()),
    "readinessGates": ("an instance is ready when its tasks are", ()),
    "ephemeralContainers": ("`mandor exec` opens a shell in a task", ()),
    "serviceAccountName": (NO_IDENTITY, ("default",)),
    "serviceAccount": (NO_IDENTITY, ("default",)),
    "automountServiceAccountToken": (NO_IDENTITY, ()),
    "dnsPolicy": (
        "the engine determines how names are resolved",
        ("ClusterFirst", "ClusterFirstWithHostNet", "Default"),
    ),
    "resourceClaims": ("devices that are claimed by name are not supported yet", ()),
    "resources": ("tasks ask for what they need, each for itself", ()),
}


@dataclass(frozen=True, slots=True)
class Pod:
    tasks: dict[str, dict[str, Any]]
    group: dict[str, Any]
    """Ports, volumes, placement."""
    workload: dict[str, Any]
    """Priority, profile, gates."""
    restart: str
    """Always, OnFailure or Never."""
    deadline: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Ports = field(default_factory=Ports)
    engines: tuple[str, ...] = ENGINES

    @property
    def forms(self) -> dict[str, Any]:
        """Return the manifest form of the pod: flat for one task."""
        if len(self.tasks) == 1:
            return {**next(iter(self.tasks.values())), **self.group}
        return {"groups": {FLAT: {**self.group, "tasks": self.tasks}}}


@dataclass(frozen=True, slots=True)
class PodReader:
    shelf: ReferencedObjects
    placement: PlacementReader

    def read(self, spec: Part, owner: Owner, templates: list[Part] | None = None, *, keep: bool = True) -> Pod:
        """Read the template; `templates`: volume claims of each instance, kept when the workload is deleted."""
        owner = _with_containers(spec, owner)
        security = spec.part("securityContext")
        volumes = Volumes(owner, self.shelf)
        folder_owner = _folder_owner(security, spec)
        volumes.read(spec, folder_owner)
        host_network = spec.flag("hostNetwork")
        ports = Ports(host_network)
        for claim in templates or []:
            self._add_claim(volumes, claim, spec, keep, folder_owner)
        options = filled(network="host" if host_network else None, runtime=spec.text("runtimeClassName"))
        if "runtimeClassName" in spec:
            spec.guess("runtimeClassName", "the engine must have a runtime of this name")
        grace = duration(spec, "terminationGracePeriodSeconds")
        if grace is None and "terminationGracePeriodSeconds" in spec:
            grace = "0s"
        sharing = pod_sharing(spec, security)
        login = pull_secret(spec, owner, self.shelf)
        reader = ContainerReader(owner, self.shelf, volumes, ports, security, options, sharing, grace or _GRACE, login)
        tasks = self._tasks(spec, reader)
        if len(tasks) == 1:
            spec.parts("containers")[0].ignore("name")  # the workload has no other group
        self._rest(spec)
        return Pod(
            tasks=tasks,
            group=filled(
                ports=ports.short,
                volumes=volumes.of_group(),
                placement=self.placement.read(spec),
                overhead=named(amounts_of(spec, "overhead")),
            ),
            workload=_workload(spec),
            restart=spec.text("restartPolicy") or "Always",
            deadline=duration(spec, "activeDeadlineSeconds"),
            labels=owner.labels,
            ports=ports,
            engines=engines_of(tasks),
        )

    def _add_claim(self, volumes: Volumes, claim: Part, spec: Part, keep: bool, folder_owner: str | None) -> None:
        for key in ("apiVersion", "kind"):
            claim.text(key)
        claim.ignore("status")
        meta = claim.part("metadata")
        name = meta.text("name") or ""
        meta.drop("annotations", "there are no annotations")
        meta.drop("labels", "volumes of instances have no separate labels")
        meta.ignore("creationTimestamp")
        volumes.add_template(claim, name, keep, folder_owner)
        volumes.found[name].mounted = mounts_of(spec.source).count(name)

    def _tasks(self, spec: Part, reader: ContainerReader) -> dict[str, dict[str, Any]]:
        tasks: dict[str, dict[str, Any]] = {}
        if not spec.parts("containers"):
            raise spec.wrong("containers", "a pod has at least one container")
        for key in ("initContainers", "containers"):
            for each in spec.parts(key):
                always = each.text("restartPolicy") == "Always"
                if "restartPolicy" in each and not (always and key == "initContainers"):
                    each.drop("restartPolicy", "all tasks of an instance are restarted in the same way")
                role = "main" if key == "containers" else "sidecar" if always else "init"
                if not each.text("name"):
                    raise each.wrong("name", "a container has a name")
                name = fitting_name(each.text("name") or FLAT)
                while name in tasks:
                    name += "-2"
                tasks[name] = reader.task(each, role)
        return tasks

    def _rest(self, spec: Part) -> None:
        """Drop keys without a counterpart, unless their value is the default."""
        drop_unusual(spec, _OF_PODS)
        if spec.flag("enableServiceLinks"):
            spec.drop("enableServiceLinks", "services set no environment variables")
        if spec.text("preemptionPolicy") == "Never":
            spec.drop("preemptionPolicy", "the priority class determines it", "`preempt: never` of a priority class")
        if (spec.part("os").text("name") or "linux") != "linux":
            spec.drop("os", "the image determines the operating system")


def _with_containers(spec: Part, owner: Owner) -> Owner:
    account = spec.peek("serviceAccountName")
    return Owner(
        owner.namespace,
        owner.labels,
        owner.annotations,
        account if isinstance(account, str) else "default",
        {each["name"]: each for each in containers_of(spec.source) if isinstance(each.get("name"), str)},
        spec.peek("hostNetwork") is True,
    )


def _folder_owner(security: Part, spec: Part) -> str | None:
    """Return the owner of volume folders: the user and group of the pod, or of its containers, if both are known."""
    group, user = security.whole("fsGroup"), security.peek("runAsUser")
    security.drop("fsGroupChangePolicy", "the owner of a volume is set when it is created")
    if group is None:
        return None
    if user is None:
        given = [each.get("securityContext") for each in maps_in(spec.source, "containers")]
        users = [each.get("runAsUser") if isinstance(each, dict) else None for each in given]
        user = users[0] if users and all(each == users[0] for each in users) else None
    if isinstance(user, int):
        return f"{user}:{group}"
    security.drop("fsGroup", "a volume belongs to a user", "give `runAsUser` as well")
    return None


def _workload(spec: Part) -> dict[str, Any]:
    gates = [plain_name(each.text("name") or "") for each in spec.parts("schedulingGates")]
    scheduler = spec.text("schedulerName")
    if scheduler is not None and scheduler not in PROFILES:
        spec.guess("schedulerName", "there has to be a profile of this name")
    profile = PROFILES.get(scheduler or "", scheduler)
    return filled(priority=_priority(spec), profile=None if profile == "default" else profile, gates=gates)


def _priority(spec: Part) -> int | str | None:
    number, name = spec.whole("priority"), spec.text("priorityClassName")
    if name:
        return SYSTEM_PRIORITIES.get(name, name)
    return number
