"""The cluster's certificate authority: public certificates, rotation by an admin, and certificates of nodes."""

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
    """End of validity, in seconds since 1970."""
    until: float = 0.0
    """End of trust after a rotation; absent: this authority issues certificates."""


class AuthorityState(Struct, frozen=True, kw_only=True):
    fingerprint: str
    """SHA-256 of the issuing certificate; tokens contain it after the dot."""
    certificates: list[Trusted]
    """All trusted authorities; the first one issues."""


class Rotate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    overlap_seconds: Annotated[float, Note(gt=0, le=1e8)] | None = None
    """Time for which the former authority stays trusted; absent: two lifetimes of a node's certificate."""


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    csr: Annotated[
        str, Note(description="A certificate signing request (PEM) for the node's key.", max_length=REQUEST_BYTES_MOST)
    ]


class Issued(Struct, frozen=True):
    certificate: str
    """PEM."""
    ca: str = ""
    """Authorities of the servers' certificates (PEM); empty: the cluster's authority does not issue them."""
    renew_seconds: float | None = None
    """Seconds until the agent requests the next certificate."""


async def show(call: Call[None, None]) -> AuthorityState:
    return _state(_authority(call))


async def rotate(call: Call[None, Rotate]) -> AuthorityState:
    call.caller.require("update", "authority", what="rotate the cluster's authority")
    authority, parts = _authority(call), call.parts
    overlap = call.body.overlap_seconds
    if overlap is not None and overlap < authority.node_seconds:
        raise Invalid(
            f"the overlap must be at least {authority.node_seconds:.0f} s, the lifetime of nodes' certificates",
            path="overlap_seconds",
        )
    cluster = await read_cluster(parts.store)
    record = parts.auditor.record(call.caller, "rotate", str(KEY), call.address)
    await authority.rotate(cluster.id, overlap or authority.overlap_seconds, record)
    return _state(authority)


async def certificate(call: Call[None, Request]) -> Issued:
    """Issue the next certificate for the key in the node's credential."""
    name = call.path["name"]
    if call.caller.node != name:
        raise Forbidden(f"{call.caller.identity} may not get a certificate of {name}")
    if not may_issue(call):
        raise Unsupported("this server issues no certificates", hint="nodes authenticate with their credential instead")
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
        raise NotFound(
            "this cluster has no certificate authority of its own",
            hint="its servers use certificates of another authority",
        )
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
        summary="List the certificate authorities that the cluster trusts",
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
        summary="Replace the certificate authority; the former one stays trusted for an overlap",
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
        summary="Issue the next certificate of the calling node",
        tag="nodes",
        handler=certificate,
        body=Request,
        result=Issued,
        refuses=("not_found", "conflict", "unsupported"),
        gate=Gate(frozenset({"node"}), users=False),
        enrols=True,
    ),
]
