"""Audit records of commits (identity, objects, old and new values) and the hash chain that reveals missing ones."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec import field as with_default

from mandor.model.features import needs
from mandor.model.meta import Object
from mandor.model.record import Empty

CHAIN = "audit-chain"
SEALED_MOST = 200  # records one seal lists
SEAL = "seal-"
"""Name prefix of seals; other records are named after their time."""
EXPIRE = "expire"
"""Verb of a record that lists the records deleted by retention."""


class AuditChange(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One field before and after a change. Values are truncated text, and masked where they may be secrets."""

    path: str
    before: str | None = None
    """The old value; absent if the field was not set."""
    after: str | None = None
    """The new value; absent if the field was removed."""


class AuditEntry(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One object written or deleted by a commit."""

    about: str
    """The object, for example `workload default/web`."""
    verb: str
    changes: tuple[AuditChange, ...] = ()
    omitted: int = 0
    """Changed fields left out because the record reached its size limit."""


Sealed = tuple[str, str]
"""The name of a record and its SHA-256 digest."""


class Seal(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A link of the hash chain: the digests of its records in commit order, and the digest of the previous seal."""

    number: int
    first: int
    """Number of records listed by all previous seals, including deleted records."""
    previous: str = ""
    """Digest of the previous seal; empty for the first seal."""
    records: tuple[Sealed, ...] = ()
    newest_at: float = 0.0
    """Time of the newest record, in Unix seconds."""
    size_bytes: int = 0
    """Total size of the listed records."""
    digest: str = ""

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class AuditSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    at: float
    identity: str
    verb: str
    about: str
    """The object, or the number of objects that the commit changed."""
    address: str = ""
    changed: tuple[str, ...] = ()
    """Paths of the changed fields; `entries` has their values."""
    token: Annotated[str, needs(CHAIN)] = ""
    """Name of the token that authenticated the request; empty if authentication was not required."""
    entries: Annotated[tuple[AuditEntry, ...], needs(CHAIN)] = ()
    """All objects that the commit wrote or deleted."""
    anchor: Annotated[str, needs(CHAIN)] = ""
    """Digest of the seal that retention deleted; only in a record with the verb `expire`."""
    seal: Annotated[Seal | None, needs(CHAIN)] = None
    """The seal, if this record is a link of the chain and not a change."""


class Audit(Object, frozen=True, tag="audit"):
    """A record of one commit, written in that commit; or a seal."""

    kind: ClassVar[str] = "audit"
    plural: ClassVar[str] = "audits"
    namespaced: ClassVar[bool] = False
    spec: AuditSpec
    status: Empty = with_default(default_factory=Empty)


# The hash chain. Pure: the leader extends it, and every client that can list audits can verify it.


def seal_name(number: int) -> str:
    return f"{SEAL}{number:012d}"


def encoded(spec: Any) -> bytes:
    """Return a record's spec in the canonical encoding that digests are computed from."""
    return msgspec.json.encode(msgspec.to_builtins(spec), order="sorted")


def digest_of_record(name: str, spec: Any) -> str:
    return hashlib.sha256(name.encode() + b"\n" + encoded(spec)).hexdigest()


def digest_of_seal(number: int, first: int, previous: str, records: Iterable[tuple[str, str]]) -> str:
    lines = [f"{number} {first} {previous}", *(f"{name} {digest}" for name, digest in records)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def extended(seal: Seal, records: Sequence[Audit]) -> Seal:
    """Return the seal with these records appended."""
    listed = (*seal.records, *((each.meta.name, digest_of_record(each.meta.name, each.spec)) for each in records))
    return msgspec.structs.replace(
        seal,
        records=listed,
        newest_at=max((seal.newest_at, *(each.spec.at for each in records))),
        size_bytes=seal.size_bytes + sum(len(encoded(each.spec)) for each in records),
        digest=digest_of_seal(seal.number, seal.first, seal.previous, listed),
    )


def following(seal: Seal | None) -> Seal:
    """Return an empty seal that follows `seal`, or the first seal of the chain if `seal` is None."""
    if seal is None:
        return Seal(number=1, first=0, digest=digest_of_seal(1, 0, "", ()))
    digest = digest_of_seal(seal.number + 1, seal.end, seal.digest, ())
    return Seal(number=seal.number + 1, first=seal.end, previous=seal.digest, digest=digest)


@dataclass(slots=True)
class Verdict:
    """The result of verifying the chain."""

    records: int = 0
    """Records that a seal lists and that are unchanged."""
    unsealed: int = 0
    """Records that no seal lists yet; these are the newest ones."""
    expired: int = 0
    """Records that retention deleted, according to the chain."""
    head: str = ""
    """`NUMBER:COUNT:DIGEST` of the last seal. Stored elsewhere, it reveals later whether the end of the chain was cut
    off.
    """
    faults: list[str] = field(default_factory=list)


def verify(items: Iterable[Mapping[str, Any]], *, head: str = "") -> Verdict:
    """Verify audit records as the API lists them. `head` is the head returned by an earlier verification."""
    names = {str(item["meta"]["name"]): item["spec"] for item in items}
    seals = sorted((spec["seal"] for spec in names.values() if spec.get("seal")), key=lambda each: int(each["number"]))
    anchors = {spec["anchor"] for spec in names.values() if spec.get("verb") == EXPIRE and spec.get("anchor")}
    verdict = Verdict()
    # Retention records a deletion before it deletes: the records of a seal named by an anchor may be partly deleted.
    gone = max((number for number, each in enumerate(seals) if each["digest"] in anchors), default=-1) + 1
    seals = seals[gone:]
    before: Mapping[str, Any] | None = None
    listed: set[str] = set()
    for seal in seals:
        _verify_link(seal, before, anchors, verdict)
        for name, digest in seal.get("records", ()):
            listed.add(name)
            if name not in names:
                verdict.faults.append(f"{name} is missing: seal {seal['number']} lists it")
            elif digest_of_record(name, names[name]) != digest:
                verdict.faults.append(f"{name} was changed after it was sealed")
            else:
                verdict.records += 1
        before = seal
    verdict.expired = int(seals[0].get("first", 0)) if seals else 0
    verdict.unsealed = sum(name not in listed and not spec.get("seal") for name, spec in names.items())
    if before is not None:
        verdict.head = f"{before['number']}:{len(before.get('records', ()))}:{before['digest']}"
    if head:
        _verify_head(head, seals, verdict)
    return verdict


def _verify_link(
    seal: Mapping[str, Any], before: Mapping[str, Any] | None, anchors: set[str], verdict: Verdict
) -> None:
    number, first, previous = int(seal["number"]), int(seal["first"]), str(seal.get("previous", ""))
    if digest_of_seal(number, first, previous, seal.get("records", ())) != seal["digest"]:
        verdict.faults.append(f"seal {number} was changed: its digest does not match its records")
    if before is None:
        if number != 1 and previous not in anchors:
            verdict.faults.append(f"the seals before {number} are missing, and no record says that they expired")
    elif number != int(before["number"]) + 1 or previous != before["digest"]:
        verdict.faults.append(f"seal {number} does not follow seal {before['number']}: one was removed or reordered")


def _verify_head(head: str, seals: Sequence[Mapping[str, Any]], verdict: Verdict) -> None:
    """Check that the seal of an earlier verification is still in the chain; records may have been added to it since."""
    number, count, digest = [*head.split(":"), "", ""][:3]
    for seal in seals:
        if str(seal["number"]) == number and count.isdigit():
            records = list(seal.get("records", ()))[: int(count)]
            found = digest_of_seal(int(number), int(seal["first"]), str(seal.get("previous", "")), records)
            if found == digest:
                return
    if seals and number.isdigit() and int(number) < int(seals[0]["number"]):
        return  # expired since then, as its anchor shows
    verdict.faults.append(f"the chain does not contain {head}: its end was cut off or rewritten")
