"""Releases of workloads, including workloads whose template has fields unknown to this version."""

from msgspec.structs import replace

from mandor.model.codec import to_plain
from mandor.model.group import GroupTemplate
from mandor.model.unknown_fields import UnknownFields, restore_unknown_fields, unknown_fields_of, with_unknown_fields
from mandor.model.workload import Release, Workload, WorkloadSpec, make_release, template_hash

HASHES_MOST = 4096
_hashes: dict[int, tuple[WorkloadSpec, str]] = {}
"""Hashes by the identity of a spec; the entry keeps the spec alive."""
_TEMPLATE = frozenset(GroupTemplate.__struct_fields__)


def is_release_of(release: Release, workload: Workload) -> bool:
    """Return whether the release was made from the workload's current template."""
    spec = workload.spec
    if unknown_fields_of(workload.meta) is None:
        return release.spec.hash == _hash_of(spec)
    # Only the version that knows an unknown field of a group can decide whether it belongs to the template, so hashes
    # cannot be compared: compare the known fields and the restart count of the release.
    made_of = template_hash(restore_unknown_fields(to_plain(release.spec.groups), _below(release)), spec.restarted)
    return (
        release.spec.hash == made_of
        and release.spec.groups == spec.template
        and _inner(_below(release)) == _inner(_below(workload))
    )


def _hash_of(spec: WorkloadSpec) -> str:
    """Return the cached hash of a spec's template."""
    known = _hashes.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_hashes) >= HASHES_MOST:
            _hashes.clear()
        known = _hashes[id(spec)] = spec, template_hash(spec.template, spec.restarted)
    return known[1]


def release_of(workload: Workload, sequence: int, cause: str = "") -> Release:
    """Make a new release of the workload's template, including its unknown fields."""
    made = make_release(workload, sequence, cause)
    unknown = _template(_below(workload))
    if not unknown.parts:
        return made
    own = template_hash(restore_unknown_fields(to_plain(made.spec.groups), unknown), workload.spec.restarted)
    return made.changed(
        meta=with_unknown_fields(made.meta, unknown.above("spec", "groups")), spec=replace(made.spec, hash=own)
    )


def _below(value: Workload | Release) -> UnknownFields:
    unknown = unknown_fields_of(value.meta)
    return unknown.below("spec", "groups") if unknown is not None else UnknownFields(())


def _template(unknown: UnknownFields) -> UnknownFields:
    """Return unknown fields except those in parts of a group that do not belong to its template."""
    return UnknownFields(tuple(part for part in unknown.parts if len(part.path) == 1 or part.path[1].at in _TEMPLATE))


def _inner(unknown: UnknownFields) -> UnknownFields:
    """Return unknown fields that certainly belong to the template: those in its parts, not in the group itself."""
    return UnknownFields(tuple(part for part in _template(unknown).parts if len(part.path) > 1))
