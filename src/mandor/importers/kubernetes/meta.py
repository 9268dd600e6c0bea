"""Metadata of objects: name, namespace, labels, annotations."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mandor.importers.part import Part

_KEY, _KEY_MOST, _TEXT_MOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?"), 128, 256
_OF_THE_CLUSTER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def drop_labels(owner: Part, kept: Iterable[Mapping[str, str]] = ()) -> None:
    """Drop labels of an object without a counterpart, unless a workload that it changes has all of them."""
    part = owner.part("metadata")
    labels = part.text_map("labels")
    if labels and not any(labels.items() <= each.items() for each in kept):
        part.drop("labels", "it does not become a separate object")


def annotation_labels(owner: Part, room: int) -> dict[str, str]:
    """Return the annotations that are valid as labels; the others are dropped with a note."""
    part = owner.part("metadata")
    found: dict[str, str] = {}
    for key, value in part.text_map("annotations").items():
        if len(found) < room and len(value) <= _TEXT_MOST and len(key) <= _KEY_MOST and _KEY.fullmatch(key):
            found[key] = value
        else:
            part.note("annotations", "dropped", f"{key[:60]} cannot be a label, and there are no annotations")
    if found:
        part.guess("annotations", "they are stored as labels")
    elif part.peek("annotations"):
        part.drop("annotations", "there are no annotations")
    return found


def read_meta(owner: Part, *, keeps: bool = False) -> ObjectMeta:
    """Return the metadata of an object or a template; `keeps`: the caller reads its annotations."""
    part = owner.part("metadata")
    for key in _OF_THE_CLUSTER:
        part.ignore(key)
    for key in ("finalizers", "ownerReferences", "deletionTimestamp", "deletionGracePeriodSeconds", "clusterName"):
        part.drop(key, "is the cluster's own")
    annotations = part.text_map("annotations")
    if annotations and not keeps:
        part.drop("annotations", "it does not become a separate object")
    name, stem = part.text("name"), part.text("generateName")
    if name is None and stem is not None:
        part.guess("generateName", "the name is not made unique")
    return ObjectMeta(
        name=name or (stem or "").strip("-"),
        namespace=part.text("namespace") or "",
        labels=part.text_map("labels"),
        annotations=annotations,
    )
