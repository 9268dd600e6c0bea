"""The cluster's authority over HTTP: read by everybody, rotated by an admin; nodes get their certificates from it."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.certificates import CertificateAuthority
from mandor.api.cluster import read_cluster
from mandor.api.enrolment import bound, certificate_for, credential_of, may_issue
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.api.renewal import certificate_seconds
from mandor.errors import Forbidden, Invalid, NotFound, Unsupported
from mandor.lib import x509
from mandor.lib.x509 import REQUEST_BYTES_MOST
from mandor.model.authority import KEY
from mandor.store.base import Put


class Trusted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    fingerprint: str
    certificate: str
    """PEM."""
    ends_at: float
    """When the certificate ends."""
    until: float = 0.0
    """Trusted until then; absent: it issues certificates."""


class AuthorityState(Struct, frozen=True, kw_only=True):
    fingerprint: str
    """SHA-256 of the certificate that issues; tokens carry it behind the dot."""
    certificates: list[Trusted]
    """All that are trusted; the first one issues."""


class Rotate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    overlap_seconds: Annotated[float, Note(gt=0, le=1e8)] | None = None
    """How long the authority before is trusted; absent: two lives of a node's certificate."""


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    csr: Annotated[
        str, Note(description="A certificate signing request (PEM) for the node's key.", max_length=REQUEST_BYTES_MOST)
    ]


class Issued(Struct, frozen=True):
    certificate: str
    """PEM."""
    ca: str = ""
    """The authorities to trust servers by (PEM); empty: servers have certificates from elsewhere."""
    renew_seconds: float | None = None
    """After so long its agent asks for the next one."""


async def show(call: Call[None, None]) -> AuthorityState:
    return _state(_authority(call))


async def rotate(call: Call[None, Rotate]) -> AuthorityState:
    call.caller.require("update", "authority", what="rotate the cluster's authority")
    authority, parts = _authority(call), call.parts
    overlap = call.body.overlap_seconds
    if overlap is not None and overlap < authority.node_seconds:
        raise Invalid(
            f"nodes renew their certificates within {authority.node_seconds:.0f} s; the overlap is not shorter",
            path="overlap_seconds",
        )
    cluster = await read_cluster(parts.store)
    record = parts.auditor.record(call.caller, "rotate", str(KEY), call.address)
    await authority.rotate(cluster.id, overlap or authority.overlap_seconds, record)
    return _state(authority)


async def certificate(call: Call[None, Request]) -> Issued:
    """Another certificate for the key that the node is known by."""
    name = call.path["name"]
    if call.caller.node != name:
        raise Forbidden(f"{call.caller.identity} may not have a certificate of {name}")
    if not may_issue(call):
        raise Unsupported("this server issues no certificates", hint="nodes show their credential instead")
    request = certificate_for(call, call.body.csr)
    stored = await credential_of(call, name)
    found, changed = bound(stored, request.key, call.parts.clock.now(), current=call.caller.proof == stored.spec.hash)
    if changed:
        record = call.parts.auditor.of_commit(call.caller, "certify", call.address, [(Put(found), stored)])
        await call.parts.store.commit(Put(found), *record)
    authority = _authority(call)
    issued = authority.for_node(name, request.public)
    return Issued(issued, authority.bundle if authority.serves else "", certificate_seconds(authority.node_seconds))


def _authority(call: Call[None, None] | Call[None, Rotate] | Call[None, Request]) -> CertificateAuthority:
    found = call.parts.authority
    if found is None or not found.fingerprint:
        raise NotFound("this cluster has no authority of its own", hint="its servers have certificates from elsewhere")
    return found


def _state(authority: CertificateAuthority) -> AuthorityState:
    return AuthorityState(
        fingerprint=authority.fingerprint,
        certificates=[
            Trusted(
                fingerprint=x509.fingerprint(each.certificate),
                certificate=each.certificate,
                ends_at=x509.read(each.certificate).ends_at,
                until=each.until,
            )
            for each in authority.certificates
        ],
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/ca",
        name="get_ca",
        summary="The authorities that the parts of this cluster trust",
        tag="server",
        handler=show,
        result=AuthorityState,
        refuses=("not_found",),
        open=True,
    ),
    Operation(
        method="POST",
        path="/v1/ca/rotate",
        name="rotate_ca",
        summary="Make another authority; the one before is trusted for a while yet",
        tag="server",
        handler=rotate,
        body=Rotate,
        result=AuthorityState,
        refuses=("not_found", "conflict", "unsupported"),
        gate=Gate(verbs=("update",), kind="authority"),
    ),
    Operation(
        method="POST",
        path="/v1/nodes/{name}/certificate",
        name="issue_certificate",
        summary="The next certificate of the node that asks",
        tag="nodes",
        handler=certificate,
        body=Request,
        result=Issued,
        refuses=("not_found", "conflict", "unsupported"),
        gate=Gate(frozenset({"node"}), users=False),
        enrols=True,
    ),
]
