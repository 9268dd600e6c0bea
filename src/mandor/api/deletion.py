"""Deletion by manifest: deletes the objects that a manifest names, and keeps the data of volumes."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mandor.api.apply import FIRST, ApplyPlan, commit_plan
from mandor.api.parts import ApiParts
from mandor.api.pending_objects import PendingObjects
from mandor.api.writers import check_reach, check_write
from mandor.api.writing import Author, CheckedWrite, WriteChecker
from mandor.errors import Conflict
from mandor.model.manifest import Document
from mandor.model.meta import Key, Object
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.store.base import Delete, Filter

NAMES_SHOWN = 5
"""Kept volumes that a warning names."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes the objects that documents name; objects that others refer to are deleted last.

    A volume with `reclaim: keep` holds data that a user wants to keep: it is deleted only if `volumes` is set. The
    result lists it as kept, and also the namespace around it.
    """

    parts: ApiParts
    author: Author
    documents: Sequence[Document]
    volumes: bool = False
    """Delete the named volumes even if their `reclaim` is `keep`."""
    dry_run: bool = False

    async def run(self) -> ApplyPlan:
        plan = ApplyPlan(revision=(await self.parts.store.list("cluster")).revision)
        checker = WriteChecker(self.parts, self.author.caller, PendingObjects(self.parts.store, ()), complete=False)
        for last in (False, True):
            step = ApplyPlan(revision=plan.revision)
            for document in self.documents:
                key = document.object.key
                if (key.kind in FIRST or key.kind == Volume.kind) is last:
                    await self._add(key, step, plan, checker)
            if step.checked:
                step = await commit_plan(self.parts, self.author, step)
            plan.results |= step.results
            plan.revision = max(plan.revision, step.revision)
        return plan

    async def _add(self, key: Key, step: ApplyPlan, done: ApplyPlan, checker: WriteChecker) -> None:
        check_reach(self.author.caller, key)
        stored = await self.parts.store.get(key)
        if stored is None:
            step.add(key, "unchanged")
            return
        kept = await self._kept_with(stored)
        if kept and not isinstance(stored, Workload):
            check_write(self.author.caller, stored, None)
            step.add(key, "kept", warnings=[_reason(stored, kept)])
            return
        for each in kept:
            step.add(each.key, "kept")
        if self.dry_run:
            # What needs the object would be deleted before it, so only the rights are checked.
            check_write(self.author.caller, stored, None)
            step.add(key, "deleted")
        else:
            step.add(key, "deleted", (), await _check_delete(checker, stored, done))

    async def _kept_with(self, stored: Object) -> list[Volume]:
        """Return the volumes whose data is kept: the object itself, those of a workload, those in a namespace."""
        named = {each.object.key for each in self.documents} if self.volumes else set()
        if isinstance(stored, Volume):
            found: Sequence[Object] = [stored]
        elif isinstance(stored, Workload):
            listing = await self.parts.store.list(Volume.kind, Filter(namespace=stored.meta.namespace))
            found = [each for each in listing.items if _first_used_by(each, stored)]
        elif stored.kind == "namespace":
            found = (await self.parts.store.list(Volume.kind, Filter(namespace=stored.meta.name))).items
        else:
            found = ()
        return [
            each for each in found if isinstance(each, Volume) and each.spec.reclaim == "keep" and each.key not in named
        ]


def _first_used_by(volume: Object, workload: Workload) -> bool:
    return isinstance(volume, Volume) and volume.status.workload == workload.meta.name


def _reason(stored: Object, kept: Sequence[Volume]) -> str:
    if isinstance(stored, Volume):
        return "its data is kept; `--volumes` deletes it"
    names = ", ".join(each.meta.name for each in kept[:NAMES_SHOWN])
    more = f" and {len(kept) - NAMES_SHOWN} more" if len(kept) > NAMES_SHOWN else ""
    return f"it contains volumes that are kept: {names}{more}"


async def _check_delete(checker: WriteChecker, stored: Object, done: ApplyPlan) -> CheckedWrite:
    """Check a delete; its error contains the results so far, because instances take a moment to stop."""
    try:
        return await checker.check(Delete(stored.key, stored.meta.version), stored)
    except Conflict as error:
        if done.results:
            error.facts["results"] = [msgspec.to_builtins(each) for each in done.results.values()]
        raise
