"""Releases of workloads, also of those whose template says more than this version knows."""

from msgspec.structs import replace

from mandor.model.beyond import Beyond, beyond_of, put_back, widened
from mandor.model.codec import to_plain
from mandor.model.workload import GroupTemplate, Release, Workload, WorkloadSpec, make_release, template_hash

HASHES_MOST = 4096
_hashes: dict[int, tuple[WorkloadSpec, str]] = {}
"""By the identity of a specification, which is kept with it."""
_TEMPLATE = frozenset(GroupTemplate.__struct_fields__)


def is_release_of(release: Release, workload: Workload) -> bool:
    """Whether the release was made from the workload's template as it is now."""
    spec = workload.spec
    if beyond_of(workload.meta) is None:
        return release.spec.hash == _hash_of(spec)
    # Whether an unknown field of a group belongs to its template only its own version can say, so hashes tell nothing:
    # what is known is compared, and that the release stands for so many restarts.
    made_of = template_hash(put_back(to_plain(release.spec.groups), _below(release)), spec.restarted)
    return (
        release.spec.hash == made_of
        and release.spec.groups == spec.template
        and _inner(_below(release)) == _inner(_below(workload))
    )


def _hash_of(spec: WorkloadSpec) -> str:
    """Of a workload that is looked at again and again, and changes rarely."""
    known = _hashes.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_hashes) >= HASHES_MOST:
            _hashes.clear()
        known = _hashes[id(spec)] = spec, template_hash(spec.template, spec.restarted)
    return known[1]


def release_of(workload: Workload, sequence: int, cause: str = "") -> Release:
    """A new release of the template, with what it says beyond us."""
    made = make_release(workload, sequence, cause)
    beyond = _template(_below(workload))
    if not beyond.parts:
        return made
    own = template_hash(put_back(to_plain(made.spec.groups), beyond), workload.spec.restarted)
    return made.changed(meta=widened(made.meta, beyond.above("spec", "groups")), spec=replace(made.spec, hash=own))


def _below(value: Workload | Release) -> Beyond:
    beyond = beyond_of(value.meta)
    return beyond.below("spec", "groups") if beyond is not None else Beyond(())


def _template(beyond: Beyond) -> Beyond:
    """Without what stands in parts of a group that are known not to belong to its template."""
    return Beyond(tuple(part for part in beyond.parts if len(part.path) == 1 or part.path[1].at in _TEMPLATE))


def _inner(beyond: Beyond) -> Beyond:
    """What surely belongs to the template: fields of its parts, not of the group itself."""
    return Beyond(tuple(part for part in _template(beyond).parts if len(part.path) > 1))
