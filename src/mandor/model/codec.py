"""Objects to and from JSON and plain data; quantities are text outside and numbers inside.

Every struct of an object refuses fields that it does not know, so reading one costs nothing extra; only an object that
a newer version wrote is read a second time, with what is unknown set aside (`beyond`).
"""

import sys
from typing import Any, TypeVar

import msgspec

from mandor.errors import Invalid
from mandor.lib.quantity import Cpu, Percent, Seconds, Size
from mandor.model.audit import Audit
from mandor.model.authority import Authority
from mandor.model.beyond import Beyond, put_back, separate, widened
from mandor.model.decision import KeptDecision
from mandor.model.instance import Instance
from mandor.model.inventory import Inventory
from mandor.model.limit_defaults import LimitDefaults
from mandor.model.log_sink import LogSink
from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.model.pool import NodePool
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.rebalance import Rebalance
from mandor.model.receiver import EventBus, Webhook
from mandor.model.record import Cluster, Event, Hearing, Lease, Namespace, Server, Session, Token
from mandor.model.reservation import Reservation
from mandor.model.role import CustomRole, IdentityKey, Issuer, RoleBinding
from mandor.model.secret import Secret
from mandor.model.spare import Spare
from mandor.model.usage import Tally
from mandor.model.vm_request import VmRequest
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload

T = TypeVar("T")

KINDS: dict[str, type[Object]] = {
    cls.kind: cls
    for cls in (
        *(Node, NodePool, Workload, Release, Instance, Namespace, PriorityClass, Quota, LimitDefaults, Volume),
        *(Rebalance, Reservation, Secret, Webhook, EventBus, LogSink, VmRequest, Inventory, Spare),
        *(CustomRole, RoleBinding, Issuer, IdentityKey),
        *(KeptDecision, Event, Audit, Token, Session, Lease, Hearing, Tally, Cluster, Server, Authority),
    )
}
"""Every kind of object there is."""

_QUANTITIES = (Cpu, Size, Seconds, Percent)
_APPLIED = Workload | NodePool | Namespace | PriorityClass | Quota | LimitDefaults | Volume | Rebalance | Reservation
_APPLIED |= Secret | Webhook | EventBus | LogSink | CustomRole | RoleBinding | Issuer
_RECORDS = IdentityKey | KeptDecision | Event | Audit | Token | Session | Lease | Hearing | Tally | Cluster | Server
_RECORDS |= Authority
_ANY = _APPLIED | Node | Release | Instance | VmRequest | Inventory | Spare | _RECORDS


def _decode_hook(wanted: type, value: Any) -> Any:
    if issubclass(wanted, _QUANTITIES):
        if not isinstance(value, str | int | float):
            raise ValueError(f"expected an amount, got {type(value).__name__}")
        return wanted.parse(value)
    raise NotImplementedError(wanted)


class _Wide(Exception):
    """Something says more than this version knows."""


def _encode_hook(value: Any) -> Any:
    if isinstance(value, _QUANTITIES):
        return str(value)
    if isinstance(value, Beyond):
        raise _Wide
    raise NotImplementedError(type(value))


_decoder = msgspec.json.Decoder(_ANY, dec_hook=_decode_hook)
_encode = msgspec.json.Encoder(enc_hook=_encode_hook).encode
_encode_stable = msgspec.json.Encoder(enc_hook=_encode_hook, order="deterministic").encode


def encode(value: Any) -> bytes:
    """Any model value as JSON bytes, defaults left out."""
    try:
        return _encode(value)
    except _Wide:
        return msgspec.json.encode(to_plain(value))


def encode_stable(value: Any) -> bytes:
    """The same bytes for the same value, in whatever order its sets and mappings were made."""
    try:
        return _encode_stable(value)
    except _Wide:
        return msgspec.json.encode(to_plain(value), order="deterministic")


def decode(data: bytes) -> Object:
    """A stored object from its JSON; repeated strings are shared."""
    try:
        found: Object = _decoder.decode(data)
    except msgspec.ValidationError as error:
        found = _decode_wide(data, error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _foreign(error) from error
    return _shared(found) if type(found) is Instance else found


def _decode_wide(data: bytes, refused: msgspec.ValidationError) -> Object:
    """An object that a newer version wrote, with what it says beyond us."""
    plain = _any(data)
    kind = KINDS.get(str(plain.get("kind"))) if isinstance(plain, dict) else None
    if kind is None:
        raise _foreign(refused) from refused
    known, beyond = separate(plain, kind)
    try:
        found: Object = from_plain(known, kind)
    except msgspec.ValidationError as error:
        schema = known["meta"].get("schema") if isinstance(known.get("meta"), dict) else None
        if isinstance(schema, int) and schema > kind.schema:
            raise Invalid(
                f"it has the schema {schema}, of which this version of mandor reads up to {kind.schema}: {error}",
                hint="upgrade mandor",
            ) from error
        raise _foreign(error) from error
    return found.changed(meta=widened(found.meta, beyond))


def _any(data: bytes) -> Any:
    """What was refused for what it says may also be no JSON, further on."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _foreign(error) from error


def _foreign(error: Exception) -> Invalid:
    return Invalid(f"not an object mandor knows: {error}")


def decode_as(data: bytes, wanted: type[T]) -> T:
    """Any model type from JSON; `Invalid` names the place of the mistake."""
    try:
        return msgspec.json.decode(data, type=wanted, dec_hook=_decode_hook)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(str(error)) from error


def decode_known(data: bytes, wanted: type[T]) -> T:
    """The same of what another version may have said: what is not known here is left out."""
    try:
        return decode_as(data, wanted)
    except Invalid as error:
        if not isinstance(error.__cause__, msgspec.ValidationError):
            raise
        known, beyond = separate(_any(data), wanted)
        if not beyond.parts:
            raise
        return decode_as(msgspec.json.encode(known), wanted)


def from_plain(plain: Any, wanted: type[T]) -> T:
    """From dicts, lists and scalars; raises msgspec.ValidationError, whose text ends with the path."""
    return msgspec.convert(plain, wanted, dec_hook=_decode_hook)


def to_plain(value: Any) -> Any:
    """As dicts, lists and scalars, defaults left out."""
    try:
        return msgspec.to_builtins(value, enc_hook=_encode_hook)
    except _Wide:
        return _wide_plain(value)


def _wide_plain(value: Any) -> Any:
    aside: list[Beyond] = []

    def hook(part: Any) -> Any:
        if isinstance(part, Beyond):
            aside.append(part)
            return len(aside) - 1
        return _encode_hook(part)

    plain = msgspec.to_builtins(value, enc_hook=hook)
    _put_all_back(plain, aside)
    return plain


def _put_all_back(plain: Any, aside: list[Beyond]) -> None:
    """In every object there, wherever it stands in the data."""
    if isinstance(plain, dict):
        for part in plain.values():
            _put_all_back(part, aside)
        meta = plain.get("meta")
        if isinstance(meta, dict) and "kind" in plain and type(meta.get("beyond")) is int:
            put_back(plain, aside[meta.pop("beyond")])
    elif isinstance(plain, list | tuple):
        for part in plain:
            _put_all_back(part, aside)


def _shared(instance: Instance) -> Instance:
    """Thousands of instances name the same few workloads, releases and nodes: keep each string once."""
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
