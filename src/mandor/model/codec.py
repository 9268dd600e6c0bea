"""Conversion of objects to and from JSON and plain data. Quantities are text in JSON and numbers in memory.

Structs reject unknown fields, so decoding costs nothing extra. Only an object written by a newer version is decoded a
second time, with its unknown fields separated (see `unknown_fields`).
"""

import sys
from typing import Any, TypeVar

import msgspec

from mandor.errors import Invalid
from mandor.lib.quantity import Cpu, Percent, Seconds, Size
from mandor.model.acme_account import AcmeAccount
from mandor.model.audit import Audit
from mandor.model.authority import Authority
from mandor.model.decision import DecisionRecord
from mandor.model.instance import Instance
from mandor.model.inventory import Inventory
from mandor.model.limit_defaults import LimitDefaults
from mandor.model.log_sink import LogSink
from mandor.model.meta import Object
from mandor.model.network import Network
from mandor.model.node import Node
from mandor.model.pool import NodePool
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.rebalance import Rebalance
from mandor.model.receiver import EventBus, Webhook
from mandor.model.record import Cluster, Event, HeartbeatSummary, Lease, Namespace, Server, Session, Token
from mandor.model.reservation import Reservation
from mandor.model.role import CustomRole, IdentityKey, Issuer, RoleBinding
from mandor.model.route import Route
from mandor.model.secret import Secret
from mandor.model.service import Service
from mandor.model.spare import Spare
from mandor.model.unknown_fields import UnknownFields, restore_unknown_fields, split_unknown_fields, with_unknown_fields
from mandor.model.usage import UsageSummary
from mandor.model.vm_request import VmRequest
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload

T = TypeVar("T")

KINDS: dict[str, type[Object]] = {
    cls.kind: cls
    for cls in (
        *(Node, NodePool, Workload, Release, Instance, Namespace, PriorityClass, Quota, LimitDefaults, Volume),
        *(Rebalance, Reservation, Secret, Webhook, EventBus, LogSink, VmRequest, Inventory, Spare, Service, Route),
        Network,
        *(CustomRole, RoleBinding, Issuer, IdentityKey),
        *(
            DecisionRecord,
            Event,
            Audit,
            Token,
            Session,
            Lease,
            HeartbeatSummary,
            UsageSummary,
            Cluster,
            Server,
            Authority,
            AcmeAccount,
        ),
    )
}
"""All kinds of objects, by kind."""

_QUANTITIES = (Cpu, Size, Seconds, Percent)
_APPLIED = Workload | NodePool | Namespace | PriorityClass | Quota | LimitDefaults | Volume | Rebalance | Reservation
_APPLIED |= Service | Route | Network | Secret | Webhook | EventBus | LogSink | CustomRole | RoleBinding | Issuer
_RECORDS = (
    IdentityKey
    | DecisionRecord
    | Event
    | Audit
    | Token
    | Session
    | Lease
    | HeartbeatSummary
    | UsageSummary
    | Cluster
    | Server
)
_RECORDS |= Authority | AcmeAccount
_ANY = _APPLIED | Node | Release | Instance | VmRequest | Inventory | Spare | _RECORDS


def _decode_hook(wanted: type, value: Any) -> Any:
    if issubclass(wanted, _QUANTITIES):
        if not isinstance(value, str | int | float):
            raise ValueError(f"expected an amount, got {type(value).__name__}")
        return wanted.parse(value)
    raise NotImplementedError(wanted)


class _Wide(Exception):
    """Raised while encoding a value that carries unknown fields."""


def _encode_hook(value: Any) -> Any:
    if isinstance(value, _QUANTITIES):
        return str(value)
    if isinstance(value, UnknownFields):
        raise _Wide
    raise NotImplementedError(type(value))


_decoder = msgspec.json.Decoder(_ANY, dec_hook=_decode_hook)
_encode = msgspec.json.Encoder(enc_hook=_encode_hook).encode
_encode_stable = msgspec.json.Encoder(enc_hook=_encode_hook, order="deterministic").encode


def encode(value: Any) -> bytes:
    """Encode any model value as JSON bytes; fields with default values are omitted."""
    try:
        return _encode(value)
    except _Wide:
        return msgspec.json.encode(to_plain(value))


def encode_stable(value: Any) -> bytes:
    """Encode a value as JSON bytes that do not depend on the order of its sets and mappings."""
    try:
        return _encode_stable(value)
    except _Wide:
        return msgspec.json.encode(to_plain(value), order="deterministic")


def decode(data: bytes) -> Object:
    """Decode a stored object from JSON; repeated strings are shared."""
    try:
        found: Object = _decoder.decode(data)
    except msgspec.ValidationError as error:
        found = _decode_wide(data, error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _foreign(error) from error
    return _shared(found) if type(found) is Instance else found


def _decode_wide(data: bytes, refused: msgspec.ValidationError) -> Object:
    """Decode an object written by a newer version and keep its unknown fields."""
    plain = _any(data)
    kind = KINDS.get(str(plain.get("kind"))) if isinstance(plain, dict) else None
    if kind is None:
        raise _foreign(refused) from refused
    known, unknown = split_unknown_fields(plain, kind)
    try:
        found: Object = from_plain(known, kind)
    except msgspec.ValidationError as error:
        schema = known["meta"].get("schema") if isinstance(known.get("meta"), dict) else None
        if isinstance(schema, int) and schema > kind.schema:
            raise Invalid(
                f"the object has schema {schema}; this version of mandor reads up to schema {kind.schema}: {error}",
                hint="upgrade mandor",
            ) from error
        raise _foreign(error) from error
    return found.changed(meta=with_unknown_fields(found.meta, unknown))


def _any(data: bytes) -> Any:
    """Decode any JSON; data that failed validation may also be malformed further on."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _foreign(error) from error


def _foreign(error: Exception) -> Invalid:
    return Invalid(f"not a valid mandor object: {error}")


def decode_as(data: bytes, wanted: type[T]) -> T:
    """Decode any model type from JSON; raises `Invalid`, which names the position of the error."""
    try:
        return msgspec.json.decode(data, type=wanted, dec_hook=_decode_hook)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(str(error)) from error


def decode_known(data: bytes, wanted: type[T]) -> T:
    """Decode data that another version may have written; unknown fields are dropped."""
    try:
        return decode_as(data, wanted)
    except Invalid as error:
        if not isinstance(error.__cause__, msgspec.ValidationError):
            raise
        known, unknown = split_unknown_fields(_any(data), wanted)
        if not unknown.parts:
            raise
        return decode_as(msgspec.json.encode(known), wanted)


def from_plain(plain: Any, wanted: type[T]) -> T:
    """Convert plain data to a model type; raises msgspec.ValidationError, whose text ends with the path."""
    return msgspec.convert(plain, wanted, dec_hook=_decode_hook)


def to_plain(value: Any) -> Any:
    """Convert a value to dicts, lists and scalars; fields with default values are omitted."""
    try:
        return msgspec.to_builtins(value, enc_hook=_encode_hook)
    except _Wide:
        return _wide_plain(value)


def _wide_plain(value: Any) -> Any:
    aside: list[UnknownFields] = []

    def hook(part: Any) -> Any:
        if isinstance(part, UnknownFields):
            aside.append(part)
            return len(aside) - 1
        return _encode_hook(part)

    plain = msgspec.to_builtins(value, enc_hook=hook)
    _put_all_back(plain, aside)
    return plain


def _put_all_back(plain: Any, aside: list[UnknownFields]) -> None:
    """Restore the unknown fields of every object within the data."""
    if isinstance(plain, dict):
        for part in plain.values():
            _put_all_back(part, aside)
        meta = plain.get("meta")
        if isinstance(meta, dict) and "kind" in plain and type(meta.get("unknown")) is int:
            restore_unknown_fields(plain, aside[meta.pop("unknown")])
    elif isinstance(plain, list | tuple):
        for part in plain:
            _put_all_back(part, aside)


def _shared(instance: Instance) -> Instance:
    """Intern the strings of an instance: thousands of instances repeat the same few workloads, releases and nodes."""
    spec, status = instance.spec, instance.status
    intern = sys.intern
    return Instance(
        meta=msgspec.structs.replace(instance.meta, namespace=intern(instance.meta.namespace)),
        spec=msgspec.structs.replace(
            spec,
            workload=intern(spec.workload),
            group=intern(spec.group),
            release=intern(spec.release),
            node=intern(spec.node),
            relaxed=tuple(map(intern, spec.relaxed)),
        ),
        status=msgspec.structs.replace(
            status, reason=intern(status.reason), message=intern(status.message), engine=intern(status.engine)
        ),
    )
