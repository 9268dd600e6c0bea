"""Apply: plans and commits the changes of a manifest; nothing is written unless every object is admitted."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Struct

from mandor.api.access import read_scope
from mandor.api.advice import advice, rules_of, secrets_of
from mandor.api.changes import FieldChange, differences
from mandor.api.counts import keep_counts
from mandor.api.parts import ApiParts
from mandor.api.pending_objects import PendingObjects
from mandor.api.pools import machine_labels
from mandor.api.selector import Selector
from mandor.api.writers import check_reach
from mandor.api.writing import Author, CheckedWrite, WriteChecker, commit_checked
from mandor.errors import Conflict, MandorError
from mandor.model.manifest import Document
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node
from mandor.model.pool import NodePool
from mandor.model.rollout import NO_ORDERS, RolloutOrders
from mandor.model.secret import Secret
from mandor.model.workload import Workload
from mandor.store.base import WRITES_MOST, Delete, Filter, Put

Action = Literal["created", "changed", "unchanged", "deleted", "kept"]
FIRST = frozenset({"namespace", "priority-class"})
"""Kinds that are committed first because other objects refer to them."""
TRIES = 5
BATCH = WRITES_MOST - 1
"""Writes per commit; one is left for the audit record."""


class Result(Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str
    name: str
    action: Action
    changes: tuple[FieldChange, ...] = ()
    warnings: tuple[str, ...] = ()
    """Remarks about settings that are allowed but rarely intended."""


@dataclass(slots=True)
class ApplyPlan:
    """The checked writes of a manifest, and a result for each of its objects."""

    checked: list[CheckedWrite] = field(default_factory=list)
    results: dict[Key, Result] = field(default_factory=dict)
    revision: int = 0
    nodes: Sequence[Node] = ()
    """The nodes of the cluster; read only if the manifest contains workloads for every node or rules on nodes."""
    labels: frozenset[str] = frozenset()
    """Keys of labels that ordered machines get; read with the nodes."""
    secrets: frozenset[tuple[str, str]] = frozenset()
    """Stored and pending secrets, by namespace and name; read only if the manifest refers to secrets."""

    def add(
        self,
        key: Key,
        action: Action,
        changes: Sequence[FieldChange] = (),
        checked: CheckedWrite | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        write = checked.write if checked is not None else None
        self.results[key] = Result(
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            action=action,
            changes=tuple(changes),
            warnings=(
                *(advice(write.value, self.nodes, self.secrets, self.labels) if isinstance(write, Put) else ()),
                *warnings,
            ),
        )
        if checked is not None:
            self.checked.append(checked)

    @property
    def values(self) -> list[Object]:
        """The objects that would be created or changed."""
        return [each.write.value for each in self.checked if isinstance(each.write, Put)]


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete workloads with these labels, in these namespaces, that the manifest does not name."""

    selector: Selector
    namespaces: frozenset[str]


async def apply(
    parts: ApiParts, author: Author, documents: Sequence[Document], *, prune: Prune | None, dry_run: bool
) -> ApplyPlan:
    done: dict[Key, Result] = {}
    for attempt in range(TRIES):
        plan = await plan_apply(parts, author, documents, prune)
        plan.results = _merged(done, plan.results)
        if dry_run or not plan.checked:
            return plan
        try:
            return await commit_plan(parts, author, plan)
        except Conflict as error:
            if attempt == TRIES - 1 or "version" not in error.facts:
                raise
            done = plan.results
    raise AssertionError("unreachable")


async def plan_apply(
    parts: ApiParts,
    author: Author,
    documents: Sequence[Document],
    prune: Prune | None = None,
    *,
    forecast: bool = False,
) -> ApplyPlan:
    """Check every document and return the writes; raise for the first one that may not be applied, with file and line.

    `forecast`: nothing will be written, so the right to read the objects is enough.
    """
    plan = ApplyPlan(revision=(await parts.store.list("cluster")).revision)
    stored, wanted = [], []
    for document in documents:
        with _located(document):
            before = await _stored(parts, author, document.object, forecast=forecast)
            stored.append(before)
            wanted.append(merged(before, document.object))
    pending = PendingObjects(parts.store, wanted)
    if any(isinstance(each, Workload) and (each.spec.per_node or rules_of(each)) for each in wanted):
        plan.nodes = [each for each in (await parts.store.list(Node.kind)).items if isinstance(each, Node)]
        plan.labels = machine_labels([*(await parts.store.list(NodePool.kind)).items, *wanted])
    if any(isinstance(each, Workload) and secrets_of(each) for each in wanted):
        known = [*(await parts.store.list(Secret.kind)).items, *wanted]
        plan.secrets = frozenset((each.meta.namespace, each.meta.name) for each in known if isinstance(each, Secret))
    checker = WriteChecker(parts, author.caller, pending, complete=True, forecast=forecast)
    for document, before, value in zip(documents, stored, wanted, strict=True):
        with _located(document):
            checked = await checker.check(Put(value), before)
            await _add(parts, plan, checked, pending)
    if prune is not None:
        await _plan_prune(parts, checker, prune, pending, plan)
    return plan


@contextmanager
def _located(document: Document) -> Iterator[None]:
    """Add the file and the line of a document to its errors."""
    try:
        yield
    except MandorError as error:
        error.facts.setdefault("file", document.file)
        error.facts.setdefault("line", document.line_of(str(error.facts.get("path", ""))))
        raise


async def _stored(parts: ApiParts, author: Author, given: Object, *, forecast: bool) -> Object | None:
    """Return the stored object; raise `Forbidden` before it is read if the caller has no rights on its key."""
    if forecast:
        where = Filter(namespace=given.meta.namespace or None)
        await read_scope(parts.store, author.caller, given.kind, where, verb="get")
    else:
        check_reach(author.caller, given.key)
    return await parts.store.get(given.key)


async def _add(parts: ApiParts, plan: ApplyPlan, checked: CheckedWrite, pending: PendingObjects) -> None:
    assert isinstance(checked.write, Put)
    value = checked.write.value
    changes = differences(checked.before, value)
    if checked.before is not None and not changes:
        plan.add(value.key, "unchanged")
        return
    action: Action = "created" if checked.before is None else "changed"
    plan.add(value.key, action, changes, checked, await _missing_dependencies(parts, value, pending))


async def _missing_dependencies(parts: ApiParts, value: Object, pending: PendingObjects) -> list[str]:
    """Return a warning for each dependency that does not exist yet."""
    groups = value.spec.groups if isinstance(value, Workload) else {}
    named = {other for group in groups.values() for other in group.depends_on if other not in groups}
    keys = [Key(Workload.kind, value.meta.namespace, name) for name in sorted(named)]
    return [
        f"it depends on {key.name}, but there is no group or workload of that name yet"
        for key in keys
        if key not in pending and await parts.store.get(key) is None
    ]


async def _plan_prune(
    parts: ApiParts, checker: WriteChecker, prune: Prune, pending: PendingObjects, plan: ApplyPlan
) -> None:
    for namespace in sorted(prune.namespaces):
        listing = await parts.store.list("workload", Filter(namespace=namespace))
        for stored in listing.items:
            if stored.key not in pending and prune.selector.matches(stored.labels):
                checked = await checker.check(Delete(stored.key, stored.meta.version), stored)
                plan.add(stored.key, "deleted", (), checked)


def merged(stored: Object | None, given: Object) -> Object:
    """Return the given object as the next version of the stored one; settings that the manifest omits are kept."""
    if stored is None:
        meta = Meta(name=given.meta.name, namespace=given.meta.namespace, labels=given.meta.labels)
        spec = keep_counts(None, given.spec) if isinstance(given, Workload) else given.spec
        return given.changed(meta=meta, spec=spec)
    spec = given.spec
    if isinstance(stored, Workload) and isinstance(given, Workload):
        rollout = stored.spec.rollout
        if given.spec.template != stored.spec.template:
            # A promotion or a rollback was about the previous template.
            rollout = RolloutOrders(paused=True) if rollout.paused else NO_ORDERS
        spec = msgspec.structs.replace(
            keep_counts(stored, given.spec),
            restarted=stored.spec.restarted,
            rollout=rollout,
            run_of=stored.spec.run_of,
        )
    return stored.changed(meta=msgspec.structs.replace(stored.meta, labels=given.meta.labels), spec=spec)


async def commit_plan(parts: ApiParts, author: Author, plan: ApplyPlan) -> ApplyPlan:
    checked = sorted(plan.checked, key=lambda each: each.write.key.kind not in FIRST)
    earlier: dict[Key, int] = {}
    for start in range(0, len(checked), BATCH):
        await asyncio.sleep(0)
        batch = checked[start : start + BATCH]
        plan.revision = await commit_checked(parts, author, batch, earlier=earlier)
        earlier |= {each.write.key: plan.revision for each in batch}
    return plan


def _merged(done: Mapping[Key, Result], now: Mapping[Key, Result]) -> dict[Key, Result]:
    """Return the results of a retry, with the actions of the first attempt for objects that are unchanged since."""
    return {key: done[key] if key in done and each.action == "unchanged" else each for key, each in now.items()}
