"""Converts a Nomad job and its groups into a workload."""

from dataclasses import dataclass, field
from typing import Any, get_args

from mandor.importers.base import Made, filled, fitting_name
from mandor.importers.daemon import fit_daemon
from mandor.importers.nomad.blocks import block, blocks, drop_all, duration, label, pairs, seconds
from mandor.importers.nomad.folders import fetching_task, share_folder
from mandor.importers.nomad.network import NamedPort, Services, read_network, services_of_workload
from mandor.importers.nomad.rules import Placement, read_rules
from mandor.importers.nomad.runtime import Runtime
from mandor.importers.nomad.task import TaskDraft, read_task
from mandor.importers.nomad.template import TemplateResult, read_vault
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.model.workload import WorkloadType

TYPES = {"service": "service", "batch": "batch", "system": "daemon", "sysbatch": "batch"}
IMAGE_ENGINES = ("docker", "podman", "cri")
"""Engines of images; the first one that a group names runs all its tasks."""
USUAL_PRIORITY = 50
_JOB = {
    "consul": "there is no Consul",
    "multiregion": "regions are not supported",
    "ui": "workloads have no descriptions",
    "consul_token": "there is no Consul",
    "vault_token": "secrets of Vault are not fetched",
    "version_tag": "`mandor rollout history` counts releases",
}
_KEPT = frozenset(
    {"status", "status_description", "stable", "version", "submit_time", "create_index", "modify_index", "payload"}
    | {"job_modify_index", "dispatched", "parent_id", "nomad_token_id", "dispatch_idempotency_token"}
    | {"consul_namespace", "vault_namespace"}
)
"""Status fields of a job in Nomad's API."""
_GROUP = {
    "consul": "there is no Consul",
    "shutdown_delay": "a task is stopped without a delay",
    "prevent_reschedule_on_lost": "write `disconnect: {replace: false}`",
}
_RESTART = {
    "batch": {"attempts": 3, "interval": "1d", "delay": "15s", "max_delay": "15s"},
    "service": {"attempts": 2, "interval": "30m", "delay": "15s", "max_delay": "15s"},
}


@dataclass(slots=True)
class JobReader:
    part: Part
    name: str
    type: str = "service"
    per_node: bool = False
    """Whether each group runs on every matching node: jobs of type `system` and `sysbatch`."""
    labels: dict[str, str] = field(default_factory=dict)
    named: list[NamedPort] = field(default_factory=list)
    """Ports of its services."""
    volumes: dict[str, Made] = field(default_factory=dict)
    secrets: list[Made] = field(default_factory=list)
    """Logins of its tasks' `auth` blocks."""
    retries: int | None = None
    results: list[TemplateResult] = field(default_factory=list)
    """Results of the templates of its tasks."""

    def made(self) -> list[Made]:
        part = self.part
        name = fitting_name(part.text("name") or self.name)
        workload: dict[str, Any] = {"name": name}
        self._type(part)
        if part.text("id", self.name) != self.name:
            part.guess("id", f"it is called {name}")
        else:
            part.ignore("id")
        workload |= filled(namespace=part.text("namespace"))
        priority = part.whole("priority")
        if priority is not None and priority != USUAL_PRIORITY:
            workload["priority"] = priority - USUAL_PRIORITY
        if self.type != "service":
            workload["type"] = self.type
        placement = self._placement(part)
        meta = pairs(part, "meta")
        gang = part.flag("all_at_once")
        self._batch(part, workload)
        if part.flag("stop"):
            workload["gates"] = [*workload.get("gates", ()), "stopped"]
            part.guess("stop", "no instance starts until the gate `stopped` is removed")
        found = blocks(part, "group")
        if not found:
            raise part.wrong("group", "a job has at least one `group`")
        shared = {key: block(part, key) for key in ("update", "migrate", "reschedule")}
        groups = {}
        for each in found:
            own: Placement = {
                kind: list(given) if isinstance(given, list) else given for kind, given in placement.items()
            }
            read_rules(own, part, "self" if len(found) == 1 else name)
            groups[fitting_name(label(each, "group"))] = self._group(each, own, meta, shared, gang)
        read_vault(part, self.results)
        drop_all(part, _JOB)
        for key in part:
            if key in _KEPT:
                part.ignore(key)
        if self.per_node and self.type == "batch":
            workload["batch"] = {"per_node": True, "retries": 0}  # Nomad reschedules none of them.
        elif self.type == "batch" and len(groups) == 1 and self.retries is not None:
            (only,) = groups.values()
            count = max(1, only.pop("replicas", 1) or 1)
            workload["batch"] = {"completions": count, "parallelism": count, "retries": self.retries}
        workload |= filled(labels=self.labels, services=services_of_workload(self.named, len(groups)))
        workload["groups"] = groups
        for secret in self.secrets:
            secret.manifest.update(filled(namespace=workload.get("namespace")))
        return [*self.volumes.values(), *self.secrets, Made(workload, part.file, part.line)]

    def _type(self, part: Part) -> None:
        given = part.text("type", "service") or "service"
        if given not in TYPES:
            raise part.wrong("type", f"{given!r} is none of {', '.join(TYPES)}")
        self.type = TYPES[given]
        if self.type not in get_args(WorkloadType):
            part.drop("type", "one on each node is not supported yet", "it is imported as a service")
            self.type = "service"
        self.per_node = given in {"system", "sysbatch"} and self.type != "service"

    def _placement(self, part: Part) -> Placement:
        """Return the placement rules of the job itself."""
        places = part.texts("datacenters")
        found: Placement = {}
        if places == ["dc1"]:
            part.guess("datacenters", "`dc1` is Nomad's default and adds no rule")
        elif places and "*" not in places:
            found["where"] = [{"rule": f"datacenter in [{', '.join(places)}]"}]
            part.guess("datacenters", "the node label `datacenter` is required", "mandor label NODE datacenter=…")
        if part.text("region", "global") != "global":
            part.drop("region", "regions are not supported")
        pool = part.text("node_pool")
        if pool and pool not in {"default", "all"}:
            found["pool"] = fitting_name(pool)
        return found

    def _batch(self, part: Part, workload: dict[str, Any]) -> None:
        times = block(part, "periodic")
        if times:
            cron = [_five_fields(times, key, each) for key in ("cron", "crons") for each in times.texts(key)]
            workload["schedule"] = filled(
                cron=cron,
                timezone=times.text("time_zone"),
                overlap="forbid" if times.flag("prohibit_overlap") else "allow",
            )
            if not times.flag("enabled", default=True):
                workload["schedule"]["paused"] = True
            times.text("spec_type")
            if self.type == "daemon":
                self.per_node = False
            workload["type"] = self.type = "batch"
        asked = block(part, "parameterized")
        if asked or "parameterized" in part:
            for key in asked:
                asked.drop(key, "batches have no parameters")
            workload["gates"] = ["parameterized"]
            part.guess("parameterized", "no instance starts until the gate `parameterized` is removed")

    # Groups.

    def _group(
        self, part: Part, placement: Placement, job_meta: dict[str, str], shared: dict[str, Part], gang: bool
    ) -> dict[str, Any]:
        name = label(part, "group")
        ports: dict[str, dict[str, Any]] = {}
        options: dict[str, Any] = {}
        group: dict[str, Any] = filled(replicas=part.whole("count"))
        if self.per_node and part.whole("count", 1) != 1:
            part.drop("count", "it has one instance on each node")
        read_rules(placement, part, "self")
        for each in blocks(part, "network"):
            read_network(ports, options, each)
        tasks = blocks(part, "task")
        if not tasks:
            raise part.wrong("task", "a group has at least one `task`")
        for each in tasks:
            read_rules(placement, each, "self")
            for old in blocks(block(each, "resources"), "network"):
                read_network(ports, options, old)
        services = Services(ports, name)
        meta = {**job_meta, **pairs(part, "meta")}
        drafts = [self._task(each, name, meta, ports, services, options) for each in tasks]
        read_vault(part, [each.templates for each in drafts])
        self.results += [each.templates for each in drafts]
        for each in blocks(part, "service"):
            services.read(each, each.peek("task") or self._main(drafts), self.name)
        self.labels |= services.labels
        self.named += services.named
        disk = block(part, "ephemeral_disk")
        share_folder(drafts, disk)
        group |= self._tasks(part, tasks, drafts, services)
        self._volumes(part, group, drafts)
        self._disk(disk, group)
        self._looked_after(part, group, shared)
        if gang:
            group["gang"] = {"min": group.get("replicas") or 1}
        if gang and self.per_node:
            self.part.drop("all_at_once", "it runs on every node anyway")
        self._scaling(part, block(part, "scaling"), group)
        drop_all(part, _GROUP)
        made = filled(**group, ports=ports, placement=placement)
        if self.per_node:
            fit_daemon(made)
        return made

    def _task(
        self,
        part: Part,
        group: str,
        meta: dict[str, str],
        ports: dict[str, dict[str, Any]],
        services: Services,
        options: dict[str, Any],
    ) -> TaskDraft:
        name = label(part, "task")
        own = {**meta, **pairs(part, "meta")}
        runtime = Runtime(self.name, group, name, "/", own, ports, restarts=self.type != "batch")
        draft = read_task(part, runtime, ports)
        if draft.login is not None:
            self.secrets.append(draft.login)
        read_vault(part, [draft.templates])
        for key, value in own.items():
            draft.env.setdefault(f"NOMAD_META_{key.replace('.', '_').replace('-', '_')}", value)
        if draft.engine in {"docker", "podman"}:
            draft.options = {**options, **draft.options}
        elif options:
            part.guess("driver", f"{', '.join(options)} of the group's `network` is not for {draft.engine}")
        for each in blocks(part, "service"):
            services.read(each, name, self.name)
        return draft

    def _main(self, drafts: list[TaskDraft]) -> str:
        return next((each.name for each in drafts if "role" not in each.task), drafts[0].name)

    def _tasks(self, part: Part, parts: list[Part], drafts: list[TaskDraft], services: Services) -> dict[str, Any]:
        self._join_engines(part, parts, drafts)
        engines = {each.engine for each in drafts}
        leader = next((each for each, source in zip(drafts, parts, strict=True) if source.flag("leader")), None)
        for each in drafts:
            if leader is not None and each is not leader and "role" not in each.task:
                each.task["role"] = "sidecar"
        made = {}
        for each, source in zip(drafts, parts, strict=True):
            block(source, "restart")
            source.drop("restart", "tasks of a group are restarted by the same rule")
            if each.task.get("role") == "poststop":
                for key in source:
                    source.drop(key, "post-stop tasks are not supported")
                continue
            if each.task.get("role") != "init":
                each.task |= services.asked.get(each.name, {}) or services.asked.get(label(source, "task"), {})
            if each.fetching.lines and each.engine != "process":
                made[f"{each.name}-fetch"] = fetching_task(each)
            made[each.name] = each.manifest()
        return {"engine": sorted(engines), "tasks": made}

    def _join_engines(self, part: Part, parts: list[Part], drafts: list[TaskDraft]) -> None:
        """Give all tasks of a group one engine: they share a network. An engine of images runs those of another one."""
        engines = {each.engine for each in drafts}
        if len(engines) < 2:
            return
        if not engines <= set(IMAGE_ENGINES):
            listed = " and ".join(sorted(engines))
            hint = "write the tasks of each engine as a group of their own, with `near` if they belong to one node"
            raise part.wrong("task", f"tasks of one group run on one engine, not on {listed}", hint)
        chosen = next(each for each in IMAGE_ENGINES if each in engines)
        for each, source in zip(drafts, parts, strict=True):
            if each.engine != chosen:
                source.guess("driver", f"it runs on {chosen}, as the other tasks of the group do")
                each.engine = chosen

    def _volumes(self, part: Part, group: dict[str, Any], drafts: list[TaskDraft]) -> None:
        volumes: dict[str, dict[str, Any]] = {}
        for each in blocks(part, "volume"):
            name, source = fitting_name(label(each, "volume")), each.text("source")
            kind, own = each.text("type", "host"), each.flag("per_alloc")
            sticky = each.flag("sticky")
            if each.flag("read_only"):
                _lock(group["tasks"], name)
            if sticky:
                each.guess("sticky", "instances always run on the node of their volume")
            if not (each.text("access_mode") or "single-node").startswith("single-node"):
                each.guess("access_mode", "instances that share a volume run on its node")
            if each.text("attachment_mode", "file-system") != "file-system":
                each.drop("attachment_mode", "block devices are not supported")
            each.drop("mount_options", "a volume is a folder")
            if own:
                volumes[name] = {"per_instance": True}
                each.guess("per_alloc", "each instance gets a new volume of its own")
                for key in ("source", "type"):
                    each.drop(key, "each instance gets a new volume of its own")
                continue
            named = fitting_name(source or name, most=253)
            volumes[name] = {"volume": named}
            self.volumes[named] = Made({"kind": "volume", "name": named}, each.file, each.line)
            where = "type" if "type" in each else "source"
            each.guess(where, f"a volume {named} is created empty: it is not the {kind} volume of Nomad")
        for draft in drafts:
            volumes |= {name: each for name, each in draft.volumes.items() if name not in volumes}
        if volumes:
            group["volumes"] = volumes

    def _disk(self, part: Part, group: dict[str, Any]) -> None:
        size = part.whole("size")
        if size:
            first = next(iter(group["tasks"].values()))
            first.setdefault("resources", {})["disk"] = f"{size}Mi"

    # Restarts, updates, migration.

    def _looked_after(self, part: Part, group: dict[str, Any], shared: dict[str, Part]) -> None:
        kind = "batch" if self.type == "batch" else "service"
        restart = block(part, "restart")
        group["restart"] = {"policy": "on-failure" if kind == "batch" else "always", **_RESTART[kind]} | filled(
            attempts=restart.whole("attempts"), interval=duration(restart, "interval"), delay=duration(restart, "delay")
        )
        group["restart"]["max_delay"] = group["restart"]["delay"]
        if (mode := restart.text("mode", "fail")) not in {"fail", "delay"}:
            raise restart.wrong("mode", f"{mode!r} is neither fail nor delay")
        if mode == "delay":
            restart.guess("mode", "after its attempts an instance fails and is replaced")
        if "render_templates" in restart:
            restart.drop("render_templates", "templates are rendered once")
        self._reschedule(block(part, "reschedule") or shared["reschedule"], group, kind)
        if kind == "service":
            if update := block(part, "update") or shared["update"]:
                self._update(update, group)
        else:
            for source in (shared["update"], block(part, "update")):
                for key in source:
                    source.drop(key, "this is not rolled out")
        if migrate := block(part, "migrate") or shared["migrate"]:
            group["disruption"] = {"max_unavailable": migrate.whole("max_parallel", 1) or 1}
            if migrate.text("health_check", "checks") != "checks":
                migrate.guess("health_check", "an instance that is ready counts")
            healthy = group.get("update", {}).get("min_healthy", "10s")
            if (duration(migrate, "min_healthy_time") or healthy) != healthy:
                migrate.guess("min_healthy_time", f"the value is {healthy}, as for updates")
            migrate.drop("healthy_deadline", "workloads do not set deadlines for drains")
        self._disconnect(part, group)

    def _reschedule(self, part: Part, group: dict[str, Any], kind: str) -> None:
        usual = {"delay": "5s", "max_delay": "5s"} if kind == "batch" else {"delay": "30s", "max_delay": "1h"}
        how = part.text("delay_function", "constant" if kind == "batch" else "exponential")
        found = usual | filled(delay=duration(part, "delay"), max_delay=duration(part, "max_delay"))
        if how == "constant":
            found["max_delay"] = found["delay"]
        elif how not in {"exponential", "fibonacci"}:
            raise part.wrong("delay_function", f"{how!r} is none of constant, exponential, fibonacci")
        elif how == "fibonacci":
            part.guess("delay_function", "the wait doubles")
        if Seconds.parse(found["max_delay"]) < Seconds.parse(found["delay"]):
            found["max_delay"] = found["delay"]
        group["reschedule"] = found
        attempts, unlimited = part.whole("attempts"), part.flag("unlimited", default=kind == "service")
        if kind == "batch":
            self.retries = min(1000, attempts if attempts is not None else 1)
            part.drop("interval", "attempts have no interval")
        elif not unlimited:
            found["attempts"] = min(10_000, max(0, attempts or 0))
            part.drop("interval", "attempts are counted until an instance runs for longer than the maximum delay")
        else:
            for key in ("attempts", "interval"):
                part.ignore(key)  # Nomad does not count without a limit

    def _update(self, part: Part, group: dict[str, Any]) -> None:
        at_once, canary = part.whole("max_parallel", 1), part.whole("canary", 0) or 0
        healthy = duration(part, "min_healthy_time") or "10s"
        deadline, total = seconds(part, "healthy_deadline"), seconds(part, "progress_deadline")
        given = part.text("health_check", "checks")
        if given != "checks":
            part.guess("health_check", "an instance that is ready counts as healthy")
        if given not in {"checks", "task_states", "manual"}:
            raise part.wrong("health_check", f"{given!r} is none of checks, task_states, manual")
        stagger = duration(part, "stagger")
        if self.type != "daemon":
            part.ignore("stagger")  # Nomad uses it for system jobs only
        elif stagger and "min_healthy_time" not in part:
            healthy = stagger
        elif stagger:
            part.drop("stagger", "the next instance follows when the previous ones are healthy")
        count = group.get("replicas") or 1
        found = filled(
            min_healthy=healthy,
            auto_promote=part.flag("auto_promote") or None,
            canary=min(canary, count) if canary and canary < count else None,
        ) | {"auto_rollback": part.flag("auto_revert")}
        if canary and canary >= count:
            found["strategy"] = "blue-green"
            part.drop("max_parallel", "blue/green replaces all instances at once")
        elif not canary:
            found |= {"max_unavailable": at_once or "100%", "order": "stop-first"}
        elif at_once:
            found["max_unavailable"] = at_once
        limit = max(deadline or 300, total or 600 if "progress_deadline" in part else 0)
        least = Seconds.parse(healthy) + 1
        if "healthy_deadline" in part and (deadline or 300) < limit:
            part.guess("healthy_deadline", f"a roll-out has {Seconds(limit)} for each step, its `progress_deadline`")
        found["deadline"] = "never" if total == 0 else str(Seconds(max(limit, least)))
        group["update"] = found

    def _disconnect(self, part: Part, group: dict[str, Any]) -> None:
        given = block(part, "disconnect")
        lost = duration(given, "lost_after") or duration(part, "max_client_disconnect")
        stop = seconds(given, "stop_on_client_after") or seconds(part, "stop_after_client_disconnect")
        found: dict[str, Any] = filled(stop_after=str(Seconds(stop)) if stop else None)
        if stop:
            grace = max(
                (
                    Seconds.parse(each["stop"]["grace"])
                    for each in group["tasks"].values()
                    if "grace" in each.get("stop", {})
                ),
                default=Seconds(10),
            )
            least = stop + grace + 10
            found["lost_after"] = str(Seconds(max(least, Seconds.parse(lost) if lost else 0)))
        elif lost:
            found["lost_after"] = lost
        if "replace" in given and not given.flag("replace", default=True):
            found["replace"] = False
        if given.text("reconcile", "best_score") not in {"best_score", "keep_replacement"}:
            given.guess("reconcile", "the replacement instance is kept")
        if found:
            group["disconnect"] = found

    def _scaling(self, group_part: Part, part: Part, group: dict[str, Any]) -> None:
        low, high = part.whole("min"), part.whole("max")
        if not part.flag("enabled", default=True) or not high or self.type != "service":
            group_part.drop("scaling", "the count is not scaled automatically")
            return
        part.drop("policy", "external scaling policies are not supported")
        group["autoscale"] = {"min": max(1, low or 1), "max": max(high, low or 1), "cpu": "70%"}
        part.guess("max", "autoscaling uses 70 % CPU", "see `autoscale`")


def _lock(tasks: dict[str, dict[str, Any]], volume: str) -> None:
    """Mark a volume read-only in all mounts."""
    for task in tasks.values():
        for mount in task.get("mounts", []):
            if mount.get("volume") == volume:
                mount["read_only"] = True


def _five_fields(part: Part, key: str, text: str) -> str:
    """Return a cron expression of five fields: Nomad's can also have seconds and a year."""
    fields = text.split()
    if len(fields) == 7 and fields[0] not in {"0", "00"}:
        part.guess(key, f"{text!r} starts at the minute, not at second {fields[0]}")
    if len(fields) in {6, 7} and fields[-1] != "*":
        part.guess(key, f"{text!r} applies to every year, not to {fields[-1]} only")
    return " ".join(fields[-6:-1]) if len(fields) in {6, 7} else text
