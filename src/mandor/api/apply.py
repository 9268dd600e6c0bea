"""Apply: what a manifest would change, and changing it; nothing is written unless everything is right."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Struct

from mandor.api.access import sight
from mandor.api.admission import admit, check_deletable, completed, known_engines
from mandor.api.advice import advice, secrets_of
from mandor.api.beside import Beside
from mandor.api.changes import FieldChange, differences
from mandor.api.counts import kept_counts
from mandor.api.outward import check_outward
from mandor.api.parts import ApiParts
from mandor.api.selector import Selector
from mandor.api.writers import check_reach, check_write
from mandor.api.writing import Author, commit_as
from mandor.errors import Conflict, MandorError
from mandor.model.manifest import Document
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node
from mandor.model.rollout import NO_ORDERS, RolloutOrders
from mandor.model.secret import Secret
from mandor.model.workload import Workload
from mandor.store.base import WRITES_MOST, Delete, Filter, Put, Write

Action = Literal["created", "changed", "unchanged", "deleted"]
FIRST = frozenset({"namespace", "priority-class"})
"""What must be there before those who name it, also where it takes several commits."""
TRIES = 5
CHUNK = 10
"""After so many documents others get their turn."""
BATCH = WRITES_MOST - 1
"""One write is left for the audit."""


class Result(Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str
    name: str
    action: Action
    changes: tuple[FieldChange, ...] = ()
    warnings: tuple[str, ...] = ()
    """What is allowed, and seldom meant."""


@dataclass(slots=True)
class Plan:
    """What would be written, and what that means to people."""

    writes: list[Write] = field(default_factory=list)
    results: dict[Key, Result] = field(default_factory=dict)
    revision: int = 0
    nodes: Sequence[Node] = ()
    """As they are now, where that matters."""
    secrets: frozenset[tuple[str, str]] = frozenset()
    """Those there are, or are about to be, where that matters."""

    def add(
        self,
        key: Key,
        action: Action,
        changes: Sequence[FieldChange] = (),
        write: Write | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self.results[key] = Result(
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            action=action,
            changes=tuple(changes),
            warnings=(*(advice(write.value, self.nodes, self.secrets) if isinstance(write, Put) else ()), *warnings),
        )
        if write is not None:
            self.writes.append(write)


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete workloads with these labels, in these namespaces, that the manifest does not name."""

    selector: Selector
    namespaces: frozenset[str]


async def apply(
    parts: ApiParts, author: Author, documents: Sequence[Document], *, prune: Prune | None, dry_run: bool
) -> Plan:
    done: dict[Key, Result] = {}
    for attempt in range(TRIES):
        plan = await plan_apply(parts, author, documents, prune)
        plan.results = _merged(done, plan.results)
        if dry_run or not plan.writes:
            return plan
        try:
            return await _commit(parts, author, plan)
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
    rehearsed: bool = False,
) -> Plan:
    """What applying would write; raises for the first document that may not be applied, with its file and line.

    `rehearsed`: whoever may see what it is about may ask.
    """
    plan = Plan(revision=(await parts.store.list("cluster")).revision)
    engines = await known_engines(parts.store, parts.settings.engines)
    beside = Beside(parts.store, (document.object for document in documents))
    if any(isinstance(each, Workload) and each.spec.type == "daemon" for each in beside.values()):
        plan.nodes = [each for each in (await parts.store.list(Node.kind)).items if isinstance(each, Node)]
    if any(isinstance(each, Workload) and secrets_of(each) for each in beside.values()):
        known = [*(await parts.store.list(Secret.kind)).items, *beside.values()]
        plan.secrets = frozenset((each.meta.namespace, each.meta.name) for each in known if isinstance(each, Secret))
    for number, document in enumerate(documents):
        if number % CHUNK == 0:
            await asyncio.sleep(0)
        try:
            await _plan_one(parts, author, document.object, engines, beside, plan, rehearsed=rehearsed)
        except MandorError as error:
            error.facts.setdefault("file", document.file)
            error.facts.setdefault("line", document.line_of(str(error.facts.get("path", ""))))
            raise
    if prune is not None:
        await _plan_prune(parts, author, prune, beside, plan)
    return plan


async def _plan_one(
    parts: ApiParts,
    author: Author,
    given: Object,
    engines: frozenset[str],
    beside: Beside,
    plan: Plan,
    *,
    rehearsed: bool,
) -> None:
    if rehearsed:
        where = Filter(namespace=given.meta.namespace or None)
        await sight(parts.store, author.caller, given.kind, where, verb="get")
    else:
        check_reach(author.caller, given.key)
    stored = await parts.store.get(given.key)
    wanted = await completed(parts, stored, merged(stored, given), beside)
    if not rehearsed:
        check_write(author.caller, stored, wanted)
    if author.caller.user:
        await admit(wanted, engines, beside)
        check_outward(parts, wanted)
    changes = differences(stored, wanted)
    if stored is None:
        plan.add(given.key, "created", changes, Put(wanted), await _awaited(parts, wanted, beside))
    elif changes:
        plan.add(given.key, "changed", changes, Put(wanted), await _awaited(parts, wanted, beside))
    else:
        plan.add(given.key, "unchanged")


async def _awaited(parts: ApiParts, value: Object, beside: Beside) -> list[str]:
    """What it depends on, and nobody knows yet."""
    groups = value.spec.groups if isinstance(value, Workload) else {}
    named = {other for group in groups.values() for other in group.depends_on if other not in groups}
    keys = [Key(Workload.kind, value.meta.namespace, name) for name in sorted(named)]
    return [
        f"it waits for {key.name}, and there is no group or workload of that name yet"
        for key in keys
        if key not in beside and await parts.store.get(key) is None
    ]


async def _plan_prune(parts: ApiParts, author: Author, prune: Prune, beside: Beside, plan: Plan) -> None:
    for namespace in sorted(prune.namespaces):
        listing = await parts.store.list("workload", Filter(namespace=namespace))
        for stored in listing.items:
            if stored.key not in beside and prune.selector.matches(stored.labels):
                check_write(author.caller, stored, None)
                plan.add(stored.key, "deleted", (), Delete(stored.key, stored.meta.version))


def merged(stored: Object | None, given: Object) -> Object:
    """The given object in the place of the stored one; what a manifest leaves open stays as it is."""
    if stored is None:
        meta = Meta(name=given.meta.name, namespace=given.meta.namespace, labels=given.meta.labels)
        spec = kept_counts(None, given.spec) if isinstance(given, Workload) else given.spec
        return given.changed(meta=meta, spec=spec)
    spec = given.spec
    if isinstance(stored, Workload) and isinstance(given, Workload):
        rollout = stored.spec.rollout
        if given.spec.template != stored.spec.template:
            rollout = (
                RolloutOrders(paused=True) if rollout.paused else NO_ORDERS
            )  # what was promoted, or given up, was another one
        spec = msgspec.structs.replace(
            kept_counts(stored, given.spec),
            restarted=stored.spec.restarted,
            rollout=rollout,
            run_of=stored.spec.run_of,
        )
    return stored.changed(meta=msgspec.structs.replace(stored.meta, labels=given.meta.labels), spec=spec)


async def delete_named(parts: ApiParts, author: Author, documents: Sequence[Document], *, dry_run: bool) -> Plan:
    """Delete what the documents name; what others need last."""
    plan = Plan(revision=(await parts.store.list("cluster")).revision)
    for last in (False, True):
        step = Plan(revision=plan.revision)
        for document in documents:
            key = document.object.key
            if (key.kind in FIRST or key.kind == "volume") is not last:
                continue
            stored = await parts.store.get(key)
            if stored is None:
                step.add(key, "unchanged")
                continue
            check_write(author.caller, stored, None)
            if last and not dry_run:
                await _check_last(parts, stored, plan)
            step.add(key, "deleted", (), Delete(key, stored.meta.version))
        if step.writes and not dry_run:
            step = await _commit(parts, author, step)
        plan.results |= step.results
        plan.revision = max(plan.revision, step.revision)
    return plan


async def _check_last(parts: ApiParts, stored: Object, done: Plan) -> None:
    """Instances take a moment to stop; whoever waits for that should know what is deleted already."""
    try:
        await check_deletable(parts.store, stored)
    except Conflict as error:
        error.facts["results"] = [msgspec.to_builtins(each) for each in done.results.values()]
        raise


async def _commit(parts: ApiParts, author: Author, plan: Plan) -> Plan:
    writes = sorted(plan.writes, key=lambda write: write.key.kind not in FIRST)
    for start in range(0, len(writes), BATCH):
        await asyncio.sleep(0)
        plan.revision = await commit_as(parts, author, writes[start : start + BATCH])
    return plan


def _merged(done: Mapping[Key, Result], now: Mapping[Key, Result]) -> dict[Key, Result]:
    """After a second try, what the first one did still counts."""
    return {key: done[key] if key in done and each.action == "unchanged" else each for key, each in now.items()}
