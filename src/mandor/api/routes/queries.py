"""The query parameters that several operations share."""

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
        description="Whose files: manifest, compose, kubernetes, nomad; absent: what is no manifest is looked at.",
        max_length=63,
    ),
]
Strict = Annotated[bool, Note(description="Refuse files of other tools of which a key would be lost or guessed.")]
Version = Annotated[int, Note(description="Only if the stored version is still this one.", ge=0)]


class NameQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE


class VersionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    version: Version | None = None


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Annotated[str, Note(description="Absent: all that the caller may see.", max_length=63)] | None = None
    labels: Labels = ""
    node: Annotated[str, Note(description="Only what belongs to this node.", max_length=253)] | None = None
    limit: Annotated[int, Note(description="At most so many items.", ge=1, le=1000)] = 500
    after: Annotated[str, Note(description="Go on after the page that answered with this.", max_length=512)] = ""
