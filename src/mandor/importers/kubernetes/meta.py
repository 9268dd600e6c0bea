"""What every object says about itself: name, namespace, labels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mandor.importers.part import Part

_OF_THE_CLUSTER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def drop_labels(owner: Part, kept: Iterable[Mapping[str, str]] = ()) -> None:
    """Labels of an object that is none here, unless one of those that it adds to has them all."""
    part = owner.part("metadata")
    labels = part.text_map("labels")
    if labels and not any(labels.items() <= each.items() for each in kept):
        part.drop("labels", "it is no object of its own here")


def read_meta(owner: Part) -> ObjectMeta:
    """The `metadata` of an object, or of a template."""
    part = owner.part("metadata")
    for key in _OF_THE_CLUSTER:
        part.ignore(key)
    for key in ("finalizers", "ownerReferences", "deletionTimestamp", "deletionGracePeriodSeconds", "clusterName"):
        part.drop(key, "is the cluster's own")
    annotations = part.text_map("annotations")
    if annotations:
        part.drop("annotations", "there are no annotations")
    name, stem = part.text("name"), part.text("generateName")
    if name is None and stem is not None:
        part.guess("generateName", "the name is not made unique")
    return ObjectMeta(
        name=name or (stem or "").strip("-"),
        namespace=part.text("namespace") or "",
        labels=part.text_map("labels"),
        annotations=annotations,
    )
