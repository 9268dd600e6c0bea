"""Audit records: who changed what from what to what; and the hash chain that shows whether records are missing."""

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
"""The prefix of the names of seals; other records are named by their time."""
EXPIRE = "expire"
"""The verb of a record that says which records retention deleted."""


class AuditChange(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One field before and after a change; values are text, cut to a bound, and hidden where they may be secrets."""

    path: str
    before: str | None = None
    """Absent: the field was not set."""
    after: str | None = None
    """Absent: the field is not set any more."""


class AuditEntry(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One object of a commit."""

    about: str
    """`workload default/web`"""
    verb: str
    changes: tuple[AuditChange, ...] = ()
    omitted: int = 0
    """Changed fields that the bound on the size of a record left out."""


Sealed = tuple[str, str]
"""The name of a record, and the SHA-256 of it."""


class Seal(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A link of the chain: the records it lists, in the order of their commits, and the digest of the seal before."""

    number: int
    first: int
    """How many records the seals before it list, including those that were deleted since."""
    previous: str = ""
    """The digest of the seal before; empty: this is the first one."""
    records: tuple[Sealed, ...] = ()
    newest_at: float = 0.0
    """The time of the newest record."""
    size_bytes: int = 0
    """The size of all its records."""
    digest: str = ""

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class AuditSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    at: float
    identity: str
    verb: str
    about: str
    """The object, or how many objects the commit changed."""
    address: str = ""
    changed: tuple[str, ...] = ()
    """The fields that changed, as paths; with their values they are in `entries`."""
    token: Annotated[str, needs(CHAIN)] = ""
    """The name of the token that the caller showed; empty: none was needed."""
    entries: Annotated[tuple[AuditEntry, ...], needs(CHAIN)] = ()
    """Every object that the commit wrote or deleted."""
    anchor: Annotated[str, needs(CHAIN)] = ""
    """The digest of the seal that retention deleted, in a record with the verb `expire`."""
    seal: Annotated[Seal | None, needs(CHAIN)] = None
    """This record is no change, but a link of the chain."""


class Audit(Object, frozen=True, tag="audit"):
    """A record of a commit, written in that same commit; or a seal."""

    kind: ClassVar[str] = "audit"
    plural: ClassVar[str] = "audits"
    namespaced: ClassVar[bool] = False
    spec: AuditSpec
    status: Empty = with_default(default_factory=Empty)


# The chain. Pure: the leader extends it, and anybody who can list audits verifies it.


def seal_name(number: int) -> str:
    return f"{SEAL}{number:012d}"


def encoded(spec: Any) -> bytes:
    """A record's spec in the one form that digests are made of."""
    return msgspec.json.encode(msgspec.to_builtins(spec), order="sorted")


def digest_of_record(name: str, spec: Any) -> str:
    return hashlib.sha256(name.encode() + b"\n" + encoded(spec)).hexdigest()


def digest_of_seal(number: int, first: int, previous: str, records: Iterable[tuple[str, str]]) -> str:
    lines = [f"{number} {first} {previous}", *(f"{name} {digest}" for name, digest in records)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def extended(seal: Seal, records: Sequence[Audit]) -> Seal:
    """The seal with these records after those it lists."""
    listed = (*seal.records, *((each.meta.name, digest_of_record(each.meta.name, each.spec)) for each in records))
    return msgspec.structs.replace(
        seal,
        records=listed,
        newest_at=max((seal.newest_at, *(each.spec.at for each in records))),
        size_bytes=seal.size_bytes + sum(len(encoded(each.spec)) for each in records),
        digest=digest_of_seal(seal.number, seal.first, seal.previous, listed),
    )


def following(seal: Seal | None) -> Seal:
    """An empty seal after this one; None: the first of all."""
    if seal is None:
        return Seal(number=1, first=0, digest=digest_of_seal(1, 0, "", ()))
    digest = digest_of_seal(seal.number + 1, seal.end, seal.digest, ())
    return Seal(number=seal.number + 1, first=seal.end, previous=seal.digest, digest=digest)


@dataclass(slots=True)
class Verdict:
    """The result of a verification of the chain."""

    records: int = 0
    """Records that a seal lists and that are unchanged."""
    unsealed: int = 0
    """Records that no seal lists yet: the newest."""
    expired: int = 0
    """Records that retention deleted, as records of the chain say."""
    head: str = ""
    """`NUMBER:COUNT:DIGEST` of the last seal: kept elsewhere, it shows later whether the end was cut off."""
    faults: list[str] = field(default_factory=list)


def verify(items: Iterable[Mapping[str, Any]], *, head: str = "") -> Verdict:
    """Verify records as the API lists them. `head`: one that an earlier verification gave."""
    names = {str(item["meta"]["name"]): item["spec"] for item in items}
    seals = sorted((spec["seal"] for spec in names.values() if spec.get("seal")), key=lambda each: int(each["number"]))
    anchors = {spec["anchor"] for spec in names.values() if spec.get("verb") == EXPIRE and spec.get("anchor")}
    verdict = Verdict()
    # Retention writes what it deletes before it does: a seal that an anchor names may be half gone.
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
        verdict.faults.append(f"seal {number} was changed: its digest is not the one of what it lists")
    if before is None:
        if number != 1 and previous not in anchors:
            verdict.faults.append(f"the seals before {number} are missing, and no record says that they expired")
    elif number != int(before["number"]) + 1 or previous != before["digest"]:
        verdict.faults.append(f"seal {number} does not follow seal {before['number']}: one was removed or reordered")


def _verify_head(head: str, seals: Sequence[Mapping[str, Any]], verdict: Verdict) -> None:
    """The seal of an earlier verification has to be there still, perhaps with more records after those it had."""
    number, count, digest = [*head.split(":"), "", ""][:3]
    for seal in seals:
        if str(seal["number"]) == number and count.isdigit():
            records = list(seal.get("records", ()))[: int(count)]
            found = digest_of_seal(int(number), int(seal["first"]), str(seal.get("previous", "")), records)
            if found == digest:
                return
    if seals and number.isdigit() and int(number) < int(seals[0]["number"]):
        return  # expired since: the anchor says so
    verdict.faults.append(f"the chain does not contain {head}: its end was cut off or rewritten")
