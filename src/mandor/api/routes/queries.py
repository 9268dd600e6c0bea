"""Query parameters of several operations."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.model.manifest import DEFAULT_NAMESPACE

Namespace = Annotated[str, Note(description="The namespace of the object.", max_length=63)]
Labels = Annotated[
    str, Note(description="A label selector: k=v, k!=v, k in (a, b), k, !k, joined by commas.", max_length=4096)
]
Format = Annotated[
    str,
    Note(
        description="Format of the files: manifest, compose, kubernetes or nomad; absent: detected.",
        max_length=63,
    ),
]
Strict = Annotated[bool, Note(description="Refuse files of other tools if a key would be dropped or guessed.")]
Version = Annotated[int, Note(description="Write only if the stored object has this version.", ge=0)]


class NameQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE


class VersionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    version: Version | None = None


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: (
        Annotated[str, Note(description="Absent: all namespaces that the caller may read.", max_length=63)] | None
    ) = None
    labels: Labels = ""
    node: Annotated[str, Note(description="Only objects of this node.", max_length=253)] | None = None
    limit: Annotated[int, Note(description="Largest number of items.", ge=1, le=1000)] = 500
    after: Annotated[str, Note(description="The `after` of the previous page.", max_length=512)] = ""
