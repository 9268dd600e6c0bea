"""Objects to and from JSON and plain data; quantities are text outside and numbers inside."""

import sys
from typing import Any, TypeVar

import msgspec

from mandor.errors import Invalid
from mandor.lib.quantity import Cpu, Percent, Seconds, Size
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
from mandor.model.record import Audit, Cluster, Event, Hearing, Lease, Namespace, Session, Token
from mandor.model.reservation import Reservation
from mandor.model.secret import Secret
from mandor.model.spare import Spare
from mandor.model.usage import Tally
from mandor.model.vm_task import VmTask
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload

T = TypeVar("T")

KINDS: dict[str, type[Object]] = {
    cls.kind: cls
    for cls in (
        *(Node, NodePool, Workload, Release, Instance, Namespace, PriorityClass, Quota, LimitDefaults, Volume),
        *(Rebalance, Reservation, Secret, Webhook, EventBus, LogSink, VmTask, Inventory, Spare),
        *(KeptDecision, Event, Audit, Token, Session, Lease, Hearing, Tally, Cluster),
    )
}
"""Every kind of object there is."""

_QUANTITIES = (Cpu, Size, Seconds, Percent)
_APPLIED = Workload | NodePool | Namespace | PriorityClass | Quota | LimitDefaults | Volume | Rebalance | Reservation
_APPLIED |= Secret | Webhook | EventBus | LogSink
_RECORDS = KeptDecision | Event | Audit | Token | Session | Lease | Hearing | Tally | Cluster
_ANY = _APPLIED | Node | Release | Instance | VmTask | Inventory | Spare | _RECORDS


def _decode_hook(wanted: type, value: Any) -> Any:
    if issubclass(wanted, _QUANTITIES):
        if not isinstance(value, str | int | float):
            raise ValueError(f"expected an amount, got {type(value).__name__}")
        return wanted.parse(value)
    raise NotImplementedError(wanted)


def _encode_hook(value: Any) -> Any:
    if isinstance(value, _QUANTITIES):
        return str(value)
    raise NotImplementedError(type(value))


_decoder = msgspec.json.Decoder(_ANY, dec_hook=_decode_hook)
_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)
encode = _encoder.encode
"""Any model value as JSON bytes, defaults left out."""
encode_stable = msgspec.json.Encoder(enc_hook=_encode_hook, order="deterministic").encode
"""The same bytes for the same value, in whatever order its sets and mappings were made."""


def decode(data: bytes) -> Object:
    """A stored object from its JSON; repeated strings are shared."""
    try:
        found: Object = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Invalid(f"not an object mandor knows: {error}") from error
    return _shared(found) if type(found) is Instance else found


def decode_as(data: bytes, wanted: type[T]) -> T:
    """Any model type from JSON; `Invalid` names the place of the mistake."""
    try:
        return msgspec.json.decode(data, type=wanted, dec_hook=_decode_hook)
    except msgspec.DecodeError as error:
        raise Invalid(str(error)) from error


def from_plain(plain: Any, wanted: type[T]) -> T:
    """From dicts, lists and scalars; raises msgspec.ValidationError, whose text ends with the path."""
    return msgspec.convert(plain, wanted, dec_hook=_decode_hook)


def to_plain(value: Any) -> Any:
    """As dicts, lists and scalars, defaults left out."""
    return msgspec.to_builtins(value, enc_hook=_encode_hook)


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
