"""Runs the operations of a scenario one after another; churn and slow deletions run in the background."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mandor.bench.cluster import Cluster
from mandor.bench.copies import Copies, in_turn
from mandor.bench.kubernetes import Pod, PodGroup, Reader
from mandor.bench.meter import Scope
from mandor.bench.scenario import Case, Op
from mandor.bench.sources import BUILT_IN, DEFAULT_NODE, DEFAULT_POD, Sources, parsed
from mandor.bench.template import has_actions, render
from mandor.errors import Invalid, MandorError, Unsupported
from mandor.importers.kubernetes.words import renamed
from mandor.lib.quantity import Seconds
from mandor.lib.tasks import Background
from mandor.lib.yaml12 import Map
from mandor.model.group import FLAT
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.workload import Workload, WorkloadSpec, make_release
from mandor.store.base import Delete, Put

Note = Callable[[str], None]
_OWN_NAME = re.compile(r"^  name: .*$", re.MULTILINE)
"""Line with the object's own name; other names are indented further."""
_POD_NAME = re.compile(r"^(?:metadata: *\{ *|  )name: *['\"]?([a-z0-9.-]+)", re.MULTILINE)


class Steps:
    def __init__(self, case: Case, cluster: Cluster, *, lenient: bool, say: Note) -> None:
        self._case = case
        self._cluster = cluster
        self._lenient = lenient
        self._say = say
        self._tasks: Background | None = None
        self._sources = Sources()
        self._namespaces: dict[str, dict[str, str]] = {}
        self._priorities: dict[str, int] = {}
        self._pod_groups: dict[tuple[str, str], PodGroup] = {}
        self._made = 0
        self._nodes = 0
        self._by_pod_name: dict[tuple[str, str], Key] = {}
        """Instances by namespace and name of their pod, for updates."""
        self.notes: dict[str, None] = {}
        """Notes about skipped operations, in order."""
        self._skipped: list[Unsupported] = []
        """Parts without a counterpart, each time that one is skipped."""
        self.unsupported: dict[str, Unsupported] = {}
        """Errors of operations without a counterpart, by operation, so that each is reported once."""

    async def look_through(self, ops: Sequence[Op]) -> None:
        """Read everything that the operations name, without writing: errors are found before the run."""
        for op in ops:
            await self._look_at(op)

    async def _look_at(self, op: Op) -> None:
        match op.opcode:
            case "createNodes":
                self._node(op, 0, op.count())
            case "createNamespaces":
                await self._create_namespaces(op)
            case "createPods":
                self._look_at_pods(op, self._namespace(op))
            case "createPodSets":
                self._look_at_pods(op.inner("createPodsOp"), f"{op.get('namespacePrefix')}-0")
            case "createPodGroups":
                await self._create_pod_groups(op)
            case "createAny":
                await self._create_any(op)
            case "updateAny":
                self._look_at_update(op)
            case "churn":
                for path, kind in self._churns(op):
                    if kind == "Node":
                        self._read_node(op, path, self._sources.document(op, path, "", {"Index": 0}), {})
                    else:
                        self._copies(op, path, self._rendered(op, path, 0), self._namespace(op))

    def _look_at_pods(self, op: Op, namespace: str) -> None:
        path, count = self._pod_path(op), op.count()
        if count:
            text = self._sources.text(op, path, DEFAULT_POD)
            text = render(text, {**op.values(), "Index": 0, "Count": count}, file=str(path))
            self._copies(op, path, text, namespace)

    async def run(self, ops: Sequence[Op]) -> None:
        async with Background() as tasks:
            self._tasks = tasks
            for op in ops:
                self._say(_shown(op))
                await self._do(op)
            self._cluster.meter.stop()

    async def _do(self, op: Op) -> None:
        match op.opcode:
            case "createNodes":
                await self._create_nodes(op)
            case "createNamespaces":
                await self._create_namespaces(op)
            case "createPods":
                await self._create_pods(op, self._namespace(op))
            case "createPodSets":
                await self._create_pod_sets(op)
            case "createPodGroups":
                await self._create_pod_groups(op)
            case "createAny":
                await self._create_any(op)
            case "updateAny":
                await self._update_any(op)
            case "deletePods":
                await self._delete_pods(op)
            case "churn":
                await self._churn(op)
            case "barrier":
                await self._barrier(op)
            case "sleep":
                await asyncio.sleep(_duration(op))
            case "startCollectingMetrics":
                self._start_meter(op, Scope(frozenset(op.get("namespaces") or ()), op.selector()))
            case "stopCollectingMetrics":
                self._cluster.meter.stop()
            case _:
                op.refuse("opcode", "this operation is not known")

    # Nodes and namespaces.

    async def _create_nodes(self, op: Op) -> None:
        count = op.count()
        await self._cluster.write([Put(self._node(op, at, count)) for at in range(count)])

    def _node(self, op: Op, index: int, count: int) -> Node:
        if op.get("nodeAllocatableStrategy"):
            self._unmapped(op, "nodeAllocatableStrategy", "nodeAllocatableStrategy", "volumes are not counted")
        path = op.path("nodeTemplatePath")
        source = self._sources.document(op, path, DEFAULT_NODE, {"Index": index, "Count": count})
        labels = {}
        strategy = op.get("labelNodePrepareStrategy")
        if strategy:
            values = strategy.get("labelValues") or [strategy.get("labelValue", "")]
            labels[strategy["labelKey"]] = values[index % len(values)]
        unique = op.get("uniqueNodeLabelStrategy")
        if unique:
            labels[unique["labelKey"]] = str(index)
        return self._read_node(op, path, source, labels)

    def _read_node(self, op: Op, path: Path | None, source: Map, labels: Mapping[str, str]) -> Node:
        with _placed_in(op, path, source):
            return self._reader(op, path).node(source, self._node_name(source), labels)

    def _node_name(self, source: Map) -> str:
        meta = source.get("metadata") or {}
        if meta.get("name"):
            return str(meta["name"])
        self._nodes += 1
        return f"{meta.get('generateName', 'node-')}{self._nodes - 1}"

    async def _create_namespaces(self, op: Op) -> None:
        labels: dict[str, str] = {}
        path = op.path("namespaceTemplatePath")
        if path is not None:
            labels = dict((self._sources.document(op, path, "", {}).get("metadata") or {}).get("labels") or {})
        for index in range(op.count(default=1)):
            self._namespaces[f"{op.get('prefix')}-{index}"] = renamed(labels)

    def _labelled(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        wanted = labels.items()
        return tuple(name for name, found in self._namespaces.items() if wanted <= found.items())

    # Pods.

    async def _create_pod_sets(self, op: Op) -> None:
        inner = op.inner("createPodsOp")
        for index in range(op.count()):
            await self._create_pods(inner, f"{op.get('namespacePrefix')}-{index}")

    async def _create_pods(self, op: Op, namespace: str) -> None:
        path = self._pod_path(op)
        made = self._pods(op, path, namespace, op.count(), op.values())
        batches = [self._cluster.expect(each.instances, each.workload, kept=each.kept) for each in made]
        await self._cluster.write([Put(one) for each in made for one in (each.workload, each.release)])
        if op.get("collectMetrics"):
            self._start_meter(op, Scope(frozenset({namespace})))
        await self._cluster.write([Put(each) for each in in_turn(made)])
        if not op.get("skipWaitToCompletion"):
            await self._cluster.bound(batches)
            if op.get("collectMetrics"):
                self._cluster.meter.stop()

    def _pod_path(self, op: Op) -> Path | None:
        for key in ("persistentVolumeTemplatePath", "persistentVolumeClaimTemplatePath"):
            if op.get(key):
                self._unmapped(op, key, key, "there are no volumes")
        return op.path("podTemplatePath", self._case.pod_template)

    def _pods(
        self, op: Op, path: Path | None, namespace: str, count: int, values: Mapping[str, Any]
    ) -> Sequence[Copies]:
        """Create one workload for all pods with equal converted templates."""
        text = self._sources.text(op, path, DEFAULT_POD)
        found: dict[str, Copies] = {}
        if not has_actions(text):
            found[text] = self._copies(op, path, text, namespace).add(range(count))
        else:
            for index in range(count):
                rendered = render(text, {**values, "Index": index, "Count": count}, file=str(path))
                alike = _OWN_NAME.sub("", rendered)
                if alike not in found:
                    found[alike] = self._copies(op, path, rendered, namespace)
                copies = found[alike].add([index])
                self._name_pod(namespace, rendered, copies)
        for copies in found.values():
            group = self._pod_groups.get((namespace, copies.pod_group))
            if group is not None and group.least is not None:
                self._gather(op, copies, group)
        return list(found.values())

    def _gather(self, op: Op, copies: Copies, group: PodGroup) -> None:
        """Group the pods of a gang: a gang is one group of one workload, so its pods must be equal."""
        assert group.least is not None
        if group.least > len(copies.instances):
            reported = f"{group.least} pods of {group.name} belong together, and only {len(copies.instances)} are alike"
            self._unmapped(op, "podTemplatePath", "PodGroup", reported)
            return
        copies.together(group.least)

    def _copies(self, op: Op, path: Path | None, text: str, namespace: str) -> Copies:
        source = parsed(op, path, text)
        with _placed_in(op, path, source):
            pod = self._reader(op, path).pod(source)
            workload = self._workload(pod, namespace)
        return Copies(workload, make_release(workload, 1), pod.finalizers, pod.pod_group or "")

    def _workload(self, pod: Pod, namespace: str) -> Workload:
        self._made += 1
        name = f"{(pod.pod_group or pod.name or pod.stem).strip('-')[:40]}-{self._made}"
        if pod.pod_group is not None and (namespace, pod.pod_group) not in self._pod_groups:
            raise ValueError(f"there is no PodGroup {pod.pod_group} in {namespace}")
        self._namespaces.setdefault(namespace, {})
        return Workload(
            meta=Meta(name=name, namespace=namespace, labels=pod.labels),
            spec=WorkloadSpec(priority=pod.priority, profile=pod.profile, gates=pod.gates, groups={FLAT: pod.group}),
        )

    async def _create_pod_groups(self, op: Op) -> None:
        path, count, namespace = op.path("templatePath"), op.count(), self._namespace(op)
        for index in range(count):
            source = self._sources.document(op, path, "", {**op.values(), "Index": index, "Count": count})
            with _placed_in(op, path, source):
                made = self._reader(op, path).pod_group(source)
            self._pod_groups[namespace, made.name] = made

    async def _delete_pods(self, op: Op) -> None:
        namespace, labels = self._namespace(op), op.selector()
        chosen = [each for each in self._cluster.batches if each.matches(labels)]
        keys = [key for batch in chosen for key in batch.keys if key.namespace == namespace]
        removing = self._cluster.remove(keys, op.number_of("deletePodsPerSecond", 0))
        if op.get("skipWaitToCompletion"):
            self._relative_path(removing, "deletions")
        else:
            await removing

    # Other objects.

    async def _create_any(self, op: Op) -> None:
        path = op.path("templatePath")
        for index in range(op.count(default=1)):
            source = self._sources.document(op, path, "", {"Index": index})
            if source.get("kind") == "PriorityClass":
                self._priorities[source["metadata"]["name"]] = int(source["value"])
            elif source.get("kind") == "Service" and (source.get("spec") or {}).get("selector"):
                # Kubernetes finds the pods of its default constraints by Services; here the workload selects them.
                self.notes[f"{op.opcode}: Service: the default spread selects the pods of a workload"] = None
            else:
                self._unmapped(op, "templatePath", str(source.get("kind")), "this kind has no counterpart")

    async def _update_any(self, op: Op) -> None:
        pause, count = op.number_of("updatePerSecond", 0), op.count(default=1)
        for index in range(count):
            source = self._update_source(op, index, count)
            if source.get("kind") == "Node":
                await self._update_node(op, self._read_node(op, op.path("templatePath"), source, {}))
            elif source.get("kind") == "Pod":
                await self._replace_pod(op, index, count)
            else:
                return
            if pause:
                await asyncio.sleep(1 / pause)

    def _update_source(self, op: Op, index: int, count: int) -> Map:
        return self._sources.document(op, op.path("templatePath"), "", {"Index": index, "Count": count})

    def _look_at_update(self, op: Op) -> None:
        source, path = self._update_source(op, 0, op.count(default=1)), op.path("templatePath")
        if source.get("kind") == "Node":
            self._read_node(op, path, source, {})
        elif source.get("kind") == "Pod":
            self._copies(op, path, self._rendered_update(op, 0, op.count(default=1)), self._namespace(op))
        else:
            self._unmapped(op, "templatePath", f"{source.get('kind')}", "only nodes and pods are updated")

    async def _update_node(self, op: Op, wanted: Node) -> None:
        found = await self._cluster.store.get(wanted.key)
        if found is None:
            op.refuse("templatePath", f"there is no node {wanted.meta.name} to update")
        meta = Meta(
            name=wanted.meta.name, uid=found.meta.uid, version=found.meta.version,
            created_at=found.meta.created_at, labels=wanted.meta.labels,
        )  # fmt: skip
        await self._cluster.store.commit(Put(wanted.changed(meta=meta)))

    async def _replace_pod(self, op: Op, index: int, count: int) -> None:
        """Replace the instance of a pod by one with the updated template, as a changed workload does.

        An update without a counterpart only removes the instance, which could never be placed.
        """
        self.notes["updateAny: Pod: replaced by a new instance instead of changed in place"] = None
        namespace, path, left_out = self._namespace(op), op.path("templatePath"), len(self._skipped)
        rendered = self._rendered_update(op, index, count)
        made = self._copies(op, path, rendered, namespace).add([index])
        old = self._by_pod_name.get((namespace, _pod_name(rendered)))
        if old is None:
            op.refuse("templatePath", f"there is no pod {_pod_name(rendered)} in {namespace} to update")
        await self._cluster.remove([old], 0)
        if len(self._skipped) > left_out:
            return
        self._name_pod(namespace, rendered, made)
        self._cluster.expect(made.instances, made.workload, kept=made.kept)
        await self._cluster.store.commit(Put(made.workload), Put(made.release), *map(Put, made.instances))

    def _rendered_update(self, op: Op, index: int, count: int) -> str:
        path = op.path("templatePath")
        return render(self._sources.text(op, path, ""), {"Index": index, "Count": count}, file=str(path))

    def _name_pod(self, namespace: str, rendered: str, copies: Copies) -> None:
        if _pod_name(rendered):
            self._by_pod_name[namespace, _pod_name(rendered)] = copies.instances[-1].key

    async def _churn(self, op: Op) -> None:
        mode = op.get("mode", "create")
        if mode not in {"create", "recreate"}:
            op.refuse("mode", f"`mode` is create or recreate, not {mode!r}")
        makers = [partial(self._churned, op, path, kind) for path, kind in self._churns(op)]
        pause = op.number_of("intervalMilliseconds", 500) / 1000
        number = max(1, int(op.number_of("number", 0)))
        self._relative_path(_churn_for_ever(makers, pause, number, again=mode == "recreate"), "churn")

    def _churns(self, op: Op) -> Iterator[tuple[Path, str]]:
        for named in op.get("templatePaths") or ():
            path = op.file.parent / named
            kind = str(self._sources.document(op, path, "", {"Index": 0}).get("kind"))
            if kind == "Service":  # Kubernetes' scheduler filters such events; no decision here depends on them.
                self.notes[f"{op.opcode}: Service: no place depends on one"] = None
            elif kind not in {"Node", "Pod"}:
                self._unmapped(op, "templatePaths", kind, "this kind has no counterpart")
            else:
                yield path, kind

    async def _churned(self, op: Op, path: Path, kind: str, old: Sequence[Key]) -> Sequence[Key]:
        """Create a set of objects and return their keys; given those keys, delete them."""
        store = self._cluster.store
        if old:
            for key in old:
                found = await store.get(key)
                if isinstance(found, Instance):
                    await self._cluster.remove([key], 0)
                elif found is not None:
                    await store.commit(Delete(key, found.meta.version))
            return ()
        if kind == "Node":
            source = self._sources.document(op, path, "", {"Index": self._nodes})
            node = self._read_node(op, path, source, {})
            await store.commit(Put(node))
            return (node.key,)
        text = self._rendered(op, path, self._made)
        made = self._copies(op, path, text, self._namespace(op)).add([0])
        self._cluster.expect(made.instances, made.workload, kept=made.kept)
        await store.commit(Put(made.workload), Put(made.release), *(Put(each) for each in made.instances))
        return tuple(each.key for each in made.instances)

    def _rendered(self, op: Op, path: Path, index: int) -> str:
        return render(self._sources.text(op, path, ""), {"Index": index, "Count": 1}, file=str(path))

    # Waiting and measuring.

    async def _barrier(self, op: Op) -> None:
        stage = op.get("stageRequirement", "Scheduled")
        chosen = [each for each in self._cluster.batches if each.matches(op.selector())]
        if stage == "Attempted":
            await self._cluster.tried(chosen)
        elif stage == "Scheduled":
            await self._cluster.bound(chosen)
        else:
            op.refuse("stageRequirement", f"`stageRequirement` is Attempted or Scheduled, not {stage!r}")

    def _start_meter(self, op: Op, scope: Scope) -> None:
        if self._cluster.meter.used:
            op.refuse("opcode", "a run measures one stretch, and another one was measured before")
        self._cluster.meter.start(scope)

    # Reading templates.

    def _namespace(self, op: Op) -> str:
        return str(op.get("namespace") or f"namespace-{op.number}")

    def _reader(self, op: Op, path: Path | None) -> Reader:
        def refuse(key: str, why: str) -> None:
            self._left_out(op, f"{path.name if path else BUILT_IN}: `{key}`: {why}")

        return Reader(refuse, self._labelled, self._priorities)

    def _unmapped(self, op: Op, key: str, what: str, why: str) -> None:
        self._left_out(op, f"{what}: {why}", op.source.lines.get(key, op.source.line))

    def _left_out(self, op: Op, reported: str, line: int | None = None) -> None:
        error = Unsupported(
            f"{op.opcode}: {reported}",
            hint="--lenient skips it with a note",
            file=str(op.file),
            line=line or op.source.line,
        )
        if not self._lenient:
            raise error
        self.notes[error.message] = None
        self._skipped.append(error)
        self.unsupported.setdefault(f"{error.facts['line']} {error.message}", error)

    def _relative_path(self, work: Coroutine[Any, Any, None], name: str) -> None:
        assert self._tasks is not None
        self._tasks.start(work, name)


@contextmanager
def _placed_in(op: Op, path: Path | None, source: Map) -> Iterator[None]:
    """Return the object; an error in a template has its file and line."""
    file = str(path or BUILT_IN)
    try:
        yield
    except Invalid as error:
        raise Invalid(error.message, hint=error.hint, file=file, line=error.facts.get("line", source.line)) from None
    except KeyError as error:
        raise Invalid(f"{op.opcode}: a `{error.args[0]}` is missing", file=file, line=source.line) from None
    except (ValueError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise Invalid(f"{op.opcode}: {error}", file=file, line=source.line) from None


Maker = Callable[[Sequence[Key]], Coroutine[Any, Any, Sequence[Key]]]


async def _churn_for_ever(makers: Sequence[Maker], pause: float, number: int, *, again: bool) -> None:
    """Create and delete objects repeatedly; `again`: objects of `number` turns ago are recreated."""
    made: list[list[Sequence[Key]]] = [[()] * number for _ in makers]
    turn = 0
    while True:
        await asyncio.sleep(pause)
        for slots, make in zip(made, makers, strict=True):
            slot = turn % number
            try:
                slots[slot] = await make(slots[slot] if again else ())
            except MandorError:
                continue  # A conflict; the next turn follows.
        turn += 1


def _pod_name(rendered: str) -> str:
    """Return the name of a rendered pod; empty: its template has none."""
    found = _POD_NAME.search(rendered)
    return found.group(1) if found else ""


def _duration(op: Op) -> float:
    key = "durationParam" if "durationParam" in op.source else "duration"
    try:
        return float(Seconds.parse(op.get(key, "0s")))
    except ValueError as error:
        op.refuse(key, str(error))


def _shown(op: Op) -> str:
    parts = [op.opcode]
    if op.source.keys() & {"count", "countParam"}:
        parts.append(f"{op.count():,}")
    if op.get("namespace"):
        parts.append(f"in {op.get('namespace')}")
    return " ".join(parts)
